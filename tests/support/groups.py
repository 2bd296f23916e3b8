"""LeaderWorkerSet, the operator installed with groups for as long as tests need them, and a service of one group."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import httpx
from llmservice_api.constants import RANK_LABEL
from llmservice_runtime.contract import HTTP_PORT

from localcluster import install, lws, upstream
from localcluster.progress import Progress
from tests.support.cluster import JSON, Cluster, condition, eventually, is_ready
from tests.support.host import engine_of, losing_packets, processes_of
from tests.support.patience import PATIENCE, at_latest

TWO_NODES: JSON = {"tensorParallelSize": 2, "nodes": 2}
ENGINES: JSON = {"nodes": 2, "tensorParallelSize": 1, "dataParallelSize": 2, "expertParallel": True}
HYBRID_ENGINES: JSON = {**ENGINES, "dataParallelMode": "hybrid"}
"""Values of spec.parallelism."""


def install_lws(cluster: Cluster) -> None:
    """In the local cluster, where it stays; one that is there already is left alone."""
    upstream.install(lws.LWS, cluster.paths, os.environ, Progress())


@contextmanager
def groups_installed(cluster: Cluster) -> Iterator[None]:
    """The operator afterwards as it was."""
    target = install.local_target(cluster.paths, os.environ)
    install_lws(cluster)
    install.install(target, Progress(), groups=True)
    try:
        yield
    finally:
        install.install(target, Progress())


FIRST_BACK_OFF = 10.0
"""Seconds before a group's first restart."""


@dataclass(frozen=True)
class WideService:
    """A service with one replica, over several nodes."""

    cluster: Cluster
    namespace: str
    name: str
    began: float = field(default_factory=time.monotonic)
    """When it was applied."""

    def members(self) -> dict[int, JSON]:
        """The pods of the group, by rank."""
        return by_rank(self.cluster.pods(self.namespace, self.name))

    def group(self) -> JSON:
        """Of status.groups."""
        group: JSON
        (group,) = self.cluster.status(self.namespace, self.name)["groups"]
        return group

    def steps(self) -> list[str]:
        """What each member does, by rank; empty before the status says so."""
        groups = self.cluster.status(self.namespace, self.name).get("groups", [])
        return [member["step"] for group in groups for member in group["members"]]

    def is_ready(self) -> bool:
        """What the operator says."""
        return is_ready(self.cluster.must_get("llmservices", self.namespace, self.name))

    def has_endpoint(self) -> bool:
        """Whether the Service has an address for requests."""
        return bool(self.endpoints())

    def endpoints(self) -> set[str]:
        """Names of the pods to which the Service sends requests."""
        slices = self.cluster.list("endpointslices", self.namespace, f"kubernetes.io/service-name={self.name}")
        found = (each for one in slices for each in one["endpoints"] or ())
        return {each["targetRef"]["name"] for each in found if each["conditions"].get("ready")}

    def answers(self) -> bool:
        """Whether a request to the Service is answered. From this machine, since a pod may be what has failed."""
        service = self.cluster.must_get("services", self.namespace, self.name)["spec"]
        return self.answers_at(service["clusterIP"], service["ports"][0]["port"])

    def answers_at(self, address: str, port: int = HTTP_PORT) -> bool:
        """Whether a request to this address, by default a pod's, is answered."""
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}/v1/chat/completions"
        body = {"model": self.name, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        with httpx.Client(trust_env=False, timeout=10) as client:
            try:
                return client.post(url, json=body).status_code == 200
            except httpx.TransportError:
                return False

    def await_served(self, began: float | None = None) -> float:
        """Until it says that it serves, and does; the seconds since a moment, by default since it was applied."""

        def is_served() -> bool:
            return self.is_ready() and self.answers()

        return seconds_until(f"{self.name} is served", is_served, self.began if began is None else began)

    def runs(self) -> set[tuple[str, int]]:
        """Each pod, and how often its containers started again."""
        return {
            (pod["metadata"]["uid"], each["restartCount"])
            for pod in self.members().values()
            for each in pod["status"]["containerStatuses"]
        }

    def ready_since(self) -> JSON:
        """Of the service and of each pod: whether it is ready, and since when."""
        found = {str(rank): condition(pod, "Ready") or {} for rank, pod in self.members().items()}
        found["service"] = self.cluster.condition(self.namespace, self.name, "Ready") or {}
        return {name: (each.get("status"), each.get("lastTransitionTime")) for name, each in found.items()}


def by_rank(pods: Iterable[JSON]) -> dict[int, JSON]:
    """The pods of one group."""
    return {int(pod["metadata"]["labels"][RANK_LABEL]): pod for pod in pods}


def kill_vllm(pod: JSON) -> float:
    """Its first process, as the kernel would; when."""
    engine = engine_of(pod)
    assert engine is not None, processes_of(pod)
    os.kill(engine, signal.SIGKILL)
    return time.monotonic()


def cut(one: JSON, other: JSON) -> AbstractContextManager[None]:
    """Nothing passes between these pods."""
    here, there = one["status"]["podIP"], other["status"]["podIP"]
    return losing_packets(("FORWARD", "-s", here, "-d", there), ("FORWARD", "-s", there, "-d", here))


def is_back_within(start: float) -> float:
    """The bar for a group that serves again after its first restart, by how long its start took in the same run."""
    return at_latest(start * 1.2 + 10) + FIRST_BACK_OFF


def seconds_until(what: str, look: Callable[[], bool], began: float) -> float:
    """From a moment (monotonic) until it is so."""
    eventually(what, look, PATIENCE)
    return time.monotonic() - began
