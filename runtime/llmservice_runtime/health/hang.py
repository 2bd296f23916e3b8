"""Whether the engine hangs: a pure function of what was seen and when.

Hung means that requests wait for the engine while none of its counters moves. Idle is never hung, nor is a long
prefill: the engine's counters include the cache usage, which grows with every chunk. A server that cannot even be
asked (its API process is stuck) counts as one that does not move, unless it still sends answers, or takes requests of
which none waits for the engine: then others keep it busy. Time in which nobody
looked, since the watcher itself had no CPU, is not held against the engine, which had none either.
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
    sent: int = 0
    """Pieces of answers so far: they tell of movement also when the server has no time to be asked."""
    called: int = 0
    """Requests so far, whatever became of them: its API process lives."""


@dataclass(frozen=True)
class Sample:
    """What was seen at one time. No counters: the server did not answer."""

    busy: bool
    counters: tuple[float, ...] | None
    sent: int = 0
    called: int | None = None
    """Requests so far; None: one of them waits for the engine, or nobody counts."""


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
    """For how long nothing has moved that had a reason to."""

    seen_at: float
    interval: float = 5.0
    """Seconds between two looks, as they are meant to be."""
    still: float = 0.0
    """Seconds."""
    counters: tuple[float, ...] | None = None
    sent: int = 0
    called: int | None = None

    def moves(self, sample: Sample) -> bool:
        """Whether something has moved since the last sample."""
        is_flooded = sample.counters is None and sample.called is not None and sample.called != self.called
        return is_flooded or sample.sent != self.sent or sample.counters not in (None, self.counters)

    def seen(self, sample: Sample, now: float) -> Watch:
        """The watch after a sample."""
        counters = self.counters if sample.counters is None else sample.counters
        if self.moves(sample) or not sample.busy:
            return Watch(now, self.interval, 0.0, counters, sample.sent, sample.called)
        # An answer may be waited for as long again as the pause; after more than that nobody was there to look.
        step = now - self.seen_at
        step = step if step <= _LONGEST_STEP * self.interval else self.interval
        return replace(self, seen_at=now, still=self.still + step, counters=counters)

    def verdict(self, thresholds: Thresholds) -> Verdict:
        """How long nothing has moved, against the thresholds."""
        if not thresholds.unready or self.still < thresholds.unready:
            return Verdict.HEALTHY
        if not thresholds.restart or self.still < thresholds.unready + thresholds.restart:
            return Verdict.UNREADY
        return Verdict.RESTART


_LONGEST_STEP = 3


def sample(metrics: Mapping[str, float] | None, counts: Counts) -> Sample:
    """A sample from vLLM's metrics (None: no answer) and the middleware's counts."""
    if metrics is None:
        called = counts.called if counts.awaiting == 0 else None
        return Sample(busy=True, counters=None, sent=counts.sent, called=called)
    running = metrics.get(RUNNING, 0.0) > 0
    # An engine that hangs on the first request after an idle time never reports it as running; and a report that
    # outlived its requests keeps nobody waiting.
    busy = running if counts.awaiting is None else counts.awaiting > 0 or (running and counts.in_flight > 0)
    known = tuple(metrics[name] for name in MOVING if name in metrics)
    # Without the engine's statistics (--disable-log-stats) there is nothing to judge by.
    return Sample(busy=busy and bool(known), counters=known, sent=counts.sent)


def parse_metrics(text: str) -> dict[str, float]:
    """The wanted series of a Prometheus page, summed over their labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in _WANTED:
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


_WANTED = frozenset(MOVING)
