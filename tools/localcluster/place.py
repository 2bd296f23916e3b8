"""A node's place: its name, its part of the pod network, and where its kubelet and containerd keep their things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.network import GATEWAY, NODE, PODS
from localcluster.paths import ClusterPaths

# No share of a disk is so small that the tests' own machines would fall below it by accident.
EVICTION: Mapping[str, str] = {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"}
SECOND, THIRD = "node-b", "node-c"
ADDED = (SECOND, THIRD)
"""The nodes that may be added to the first."""


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
    def interface(self) -> str:
        """The host's end of the link."""
        return f"llm-{self.name}"

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
        return f"{self.address}:10256"

    @property
    def address(self) -> str:
        """Where the host reaches its components."""
        return "127.0.0.1" if self.link is None else self.gateway

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


def added(paths: ClusterPaths, name: str = SECOND, eviction: Mapping[str, str] = EVICTION) -> Place:
    """A node in a network of its own. What it has under /run is in its own mount namespace, and ends with it."""
    state, number = paths.state / name, ADDED.index(name) + 1
    return Place(
        name=name,
        gateway=f"10.244.{number}.1",
        pods=f"10.244.{number}.0/24",
        containerd=state / "containerd",
        containerd_state=paths.runtime / name / "containerd",
        containerd_socket=paths.runtime / name / "containerd.sock",
        cni_config=state / "cni",
        addresses=paths.runtime / name / "addresses",
        kubelet=state / "kubelet",
        pod_logs=state / "pods",
        config=state / "config",
        kubelet_identity=f"{name}-kubelet",
        proxy_identity=f"{name}-proxy",
        link=(f"10.245.{number}.1", f"10.245.{number}.2"),
        eviction=eviction,
    )
