"""Where everything of one clone's cluster lies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Unix socket addresses hold 107 bytes, so sockets go under /run and not below a clone that may lie deep.
RUNTIME_ROOT = Path("/run/llmservice-localcluster")
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class ClusterPaths:
    """The files of the cluster that belongs to the clone at `root`."""

    root: Path

    @classmethod
    def of_this_clone(cls) -> ClusterPaths:
        return cls(REPOSITORY)

    @property
    def is_deleted(self) -> bool:
        """Whether the clone itself is gone; a running cluster keeps writing below it, so the folder may be there."""
        return not (self.root / "localcluster").is_dir()

    @property
    def state(self) -> Path:
        return self.root / ".cluster"

    @property
    def runtime(self) -> Path:
        """Sockets and what must not outlive a reboot; one folder for each clone."""
        return RUNTIME_ROOT / hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    @property
    def bin(self) -> Path:
        """Links to every program, for PATH: kubectl, helm, ctr, runc, buildkitd, buildctl, containerd, kube-*, ..."""
        return self.state / "bin"

    @property
    def cni_bin(self) -> Path:
        return self.state / "cni" / "bin"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "admin.kubeconfig"

    def kubeconfig_of(self, component: str) -> Path:
        return self.pki / f"{component}.kubeconfig"

    @property
    def containerd_namespace(self) -> str:
        """The namespace in which the kubelet looks for images."""
        return "k8s.io"

    @property
    def buildkit(self) -> Path:
        """buildkitd's --root."""
        return self.state / "buildkit"

    @property
    def buildkit_socket(self) -> Path:
        return self.runtime / "buildkitd.sock"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def config(self) -> Path:
        """Generated configuration files of the components."""
        return self.state / "config"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"

    @property
    def processes(self) -> Path:
        """One record for each process that `up` started."""
        return self.state / "processes"

    @property
    def audit_log(self) -> Path:
        return self.state / "audit.log"

    @property
    def models(self) -> Path:
        """Model folders that hostPath volumes of the tests show to pods."""
        return self.state / "models"


def cache_root(environment: Mapping[str, str], home: Path) -> Path:
    """The user's cache folder for downloads and binaries, shared by all clones."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else home / ".cache") / "llmservice-operator"
