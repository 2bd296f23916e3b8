"""The supervisor's metrics: what vLLM cannot tell of a server, since it does not run yet or does not know.

A table, so that the reference page and the exposition are the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmservice_runtime.contract import Phase, State
from llmservice_runtime.drain import shared_counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Samples = Iterator[tuple[Mapping[str, str], float]]


@dataclass(frozen=True)
class Seen:
    """What the figures are made of: the state, the counts that vLLM's middleware keeps, and how many keys there are."""

    state: State
    slots: Sequence[int]
    keys: int | None = None


@dataclass(frozen=True)
class Metric:
    """A name, what it means, and its samples now: labels and a value."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    samples: Callable[[Seen], Samples]


def _one(value: float | None) -> Samples:
    if value is not None:
        yield {}, value


def _transfer(name: str) -> Callable[[Seen], Samples]:
    def samples(seen: Seen) -> Samples:
        transfer = seen.state.transfer
        value = None if transfer is None else getattr(transfer, name)
        if transfer is not None and value is not None:
            yield {"artifact": transfer.artifact}, value

    return samples


def _cache(seen: Seen) -> Samples:
    room = seen.state.cache
    if room is not None:
        yield from (({"state": name}, float(getattr(room, name))) for name in ("used", "available", "freed"))


def _phases(seen: Seen) -> Samples:
    return (({"phase": str(phase)}, float(phase is seen.state.phase)) for phase in Phase)


METRICS: tuple[Metric, ...] = (
    Metric("llmservice_server_phase", "gauge", ("phase",), "1 for the phase that the server is in.", _phases),
    Metric(
        "llmservice_server_phase_seconds", "gauge", (), "How long it has been in this phase.",
        lambda seen: _one(seen.state.phase_seconds),
    ),
    Metric(
        "llmservice_server_ready", "gauge", (), "1 while requests are wanted.",
        lambda seen: _one(float(seen.state.ready)),
    ),
    Metric(
        "llmservice_server_start_seconds", "gauge", (), "From the container's start to the first answer.",
        lambda seen: _one(seen.state.measured.start_seconds),
    ),
    Metric(
        "llmservice_server_fetched_bytes", "gauge", ("artifact",),
        "Bytes that are there of what is being fetched, those of an earlier start among them.", _transfer("bytes_done"),
    ),
    Metric(
        "llmservice_server_fetch_size_bytes", "gauge", ("artifact",), "Bytes of all that is being fetched.",
        _transfer("bytes_total"),
    ),
    Metric(
        "llmservice_server_fetch_eta_seconds", "gauge", ("artifact",),
        "Seconds until all is fetched, at the present pace.", _transfer("eta_seconds"),
    ),
    Metric(
        "llmservice_server_fetch_bytes_per_second", "gauge", ("artifact",), "Pace of the fetch over the last 20 s.",
        _transfer("bytes_per_second"),
    ),
    Metric(
        "llmservice_server_cache_bytes", "gauge", ("state",),
        "The model cache when the fetch began: bytes used by files of models, bytes available, and bytes freed by "
        "pruning. Absent without spec.model.cache.", _cache,
    ),
    Metric(
        "llmservice_server_requests_in_flight", "gauge", (), "Requests that vLLM has not answered yet.",
        lambda seen: _one(seen.slots[shared_counters.IN_FLIGHT]),
    ),
    Metric(
        "llmservice_server_requests_refused_total", "counter", (), "Requests that were refused while draining.",
        lambda seen: _one(seen.slots[shared_counters.REFUSED]),
    ),
    Metric(
        "llmservice_server_api_keys", "gauge", (),
        "API keys that clients may show; 0 lets nobody in. Absent without spec.endpoint.apiKeySecretRef.",
        lambda seen: _one(seen.keys),
    ),
)  # fmt: skip


def exposition(seen: Seen) -> str:
    """What METRICS_PATH answers, in Prometheus' text format."""
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_braces(labels)} {value:.15g}" for labels, value in metric.samples(seen)]
    return "\n".join([*lines, ""])


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
