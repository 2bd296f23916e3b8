"""What other operators took, for the page and the picture: the one place for figures that no kept run says."""

from __future__ import annotations

from dataclasses import dataclass

CONTROL_PLANE_SECONDS = 137
"""CPU that the control plane of their machine took for 1,000 services: how fast it is beside that of the kept runs."""
NOTE = (
    "The other operators were measured with their defaults, each alone, on a faster machine of the same size (2 cores):"
    f" its control plane took {CONTROL_PLANE_SECONDS} CPU seconds for 1,000 services"
)


@dataclass(frozen=True)
class Peer:
    """One measurement of another operator of served models."""

    name: str
    services: int
    children_seconds: float
    ready_seconds: float
    cpu_seconds: float
    mib: float
    writes_per_service: float
    idle_writes: int
    """In a steady minute, leases apart."""
    edit_ms: float
    """Median from an edit to its child."""
    note: str = ""


_LEASE = ", and 60 writes of its lease"
PEERS = (
    Peer("vLLM production-stack", 100, 7.2, 10.7, 0.8, 61, 3, 1200, 2121),
    Peer("vLLM production-stack", 1000, 104, 168, 7.7, 92, 3, 1200, 30935),
    Peer("LLMKube", 100, 8.2, 9.9, 2.2, 73, 7.4, 8872, 1301),
    Peer("LLMKube", 1000, 101, 125, 54.2, 164, 7.6, 7122, 5364),
    Peer("Hearth", 100, 20.1, 20.2, 3.0, 58, 16, 0, 16),
    Peer("Hearth", 1000, 247, 247, 25.4, 104, 16, 0, 25),
    Peer("KubeAI", 100, 301, 305, 1.9, 85, 7.4, 6, 34, _LEASE),
    Peer("KubeAI", 1000, 3030, 3047, 26.6, 151, 7.4, 6, 27, _LEASE),
)

KUBERAY = {100: 83.0, 1000: 258.0, 5000: 1213.0, 10000: 1515.0}
"""Seconds until so many RayClusters are ready, their creation apart."""
KUBERAY_SOURCE = (
    "[KubeRay's published runs](https://github.com/ray-project/kuberay/tree/master/benchmark/perf-tests)"
    " (`*-raycluster/results/junit.xml`, the step that waits for RayClusters, their creation apart) are of a cluster of"
    " machines whose pods really run"
)


def sizes() -> list[int]:
    """Numbers of services that all of them were measured with."""
    return sorted({peer.services for peer in PEERS})


def of(services: int) -> list[Peer]:
    return [peer for peer in PEERS if peer.services == services]
