"""Services that have no replica while no requests come, and clients of them that never retry."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from llmservice_cli.probe import Mode
from llmservice_cli.probe.report import ProbedRequest
from llmservice_cli.probe.sender import CONNECT_SECONDS, NONE_KEPT, POOL, Sender, in_turn, steady_clock
from llmservice_runtime.contract import ACTIVATOR_PATH

from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.host import processes_of
from tests.support.keda import ACTIVATOR
from tests.support.operator import OPERATOR_NAMESPACE
from tests.support.patience import PATIENCE
from tests.support.services import merge, stand_in
from tests.support.serving import Metrics
from tests.support.traffic import in_words

IDLE_SECONDS = 5
"""The shortest that the API takes."""
ZERO_WITHIN = 180.0
"""idleSeconds, KEDA's cooldown of 15 s at its next look (each 15 s), the proof, and a drain; several at a time."""
ANSWERED_WITHIN = 120.0
"""A start of the stand-in, on a machine where other pods start."""
TOKENS = (8, 16)
CONNECTIONS = 8
"""Of which each would come to one of three endpoints: all but one in 6,561 times one comes to an activator."""
MANAGER = "endpointslice.kubernetes.io/managed-by=llmservice.dev"
METRICS_PORT = 9090


ON_DEMAND: Mapping[str, Any] = {
    "scaling": {
        "autoscaling": {
            "minReplicas": 0,
            "maxReplicas": 1,
            "target": {"concurrencyPerReplica": 64},
            "scaleDown": {"stabilizationSeconds": 0, "idleSeconds": IDLE_SECONDS},
        },
    },
    "drain": {"timeoutSeconds": 10},
}
"""The spec of a service that is at zero soon after its last request."""


def on_demand(name: str, behaviour: JSON | None = None, holding: JSON | None = None, **spec: Any) -> JSON:
    """One that starts in a second."""
    return stand_in(name, behaviour, **merge(ON_DEMAND, merge({"scaling": {"holding": holding or {}}}, spec)))


@dataclass(frozen=True)
class OnDemand:
    """One of them in the cluster."""

    cluster: Cluster
    namespace: str
    name: str

    @property
    def url(self) -> str:
        """Of its Service, which is the same with replicas and without."""
        return f"http://{self.cluster.must_get('services', self.namespace, self.name)['spec']['clusterIP']}"

    @property
    def replicas(self) -> int:
        """What is asked for."""
        stated: int = self.cluster.must_get("llmservices", self.namespace, self.name)["spec"]["scaling"]["replicas"]
        return stated

    def pods(self) -> Sequence[JSON]:
        """All of them, those that are ending too."""
        return self.cluster.list("pods", self.namespace, f"llmservice.dev/service={self.name}")

    def slices(self) -> Sequence[JSON]:
        """Those that lead to the activators."""
        return self.cluster.list("endpointslices", self.namespace, f"kubernetes.io/service-name={self.name},{MANAGER}")

    def has_reason(self, kind: str, status: str, reason: str) -> bool:
        found = self.cluster.condition(self.namespace, self.name, kind) or {}
        return (found.get("status"), found.get("reason")) == (status, reason)

    def is_at_zero(self) -> bool:
        """No pod is left, and the status and the slices say so."""
        says = self.has_reason("Ready", "True", "Idle") and self.has_reason("Available", "False", "Idle")
        return says and not self.pods() and bool(self.slices())

    def at_zero(self, timeout: float = ZERO_WITHIN) -> float:
        """Wait for it, by KEDA alone; seconds."""
        began = time.monotonic()
        eventually(f"{self.name} at zero", self.is_at_zero, timeout)
        return round(time.monotonic() - began, 1)

    def serves(self, timeout: float = ANSWERED_WITHIN) -> JSON:
        """Wait until one pod is ready and requests go to it alone, on this node too; the pod."""

        def look() -> JSON | None:
            pods = self.pods()
            is_up = len(pods) == 1 and is_ready(pods[0]) and not self.slices()
            return pods[0] if is_up and not any(self.comes_to_an_activator() for _ in range(CONNECTIONS)) else None

        return eventually(f"{self.name} serves", look, timeout)

    def comes_to_an_activator(self) -> bool:
        """Whether a new connection to the Service does, or to the address of one that is gone."""
        try:
            return httpx.get(self.url + ACTIVATOR_PATH, timeout=PATIENCE, trust_env=False).status_code == 200
        except httpx.TransportError:
            return True

    def scale(self, replicas: int) -> None:
        self.cluster.kubectl("scale", f"llms/{self.name}", f"--replicas={replicas}", "-n", self.namespace)

    def down(self, timeout: float = ZERO_WITHIN) -> None:
        """To zero by hand, which is sooner than KEDA: again where KEDA, for a request of a moment ago, undid it."""

        def look() -> bool:
            if self.replicas:
                self.scale(0)
            return self.is_at_zero()

        eventually(f"{self.name} at zero", look, timeout)

    def post(
        self, body: object, path: str = "/v1/completions", timeout: float = ANSWERED_WITHIN, **more: Any
    ) -> httpx.Response:
        """One request of its own connection, whatever becomes of it."""
        return httpx.post(self.url + path, json=body, timeout=timeout, trust_env=False, **more)

    def ask(self, **fields: Any) -> httpx.Response:
        """One completion."""
        return self.post({"model": self.name, "prompt": "Hello", "max_tokens": 3, **fields})


