"""Scaling answers for single services, from their pods and their spec, cached for a second.

A service in use keeps its last replica, and its first one is started:

| what was found | replicas 0 | 1 or more |
|-|-|-|
| minReplicas of now is 1 or more | active | active |
| requests held or in flight, or a counter of a pod that rose | active | active |
| a pod that starts, or that was not there before, replicas that are not ready | - | active |
| a ready pod or an activator that did not answer, a pod that does not count its requests | - | active |
| the last of the first three less than idleSeconds ago | - | active |
| none of these | idle | idle |

With replicas 0 what is not known wakes nobody: a request that comes is held, and starts a replica itself.

KEDA asks any of the activators: one may first be asked again after a replica that others started is ready, and its
idleSeconds are long over. So a pod that is new to it is a start, though it saw none.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from kubeloop.resources import Key
from llmservice_api.holding import LastUse
from llmservice_operator.readers.pod_port import Requests, Unreadable

from llmservice_activator import demand
from llmservice_activator.demand import Desired, Load, desired
from llmservice_activator.services import Service, Services, Unknown


@dataclass(frozen=True, slots=True)
class Activity:
    """Whether a service is in use, and why."""

    is_active: bool
    why: str


ALWAYS = Activity(True, "minReplicas is 1 or more")


@dataclass(slots=True)
class _Tracked:
    """State of one service; times by the monotonic clock."""

    uid: str
    last: float
    """When the service was last in use, else when this process first saw it."""
    started: dict[str, int] = field(default_factory=dict)
    """By pod: its counter of started requests at the last read."""
    replicas: int = 0
    """Desired replicas at the last read."""


class ActivityTracker:
    def __init__(self) -> None:
        self._known: dict[Key, _Tracked] = {}

    def update(
        self, service: Service, load: Load, started: Mapping[str, int], min_replicas: int, now: float
    ) -> Activity:
        """Takes the counters of started requests by pod name, and the minReplicas in force."""
        known = self._known.get(service.key)
        if known is None or known.uid != service.uid:
            # The time of the last request is unknown: idleSeconds count from now.
            known = self._known[service.key] = _Tracked(service.uid, now, dict(started), load.replicas)
        # A counter that fell was reset by a restart of its container.
        rose = any(count != known.started.get(pod, 0) for pod, count in started.items())
        is_new = load.replicas > known.replicas or not started.keys() <= known.started.keys()
        known.started = {**known.started, **started} if load.unread else dict(started)
        known.replicas = load.replicas
        use = _reason_in_use(load, rose=rose, is_new=is_new)
        if use:
            known.last = now
        if min_replicas >= 1:
            return ALWAYS
        if use:
            return Activity(True, use)
        if load.replicas == 0:
            return Activity(False, "no request is held")
        idle = service.autoscaling.scale_down.idle_seconds
        if unknown := _reason_unknown(load):
            return Activity(True, unknown)
        if now - known.last < idle:
            return Activity(True, f"a request came, or a replica started, less than {idle} s ago")
        return Activity(False, f"no request for {idle} s")

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)


def _reason_in_use(load: Load, *, rose: bool, is_new: bool) -> str:
    """Why the service is in use; empty if it is not.

    A replica that fails or cannot be scheduled is not in use: it is removed `idleSeconds` after the last request, or
    after it was requested.
    """
    if load.held:
        return f"requests held: {load.held}"
    if load.in_flight or rose:
        return "requests came"
    if load.replicas and (load.starting or is_new):
        return "a replica is starting"
    return ""


def _reason_unknown(load: Load) -> str:
    """Why requests may be unnoticed; empty if none can be."""
    if load.unread:
        return f"ready without an answer: {load.unread}"
    if load.uncounted_pods:
        return f"pods of an earlier version, which do not count their requests: {load.uncounted_pods}"
    return (
        f"activators that do not say what they hold: {load.unanswered_activators}" if load.unanswered_activators else ""
    )


Read = Callable[[str], Awaitable[Requests]]
"""Reads the requests of the pod at an IP address; Unreadable."""

MAX_CONNECTIONS = 256
"""Concurrent connections over all services."""
MAX_CONNECTIONS_OF_SERVICE = 64
"""Concurrent connections for one service, so that pods that do not answer leave capacity for other services."""
WAIT_SECONDS = 2.5
"""Seconds that a pod may wait for a connection before it counts as unanswered. KEDA's metrics server waits for 3 s in
all (kedacore/keda, pkg/metricsservice/client.go), and one pod may take the 2 s of `kube.pod_port`."""


class LoadReader:
    """Reads pods of all services, with bounded concurrency."""

    def __init__(self, read: Read, *, at_once: int = MAX_CONNECTIONS, wait_seconds: float = WAIT_SECONDS) -> None:
        self._read, self._patience = read, wait_seconds
        self._all = asyncio.Semaphore(at_once)

    async def requests(self, addresses: Collection[str]) -> dict[str, Requests]:
        """Requests by address, for the pods that answered."""
        own = asyncio.Semaphore(MAX_CONNECTIONS_OF_SERVICE)
        found: dict[str, Requests] = {}

        async def ask(address: str) -> None:
            try:
                async with asyncio.timeout(self._patience), own, self._all:
                    found[address] = await self._read(address)
            except (Unreadable, TimeoutError):
                return  # pods without an answer are absent from the result

        await asyncio.gather(*(ask(address) for address in addresses))
        return found


CACHE_SECONDS = 1.0
"""Seconds: KEDA's operator and its metrics server ask for the same at about the same time."""
USE_REPORT_SECONDS = 120.0
"""Seconds after which a pod's report of its last request may be outdated."""


