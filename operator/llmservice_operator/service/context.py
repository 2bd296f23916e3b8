"""Shared state and dependencies of the loop, as one typed object.

Which requested updates may run, a few services at a time (`behaviours/rollout.py` has the reason), follows from the
watched objects; nothing is stored.
"""

from __future__ import annotations

import datetime
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from kubeloop.client import KubeClient, PodEventReader
from kubeloop.errors import ConfigError
from kubeloop.informer import Cache
from kubeloop.queue import Bucket, Priority, WorkQueue, event_bucket, write_bucket
from kubeloop.resources import CONTROLLER_REVISION, Key
from llmservice_api.holding import Activators, HoldingReport, PortClaim
from llmservice_planner.room import Quotas, Room

from llmservice_operator.decision import Decision, GroupTurn, Inputs, Requirements, Update, UpdatePermission
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.facts.routes import Claim
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.activators import ActivatorQuestions
from llmservice_operator.observe.observed import AppliedRecord, ChildId, Refusal
from llmservice_operator.readers.nodes import Nodes, QuotaReader
from llmservice_operator.readers.pod_port import Requests
from llmservice_operator.revisions import is_by_request
from llmservice_operator.service.config_reader import ConfigReader, Configs
from llmservice_operator.service.containment import InternalErrors, InWork, Part
from llmservice_operator.service.decide import decide
from llmservice_operator.service.metrics import Metrics
from llmservice_operator.service.state_poller import StatePoller
from llmservice_operator.service.watch import PARENT, ParentFacts, priority_of_service
from llmservice_operator.workload.kinds import workloads_of


@dataclass(slots=True)
class Updates:
    limit: int = 1
    _running: dict[Key, Update] = field(default_factory=dict)
    _waiting: dict[Key, None] = field(default_factory=dict)
    _reported: set[Key] = field(default_factory=set)
    _is_known: bool = False
    _taken_over: set[Key] = field(default_factory=set)
    errors: InternalErrors = field(default_factory=InternalErrors)

    def check(self, key: Key, cache: Cache) -> UpdatePermission:
        """Whether this service's update may start now, or has started."""
        if not self._is_known or self._taken_over:
            self._learn(cache)
        failed = self._failed_but(key)
        own = tuple(sorted(k.name for k in failed if k.namespace == key.namespace))
        return UpdatePermission(self._is_free(key, failed), self.limit, own, len(failed) - len(own))

    def claim(self, key: Key) -> bool:
        """Start the update, until another state of it is reported. False: another service's started meanwhile."""
        if not self._is_free(key, self._failed_but(key)):
            return False
        self._running.setdefault(key, Update.RUNNING)
        self._waiting.pop(key, None)
        return True

    def _failed_but(self, key: Key) -> list[Key]:
        return [k for k, update in self._running.items() if update is Update.FAILED and k != key]

    def _is_free(self, key: Key, failed: list[Key]) -> bool:
        return key in self._running or (not failed and len(self._running) < self.limit)

    def report(self, key: Key, update: Update | None) -> tuple[Key, ...]:
        """Record the state of an update (None: none, or done); returns services that should check again."""
        if not self._is_known or self._taken_over:
            self._reported.add(key)
        before = self._running.get(key)
        self._waiting.pop(key, None)
        if update is Update.WAITS:
            self._running.pop(key, None)
            self._waiting[key] = None
        elif update is None:
            self._running.pop(key, None)
        else:
            self._running[key] = update
        now = self._running.get(key)
        if before is now:
            return ()
        if Update.FAILED in (before, now):
            return tuple(other for other in self._waiting if other != key)
        free = max(0, self.limit - len(self._running))
        return tuple(other for other in self._waiting if other != key)[:free]

    def forget(self, key: Key) -> None:
        """Remove a service that is deleted or no longer this process's."""
        self._reported.discard(key)
        self._taken_over.discard(key)

    def take_over(self, keys: Iterable[Key]) -> None:
        """These services are this process's now; their running updates are determined as after a start."""
        self._taken_over.update(keys)

    def _learn(self, cache: Cache) -> None:
        """After a start: find running updates in the watched objects."""
        unknown = self._taken_over if self._is_known else cache.all_keys()
        for key in unknown:
            # This reads the revisions of all services for one: errors of others must not fail it.
            with self.errors.contained(Part.BOOKKEEPING, key, "updates"):
                if key not in self._reported and (update := _seen(key, cache)) is not None:
                    self._running[key] = update
        self._is_known = True
        self._taken_over.clear()
        self._reported.clear()


