"""Where everything of one clone's cluster lies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Unix socket addresses hold 107 bytes, so sockets go under /run and not below a clone that may lie deep.
RUNTIME_ROOT = Path("/run/llmservice-localcluster")
REPOSITORY = Path(__file__).resolve().parents[2]


class _InState:
    """A path below the cluster's state."""

    def __init__(self, *parts: str) -> None:
        self._parts = (".cluster", *parts)

    def __get__(self, paths: ClusterPaths, _: type[ClusterPaths]) -> Path:
        return paths.root.joinpath(*self._parts)


@dataclass(frozen=True)
class ClusterPaths:
    """The files of the cluster that belongs to the clone at `root`."""

    root: Path

    state = _InState()
    bin = _InState("bin")
    """Links to every program, for PATH: kubectl, helm, ctr, runc, buildkitd, buildctl, containerd, kube-*, ..."""
    cni_bin = _InState("cni", "bin")
    pki = _InState("pki")
    kubeconfig = _InState("admin.kubeconfig")
    buildkit = _InState("buildkit")
    """buildkitd's --root."""
    etcd = _InState("etcd")
    config = _InState("config")
    """Generated configuration files of the components."""
    logs = _InState("logs")
    processes = _InState("processes")
    """One record for each process that `up` started."""
    audit_log = _InState("audit.log")
    models = _InState("models")
    """Model folders that hostPath volumes of the tests show to pods."""
    containerd_namespace = "k8s.io"
    """Where the kubelet looks for images."""

    @classmethod
    def of_this_clone(cls) -> ClusterPaths:
        return cls(REPOSITORY)

    @property
    def is_deleted(self) -> bool:
        """Whether the clone itself is gone; a running cluster keeps writing below it, so the folder may exist."""
        return not (self.root / "tools" / "localcluster").is_dir()

    @property
    def runtime(self) -> Path:
        """Sockets and what must not outlive a reboot; one folder for each clone."""
        return RUNTIME_ROOT / hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    @property
    def buildkit_socket(self) -> Path:
        return self.runtime / "buildkitd.sock"

    def kubeconfig_of(self, component: str) -> Path:
        return self.pki / f"{component}.kubeconfig"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"


def cache_root(environment: Mapping[str, str], home: Path) -> Path:
    """The user's cache folder for downloads and binaries, shared by all clones."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else home / ".cache") / "llmservice-operator"
