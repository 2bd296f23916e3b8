"""kubectl, with the administrator's kubeconfig."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.errors import ClusterError
from localcluster.paths import ClusterPaths


@dataclass(frozen=True)
class Kubectl:
    paths: ClusterPaths

    def _call(self, arguments: tuple[str, ...], stdin: str | None, timeout: float) -> subprocess.CompletedProcess[str]:
        command = [f"{self.paths.bin}/kubectl", f"--kubeconfig={self.paths.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        try:
            done = self._call(arguments, stdin, timeout)
        except subprocess.TimeoutExpired as late:
            raise ClusterError(f"kubectl {' '.join(arguments)} gave no answer in {timeout:.0f} s") from late
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def succeeds(self, *arguments: str, timeout: float = 10) -> bool:
        try:
            return self._call(arguments, None, timeout).returncode == 0
        except (subprocess.TimeoutExpired, FileNotFoundError):
            return False

    def apply(self, objects: Iterable[Mapping[str, Any]], *options: str) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run(
            "apply", "--server-side", "--force-conflicts", "--field-manager=localcluster", *options, "-f", "-",
            stdin=json.dumps(items), timeout=600,
        )  # fmt: skip

    def is_ready(self) -> bool:
        return self.succeeds("get", "--raw=/readyz", "--request-timeout=5s")

    def patch_node_status(self, node: str, operations: list[dict[str, Any]]) -> None:
        self.run("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(operations))

    def get(self, *arguments: str) -> Any:
        return json.loads(self.run("get", *arguments, "-o", "json"))
