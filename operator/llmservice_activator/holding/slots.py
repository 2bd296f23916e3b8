"""Which held request is sent to a pod next. Pure.

Round-robin over namespaces, then over their services; first in, first out within a service, so that many requests of
one service delay only its own. Responses may take minutes, so a namespace without a request at a pod may use one slot
beyond the total.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from kubeloop.resources import Key

W = TypeVar("W", bound=Hashable)


class SlotQueue(Generic[W]):
    """Slots of the process for requests at pods, and the requests that wait for one."""

    def __init__(self, slots: int, of_one_namespace: int) -> None:
        self._slots, self._of_one_namespace = slots, of_one_namespace
        self._used = 0
        self._at_pods: Counter[Key | str] = Counter()
        """By service and by namespace."""
        self._limits: dict[Key, int] = {}
        self._waiting: OrderedDict[str, OrderedDict[Key, OrderedDict[W, None]]] = OrderedDict()

    def limit(self, key: Key, at_once: int) -> None:
        """Set the requests of a service that may be at pods; 0, the default: none."""
        if at_once:
            self._limits[key] = at_once
        else:
            self._limits.pop(key, None)

    def enter(self, key: Key, waiter: W, *, first: bool = False) -> None:
        """Wait for a slot; `first`: before others of the service."""
        queue = self._waiting.setdefault(key.namespace, OrderedDict()).setdefault(key, OrderedDict())
        queue[waiter] = None
        if first:
            queue.move_to_end(waiter, last=False)

    def leave(self, key: Key, waiter: W) -> None:
        """Stop to wait; no effect on a request that does not."""
        services = self._waiting.get(key.namespace, OrderedDict())
        queue = services.get(key, OrderedDict())
        queue.pop(waiter, None)
        self._clean(key, queue)

    def next(self) -> W | None:
        """The next request; it has a slot until `done`."""
        for namespace, services in self._waiting.items():
            for key, queue in services.items():
                if self._may_go(key):
                    waiter, _ = queue.popitem(last=False)
                    self._waiting.move_to_end(namespace)
                    services.move_to_end(key)
                    self._clean(key, queue)
                    self._take(key)
                    return waiter
        return None

    def take(self, key: Key) -> bool:
        """Take a slot without waiting; False where none is free or others of the service wait."""
        if key in self._waiting.get(key.namespace, ()) or not self._may_go(key):
            return False
        self._take(key)
        return True

    def done(self, key: Key) -> None:
        self._used -= 1
        for each in (key, key.namespace):
            self._at_pods[each] -= 1
            if not self._at_pods[each]:
                del self._at_pods[each]

    def _take(self, key: Key) -> None:
        self._used += 1
        self._at_pods[key] += 1
        self._at_pods[key.namespace] += 1

    def _may_go(self, key: Key) -> bool:
        of_namespace = self._at_pods[key.namespace]
        return (
            (self._used < self._slots or not of_namespace)
            and of_namespace < self._of_one_namespace
            and self._at_pods[key] < self._limits.get(key, 0)
        )

    def _clean(self, key: Key, queue: OrderedDict[W, None]) -> None:
        services = self._waiting.get(key.namespace)
        if services is not None and not queue:
            services.pop(key, None)
            if not services:
                del self._waiting[key.namespace]