def _seen(key: Key, cache: Cache) -> Update | None:
    children = cache.of_service(key)
    parent = cache.get(PARENT, *key)
    live = next(iter(workloads_of(children, key.name)), None)
    records = children.get(CONTROLLER_REVISION.kind, {}).values()
    if parent is None or live is None or live.spec_replicas == 0:
        return None
    rollout = parent.obj["status"].get("rollout") or {}
    by_label = {record.label: record for record in records}
    running, failed = by_label.get(live.revision), by_label.get(rollout.get("failedRevision"))
    if running is not None and failed is not None and failed.key == running.key and is_by_request(failed):
        return Update.FAILED
    is_done = running is None or rollout.get("stableRevision") == running.label
    return None if is_done or running is None or not is_by_request(running) else Update.RUNNING


PLACED_WITHIN = 30.0
"""Seconds for which a service keeps its turn while its pods look for nodes."""
GIVEN_UP_AFTER = 600.0
"""Seconds after which pods that look for nodes no longer keep others from asking a node autoscaler for some."""


@dataclass(slots=True)
class GroupTurns:
    """Which service lets pods of a replica over several nodes look for nodes: the room that one found must not be
    another's before the scheduler has used it."""

    _turn: tuple[Key, float] | None = None
    _placing: dict[Key, float] = field(default_factory=dict)
    """Since when pods of these look for nodes."""
    _waiting: dict[Key, None] = field(default_factory=dict)
    placed_at: float = -math.inf
    """When pods last ceased to look for nodes: room that was read before is not free any more."""

    def take(self, key: Key, now: float) -> GroupTurn:
        """The turn, unless another service has had it for less than PLACED_WITHIN."""
        if self._turn is not None and self._turn[0] != key and now - self._turn[1] < PLACED_WITHIN:
            self._waiting[key] = None
            return GroupTurn(is_own=False)
        self._waiting.pop(key, None)
        self._turn = (key, now)
        others = (since for each, since in self._placing.items() if each != key)
        return GroupTurn(is_own=True, are_others_placing=any(now - since < GIVEN_UP_AFTER for since in others))

    def report(self, key: Key, now: float, *, is_placing: bool) -> tuple[Key, ...]:
        """Record whether pods look for nodes; returns services that should look again."""
        if is_placing:
            self._placing.setdefault(key, now)
            return ()
        if self._placing.pop(key, None) is not None:
            self.placed_at = now
        if self._turn is None or self._turn[0] != key:
            return ()
        self._turn = None
        waiting, self._waiting = tuple(self._waiting), {}
        return waiting


FIRST_RETRY = 1.0
LONGEST_RETRY = 60.0
MOST_GONE = 1000
"""Deleted pods of one service that are kept until its next pass."""


async def _unread(address: str, key: Key, uid: str, port: int) -> HoldingReport:
    return HoldingReport(problem="This process asks no activators.")


async def _unclaimed(key: Key, uid: str, stored: int | None) -> int:
    raise ConfigError("this process allots no ports")


