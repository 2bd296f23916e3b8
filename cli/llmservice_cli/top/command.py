"""`llmservice top`: samples, one after the other; what happened between two, as rows, lines and a document."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llmservice_operator.facts.pods import PodFacts
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json, status_of
from llmservice_cli.cluster import connect
from llmservice_cli.documents import show
from llmservice_cli.errors import ExitCode, WrongUsage, say
from llmservice_cli.metrics import HeldRequests, held_in
from llmservice_cli.services import NO_VALUE
from llmservice_cli.text import table
from llmservice_cli.top import Options

from .sample import Latency, Metered, MetricsSample, Rates, Sample, Sampler, between, together


async def run(options: Options) -> ExitCode:
    """Once, or until Ctrl-C."""
    if options.name and options.all_namespaces:
        raise WrongUsage("a name goes with one namespace, not with all", "leave out either NAME or --all-namespaces")
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    async with connect(options) as connection, Metered(connection.credentials) as transport:
        sampler = Sampler(transport, None if options.all_namespaces else connection.namespace, options.name)
        before = await sampler.read()
        if options.once or options.output != "table" or not is_terminal:
            _print(options, view(before, await _next(sampler, before, options.interval), options.sort))
            return ExitCode.DONE
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is how it is ended
            await _shown(options, sampler, before)
    return ExitCode.DONE


async def _next(sampler: Sampler, before: Sample, interval: float) -> Sample:
    """The next sample, an interval after the one before."""
    await asyncio.sleep(max(0.0, before.at + interval - sampler.clock()))
    return await sampler.read()


def _print(options: Options, seen: View) -> None:
    read_at = datetime.now(UTC).isoformat(timespec="seconds")
    show(options.output, lambda: _lines(options, seen), lambda: document(seen, read_at))
    if options.output == "table":
        for note in notes(seen):
            say(note)


def _lines(options: Options, seen: View) -> list[str]:
    return lines(seen, with_namespace=options.all_namespaces, with_pods=options.name is not None)


async def _shown(options: Options, sampler: Sampler, before: Sample) -> None:
    """On a terminal, until it is cancelled."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def text(*parts: tuple[str, str]) -> Text:
        return Text("\n", no_wrap=True, overflow="crop").join(Text(line, style) for line, style in parts)

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(text((f"measuring for {options.interval:g} s", "dim")), console=console, auto_refresh=False) as screen:
        while True:
            after = await _next(sampler, before, options.interval)
            seen = view(before, after, options.sort)
            screen.update(text(*live(seen, _lines(options, seen))), refresh=True)
            before = after


# From two samples to rows.

NOT_READY = "the pod is not ready"
NOT_ASKED = "not asked: there are too many pods"


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod: rates, or why there are none."""

    name: str
    ready: bool
    rates: Rates | str


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One service."""

    namespace: str
    name: str
    ready: str
    """As the status has it: `1/2`."""
    gpus: int | None
    rates: Rates
    """Of the pods that could be read."""
    held: HeldRequests | str | None
    """None: the service's requests are never held."""
    pods: Sequence[PodRow] | str
    """Or why they are not known."""

    @property
    def unread(self) -> Mapping[str, str]:
        """Ready pods without figures, with the reason."""
        if isinstance(self.pods, str):
            return {}
        return {pod.name: pod.rates for pod in self.pods if pod.ready and isinstance(pod.rates, str)}


@dataclass(frozen=True, slots=True)
class View:
    """What is shown."""

    rows: Sequence[ServiceRow]
    seconds: float
    """Between the two samples."""
    requests: int
    bytes: int
    """What the second sample, and the wait for it, cost."""
    left_out: int
    problems: Sequence[str]


def view(before: Sample, after: Sample, sort: str) -> View:
    """The rows by a column."""
    rows = [_row(service, before, after) for service in after.services]
    problems = [after.problem] if after.problem else []
    if isinstance(after.pods, str):
        problems.append(after.pods)
    return View(
        ordered(rows, sort),
        after.at - before.at,
        after.requests - before.requests,
        after.bytes - before.bytes,
        after.left_out,
        [*problems, *_problems(rows)],
    )


def _row(service: Json, before: Sample, after: Sample) -> ServiceRow:
    metadata, status = service["metadata"], status_of(service)
    key = (metadata["namespace"], metadata["name"])
    pods = after.pods if isinstance(after.pods, str) else [_pod(pod, before, after) for pod in after.pods.get(key, ())]
    rates = [] if isinstance(pods, str) else [pod.rates for pod in pods if isinstance(pod.rates, Rates)]
    gpus = status.get("gpus")
    held = held_in(after.held, service)
    return ServiceRow(
        *key, str(status.get("ready", NO_VALUE)), gpus if isinstance(gpus, int) else None, together(rates), held, pods
    )


def _pod(pod: PodFacts, before: Sample, after: Sample) -> PodRow:
    name, is_ready = (pod.namespace, pod.name), pod.ready and not pod.deleting
    if not is_ready:
        return PodRow(pod.name, False, NOT_READY)
    now, then = after.pages.get(name, NOT_ASKED), before.pages.get(name)
    return PodRow(
        pod.name, True, now if isinstance(now, str) else between(then if isinstance(then, MetricsSample) else None, now)
    )


def _problems(rows: Iterable[ServiceRow]) -> Iterator[str]:
    for row in rows:
        if isinstance(row.held, str):
            yield f"{row.name}: held requests are not readable: {row.held}"
        elif row.held is not None:
            yield from (f"activator {name} is not readable: {why}" for name, why in row.held.unread.items())
        yield from (f"{name}: {why}" for name, why in row.unread.items() if why != NOT_ASKED)


def ordered(rows: Iterable[ServiceRow], sort: str) -> Sequence[ServiceRow]:
    """Most first; equal ones, and those that are not known, by name."""

    def key(row: ServiceRow) -> tuple[float, str, str]:
        value = None if sort == "name" else _value(row, sort)
        return (float("inf") if value is None else -value, row.namespace, row.name)

    return sorted(rows, key=key)


def _value(row: ServiceRow, sort: str) -> float | None:
    rates = row.rates
    return {
        "gpus": row.gpus,
        "running": rates.running,
        "waiting": rates.waiting,
        "held": row.held.requests if isinstance(row.held, HeldRequests) else None,
        "kv": rates.kv_cache_usage,
        "generation": rates.generation_per_second,
        "prompt": rates.prompt_per_second,
        "ttft": rates.ttft.p99,
        "itl": rates.itl.p99,
    }[sort]


# The lines and the document of what is seen.

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
            rows += [[*([""] if with_namespace else []), *_pod_row(pod)] for pod in row.pods]
    right = frozenset(range(len(header) - len(FIGURES) - 1, len(header)))
    return [clean(line) for line in table(header, rows, right=right)]


def _service(row: ServiceRow) -> list[str]:
    held = str(row.held.requests) if isinstance(row.held, HeldRequests) else NO_VALUE
    return [row.name, row.ready, _count(row.gpus), *_figures(row.rates, held)]


def _pod_row(pod: PodRow) -> list[str]:
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


def _service_document(row: ServiceRow) -> dict[str, Any]:
    held: dict[str, Any] = {"heldUnread": row.held} if isinstance(row.held, str) else {}
    if isinstance(row.held, HeldRequests):
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
