"""Whether the engine hangs: a pure function of what was seen and when.

Hung means that requests wait for the engine while none of its counters moves. Idle is never hung, nor is a long
prefill: the engine's counters include the cache usage, which grows with every chunk. A server that cannot even be
asked (its API process is stuck) counts as one that does not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

RUNNING = "vllm:num_requests_running"
# Whatever the engine moves when it works: tokens, finished requests, the cache that a long prefill fills.
MOVING = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:kv_cache_usage_perc",
    RUNNING,
)


@dataclass(frozen=True)
class Counts:
    """The middleware's counts; None for `awaiting` is: there is no middleware."""

    in_flight: int = 0
    awaiting: int | None = None


@dataclass(frozen=True)
class Sample:
    """What was seen at one time. No counters: the server did not answer."""

    busy: bool
    counters: tuple[float, ...] | None


class Verdict(Enum):
    """What to do about it."""

    HEALTHY = "healthy"
    UNREADY = "unready"
    RESTART = "restart"


@dataclass(frozen=True)
class Thresholds:
    """Seconds without movement until unready, and from then until a restart; 0 switches a step off."""

    unready: float
    restart: float


@dataclass(frozen=True)
class Watch:
    """When something last moved, or had no reason to."""

    moved_at: float
    counters: tuple[float, ...] | None = None

    def seen(self, sample: Sample, now: float) -> Watch:
        """The watch after a sample."""
        moved = sample.counters is not None and sample.counters != self.counters
        if moved or not sample.busy:
            return Watch(now, sample.counters)
        return replace(self, counters=sample.counters or self.counters)

    def verdict(self, thresholds: Thresholds, now: float) -> Verdict:
        """How long nothing has moved, against the thresholds."""
        still = now - self.moved_at
        if not thresholds.unready or still < thresholds.unready:
            return Verdict.HEALTHY
        if not thresholds.restart or still < thresholds.unready + thresholds.restart:
            return Verdict.UNREADY
        return Verdict.RESTART


def sample(metrics: Mapping[str, float] | None, counts: Counts) -> Sample:
    """A sample from vLLM's metrics (None: no answer) and the middleware's counts."""
    if metrics is None:
        return Sample(busy=True, counters=None)
    running = metrics.get(RUNNING, 0.0) > 0
    # An engine that hangs on the first request after an idle time never reports it as running; and a report that
    # outlived its requests keeps nobody waiting.
    busy = running if counts.awaiting is None else counts.awaiting > 0 or (running and counts.in_flight > 0)
    known = tuple(metrics[name] for name in MOVING if name in metrics)
    # Without the engine's statistics (--disable-log-stats) there is nothing to judge by.
    return Sample(busy=busy and bool(known), counters=known)


def parse_metrics(text: str) -> dict[str, float]:
    """The wanted series of a Prometheus page, summed over their labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in _WANTED:
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


_WANTED = frozenset(MOVING)