@dataclass(slots=True)
class ServiceMemory:
    """State of this process about one service; not needed after a restart."""

    uid: str
    applied: dict[ChildId, AppliedRecord] = field(default_factory=dict)
    refused: dict[ChildId, Refusal] = field(default_factory=dict)
    """Refused writes. While there are some, only `Decision.routes` are written."""
    unanswered: dict[ChildId, tuple[str, float]] = field(default_factory=dict)
    """Writes that failed or were not answered: the last message, and the time of the first one."""
    skipped: dict[ChildId, Refusal] = field(default_factory=dict)
    """Refused applies that this generation does without."""
    skipped_until: dict[ChildId, float] = field(default_factory=dict)
    """When some of them are retried within this generation."""
    kept: dict[ChildId, tuple[float, Refusal]] = field(default_factory=dict)
    """Refused deletions and adoptions, and when they are retried within this generation."""
    room: tuple[float, str | None, Room] | None = None
    """Free resources at the last read: time, resource, and room."""
    holding: ActivatorQuestions | None = None
    """Questions to the activators while the last replica was about to end, and since."""
    claimed: tuple[float, PortClaim] | None = None
    """Time and result of allocating or confirming the port."""
    quotas: tuple[float, int, Quotas] | None = None
    """Quotas at the last read: time, generation, and quotas."""
    drained: frozenset[str] = frozenset()
    """Pods, by uid, whose cut streams were reported."""
    gone: deque[PodFacts] = field(default_factory=lambda: deque(maxlen=MOST_GONE))
    """The latest deleted pods with cut streams since the last pass."""
    failures: int = 0
    """Failed writes of the children in a row."""
    passes: int = 0
    """Passes in a row that wrote children and found more to write."""
    ongoing_rollout: tuple[str, str] | None = None
    """`Decision.ongoing_rollout` of the last decision."""
    parent_version: str = ""
    """resourceVersion of the LLMService after the last own status write or live read."""
    events: Bucket = field(default_factory=event_bucket)
    writes: Bucket = field(default_factory=write_bucket)
    made: set[ChildId] = field(default_factory=set)
    """Children that existed and that this process did not delete."""
    _tries: int = 0
    _try_again_at: float = 0.0
    _generation: object = None
    _unsettled_since: float | None = None
    _unknown_since: float | None = None

    def record_settled(self, is_unsettled: bool, now: float) -> None:
        """Record whether the last decision found that pods, endpoints and workload disagree."""
        if not is_unsettled:
            self._unsettled_since = None
        elif self._unsettled_since is None:
            self._unsettled_since = now

    def unsettled_for(self, now: float) -> float:
        """Seconds since they began to disagree; 0 while they agree."""
        return 0.0 if self._unsettled_since is None else now - self._unsettled_since

    def unknown_for(self, activators: Activators, now: float) -> float:
        """Seconds for which the activators have been unknown; 0 while they are known."""
        if activators is not None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        return 0.0 if self._unknown_since is None else now - self._unknown_since

    def record_refusal(self, child: ChildId, refusal: Refusal, now: float) -> None:
        """Record a refusal, with a time to retry: no event says when a name or a quota becomes free."""
        self.refused[child] = refusal
        self._tries += 1
        self._try_again_at = now + min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(self._tries - 1, 10))

    def skip(self, child: ChildId, refusal: Refusal, until: float | None) -> None:
        """Go on without a child until a time, or for this generation."""
        self.skipped[child] = refusal
        if until is not None:
            self.skipped_until[child] = until

    def record_unanswered(self, child: ChildId, message: str, now: float) -> None:
        """Record a failed or unanswered write, which the queue's back-off retries."""
        self.unanswered[child] = message, self.unanswered.get(child, (message, now))[1]

    def postpone(self, child: ChildId, refusal: Refusal, until: float) -> None:
        """Record a refused deletion or adoption until a time."""
        self.kept[child] = until, refusal

    def record_applied(self, child: ChildId, record: AppliedRecord) -> None:
        """Record a successful write."""
        self.made.add(child)
        self.applied[child] = record
        self.refused.pop(child, None)
        self.unanswered.pop(child, None)
        self.skipped.pop(child, None)
        self.skipped_until.pop(child, None)
        if not self.refused:  # otherwise the rest was not tried
            self._tries = 0

    def expire(self, generation: object, now: float) -> None:
        """Drop refusals whose time has passed, or all after an edit, so that the next decision retries."""
        if generation != self._generation or now >= self._try_again_at:
            self.refused.clear()
        if generation != self._generation:
            self.skipped.clear()
            self.skipped_until.clear()
            self.kept.clear()
        for child in [each for each, until in self.skipped_until.items() if now >= until]:
            del self.skipped[child], self.skipped_until[child]
        self.kept = {child: (until, refusal) for child, (until, refusal) in self.kept.items() if now < until}
        self._generation = generation

    def wait(self, now: float) -> float | None:
        """Seconds until a refused write is retried."""
        times = [*self.skipped_until.values(), *(until for until, _ in self.kept.values())]
        times += [self._try_again_at] if self.refused else []
        return max(0.0, min(times) - now) if times else None


