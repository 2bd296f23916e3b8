"""What a vLLM did between two reads of its /metrics. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmservice_vllm import metrics

from llmservice_cli.metrics import Samples, samples_of

from .histogram import Buckets, added, buckets_of, increase, quantile

PLAIN = (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE, metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS)
NAMES = frozenset(PLAIN) | {f"{name}_bucket" for name in (metrics.FIRST_TOKEN, metrics.INTER_TOKEN)}


@dataclass(frozen=True, slots=True)
class Reading:
    """One page. None, or no buckets: vLLM does not report it."""

    at: float
    """The clock's seconds."""
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """0 to 1, of the fullest engine."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    first_token: Buckets = field(default_factory=dict)
    inter_token: Buckets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds; None where nothing was observed."""

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """One pod, or several together. Counts and shares are those of the second read."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """Of the fullest."""
    prompt_per_second: float | None = None
    generation_per_second: float | None = None
    first_token: Buckets = field(default_factory=dict)
    inter_token: Buckets = field(default_factory=dict)

    @property
    def ttft(self) -> Latency:
        return latency(self.first_token)

    @property
    def itl(self) -> Latency:
        return latency(self.inter_token)


def latency(buckets: Buckets) -> Latency:
    return Latency(quantile(0.5, buckets), quantile(0.99, buckets))


def reading(text: str, at: float) -> Reading:
    """ValueError where it is no page of vLLM, or a figure in it is not possible."""
    samples = samples_of(text, NAMES)
    usage = [value for _, value in samples.get(metrics.KV_USAGE, ())]
    for name in PLAIN:
        if any(value < 0 for _, value in samples.get(name, ())):
            raise ValueError(f"{name} is negative")
    return Reading(
        at,
        _total(samples, metrics.RUNNING),
        _total(samples, metrics.WAITING),
        max(usage) if usage else None,
        _total(samples, metrics.PROMPT_TOKENS),
        _total(samples, metrics.GENERATION_TOKENS),
        buckets_of(samples, metrics.FIRST_TOKEN),
        buckets_of(samples, metrics.INTER_TOKEN),
    )


def _total(samples: Samples, name: str) -> float | None:
    values = samples.get(name)
    return sum(value for _, value in values) if values else None


def between(before: Reading | None, after: Reading) -> Rates:
    """Without a first read there are no rates, and no latencies."""
    if before is None or after.at <= before.at:
        return Rates(after.running, after.waiting, after.kv_cache_usage)
    seconds = after.at - before.at
    return Rates(
        after.running,
        after.waiting,
        after.kv_cache_usage,
        _per_second(before.prompt_tokens, after.prompt_tokens, seconds),
        _per_second(before.generation_tokens, after.generation_tokens, seconds),
        increase(before.first_token, after.first_token),
        increase(before.inter_token, after.inter_token),
    )


def _per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    """A counter that went back began anew at 0."""
    if after is None:
        return None
    return (after - before if before is not None and before <= after else after) / seconds


def together(several: Sequence[Rates]) -> Rates:
    """Sums; shares are of the fullest."""
    usages = [each.kv_cache_usage for each in several if each.kv_cache_usage is not None]
    return Rates(
        _sum([each.running for each in several]),
        _sum([each.waiting for each in several]),
        max(usages) if usages else None,
        _sum([each.prompt_per_second for each in several]),
        _sum([each.generation_per_second for each in several]),
        added(each.first_token for each in several),
        added(each.inter_token for each in several),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
