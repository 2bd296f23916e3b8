"""The answer for one service: what its pods have now and what its spec asks for, kept for a second."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from kubeloop.resources import Key
from llmservice_api.holding import LastUse
from llmservice_operator.readers.pod_port import Requests, Unreadable

from llmservice_activator import schedule
from llmservice_activator.activity import ALWAYS, Activities, Activity
from llmservice_activator.demand import Desired, Load, desired
from llmservice_activator.services import Service, Services, Unknown

Read = Callable[[str], Awaitable[Requests]]
"""Requests of the pod at an IP address; Unreadable."""

AT_ONCE = 256
"""Connections over all services."""
AT_ONCE_OF_ONE = 64
"""Connections of one service, so that one whose pods do not answer leaves room for the others."""
PATIENCE = 2.5
"""Seconds after which a pod whose turn has not come counts as one that did not answer. KEDA's metrics server waits for
3 s in all (kedacore/keda, pkg/metricsservice/client.go), and one pod may take the 2 s of `kube.pod_port`."""


class LoadReader:
    """Bounds the reads of all services together."""

    def __init__(self, read: Read, *, at_once: int = AT_ONCE, patience: float = PATIENCE) -> None:
        self._read, self._patience = read, patience
        self._all = asyncio.Semaphore(at_once)

    async def requests(self, addresses: Collection[str]) -> dict[str, Requests]:
        """By address, of the pods that answered."""
        own = asyncio.Semaphore(AT_ONCE_OF_ONE)
        found: dict[str, Requests] = {}

        async def ask(address: str) -> None:
            try:
                async with asyncio.timeout(self._patience), own, self._all:
                    found[address] = await self._read(address)
            except (Unreadable, TimeoutError):
                return  # what is missing in the result did not answer

        await asyncio.gather(*(ask(address) for address in addresses))
        return found


KEPT = 1.0
"""Seconds: KEDA's operator and its metrics server ask for the same at about the same time."""
USES_KEPT = 120.0
"""Seconds: what pods said of their last request before that may be long over."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found, and when by the monotonic clock."""

    service: Service
    load: Load
    desired: Desired
    at: float
    activity: Activity = ALWAYS


@dataclass(frozen=True, slots=True)
class Held:
    """Requests of one service that activators hold."""

    requests: int
    unheard: int
    """Activators that did not say what they hold."""


@dataclass(slots=True)
class _Uses:
    """What the pods of one service said of their last requests."""

    uid: str
    said: Mapping[str, LastUse] = field(default_factory=dict)
    """By pod, by its clock."""
    last: LastUse | None = None


async def _none(key: Key) -> Held:
    return Held(0, 0)


class Answers:
    """Answers by service; callers at the same time share one."""

    def __init__(
        self,
        services: Services,
        reader: LoadReader,
        *,
        observe: Callable[[Answer], None] = lambda answer: None,
        held: Callable[[Key], Awaitable[Held]] = _none,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._reader, self._observe = services, reader, observe
        self._held, self._now, self._clock = held, now, clock
        self._activities = Activities()
        self._latest: dict[Key, Answer] = {}
        self._uses: dict[Key, _Uses] = {}
        self._pending: dict[Key, asyncio.Task[Answer]] = {}

    async def get(self, key: Key) -> Answer:
        """For a service that is known; Unknown with the reason."""
        service = self._services.get(key)
        latest = self._latest.get(key)
        if latest is not None and self._clock() - latest.at < KEPT and latest.service == service:
            return latest
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = asyncio.create_task(self._find(service))
            pending.add_done_callback(lambda task: self._done(key, task))
        # A caller that goes away leaves the answer to the others.
        return await asyncio.shield(pending)

    def latest(self, key: Key) -> Answer | None:
        """The one that was found last."""
        return self._latest.get(key)

    def last_uses(self, held: Mapping[Key, LastUse]) -> Mapping[Key, LastUse]:
        """The last request of each service that may be at zero: at a pod that was asked lately, or one of `held`."""
        now, found = self._clock(), dict[Key, LastUse]()
        for key in self._uses.keys() | held.keys():
            service, uses, latest = self._services.find(key), self._uses.get(key), self._latest.get(key)
            is_new = latest is not None and now - latest.at < USES_KEPT
            known = [held.get(key), uses.last if uses is not None and is_new else None]
            last = max((use for use in known if use is not None), default=None)
            if service is not None and service.may_be_at_zero and last is not None:
                found[key] = last
        return found

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._latest.pop(key, None)
        self._uses.pop(key, None)
        self._activities.forget(key)

    def _see(self, service: Service, said: Mapping[str, LastUse]) -> None:
        """A pod's clock may be ahead of ours, and a pod goes before its service does."""
        known, now = self._uses.get(service.key), self._now().timestamp()
        if known is None or known.uid != service.uid:
            known = self._uses[service.key] = _Uses(service.uid)
        for pod, use in said.items():
            if known.said.get(pod) != use:
                seen = replace(use, at=min(use.at, now))
                known.last = max(seen, known.last or seen)
        known.said = said

    def _done(self, key: Key, task: asyncio.Task[Answer]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # each caller gets it; with none left nobody else reports it

    async def _find(self, service: Service) -> Answer:
        pods = self._services.pods(service.key)
        may_be_at_zero = service.may_be_at_zero
        requests, held = await asyncio.gather(
            self._reader.requests({pod.address for pod in pods if pod.address}),
            self._held(service.key) if may_be_at_zero else _none(service.key),
        )
        service = self._services.get(service.key)  # it may have changed meanwhile
        counted = [pod for pod in pods if pod.is_ready and pod.address in requests]
        begun = {pod.name: count for pod in counted if (count := requests[pod.address].begun) is not None}
        self._see(service, {pod.name: use for pod in counted if (use := requests[pod.address].last) is not None})
        load = Load(
            replicas=service.replicas,
            present=service.present,
            ready=sum(pod.is_ready for pod in pods),
            starting=sum(pod.is_starting for pod in pods),
            in_flight=sum(each.in_flight for each in requests.values()),
            unread=sum(pod.is_ready for pod in pods) - len(counted),
            concurrency=service.concurrency,
            held=held.requests,
            unheard=held.unheard,
            uncounted=len(counted) - len(begun),
        )
        try:
            bounds = schedule.bounds(service.autoscaling, self._now())
        except schedule.InvalidSchedule as error:
            raise Unknown(f"spec.scaling.autoscaling.schedule of LLMService {service.key}: {error}") from error
        at = self._clock()
        activity = self._activities.look(service, load, begun, bounds.fewest, at) if may_be_at_zero else ALWAYS
        found = desired(load, bounds, None if activity.is_active else activity.why)
        answer = Answer(service, load, found, at, activity)
        self._latest[service.key] = answer
        self._observe(answer)
        return answer
