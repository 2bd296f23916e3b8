"""The lines and the document of what is seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llmservice_runtime.bounded_json import clean

from llmservice_cli.status.held import Held
from llmservice_cli.text import table

from .rates import Latency, Rates
from .view import PodRow, Row, View

NO_VALUE = "-"
MOST_PROBLEMS = 5
"""That are shown at once."""
FIGURES = ["RUN", "WAIT", "HELD", "KV", "GEN/S", "PROMPT/S", "TTFT p50", "p99", "ITL p50", "p99"]


def lines(view: View, *, with_namespace: bool, with_pods: bool) -> list[str]:
    """The table."""
    if not view.rows:
        return ["no LLMService"]
    header = [*(["NAMESPACE"] if with_namespace else []), "NAME", "READY", "GPUS", *FIGURES]
    rows = []
    for row in view.rows:
        rows.append([*([row.namespace] if with_namespace else []), *_service(row)])
        if with_pods and not isinstance(row.pods, str):
            rows += [[*([""] if with_namespace else []), *_pod(pod)] for pod in row.pods]
    right = frozenset(range(len(header) - len(FIGURES) - 1, len(header)))
    return [clean(line) for line in table(header, rows, right=right)]


def _service(row: Row) -> list[str]:
    held = str(row.held.requests) if isinstance(row.held, Held) else NO_VALUE
    return [row.name, row.ready, _count(row.gpus), *_figures(row.rates, held)]


def _pod(pod: PodRow) -> list[str]:
    figures = [NO_VALUE] * len(FIGURES) if isinstance(pod.rates, str) else _figures(pod.rates, "")
    return [f"  {pod.name}", "yes" if pod.ready else "no", "", *figures]


def _figures(rates: Rates, held: str) -> list[str]:
    usage = NO_VALUE if rates.kv_cache_usage is None else f"{100 * rates.kv_cache_usage:.0f}%"
    ttft, itl = rates.ttft, rates.itl
    return [
        _count(rates.running),
        _count(rates.waiting),
        held,
        usage,
        _rate(rates.generation_per_second),
        _rate(rates.prompt_per_second),
        *(_seconds(value) for value in (ttft.p50, ttft.p99, itl.p50, itl.p99)),
    ]


def _count(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.0f}"


def _rate(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return NO_VALUE
    return f"{1000 * value:.0f}ms" if value < 1 else f"{value:.2f}s"


def notes(view: View) -> Iterator[str]:
    """What it costs, what was left out, and what could not be read."""
    services, pods = len(view.rows), sum(len(row.pods) for row in view.rows if not isinstance(row.pods, str))
    seconds = view.seconds or 1.0
    yield (
        f"services: {services}, pods: {pods}; over {view.seconds:.1f} s; the API server was asked"
        f" {view.requests / seconds:.1f} times/s for {_size(view.bytes / seconds)}/s before compression"
    )
    if view.left_out:
        yield f"{view.left_out} pods were not asked, so sums are too small: name a service or a namespace"
    yield from (clean(problem) for problem in view.problems[:MOST_PROBLEMS])
    if len(view.problems) > MOST_PROBLEMS:
        yield f"and {len(view.problems) - MOST_PROBLEMS} more that could not be read"


def _size(value: float) -> str:
    return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"


def document(view: View, read_at: str) -> dict[str, Any]:
    """Names are only ever added."""
    return {
        "version": 1,
        "readAt": read_at,
        "intervalSeconds": round(view.seconds, 3),
        "services": [_service_document(row) for row in view.rows],
        "podsLeftOut": view.left_out,
        "problems": list(view.problems),
        "cost": {"requests": view.requests, "bytes": view.bytes},
    }


def _service_document(row: Row) -> dict[str, Any]:
    held: dict[str, Any] = {"heldUnread": row.held} if isinstance(row.held, str) else {}
    if isinstance(row.held, Held):
        held = {"held": row.held.to_object()}
    pods = {"podsUnread": row.pods} if isinstance(row.pods, str) else {"pods": [_pod_document(pod) for pod in row.pods]}
    about = {"name": row.name, "namespace": row.namespace, "ready": row.ready, "gpus": row.gpus}
    return {**about, **_rates_document(row.rates), **held, **pods}


def _pod_document(pod: PodRow) -> dict[str, Any]:
    about = {"name": pod.name, "ready": pod.ready}
    return {**about, "unread": pod.rates} if isinstance(pod.rates, str) else {**about, **_rates_document(pod.rates)}


def _rates_document(rates: Rates) -> dict[str, Any]:
    return {
        "requestsRunning": None if rates.running is None else round(rates.running),
        "requestsWaiting": None if rates.waiting is None else round(rates.waiting),
        "kvCacheUsage": _rounded(rates.kv_cache_usage),
        "generationTokensPerSecond": _rounded(rates.generation_per_second),
        "promptTokensPerSecond": _rounded(rates.prompt_per_second),
        "timeToFirstTokenSeconds": _latency(rates.ttft),
        "interTokenLatencySeconds": _latency(rates.itl),
    }


def _latency(latency: Latency) -> dict[str, float | None]:
    return {"p50": _rounded(latency.p50), "p99": _rounded(latency.p99)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def live(view: View, table_lines: Sequence[str]) -> list[tuple[str, str]]:
    """Lines with their styles, for a terminal."""
    first, *rest = table_lines
    return [(first, "bold"), *((line, "") for line in rest), ("", ""), *((line, "dim") for line in notes(view))]
