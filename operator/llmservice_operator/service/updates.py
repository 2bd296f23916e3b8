"""Which requested updates may run, a few services at a time (`behaviours/rollout.py` has the reason).

Nothing is stored: running updates follow from the watched objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kubeloop.cache import Cache
from kubeloop.resources import CONTROLLER_REVISION, Key

from llmservice_operator.decision import Update, UpdatePermission
from llmservice_operator.revisions import is_by_request
from llmservice_operator.service.containment import InternalErrors, Part
from llmservice_operator.service.watch import PARENT
from llmservice_operator.workload.kinds import live_workload


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
    live = live_workload(children, key.name)
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
