"""Updates that were asked for (llmservice.dev/update-requested): whose turn it is, a few services at a time.

The same new template may break every service that gets it. They get it one after another, therefore, and one that fails
with it keeps the others waiting until its spec or its annotation says otherwise. Nothing of this is stored: who holds a
turn shows in what the watches told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmservice_operator.api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_operator.api.service import Key, LLMService
from llmservice_operator.control.containment.internal_errors import InternalErrors, Part
from llmservice_operator.control.watch.cache import Cache
from llmservice_operator.control.watch.kinds import PARENT
from llmservice_operator.decide.decision import Update
from llmservice_operator.decide.rollout.revision import Choice, Standing
from llmservice_operator.kube.resources import CONTROLLER_REVISION, DEPLOYMENT
from llmservice_operator.observe.observed import Observed, Turn
from llmservice_operator.observe.projections.children import RevisionFacts

Json = Mapping[str, Any]

_NAMED = 8
LOOK_AGAIN = 60.0
"""Seconds after which one that waits asks again, should nobody have told it."""


def waits_on(
    service: LLMService, observed: Observed, stand: Standing, revisions: Sequence[RevisionFacts]
) -> RevisionFacts | None:
    """What serves on until it is this service's turn; None: the next template is not one that was only asked for."""
    live = observed.deployment
    if live is None or live.spec_replicas == 0 or service.spec.paused:
        return None
    running = next((r for r in revisions if (r.label, r.key) == (live.revision, stand.key)), None)
    if running is None or stand.same_key is None:
        return None
    is_begun = not stand.is_update and (stand.same_key.label == running.label or not _is_by_request(stand.same_key))
    return None if is_begun else running


def why_waiting(turn: Turn) -> str:
    """The same words while others take their turns: a text that named them would be written for each of those."""
    if turn.failed or turn.failed_elsewhere:
        return (
            f"The update of {_failed(turn)} failed, and the same may happen here. Edit or roll back what failed, or "
            f"take its annotation {UPDATE_REQUESTED_ANNOTATION} away, and the next one begins."
        )
    return f"Other services are being updated, {turn.limit} at a time; this one's turn comes."


def _failed(turn: Turn) -> str:
    """Those of the namespace by name, and how many there are elsewhere."""
    more = len(turn.failed) - _NAMED
    named = [", ".join(turn.failed[:_NAMED]) + (f" and {more} more" if more > 0 else "")] if turn.failed else []
    if count := turn.failed_elsewhere:
        named.append("one service of another namespace" if count == 1 else f"{count} services of other namespaces")
    return " and of ".join(named)


def update_of(
    choice: Choice, revisions: Sequence[RevisionFacts], rollout: Json, *, waits: bool, replicas: int
) -> Update | None:
    """By the status that is told; None: there is no update that was asked for, or it is done.

    One without replicas breaks nothing, and is never rolled out: it keeps nobody waiting.
    """
    if waits:
        return Update.WAITS
    if replicas == 0:
        return None
    failed = next((record for record in revisions if record.label == rollout.get("failedRevision")), None)
    if failed is not None and failed.key == choice.key and _is_by_request(failed):
        return Update.FAILED
    is_done = rollout.get("stableRevision") == choice.label
    return None if is_done or choice.label == choice.key else Update.UNDER_WAY


def _is_by_request(record: RevisionFacts) -> bool:
    """The first template of a key is called by the key."""
    return record.label != record.key


@dataclass(slots=True)
class Updates:
    """Who has a turn, and who waits for one."""

    limit: int = 1
    _under_way: dict[Key, Update] = field(default_factory=dict)
    _waiting: dict[Key, None] = field(default_factory=dict)
    _told: set[Key] = field(default_factory=set)
    _is_known: bool = False
    _gained: set[Key] = field(default_factory=set)
    errors: InternalErrors = field(default_factory=InternalErrors)
    is_ours: Callable[[Key], bool] = lambda key: True
    """What others work on is told to nobody here, so it counts nowhere here: with several shards the limit is each
    process's own."""

    def turn(self, key: Key, cache: Cache) -> Turn:
        """Whether this one may begin; it has its turn then, until something else is told of it."""
        if not self._is_known or self._gained:
            self._learn(cache)
        failed = [k for k, update in self._under_way.items() if update is Update.FAILED and k != key]
        is_granted = key in self._under_way or (not failed and len(self._under_way) < self.limit)
        if is_granted:
            self._under_way.setdefault(key, Update.UNDER_WAY)
            self._waiting.pop(key, None)
        own = tuple(sorted(k.name for k in failed if k.namespace == key.namespace))
        return Turn(is_granted, self.limit, own, len(failed) - len(own))

    def tell(self, key: Key, update: Update | None) -> tuple[Key, ...]:
        """What became of one; those that should ask again."""
        if not self._is_known or self._gained:
            self._told.add(key)
        before = self._under_way.get(key)
        self._waiting.pop(key, None)
        if update is Update.WAITS:
            self._under_way.pop(key, None)
            self._waiting[key] = None
        elif update is None:
            self._under_way.pop(key, None)
        else:
            self._under_way[key] = update
        now = self._under_way.get(key)
        if before is now:
            return ()
        if Update.FAILED in (before, now):
            return tuple(other for other in self._waiting if other != key)
        free = max(0, self.limit - len(self._under_way))
        return tuple(other for other in self._waiting if other != key)[:free]

    def forget(self, key: Key) -> None:
        """It is gone, or no longer ours."""
        self._told.discard(key)
        self._gained.discard(key)

    def gain(self, keys: Iterable[Key]) -> None:
        """These are ours from now on; what is under way of them is to be found out like after a start."""
        self._gained.update(keys)

    def _learn(self, cache: Cache) -> None:
        """After a start: what is under way by what the watches told, where nobody has decided anything yet."""
        unknown = self._gained if self._is_known else cache.all_keys()
        for key in unknown:
            # Whoever asks for a turn reads all others' revisions here: an error about one of those is not his.
            with self.errors.contained(Part.BOOKKEEPING, key, "updates"):
                if self.is_ours(key) and key not in self._told and (update := _seen(key, cache)) is not None:
                    self._under_way[key] = update
        self._is_known = True
        self._gained.clear()
        self._told.clear()


def _seen(key: Key, cache: Cache) -> Update | None:
    around = cache.around(key)
    parent = cache.get(PARENT, *key)
    live = around.get(DEPLOYMENT.kind, {}).get(key.name)
    records = around.get(CONTROLLER_REVISION.kind, {}).values()
    if parent is None or live is None or live.spec_replicas == 0:
        return None
    rollout = parent.obj["status"].get("rollout") or {}
    by_label = {record.label: record for record in records}
    running, failed = by_label.get(live.revision), by_label.get(rollout.get("failedRevision"))
    if running is not None and failed is not None and failed.key == running.key and _is_by_request(failed):
        return Update.FAILED
    is_done = running is None or rollout.get("stableRevision") == running.label
    return None if is_done or running is None or not _is_by_request(running) else Update.UNDER_WAY
