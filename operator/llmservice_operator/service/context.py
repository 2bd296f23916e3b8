"""The one typed object that everything in the loop is given."""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from kubeloop.cache import Cache
from kubeloop.client import KubeClient
from kubeloop.errors import ConfigError
from kubeloop.events import PodEventReader
from kubeloop.queue import Priority, WorkQueue
from kubeloop.resources import Key
from kubeloop.token_bucket import Bucket, event_bucket, write_bucket
from llmservice_api.holding import Activators, HoldingReport, PortClaim
from llmservice_planner.quotas import Quotas
from llmservice_planner.room import Room

from llmservice_operator.decision import Decision, Update
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.inputs import Inputs, Requirements
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.activators import Questions
from llmservice_operator.observe.observed import AppliedRecord, ChildId, Refusal
from llmservice_operator.readers.nodes import Nodes
from llmservice_operator.readers.pod_port import Requests
from llmservice_operator.readers.quotas import QuotaReader
from llmservice_operator.service.config_reader import ConfigReader, Configs
from llmservice_operator.service.containment import InternalErrors, Part
from llmservice_operator.service.decide import decide
from llmservice_operator.service.in_work import InWork
from llmservice_operator.service.metrics import Metrics
from llmservice_operator.service.state_poller import StatePoller
from llmservice_operator.service.updates import Updates
from llmservice_operator.service.watch.kinds import PARENT, ParentFacts, of_itself

FIRST_RETRY = 1.0
LONGEST_RETRY = 60.0
MOST_GONE = 1000
"""Deleted pods of one service that are remembered until its next pass."""


async def _unread(address: str, key: Key, uid: str, port: int) -> HoldingReport:
    return HoldingReport(problem="This process asks no activators.")


async def _unclaimed(key: Key, uid: str, stored: int | None) -> int:
    raise ConfigError("this process allots no ports")


@dataclass(slots=True)
class Memory:
    """What this process did to one service; a restart does without it."""

    uid: str
    applied: dict[ChildId, AppliedRecord] = field(default_factory=dict)
    refused: dict[ChildId, Refusal] = field(default_factory=dict)
    """What the API server did not take. While something is in here, only `Decision.routes` are written."""
    unanswered: dict[ChildId, tuple[str, float]] = field(default_factory=dict)
    """What it neither took nor refused: the last message, and when that began."""
    declined: dict[ChildId, Refusal] = field(default_factory=dict)
    """What it did not take either, and what can be done without for this generation."""
    declined_until: dict[ChildId, float] = field(default_factory=dict)
    """When some of them are to be tried again, in this generation."""
    kept: dict[ChildId, tuple[float, Refusal]] = field(default_factory=dict)
    """What it did not delete or let be adopted, and when that is to be tried again, in this generation."""
    room: tuple[float, str | None, Room] | None = None
    """What was free when a decision asked last, when that was, and for which resource."""
    holding: Questions | None = None
    """What the activators were asked while the last replica was to go, and since then."""
    claimed: tuple[float, PortClaim] | None = None
    """What came of allotting a port, or of looking whether it is the service's still, and when that was."""
    quotas: tuple[float, int, Quotas] | None = None
    """The quotas when a decision asked last, when that was, and for which generation."""
    drained: frozenset[str] = frozenset()
    """Pods, by uid, whose cut streams were reported."""
    gone: deque[PodFacts] = field(default_factory=lambda: deque(maxlen=MOST_GONE))
    """Pods that cut streams and were deleted since the last pass, the latest ones."""
    failures: int = 0
    """How many times in a row the children could not be written."""
    passes: int = 0
    """Passes in a row that wrote children and found that there was more to write."""
    begun: tuple[str, str] | None = None
    """`Decision.begun`, the last one that was decided."""
    parent_version: str = ""
    """resourceVersion of the LLMService after our last status write, or as we last read it live."""
    events: Bucket = field(default_factory=event_bucket)
    writes: Bucket = field(default_factory=write_bucket)
    made: set[ChildId] = field(default_factory=set)
    """Children that existed and that this process did not delete."""
    _tries: int = 0
    _try_again_at: float = 0.0
    _generation: object = None
    _unsettled_since: float | None = None
    _unknown_since: float | None = None

    def note(self, is_unsettled: bool, now: float) -> None:
        """Whether pods, endpoints and workload disagree, by the decision that was just made."""
        if not is_unsettled:
            self._unsettled_since = None
        elif self._unsettled_since is None:
            self._unsettled_since = now

    def unsettled_for(self, now: float) -> float:
        """Seconds since they were first seen to disagree; 0 as long as they do not."""
        return 0.0 if self._unsettled_since is None else now - self._unsettled_since

    def unknown_for(self, activators: Activators, now: float) -> float:
        """Seconds for which the activators have not been known; 0 where they are."""
        if activators is not None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        return 0.0 if self._unknown_since is None else now - self._unknown_since

    def refuse(self, child: ChildId, refusal: Refusal, now: float) -> None:
        """Remember it, and when to try again: no event says when a name or a quota becomes free."""
        self.refused[child] = refusal
        self._tries += 1
        self._try_again_at = now + min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(self._tries - 1, 10))

    def decline(self, child: ChildId, refusal: Refusal, until: float | None) -> None:
        """Go without it: until a time, or for this generation."""
        self.declined[child] = refusal
        if until is not None:
            self.declined_until[child] = until

    def miss(self, child: ChildId, message: str, now: float) -> None:
        """The API server failed, or did not answer; that is tried again with the back-off of the queue."""
        self.unanswered[child] = message, self.unanswered.get(child, (message, now))[1]

    def keep(self, child: ChildId, refusal: Refusal, until: float) -> None:
        """Leave it as it is until a time, though it is to go or to be adopted."""
        self.kept[child] = until, refusal

    def accepted(self, child: ChildId, record: AppliedRecord) -> None:
        """The API server took it."""
        self.made.add(child)
        self.applied[child] = record
        self.refused.pop(child, None)
        self.unanswered.pop(child, None)
        self.declined.pop(child, None)
        self.declined_until.pop(child, None)
        if not self.refused:  # else what waits was not even tried
            self._tries = 0

    def expire(self, generation: object, now: float) -> None:
        """Forget refusals when their time is over or the spec changed, so that the next decision tries again."""
        if generation != self._generation or now >= self._try_again_at:
            self.refused.clear()
        if generation != self._generation:
            self.declined.clear()
            self.declined_until.clear()
            self.kept.clear()
        for child in [each for each, until in self.declined_until.items() if now >= until]:
            del self.declined[child], self.declined_until[child]
        self.kept = {child: (until, refusal) for child, (until, refusal) in self.kept.items() if now < until}
        self._generation = generation

    def wait(self, now: float) -> float | None:
        """Seconds until what was refused is to be tried again."""
        times = [*self.declined_until.values(), *(until for until, _ in self.kept.values())]
        times += [self._try_again_at] if self.refused else []
        return max(0.0, min(times) - now) if times else None


