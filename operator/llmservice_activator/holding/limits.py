"""Bounds and times of one process; those of a service are in its Target."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_api.holding import MOST_HELD_BYTES

NAMESPACES = 4
"""So many at least share the bytes of the process."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    connections: int = 4096
    """Of clients, divided as Shares says; further ones are closed with 503."""
    idle_seconds: float = 30
    """Until a connection that has not sent a request's head is closed."""
    largest_head: int = 32 << 10
    """Bytes of a request's line and headers."""
    head_bytes: int = 32 << 20
    """Of all connections, divided in the same way."""
    held_bytes: int = NAMESPACES * MOST_HELD_BYTES
    """Bodies of all requests. The chart's memory limit is for this."""
    slots: int = 512
    """Requests at pods; one of each namespace may be there beyond them."""
    slots_of_one_namespace: int = 256
    body_seconds: float = 60
    """Without a byte of the body."""
    linger_seconds: float = 5
    """How long the rest of a body is read and dropped after an early answer, which a reset connection would lose."""
    write_seconds: float = 300
    """Without a byte that the client takes."""
    comment_seconds: float = 5
    """Between comments of a stream that waits, and before the first one."""
    wake_seconds: float = 5
    connect_seconds: float = 5
    health_seconds: float = 5
    retry_health_seconds: float = 0.5
    checks_of_one_namespace: int = 32
    """Of pods' health, at once."""
    rest_seconds: float = 1
    """Until a pod that ends and refuses requests is checked again: the watch says sooner that it ends."""
