"""Tokens/s and latencies of the services that a page shows, measured beside the page and never waited for.

vLLM counts tokens, so that a rate takes two reads. A page asks for its services and gets what is known already; a
task then reads /metrics of their ready pods through the API server's proxy: at most MOST_PODS of them, AT_ONCE at a
time of all viewers together and PATIENCE seconds each (llmservice_cli.top.sample), and not again within EVERY seconds.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.errors import KubeError
from kubeloop.resources import POD
from llmservice_api.constants import SERVICE_LABEL
from llmservice_cli.api import Api
from llmservice_cli.cluster import why
from llmservice_cli.top.sample import MetricsSample, Rates, ServiceKey, between, read_pages_of, together
from llmservice_operator.facts.pods import PodFacts, replicas

MOST_PODS = 64
MOST_LISTED = 1_000
A_TIME = 100
"""Pods of one answer of the API server."""
EVERY = 8.0
FIRST_INTERVAL = 2.0
"""Seconds between the two reads of pods that were not read before."""
LONGEST_INTERVAL = 60.0
"""A reading that is older says nothing of now."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)

PodKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of the services that were asked for."""

    services: Mapping[ServiceKey, Rates] = field(default_factory=dict)
    pods: Mapping[PodKey, Rates | str] = field(default_factory=dict)
    """Rates, or why there are none."""
    problem: str = ""
    """Why nothing was measured."""
    left_out: int = 0
    """Ready pods that were not read."""
    is_known: bool = False


class Meter:
    """Of one page of one viewer. `limit` is of all of them together: how many pods are read at a time."""

    def __init__(
        self,
        limit: asyncio.Semaphore,
        clock: Callable[[], float] = time.monotonic,
        interval: float = FIRST_INTERVAL,
    ) -> None:
        self._limit, self._clock, self._interval = limit, clock, interval
        self._readings: Mapping[PodKey, MetricsSample | str] = {}
        self._measured, self._of = Measured(), frozenset[ServiceKey]()
        self._at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def measure(self, kube: Api, namespace: str | None, services: Sequence[ServiceKey]) -> Measured:
        """What is known now of these services; `namespace` is where their pods are listed, None: in all."""
        wanted = frozenset(services)
        is_free = self._task is None or self._task.done()
        if is_free and wanted and (wanted != self._of or self._clock() - self._at >= EVERY):
            self._task = asyncio.create_task(self._read(kube, namespace, wanted), name="figures of a page")
        return self._measured if wanted <= self._of else Measured()

    def begin_as(self, other: Meter) -> None:
        """Knows what the other one does: a page that shows some of its services has figures at once."""
        self._readings, self._measured, self._of, self._at = other._readings, other._measured, other._of, other._at

    async def settled(self) -> None:
        """Until nothing is being read."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.cancel()
        await self.settled()

    async def _read(self, kube: Api, namespace: str | None, services: frozenset[ServiceKey]) -> None:
        try:
            pods, left_out = await _pods(kube, namespace, services)
        except KubeError as error:
            self._known(Measured(problem=f"pods are not listed: {why(error, namespace)}", is_known=True), services)
            return
        now = self._clock()
        before = {
            key: reading
            for key, reading in self._readings.items()
            if isinstance(reading, MetricsSample) and now - reading.at <= LONGEST_INTERVAL
        }
        if any((pod.namespace, pod.name) not in before for pod in pods):
            first = await read_pages_of(kube, pods, self._clock, self._limit)
            before |= {key: one for key, one in first.items() if isinstance(one, MetricsSample) and key not in before}
            await asyncio.sleep(self._interval)
        self._readings = await read_pages_of(kube, pods, self._clock, self._limit)
        rates = {key: _rates(before.get(key), after) for key, after in self._readings.items()}
        self._known(Measured(_by_service(pods, rates), rates, left_out=left_out, is_known=True), services)

    def _known(self, measured: Measured, services: frozenset[ServiceKey]) -> None:
        self._measured, self._of, self._at = measured, services, self._clock()


async def _pods(kube: Api, namespace: str | None, services: frozenset[ServiceKey]) -> tuple[Sequence[PodFacts], int]:
    """Ready ones to read, and how many are left out."""
    names = sorted({name for _, name in services if _LABEL.fullmatch(name)})
    found: list[PodFacts] = []
    selector = f"{SERVICE_LABEL} in ({','.join(names)})"
    async for page in kube.list_pages(POD, namespace, label_selector=selector, limit=A_TIME):
        found += replicas(map(PodFacts.from_object, page.get("items") or ()))
        if len(found) >= MOST_LISTED:
            break
    ready = [pod for pod in found if pod.ready and not pod.deleting and (pod.namespace, pod.service or "") in services]
    ready.sort(key=lambda pod: (pod.namespace, pod.name))
    return ready[:MOST_PODS], max(0, len(ready) - MOST_PODS)


def _rates(before: MetricsSample | None, after: MetricsSample | str) -> Rates | str:
    return after if isinstance(after, str) else between(before, after)


def _by_service(pods: Sequence[PodFacts], rates: Mapping[PodKey, Rates | str]) -> Mapping[ServiceKey, Rates]:
    found: dict[ServiceKey, list[Rates]] = {}
    for pod in pods:
        one = rates[(pod.namespace, pod.name)]
        if isinstance(one, Rates):
            found.setdefault((pod.namespace, pod.service or ""), []).append(one)
    return {key: together(several) for key, several in found.items()}
