"""Limits of held requests and bytes: by service (in its HoldingTarget), by namespace, by process. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kubeloop.resources import Key
from llmservice_api.holding import MOST_HELD_BYTES

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answered

NAMESPACES = 4
"""Namespaces that can use their maximum of bytes at the same time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    connections: int = 4096
    """Client connections, divided by FairShares; further ones are closed with 503."""
    idle_seconds: float = 30
    """Until a connection without a request head is closed."""
    largest_head: int = 32 << 10
    """Bytes of a request line and its headers."""
    head_bytes: int = 32 << 20
    """Bytes of all heads, divided by FairShares."""
    held_bytes: int = NAMESPACES * MOST_HELD_BYTES
    """Bytes of all bodies. The chart's memory limit follows from this."""
    slots: int = 512
    """Requests at pods; each namespace may have one beyond them."""
    slots_of_one_namespace: int = 256
    body_seconds: float = 60
    """Without a byte of the body."""
    linger_seconds: float = 5
    """For which the rest of a body is read and dropped after an early response, which a reset would lose."""
    write_seconds: float = 300
    """Without a byte that the client reads."""
    comment_seconds: float = 5
    """Before and between the comments of a stream that waits."""
    wake_seconds: float = 5
    connect_seconds: float = 5
    health_seconds: float = 5
    retry_health_seconds: float = 0.5
    checks_of_one_namespace: int = 32
    """Concurrent health checks of pods."""
    draining_check_seconds: float = 1
    """Until a draining pod is checked again; usually the watch removes it before."""


NAMESPACE_FACTOR = 10
"""Times the largest limits of its services that a namespace may hold."""


@dataclass(frozen=True, slots=True)
class HoldingLimits:
    """spec.scaling.holding."""

    requests: int
    bytes: int


class Ledger:
    """Counts requests while they are received and held, and bytes of bodies until a pod has received them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bounds: dict[str, dict[Key, HoldingLimits]] = {}
        self._largest: dict[str, HoldingLimits] = {}
        """Limits of namespaces, cached until a limit of theirs changes."""
        self._requests: Counter[Key | str] = Counter()
        """By service and by namespace."""
        self._bytes: Counter[Key | str] = Counter()
        self._all_bytes = 0

    def bound(self, key: Key, bounds: HoldingLimits) -> None:
        """Set the limits of a service."""
        services = self._bounds.setdefault(key.namespace, {})
        if services.get(key) != bounds:
            services[key] = bounds
            self._largest.pop(key.namespace, None)

    def forget(self, key: Key) -> None:
        """Forget a deleted service; what is still held stays counted."""
        services = self._bounds.get(key.namespace, {})
        services.pop(key, None)
        self._largest.pop(key.namespace, None)
        if not services:
            self._bounds.pop(key.namespace, None)

    def enter(self, key: Key, held_by_others: int = 0) -> Entry:
        """Count another request. Answered (429) where a limit is reached; `held_by_others`: held by other
        activators."""
        bounds, of_namespace = self._bounds_of(key)
        if self._requests[key] + held_by_others >= bounds.requests:
            raise Answered(answer.full(f"the service holds {bounds.requests} requests"))
        if self._requests[key.namespace] >= of_namespace.requests:
            raise Answered(answer.full(f"the services of the namespace hold {of_namespace.requests} requests"))
        if self._all_bytes >= self._most_bytes:
            raise Answered(answer.full("the activator holds as much as it can"))
        return Entry(self, key)

    def count(self, key: Key, requests: int) -> None:
        for each in (key, key.namespace):
            self._requests[each] += requests
            if not self._requests[each]:
                del self._requests[each]

    def add(self, key: Key, size: int, so_far: int) -> None:
        """Count `size` more bytes of an Entry. Answered: 413 where one body exceeds the service's limit, else
        429."""
        bounds, of_namespace = self._bounds_of(key)
        if so_far + size > bounds.bytes:
            raise Answered(answer.too_large(bounds.bytes))
        if self._bytes[key] + size > bounds.bytes:
            raise Answered(answer.full(f"the service holds {bounds.bytes} bytes"))
        if self._bytes[key.namespace] + size > of_namespace.bytes:
            raise Answered(answer.full(f"the services of the namespace hold {of_namespace.bytes} bytes"))
        if self._bytes[key.namespace] + size > self._most_bytes - self._all_bytes - size:
            # A namespace leaves as much free as it uses, so that another one can start.
            raise Answered(answer.full("the activator holds as much as it can"))
        self._change(key, size)

    def free(self, key: Key, size: int) -> None:
        self._change(key, -size)

    def _change(self, key: Key, size: int) -> None:
        self._all_bytes += size
        for each in (key, key.namespace):
            self._bytes[each] += size
            if not self._bytes[each]:
                del self._bytes[each]

    def _bounds_of(self, key: Key) -> tuple[HoldingLimits, HoldingLimits]:
        services = self._bounds.get(key.namespace, {})
        largest = self._largest.get(key.namespace)
        if largest is None:
            requests = max((each.requests for each in services.values()), default=0)
            size = max((each.bytes for each in services.values()), default=0)
            largest = HoldingLimits(
                NAMESPACE_FACTOR * requests, min(NAMESPACE_FACTOR * size, self._most_bytes // NAMESPACES)
            )
            if services:
                self._largest[key.namespace] = largest
        return services.get(key, HoldingLimits(0, 0)), largest


class Entry:
    """One request in the ledger."""

    def __init__(self, ledger: Ledger, key: Key) -> None:
        self._ledger, self._key = ledger, key
        self._is_counted = False
        self.bytes = 0
        self.hold()

    def hold(self) -> None:
        """Count the request as waiting."""
        if not self._is_counted:
            self._is_counted = True
            self._ledger.count(self._key, 1)

    def release(self) -> None:
        """The request no longer waits; its body is still held."""
        if self._is_counted:
            self._is_counted = False
            self._ledger.count(self._key, -1)

    def add(self, size: int) -> None:
        """Count bytes that arrived. Answered where they are too many."""
        self._ledger.add(self._key, size, self.bytes)
        self.bytes += size

    def close(self) -> None:
        """End the count of the request and its body; idempotent."""
        self.release()
        self._ledger.free(self._key, self.bytes)
        self.bytes = 0
