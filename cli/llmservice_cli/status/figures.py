"""What one vLLM says of itself at this moment, from the text of its /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_vllm import metrics

from llmservice_cli.metrics import Samples, samples_of

_DRAFTS = (metrics.DRAFTS, metrics.DRAFT_TOKENS, metrics.ACCEPTED_TOKENS)
_NOW = (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE, metrics.PREEMPTIONS, metrics.REJECTIONS)
NAMES = frozenset((*_NOW, metrics.PREFIX_QUERIES, metrics.PREFIX_HITS, *_DRAFTS))

NOT_SPECULATING = "vLLM has no counters of drafts: it does not speculate"


@dataclass(frozen=True, slots=True)
class Absent:
    """A figure that there is none of, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Requests and shares (0 to 1) now; counts since this vLLM started. Engines of one pod are taken together."""

    running: int | Absent
    waiting: int | Absent
    kv_cache_usage: float | Absent  # of the fullest engine
    prefix_hit_rate: float | Absent  # prompt tokens found in the cache / asked of it
    preemptions: int | Absent
    rejections: Mapping[str, int] | Absent  # by the queue limit that was hit
    acceptance_rate: float | Absent  # draft tokens that the model kept / draft tokens
    acceptance_length: float | Absent  # tokens that one pass of the model yields on average: 1 + accepted / drafts

    def to_object(self) -> dict[str, Any]:
        """JSON; figures that there are none of lie under `absent` with the reason."""
        named: dict[str, Any] = {
            "requestsRunning": self.running,
            "requestsWaiting": self.waiting,
            "kvCacheUsage": self.kv_cache_usage,
            "prefixCacheHitRate": self.prefix_hit_rate,
            "preemptions": self.preemptions,
            "admissionRejections": self.rejections,
            "draftAcceptanceRate": self.acceptance_rate,
            "meanAcceptanceLength": self.acceptance_length,
        }
        absent = {name: value.why for name, value in named.items() if isinstance(value, Absent)}
        there = {name: value for name, value in named.items() if name not in absent}
        return {**there, "absent": absent} if absent else there


def read_figures(text: str) -> Figures:
    """ValueError when it is not the text of a /metrics page."""
    samples = samples_of(text, NAMES)
    drafts, accepted = _total(samples, metrics.DRAFTS), _total(samples, metrics.ACCEPTED_TOKENS)
    ratio = _share(accepted, drafts, "nothing was drafted yet")
    usage = samples.get(metrics.KV_USAGE)
    return Figures(
        running=_whole(_total(samples, metrics.RUNNING)),
        waiting=_whole(_total(samples, metrics.WAITING)),
        kv_cache_usage=max(value for _, value in usage) if usage else _missing(metrics.KV_USAGE),
        prefix_hit_rate=_share(
            _total(samples, metrics.PREFIX_HITS), _total(samples, metrics.PREFIX_QUERIES), "no prompt was looked up yet"
        ),
        preemptions=_whole(_total(samples, metrics.PREEMPTIONS)),
        rejections=_by_label(samples, metrics.REJECTIONS, "reason"),
        acceptance_rate=_share(accepted, _total(samples, metrics.DRAFT_TOKENS), "nothing was drafted yet"),
        acceptance_length=ratio if isinstance(ratio, Absent) else 1 + ratio,
    )


def _missing(name: str) -> Absent:
    if name in _DRAFTS:
        return Absent(NOT_SPECULATING)
    return Absent(f"vLLM reports no {name}")


def _total(samples: Samples, name: str) -> float | Absent:
    values = samples.get(name)
    return sum(value for _, value in values) if values else _missing(name)


def _whole(value: float | Absent) -> int | Absent:
    return value if isinstance(value, Absent) else round(value)


def _share(part: float | Absent, whole: float | Absent, none_yet: str) -> float | Absent:
    if isinstance(part, Absent):
        return part
    if isinstance(whole, Absent):
        return whole
    return part / whole if whole else Absent(none_yet)


def _by_label(samples: Samples, name: str, label: str) -> Mapping[str, int] | Absent:
    values = samples.get(name)
    if not values:
        return _missing(name)
    counts: dict[str, int] = {}
    for labels, value in values:
        counts[labels.get(label, "")] = counts.get(labels.get(label, ""), 0) + round(value)
    return counts
