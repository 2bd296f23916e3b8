"""The supervisor's metrics, beside vLLM's own: start, fetch, drain, API keys.

One table for the exposition and the generated reference page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmservice_runtime import shared_counters
from llmservice_runtime.contract import LAST_REQUEST, REQUESTS_BEGUN, REQUESTS_IN_FLIGHT, Phase, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Samples = Iterator[tuple[Mapping[str, str], float]]


@dataclass(frozen=True)
class Snapshot:
    """Input of the samples: the state, the middleware's counters, and the number of API keys (None: no key needed)."""

    state: State
    slots: Sequence[int]
    keys: int | None = None


@dataclass(frozen=True)
class Metric:
    """One metric: name, type, label names, help text, and a function that yields its samples (labels, value)."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    samples: Callable[[Snapshot], Samples]


def _one(value: float | None) -> Samples:
    if value is not None:
        yield {}, value


def _transfer(name: str) -> Callable[[Snapshot], Samples]:
    def samples(snapshot: Snapshot) -> Samples:
        transfer = snapshot.state.transfer
        value = None if transfer is None else getattr(transfer, name)
        if transfer is not None and value is not None:
            yield {"artifact": transfer.artifact}, value

    return samples


def _cache(snapshot: Snapshot) -> Samples:
    room = snapshot.state.cache
    if room is not None:
        yield from (({"state": name}, float(getattr(room, name))) for name in ("used", "available", "freed"))


def _phases(snapshot: Snapshot) -> Samples:
    return (({"phase": str(phase)}, float(phase is snapshot.state.phase)) for phase in Phase)


def _last_request(snapshot: Snapshot) -> Samples:
    if (use := shared_counters.unpack_use(snapshot.slots[shared_counters.LAST])) is not None:
        seconds, method, path = use
        yield {"method": method, "path": path}, seconds


METRICS: tuple[Metric, ...] = (
    Metric("llmservice_server_phase", "gauge", ("phase",), "1 for the phase that the server is in.", _phases),
    Metric(
        "llmservice_server_phase_seconds", "gauge", (), "Seconds since the server entered its phase.",
        lambda snapshot: _one(snapshot.state.phase_seconds),
    ),
    Metric(
        "llmservice_server_ready", "gauge", (), "1 while the server accepts requests.",
        lambda snapshot: _one(float(snapshot.state.ready)),
    ),
    Metric(
        "llmservice_server_start_seconds", "gauge", (), "Seconds from the container's start to the first response.",
        lambda snapshot: _one(snapshot.state.measured.start_seconds),
    ),
    Metric(
        "llmservice_server_fetched_bytes", "gauge", ("artifact",),
        "Bytes present of the current fetch, including bytes of earlier starts.", _transfer("bytes_done"),
    ),
    Metric(
        "llmservice_server_fetch_size_bytes", "gauge", ("artifact",), "Total bytes of the current fetch.",
        _transfer("bytes_total"),
    ),
    Metric(
        "llmservice_server_fetch_eta_seconds", "gauge", ("artifact",),
        "Estimated seconds until the fetch is complete.", _transfer("eta_seconds"),
    ),
    Metric(
        "llmservice_server_fetch_bytes_per_second", "gauge", ("artifact",), "Rate of the fetch over the last 20 s.",
        _transfer("bytes_per_second"),
    ),
    Metric(
        "llmservice_server_cache_bytes", "gauge", ("state",),
        "The model cache when the fetch began: bytes used by model files, bytes available, and bytes freed by "
        "pruning. Absent without spec.model.cache.", _cache,
    ),
    Metric(
        REQUESTS_IN_FLIGHT, "gauge", (), "Requests without a complete response.",
        lambda snapshot: _one(snapshot.slots[shared_counters.IN_FLIGHT]),
    ),
    Metric(
        REQUESTS_BEGUN, "counter", (),
        "Requests that ended, but for GET, HEAD, OPTIONS and those that were answered 404 or 405.",
        lambda snapshot: _one(snapshot.slots[shared_counters.BEGUN]),
    ),
    Metric(
        LAST_REQUEST, "gauge", ("method", "path"),
        "When the last request ended that the counter above has, in Unix time. The path is empty for one that is none "
        "of vLLM's. Absent before the first.", _last_request,
    ),
    Metric(
        "llmservice_server_requests_aborted_total", "counter", (),
        "Requests whose client went away before the response ended. vLLM counts these nowhere.",
        lambda snapshot: _one(snapshot.slots[shared_counters.ABORTED]),
    ),
    Metric(
        "llmservice_server_requests_refused_total", "counter", (), "Requests refused while draining.",
        lambda snapshot: _one(snapshot.slots[shared_counters.REFUSED]),
    ),
    Metric(
        "llmservice_server_api_keys", "gauge", (),
        "Valid API keys; with 0 all clients are refused. Absent without spec.endpoint.apiKeySecretRef.",
        lambda snapshot: _one(snapshot.keys),
    ),
)  # fmt: skip


def exposition(snapshot: Snapshot) -> str:
    """The body of METRICS_PATH in Prometheus' text format."""
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_braces(labels)} {value:.15g}" for labels, value in metric.samples(snapshot)]
    return "\n".join([*lines, ""])


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
