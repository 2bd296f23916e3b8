"""From two samples to the rows of the table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmservice_operator.observe.projections.pods import PodFacts

from llmservice_cli.api import Json
from llmservice_cli.status.held import Held, held_in

from .rates import Rates, Reading, between, together
from .sample import Sample

NOT_READY = "the pod is not ready"
NOT_ASKED = "not asked: there are too many pods"


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod: rates, or why there are none."""

    name: str
    ready: bool
    rates: Rates | str


@dataclass(frozen=True, slots=True)
class Row:
    """One service."""

    namespace: str
    name: str
    ready: str
    """As the status has it: `1/2`."""
    gpus: int | None
    rates: Rates
    """Of the pods that could be read."""
    held: Held | str | None
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

    rows: Sequence[Row]
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


def _row(service: Json, before: Sample, after: Sample) -> Row:
    metadata, status = service["metadata"], service.get("status") or {}
    key = (metadata["namespace"], metadata["name"])
    pods = after.pods if isinstance(after.pods, str) else [_pod(pod, before, after) for pod in after.pods.get(key, ())]
    rates = [] if isinstance(pods, str) else [pod.rates for pod in pods if isinstance(pod.rates, Rates)]
    gpus = status.get("gpus")
    held = held_in(after.held, service)
    return Row(
        *key, str(status.get("ready", "-")), gpus if isinstance(gpus, int) else None, together(rates), held, pods
    )


def _pod(pod: PodFacts, before: Sample, after: Sample) -> PodRow:
    name, is_ready = (pod.namespace, pod.name), pod.ready and not pod.deleting
    if not is_ready:
        return PodRow(pod.name, False, NOT_READY)
    now, then = after.pages.get(name, NOT_ASKED), before.pages.get(name)
    return PodRow(
        pod.name, True, now if isinstance(now, str) else between(then if isinstance(then, Reading) else None, now)
    )


def _problems(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        if isinstance(row.held, str):
            yield f"{row.name}: held requests are not readable: {row.held}"
        elif row.held is not None:
            yield from (f"activator {name} is not readable: {why}" for name, why in row.held.unread.items())
        yield from (f"{name}: {why}" for name, why in row.unread.items() if why != NOT_ASKED)


def ordered(rows: Iterable[Row], sort: str) -> Sequence[Row]:
    """Most first; equal ones, and those that are not known, by name."""

    def key(row: Row) -> tuple[float, str, str]:
        value = None if sort == "name" else _value(row, sort)
        return (float("inf") if value is None else -value, row.namespace, row.name)

    return sorted(rows, key=key)


def _value(row: Row, sort: str) -> float | None:
    rates = row.rates
    return {
        "gpus": row.gpus,
        "running": rates.running,
        "waiting": rates.waiting,
        "held": row.held.requests if isinstance(row.held, Held) else None,
        "kv": rates.kv_cache_usage,
        "generation": rates.generation_per_second,
        "prompt": rates.prompt_per_second,
        "ttft": rates.ttft.p99,
        "itl": rates.itl.p99,
    }[sort]
