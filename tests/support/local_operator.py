"""A process of the operator on this machine, with the rights of the installed one, which rests meanwhile.

It is started again when it ends, with the folder that the kubelet would keep for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.scale.process import kubeconfig
from tests.support.cluster import Cluster
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, scale_operator
from tests.support.patience import PATIENCE
from tests.support.ports import free_port

PAUSE = 1.0
"""Seconds before the next start; the kubelet's back-off is longer."""


class LocalOperator:
    """One after the other, until it is stopped."""

    def __init__(self, folder: Path, module: str, config: Path, settings: Path, environment: Mapping[str, str]) -> None:
        self.log = folder / "operator.log"
        self.starts = 0
        self.settings = settings
        self.metrics_port = free_port()
        ports = (f"--health-port={free_port()}", f"--metrics-port={self.metrics_port}")
        state = folder / "state"
        given = (f"--settings={settings}", f"--kubeconfig={config}", *ports, f"--state-dir={state}")
        self._command = (sys.executable, "-m", module, *given)
        self._environment = {**os.environ, **environment}
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def metrics(self) -> str:
        """What it counts."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        return httpx.get(url, trust_env=False).raise_for_status().text

    def reload(self, cluster: Cluster) -> None:
        """The release's settings of now, as the chart restarts the operator for them."""
        self.settings.write_text(settings_of(cluster))
        self.restart()

    def restart(self) -> None:
        """As the kubelet does after a container has ended; without waiting for the next one to be ready."""
        assert self._process is not None
        self._process.terminate()

    def stop(self) -> None:
        """As the kubelet does, and for good."""
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        with self.log.open("ab") as log:
            while not self._stop.is_set():
                self.starts += 1
                self._process = subprocess.Popen(
                    self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
                )
                self._process.wait()
                self._stop.wait(PAUSE)


def settings_of(cluster: Cluster) -> str:
    """Of the release that is installed."""
    text: str = cluster.must_get("configmaps", OPERATOR_NAMESPACE, OPERATOR)["data"]["settings.yaml"]
    return text


@contextmanager
def local_operator(
    cluster: Cluster, folder: Path, module: str = "llmservice_operator", **environment: str
) -> Iterator[LocalOperator]:
    """In the place of the installed one, and with its settings."""
    settings = folder / "settings.yaml"
    settings.write_text(settings_of(cluster))
    with scale_operator(cluster, 0):
        operator = LocalOperator(folder, module, kubeconfig(cluster, folder), settings, environment)
        try:
            yield operator
        finally:
            operator.stop()
