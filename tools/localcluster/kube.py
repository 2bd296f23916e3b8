"""kubectl, with the administrator's kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.paths import ClusterPaths


@dataclass(frozen=True)
class Kubectl:
    paths: ClusterPaths

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        failure = f"kubectl {' '.join(arguments)} failed"
        kubectl = (f"{self.paths.bin}/kubectl", f"--kubeconfig={self.paths.kubeconfig}")
        return run(*kubectl, *arguments, failure=failure, stdin=stdin, timeout=timeout)

    def succeeds(self, *arguments: str, timeout: float = 10) -> bool:
        try:
            self.run(*arguments, timeout=timeout)
        except ClusterError:
            return False
        return True

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

    def delete(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Waits until they are gone; those that are not there are none to delete."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=json.dumps(items), timeout=150)


def running_kubectl(paths: ClusterPaths) -> Kubectl:
    """That of a cluster that answers; ClusterError where none does."""
    kubectl = Kubectl(paths)
    if not paths.kubeconfig.exists() or not kubectl.is_ready():
        raise ClusterError("the cluster is not running", "Start it: python -m localcluster up")
    return kubectl