@dataclass(slots=True)
class Context:
    """Everything with an effect or a state, and nothing else."""

    kube: KubeClient
    cache: Cache
    queue: WorkQueue[Key]
    settings: Settings
    metrics: Metrics
    state_poller: StatePoller
    nodes: Nodes
    pod_events: PodEventReader
    quotas: QuotaReader
    read_requests: Callable[[str], Awaitable[Requests]]
    """Requests in flight of the pod at an IP address; raises Unreadable."""
    now: Callable[[], datetime.datetime]
    identity: str
    """Of this process, as in the Lease."""
    activators: Callable[[], Activators] = lambda: None
    """Those that are ready; None: not known."""
    ask_activator: Callable[[str, Key, str, int], Awaitable[HoldingReport]] = _unread
    """What the activator at an address reports about a service, its uid and its port; raises Unreadable."""
    claim_port: Callable[[Key, str, int | None], Awaitable[int]] = _unclaimed
    """The port at the activators of a service with this uid and this port in its status; raises KubeError."""
    decide: Callable[[Inputs], Decision | Requirements] = decide
    clock: Callable[[], float] = time.monotonic
    unique: Callable[[], int] = time.time_ns
    """A number that was not used before, for names of Events."""
    memories: dict[Key, Memory] = field(default_factory=dict)
    updates: Updates = field(default_factory=Updates)
    configs: Configs = field(default_factory=ConfigReader)
    errors: InternalErrors = field(default_factory=InternalErrors)
    in_work: InWork = field(default_factory=InWork)
    is_acting: Callable[[], bool] = lambda: True
    """Whether this process is to work; another one may hold the Lease."""
    is_current: Callable[[ParentFacts], bool] = lambda parent: False
    """Whether an LLMService in the cache is as it was a moment ago; else it is read before a write."""
    hidden: Callable[[str], frozenset[str]] = lambda namespace: frozenset()
    """Kinds that the operator has no right to list in a namespace, as far as it can do without."""

    def memory(self, key: Key, uid: str) -> Memory:
        """What is remembered of this very object; one of the same name made later starts afresh."""
        memory = self.memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self.memories[key] = Memory(uid)
        return memory

    def forget(self, key: Key) -> None:
        """The service is gone, or no longer ours."""
        self.memories.pop(key, None)
        for forget in (self.state_poller.forget, self.metrics.forget, self._forget_update, self.errors.forget):
            with self.errors.contained(Part.BOOKKEEPING):
                forget(key)

    def pod_deleted(self, pod: PodFacts) -> None:
        """A pod as it was last; nothing is kept of a service that this process does not work on."""
        memory = self.memories.get(Key(pod.namespace, pod.service or ""))
        if memory is not None and pod.cut:
            memory.gone.append(pod)

    def take_up(self, keys: Iterable[Key]) -> None:
        """Queue services by the priority of their own state, not of their children's."""
        for key in keys:
            priority = Priority.REST
            with self.errors.contained(Part.BOOKKEEPING, key, "priority"):
                priority = of_itself(self.cache.get(PARENT, *key))
            self.queue.add(key, priority)

    def report_update(self, key: Key, update: Update | None) -> None:
        """Record the state of a service's update, and queue those whose turn it may be now."""
        for other in self.updates.report(key, update):
            self.queue.add(other)

    def _forget_update(self, key: Key) -> None:
        self.report_update(key, None)
        self.updates.forget(key)
