"""The operator and the activator as processes of this machine, with the rights of the chart; what processes use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from llmservice_vllm.metrics import totals

from localcluster import processes
from localcluster.paths import ClusterPaths
from tests.support.cluster import Cluster
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE
from tests.support.ports import free_port

TICKS = os.sysconf("SC_CLK_TCK")
LOOKS = "llmservice_reconcile_duration_seconds_count"
STARTS_WITHIN, ENDS_WITHIN = 120.0, 30.0
TOKEN_LIVES = "6h"
PROFILE_TITLE = "llmservice-operator, until all services are Ready"


@dataclass(frozen=True)
class Use:
    """What a process has used of the machine so far."""

    cpu_seconds: float
    peak_mib: float


def use_of(pid: int) -> Use:
    """From the kernel: all threads; the peak is of resident memory."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return Use((int(fields[11]) + int(fields[12])) / TICKS, peak / 1024)


@dataclass(frozen=True)
class Machine:
    """What all processes together used of it so far, in seconds of CPU, and what its own host gave to others."""

    used: float
    stolen: float
    passed: float

    @classmethod
    def now(cls) -> Machine:
        """proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal."""
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        used = sum(ticks[:3]) + sum(ticks[5:7])
        return cls(used / TICKS, ticks[7] / TICKS, sum(ticks) / TICKS)

    def since(self, before: Machine) -> Machine:
        return Machine(self.used - before.used, self.stolen - before.stolen, self.passed - before.passed)

    @property
    def floor_seconds(self) -> float:
        """On all cores at once, with nothing stolen."""
        return self.used / cores()

    @property
    def stolen_percent(self) -> float:
        """Of all that there was."""
        return 100 * self.stolen / max(self.passed, 1 / TICKS)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> str:
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{cores()} cores, {gib:.0f} GiB"


def control_plane(paths: ClusterPaths) -> dict[str, float]:
    """CPU seconds of the processes that every operator shares."""
    names = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok")
    running = {name: processes.running(paths, name) for name in names}
    return {name: use_of(record.identity.pid).cpu_seconds for name, record in running.items() if record is not None}


def kubeconfig(cluster: Cluster, folder: Path, server: str | None = None, account: str = OPERATOR) -> Path:
    """The administrator's, with the token of a ServiceAccount; another server where something lies between."""
    config = yaml.safe_load(cluster.paths.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", account, "-n", OPERATOR_NAMESPACE, f"--duration={TOKEN_LIVES}").strip()
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = OPERATOR_NAMESPACE
    if server is not None:
        config["clusters"][0]["cluster"]["server"] = server
    path = folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def retitle(profile: Path, command: str) -> None:
    """A flame graph is called after the command that made it, which names places of this machine."""
    profile.write_text(profile.read_text().replace(command, PROFILE_TITLE))


class Operator:
    """One process of it at a time."""

    module = "llmservice_operator"

    def __init__(self, config: Path, *, args: Sequence[str] = ()) -> None:
        self._config, self._args = config, tuple(args)
        self._port, self._metrics_port = free_port(), free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the operator
        self.started_at = 0.0

    @property
    def pid(self) -> int:
        """Of the one that runs."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    async def start(self) -> None:
        """Begin; it is not ready yet."""
        ports = (f"--health-port={self._port}", f"--metrics-port={self._metrics_port}")
        own = (sys.executable, "-m", self.module, f"--kubeconfig={self._config}", *ports, *self._args)
        self.started_at = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(*own, stdout=self._log, stderr=asyncio.subprocess.STDOUT)

    async def ready(self) -> None:
        """Until it watches. RuntimeError with its last words where it ends instead."""
        assert self._process is not None
        async with asyncio.timeout(STARTS_WITHIN), httpx.AsyncClient(trust_env=False) as client:
            while True:
                if self._process.returncode is not None:
                    raise RuntimeError(f"{self.module} ended with {self._process.returncode}: {self.last_words()}")
                try:
                    if (await client.get(f"http://127.0.0.1:{self._port}/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # it does not listen yet
                await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def profiled(self, path: Path | None) -> AsyncIterator[None]:
        """Where its time goes meanwhile, as a flame graph; None: no profile, which costs some CPU."""
        if path is None:
            yield
            return
        form = "flamegraph" if path.suffix == ".svg" else "raw"
        words = ("record", "--pid", str(self.pid), "--rate", "200", "--format", form, "--output", str(path))
        command = str(Path(sys.executable).parent / "py-spy"), *words
        profiler = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            yield
        finally:
            profiler.send_signal(signal.SIGINT)
            _, errors = await profiler.communicate()
            if profiler.returncode:
                raise RuntimeError(f"py-spy ended with {profiler.returncode}: {errors.decode()[-500:]}")
            retitle(path, " ".join(command))

    async def looks(self) -> float:
        """How often it looked at a service so far."""
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{self._metrics_port}/metrics")
        return totals(answer.raise_for_status().text, (LOOKS,)).get(LOOKS, 0.0)

    def use(self) -> Use:
        return use_of(self.pid)

    async def stop(self) -> Use:
        """As the kubelet does; what it used until then."""
        if self._process is None or self._process.returncode is not None:
            return Use(0.0, 0.0)
        used = self.use()
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), ENDS_WITHIN)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise
        return used

    def close(self) -> None:
        """Its log: nobody asks for its last words any more."""
        self._log.close()

    def last_words(self, size: int = 4000) -> str:
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - size))
        return self._log.read().decode(errors="replace")