@dataclass
class Clients:
    """Requests that were sent, and what became of them. Nothing is retried."""

    sender: Sender
    loop: asyncio.AbstractEventLoop
    sent: list[Future[ProbedRequest]] = field(default_factory=list)

    def send(
        self, count: int, modes: Sequence[Mode] = tuple(Mode), tokens: Sequence[int] = TOKENS
    ) -> Sequence[Future[ProbedRequest]]:
        """At once, in every mode in turn."""
        started = []
        for index in range(len(self.sent), len(self.sent) + count):
            mode, length = in_turn(modes, tokens, index)
            started.append(asyncio.run_coroutine_threadsafe(self.sender.send(index, mode, length), self.loop))
        self.sent += started
        return started

    def rows(self) -> list[ProbedRequest]:
        """Of all requests, once each has ended."""
        return [each.result(ANSWERED_WITHIN) for each in self.sent]

    def waiting(self) -> int:
        return sum(not each.done() for each in self.sent)

    def lost(self) -> list[str]:
        """Requests without a whole answer, in words, once all have ended."""
        return [in_words(row) for row in self.rows() if not row.is_complete]


@contextmanager
def clients(service: OnDemand) -> Iterator[Clients]:
    """From this machine, through the Service's address; what is under way at the end of the block is awaited."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def open_clients() -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        kept, fresh = (
            httpx.AsyncClient(base_url=service.url, limits=limits, timeout=timeout, trust_env=False)
            for limits in (POOL, NONE_KEPT)
        )
        return kept, fresh

    pooled, fresh = asyncio.run_coroutine_threadsafe(open_clients(), loop).result()
    running = Clients(Sender(pooled, fresh, service.name, "Hello", False, ANSWERED_WITHIN, 0, steady_clock()), loop)
    try:
        yield running
        running.rows()
    finally:
        for each in running.sent:
            each.cancel()
        for client in (pooled, fresh):
            asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def activators(cluster: Cluster) -> Sequence[JSON]:
    """Their pods that are ready and not ending."""
    pods = cluster.list("pods", OPERATOR_NAMESPACE, f"app.kubernetes.io/name={ACTIVATOR}")
    return [pod for pod in pods if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def counted(cluster: Cluster, name: str, service: OnDemand | None = None) -> float:
    """A metric of all activators together, of one service or of all."""
    labels = {} if service is None else {"namespace": service.namespace, "service": service.name}
    return sum(_value(pod, name, **labels) for pod in activators(cluster))


def _value(pod: JSON, name: str, **labels: str) -> float:
    url = f"http://{pod['status']['podIP']}:{METRICS_PORT}/metrics"
    text = httpx.get(url, timeout=PATIENCE, trust_env=False).raise_for_status().text
    return Metrics(text).value(f"llmservice_activator_{name}", **labels)


def held(service: OnDemand, count: int) -> None:
    """Wait until the activators hold so many of its requests."""

    def look() -> bool:
        return counted(service.cluster, "held_requests", service) >= count

    eventually(f"{count} held requests of {service.name}", look, 30)


def held_by(service: OnDemand) -> dict[str, float]:
    """Requests of the service that each activator holds, by its pod's name."""
    return {
        pod["metadata"]["name"]: _value(pod, "held_requests", namespace=service.namespace, service=service.name)
        for pod in activators(service.cluster)
    }


def kill(pod: JSON, module: str) -> None:
    """The process of a pod on this machine, without time to finish anything."""
    found = [process for process, line in processes_of(pod).items() if module in line]
    assert found, f"no {module} in pod {pod['metadata']['name']}"
    for process in found:
        os.kill(process, signal.SIGKILL)
