"""`python -m benchmarks.scale.page`: the page and the picture of the kept runs; `--check` says what is stale."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path

from benchmarks.autoscaling import page as autoscaling
from benchmarks.pages import header, main, number, row
from benchmarks.scale import picture
from benchmarks.scale.figures import Goal, goals
from benchmarks.scale.kept import Kept, compared, plain, read
from benchmarks.scale.peers import KUBERAY, KUBERAY_SOURCE, NOTE, of, sizes

PAGE, PICTURE = "docs/reference/scale.md", "docs/scale.svg"
OURS = "this operator"

HEAD = """\
# Scale: the kept runs

<!-- Generated: python -m benchmarks.scale.page -->

What [Scale](../scale.md) is about, in figures. Each run is a file in `tools/benchmarks/scale/results/`; how each
figure is taken, and what it is bound by, stands [there](../scale.md#what-is-measured-and-how)."""
NONE = "No run is kept yet."
PLAIN = """\
## By number of services

All services are there before the operator starts, and seconds count from its start. A column for each number of
services; "-" was not measured."""
COMPARED = """\
## With faults, with arrivals

Each beside the plain run of as many services. With faults one request of the operator's in a hundred is answered 429
or 5xx, or dropped. With arrivals the services come at a constant rate while the operator runs: seconds count from the
first arrival, those of each service from its own."""
REQUESTS = """\
What the operator asked of the API server until all were Ready and it had fallen silent, divided by the number of
services; without its lease."""
CONTROL_PLANE = """\
CPU seconds until all were Ready, of the processes that every operator shares, and of the operator beside them."""
SECONDS_APART = "Seconds of one machine are not those of the other; numbers of writes are."

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
MORE: Mapping[str, Callable[[Kept], float]] = {
    "all pods Ready, s": lambda run: run.figures.pods_seconds,
    "a service Ready, median, s": lambda run: run.figures.service_seconds.get("p50", nan),
    "a service Ready, 99 of 100, s": lambda run: run.figures.service_seconds.get("p99", nan),
    "floor: all CPU seconds until Ready ÷ cores": lambda run: run.figures.floor_seconds,
    "CPU that the machine's host took, %": lambda run: run.figures.stolen_percent,
    "API server CPU a service, ms": lambda run: run.api_server_ms,
    "operator CPU of a start without services, s": lambda run: run.figures.start_cpu_seconds,
    "operator CPU in an idle minute, s": lambda run: run.figures.idle_cpu_seconds,
    "operator memory after a restart, MiB": lambda run: run.figures.restart_mib,
    "looks at a service": lambda run: run.figures.looks_per_service,
    "edit to child, 90 of 100, ms": lambda run: run.figures.edits_ms["p90"],
    "edit to child, the slowest, ms": lambda run: run.figures.edits_ms["max"],
    "requests answered with 4xx or 5xx": lambda run: run.figures.requests_failed,
}
"""Without a goal."""


def page(runs: Sequence[Kept]) -> str:
    parts: list[Iterator[str]] = []
    if runs:
        parts += [_figures(PLAIN, plain(runs)), _figures(COMPARED, compared(runs))]
        parts += [_requests(plain(runs)), _control_plane(plain(runs))]
    parts += [_peers(plain(runs)), _commands(runs)]
    lines = [HEAD, *([] if runs else ["", NONE])]
    for part in parts:
        lines += ["", *section] if (section := list(part)) else []
    return "\n".join([*lines, ""])


def _figures(head: str, runs: Sequence[Kept]) -> Iterator[str]:
    if not runs:
        return
    yield from (head, "")
    yield from header("figure", "goal", *(run.title for run in runs))
    by_run = [{goal.what: goal for goal in goals(run.figures)} for run in runs]
    # Some runs have fewer goals; those of the one with the most say the order.
    names = dict.fromkeys(name for found in sorted(by_run, key=len, reverse=True) for name in found)
    for name in names:
        found = [of_run.get(name) for of_run in by_run]
        unit = next(goal.unit for goal in found if goal)
        yield row(f"{name}, {unit}" if unit else name, _limit(runs, found), *(_measured(goal) for goal in found))
    for name, value in MORE.items():
        values = [number(value(run)) for run in runs]
        if set(values) != {"-"}:
            yield row(name, "", *values)


def _limit(runs: Sequence[Kept], found: Sequence[Goal | None]) -> str:
    """Once where it is the same for every number of services, else in the order of the columns."""
    limits = {run.figures.services: f"{goal.limit:,g}" for run, goal in zip(runs, found, strict=True) if goal}
    same = set(limits.values())
    return f"≤ {' / '.join(same if len(same) == 1 else limits.values())}"


def _measured(goal: Goal | None) -> str:
    if goal is None or isnan(goal.value):
        return "-"
    if goal.is_met:
        return number(goal.value)
    shown = number(goal.value)
    # What is missed by little does not look like what is met.
    return f"**{goal.value:.4g}** missed" if shown == number(goal.limit) else f"**{shown}** missed"


def _requests(runs: Sequence[Kept]) -> Iterator[str]:
    asked = [run for run in runs if run.figures.requests_per_service]
    if not asked:
        return
    run = next((run for run in asked if run.figures.services == 1000), asked[-1])
    counts: dict[str, dict[str, float]] = {}
    for what, count in run.figures.requests_per_service.items():
        verb, _, resource = what.partition(" ")
        counts.setdefault(resource, {})[verb] = count
    used = {verb for by_verb in counts.values() for verb in by_verb}
    verbs = [*(verb for verb in VERBS if verb in used), *sorted(used - set(VERBS))]
    yield from (f"## API requests a service, of {run.figures.services:,}", "", REQUESTS, "")
    yield from header("resource", *verbs, "all")
    for resource, by_verb in sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        cells = (number(by_verb[verb]) if verb in by_verb else "" for verb in verbs)
        yield row(f"`{resource}`" if resource else "none", *cells, number(sum(by_verb.values())))
    sums = [sum(by_verb.get(verb, 0.0) for by_verb in counts.values()) for verb in verbs]
    yield row("all", *map(number, sums), number(sum(sums)))


def _control_plane(runs: Sequence[Kept]) -> Iterator[str]:
    used = [run for run in runs if run.figures.control_plane_cpu_seconds]
    if not used:
        return
    by_run = [run.figures.control_plane_cpu_seconds for run in used]
    largest = by_run[-1]
    names = sorted({name for found in by_run for name in found}, key=lambda name: (-largest.get(name, 0.0), name))
    yield from ("## CPU of the control plane", "", CONTROL_PLANE, "")
    yield from header("process", *(run.title for run in used))
    for name in names:
        yield row(name, *(number(found.get(name, nan)) for found in by_run))
    yield row("all of them", *(number(run.control_plane_seconds) for run in used))
    thousands = (number(run.control_plane_seconds * 1000 / run.figures.services) for run in used)
    yield row("all of them, for each 1,000 services", *thousands)
    yield row("the operator, its start included", *(number(run.operator_seconds) for run in used))


def _peers(runs: Sequence[Kept]) -> Iterator[str]:
    thousand = (run.control_plane_seconds for run in runs if run.figures.services == 1000)
    kept = next((f", that of the kept run {number(seconds)}" for seconds in thousand), "")
    yield from ("## Beside other operators", "", f"{NOTE}{kept}. {SECONDS_APART}")
    for services in sizes():
        yield from ("", f"With {services:,} services:", "")
        yield from header("operator", "all children, s", "all Ready, s", "CPU, s", "memory, MiB", *_PEER_COLUMNS)
        for run in runs:
            if run.figures.services == services:
                yield _own(run)
        for peer in of(services):
            until = (peer.children_seconds, peer.ready_seconds, peer.cpu_seconds, peer.mib, peer.writes_per_service)
            idle = f"{number(peer.idle_writes)}{peer.note}"
            yield row(peer.name, *map(number, until), idle, number(peer.edit_ms))
    shown = ", ".join(f"{number(seconds)} s for {clusters:,}" for clusters, seconds in KUBERAY.items())
    yield from ("", f"{KUBERAY_SOURCE}: {shown}.")


_PEER_COLUMNS = ("writes a service", "writes in an idle minute", "edit to child, median, ms")


def _own(run: Kept) -> str:
    found = run.figures
    until = (found.children_seconds, found.ready_seconds, run.operator_seconds, found.peak_mib)
    writes = f"{number(found.writes_per_service)}, Events {number(found.events_per_service)}"
    return row(OURS, *map(number, until), writes, number(found.idle_writes), number(found.edits_ms["p50"]))


def _commands(runs: Sequence[Kept]) -> Iterator[str]:
    if not runs:
        return
    yield from ("## What was run", "")
    yield from header("run", "command", "machine")
    for run in runs:
        yield row(run.title, f"`{run.command}`", run.figures.machine or "-")


def generated(root: Path) -> dict[str, str]:
    """What the files should be, by path, for the runs of this checkout."""
    runs = read(root)
    autoscaled = list(autoscaling.section(autoscaling.read(root)))
    text = "\n".join([page(runs), *autoscaled, ""]) if autoscaled else page(runs)
    return {PAGE: text, PICTURE: picture.draw(plain(runs))}


if __name__ == "__main__":
    sys.exit(main("benchmarks.scale.page", __doc__, generated))