@dataclass(frozen=True, slots=True)
class ScalingAnswer:
    """A scaling answer, with its time by the monotonic clock."""

    service: Service
    load: Load
    desired: Desired
    at: float
    activity: Activity = ALWAYS


@dataclass(frozen=True, slots=True)
class HeldTotal:
    """Requests of one service that the activators hold."""

    requests: int
    unanswered_activators: int
    """Activators that did not answer."""


@dataclass(slots=True)
class _LastUses:
    """Last requests that the pods of one service reported."""

    uid: str
    reports: Mapping[str, LastUse] = field(default_factory=dict)
    """By pod, with times of the pod's clock."""
    last: LastUse | None = None


async def _no_held(key: Key) -> HeldTotal:
    return HeldTotal(0, 0)


class ScalingAnswers:
    """Scaling answers by service; concurrent callers share one."""

    def __init__(
        self,
        services: Services,
        reader: LoadReader,
        *,
        observe: Callable[[ScalingAnswer], None] = lambda answer: None,
        held: Callable[[Key], Awaitable[HeldTotal]] = _no_held,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._reader, self._observe = services, reader, observe
        self._held, self._now, self._clock = held, now, clock
        self._activities = ActivityTracker()
        self._latest: dict[Key, ScalingAnswer] = {}
        self._last_uses: dict[Key, _LastUses] = {}
        self._pending: dict[Key, asyncio.Task[ScalingAnswer]] = {}

    async def get(self, key: Key) -> ScalingAnswer:
        """The answer for a known service; Unknown with the reason."""
        service = self._services.get(key)
        latest = self._latest.get(key)
        if latest is not None and self._clock() - latest.at < CACHE_SECONDS and latest.service == service:
            return latest
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = asyncio.create_task(self._find(service))
            pending.add_done_callback(lambda task: self._done(key, task))
        # A cancelled caller does not cancel the answer for the others.
        return await asyncio.shield(pending)

    def latest(self, key: Key) -> ScalingAnswer | None:
        return self._latest.get(key)

    def last_uses(self, held: Mapping[Key, LastUse]) -> Mapping[Key, LastUse]:
        """The last request of each service that may be at zero, from recently read pods or from `held`."""
        now, found = self._clock(), dict[Key, LastUse]()
        for key in self._last_uses.keys() | held.keys():
            service, uses, latest = self._services.find(key), self._last_uses.get(key), self._latest.get(key)
            is_new = latest is not None and now - latest.at < USE_REPORT_SECONDS
            known = [held.get(key), uses.last if uses is not None and is_new else None]
            last = max((use for use in known if use is not None), default=None)
            if service is not None and service.may_be_at_zero and last is not None:
                found[key] = last
        return found

    def forget(self, key: Key) -> None:
        self._latest.pop(key, None)
        self._last_uses.pop(key, None)
        self._activities.forget(key)

    def _see(self, service: Service, reports: Mapping[str, LastUse]) -> None:
        """Take over reported requests. A pod's clock may be ahead of this process's, and a pod may be deleted before
        its service."""
        known, now = self._last_uses.get(service.key), self._now().timestamp()
        if known is None or known.uid != service.uid:
            known = self._last_uses[service.key] = _LastUses(service.uid)
        for pod, use in reports.items():
            if known.reports.get(pod) != use:
                seen = replace(use, at=min(use.at, now))
                known.last = max(seen, known.last or seen)
        known.reports = reports

    def _done(self, key: Key, task: asyncio.Task[ScalingAnswer]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # each caller gets it; without callers nobody retrieves it

    async def _find(self, service: Service) -> ScalingAnswer:
        pods = self._services.pods(service.key)
        may_be_at_zero = service.may_be_at_zero
        requests, held = await asyncio.gather(
            self._reader.requests({pod.address for pod in pods if pod.address}),
            self._held(service.key) if may_be_at_zero else _no_held(service.key),
        )
        service = self._services.get(service.key)  # it may have changed meanwhile
        counted = [pod for pod in pods if pod.is_ready and pod.address in requests]
        started = {pod.name: count for pod in counted if (count := requests[pod.address].started) is not None}
        self._see(service, {pod.name: use for pod in counted if (use := requests[pod.address].last) is not None})
        load = Load(
            replicas=service.replicas,
            existing=service.existing,
            ready=sum(pod.is_ready for pod in pods if pod.is_first),
            starting=sum(pod.is_starting for pod in pods if pod.is_first),
            in_flight=sum(each.in_flight for each in requests.values()),
            unread=sum(pod.is_ready for pod in pods) - len(counted),
            concurrency=service.concurrency,
            held=held.requests,
            unanswered_activators=held.unanswered_activators,
            uncounted_pods=len(counted) - len(started),
        )
        try:
            bounds = demand.bounds(service.autoscaling, self._now())
        except demand.InvalidSchedule as error:
            raise Unknown(f"spec.scaling.autoscaling.schedule of LLMService {service.key}: {error}") from error
        at = self._clock()
        activity = (
            self._activities.update(service, load, started, bounds.min_replicas, at) if may_be_at_zero else ALWAYS
        )
        found = desired(load, bounds, None if activity.is_active else activity.why)
        answer = ScalingAnswer(service, load, found, at, activity)
        self._latest[service.key] = answer
        self._observe(answer)
        return answer
