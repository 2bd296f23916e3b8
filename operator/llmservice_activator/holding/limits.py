"""Limits of the process; those of a service are in its HoldingTarget."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_api.holding import MOST_HELD_BYTES

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