@dataclass(slots=True)
class Context:
    """Everything with effects or state, and nothing else."""

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
    """Requests in flight of the pod at an IP address; Unreadable."""
    now: Callable[[], datetime.datetime]
    identity: str
    """Of this process, as in the Lease."""
    activators: Callable[[], Activators] = lambda: None
    """Ready activators; None: unknown."""
    ask_activator: Callable[[str, Key, str, int], Awaitable[HoldingReport]] = _unread
    """Report of the activator at an address about a service, its uid and its port; Unreadable."""
    claim_port: Callable[[Key, str, int | None], Awaitable[int]] = _unclaimed
    """The activators' port of a service, given its uid and the port in its status; KubeError."""
    decide: Callable[[Inputs], Decision | Requirements] = decide
    clock: Callable[[], float] = time.monotonic
    unique: Callable[[], int] = time.time_ns
    """A new number, for names of Events."""
    memories: dict[Key, ServiceMemory] = field(default_factory=dict)
    updates: Updates = field(default_factory=Updates)
    group_turns: GroupTurns = field(default_factory=GroupTurns)
    claimed: dict[Key, frozenset[Claim]] = field(default_factory=dict)
    """What the routes take that are being written."""
    configs: Configs = field(default_factory=ConfigReader)
    errors: InternalErrors = field(default_factory=InternalErrors)
    in_work: InWork = field(default_factory=InWork)
    is_acting: Callable[[], bool] = lambda: True
    """Whether this process may act; another one may hold the Lease."""
    is_current: Callable[[ParentFacts], bool] = lambda parent: False
    """Whether a cached LLMService was current a moment ago; otherwise it is read before a write."""
    hidden: Callable[[str], frozenset[str]] = lambda namespace: frozenset()
    """Optional kinds that the operator may not list in a namespace."""

    def memory(self, key: Key, uid: str) -> ServiceMemory:
        """The state about the object with this uid; a later object of the same name starts with a new one."""
        memory = self.memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self.memories[key] = ServiceMemory(uid)
        return memory

    def forget(self, key: Key) -> None:
        """Drop the state of a service that is deleted or no longer this process's."""
        self.memories.pop(key, None)
        of_others = (self._forget_update, self._forget_group)
        for forget in (self.state_poller.forget, self.metrics.forget, *of_others, self.errors.forget):
            with self.errors.contained(Part.BOOKKEEPING):
                forget(key)

    def pod_deleted(self, pod: PodFacts) -> None:
        """Record a deleted pod, if its service is reconciled by this process."""
        memory = self.memories.get(Key(pod.namespace, pod.service or ""))
        if memory is not None and pod.cut:
            memory.gone.append(pod)

    def enqueue(self, keys: Iterable[Key]) -> None:
        """Queue services, with the priority of their own state."""
        for key in keys:
            priority = Priority.REST
            with self.errors.contained(Part.BOOKKEEPING, key, "priority"):
                priority = priority_of_service(self.cache.get(PARENT, *key))
            self.queue.add(key, priority)

    def report_update(self, key: Key, update: Update | None) -> None:
        """Record the state of a service's update, and queue services whose update may start now."""
        for other in self.updates.report(key, update):
            self.queue.add(other)

    def report_group(self, key: Key, *, is_placing: bool) -> None:
        """Record whether pods of a group look for nodes, and queue services whose pods may now."""
        for other in self.group_turns.report(key, self.clock(), is_placing=is_placing):
            self.queue.add(other)

    def _forget_group(self, key: Key) -> None:
        self.report_group(key, is_placing=False)

    def _forget_update(self, key: Key) -> None:
        self.report_update(key, None)
        self.updates.forget(key)
