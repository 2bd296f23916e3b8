"""A node's place: its name, its part of the pod network, and where its kubelet and containerd keep their things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.network import GATEWAY, NODE, PODS
from localcluster.paths import ClusterPaths

# No share of a disk is so small that the tests' own machines would fall below it by accident.
EVICTION: Mapping[str, str] = {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"}
SECOND = "node-b"


@dataclass(frozen=True)
class Place:
    """`link` holds the two addresses between the host and a node with a network of its own: the host's, the node's."""

    name: str
    gateway: str
    pods: str
    containerd: Path
    containerd_state: Path
    containerd_socket: Path
    cni_config: Path
    addresses: Path
    kubelet: Path
    pod_logs: Path
    config: Path
    kubelet_identity: str = "kubelet"
    proxy_identity: str = "proxy"
    link: tuple[str, str] | None = None
    eviction: Mapping[str, str] = field(default_factory=lambda: EVICTION)

    @property
    def containerd_root(self) -> Path:
        """The image store: it survives `down`, so that images need not be built again."""
        return self.containerd / "root"

    @property
    def containerd_config(self) -> Path:
        return self.containerd / "config.toml"

    @property
    def kubelet_config(self) -> Path:
        return self.config / "kubelet.json"

    @property
    def proxy_config(self) -> Path:
        return self.config / "kube-proxy.json"

    @property
    def proxy_health(self) -> str:
        """Where kube-proxy answers the host's question whether it is healthy."""
        return f"{'127.0.0.1' if self.link is None else self.gateway}:10256"

    @property
    def cgroup_root(self) -> str:
        """Two kubelets below one group would each remove the other's pods, which they do not know."""
        return "/" if self.link is None else f"/llmservice-{self.name}"

    def component(self, program: str) -> str:
        """The name of one of its components in the records of what runs."""
        return program if self.link is None else f"{self.name}-{program}"


def ctr_command(paths: ClusterPaths, place: Place) -> tuple[str, ...]:
    """How to call ctr for a node's containerd."""
    where = ("--address", str(place.containerd_socket), "--namespace", paths.containerd_namespace)
    return (f"{paths.bin}/ctr", *where)


def first(paths: ClusterPaths) -> Place:
    """The node that shares the host's network."""
    return Place(
        name=NODE,
        gateway=GATEWAY,
        pods=PODS,
        containerd=paths.state / "containerd",
        containerd_state=paths.runtime / "containerd",
        containerd_socket=paths.runtime / "containerd.sock",
        cni_config=paths.state / "cni" / "net.d",
        # With the sandboxes that hold the addresses: both are gone after a reboot.
        addresses=paths.runtime / "addresses",
        kubelet=paths.state / "kubelet",
        pod_logs=paths.state / "pods",
        config=paths.config,
    )


def second(paths: ClusterPaths, eviction: Mapping[str, str] = EVICTION) -> Place:
    """A node in a network of its own. What it has under /run is in its own mount namespace, and ends with it."""
    state = paths.state / SECOND
    return Place(
        name=SECOND,
        gateway="10.244.1.1",
        pods="10.244.1.0/24",
        containerd=state / "containerd",
        containerd_state=paths.runtime / SECOND / "containerd",
        containerd_socket=paths.runtime / SECOND / "containerd.sock",
        cni_config=state / "cni",
        addresses=paths.runtime / SECOND / "addresses",
        kubelet=state / "kubelet",
        pod_logs=state / "pods",
        config=state / "config",
        kubelet_identity=f"{SECOND}-kubelet",
        proxy_identity=f"{SECOND}-proxy",
        link=("10.245.1.1", "10.245.1.2"),
        eviction=eviction,
    )
