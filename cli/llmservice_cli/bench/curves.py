"""The picture of a sweep: figures against the load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from llmservice_cli.load.figures import Spread

from .result import Result, Run
from .schedule import Discipline
from .slo import Time
from .vllm_figures import ITL, Times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {Discipline.STATIC: "#E69F00", Discipline.DYNAMIC: "#009E73", Discipline.CONTINUOUS: "#0072B2"}
LIMIT = "#D55E00"


class Curve(NamedTuple):
    """A figure of each run; None where it has none."""

    label: str
    value: Callable[[Run], float | None]
    style: str = "-"


class Panel(NamedTuple):
    title: str
    curves: Sequence[Curve]
    limited: Time | None = None
    """The limit of the objective that is drawn as a line, in milliseconds."""


def curves(result: Result) -> Figure:
    """Panels side by side, a curve for each discipline in each."""
    from matplotlib.figure import Figure

    panels = _panels(result)
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(
        f"{result.model}: {result.load.requests} requests at each load{' (interrupted)' if result.is_partial else ''}",
        fontsize=10,
    )
    for axes, panel in zip(figure.subplots(2, 3).flat, panels, strict=True):
        _draw(axes, panel, result)
    return figure


def _panels(result: Result) -> Sequence[Panel]:
    requests = [Curve("answered", lambda run: run.summary.requests_per_second)]
    if result.slo is not None:
        requests.append(Curve("good", lambda run: run.summary.goodput, "--"))
    return (
        Panel("requests/s", requests),
        Panel("output tokens/s", [Curve("", lambda run: run.summary.output_tokens_per_second)]),
        Panel("latency from arrival, ms", _spread(lambda run: run.summary.latency), Time.E2EL),
        Panel("time to first token from arrival, ms", _spread(lambda run: run.summary.ttft), Time.TTFT),
        Panel("time per output token, ms", _times(lambda run: run.figures.times[Time.TPOT]), Time.TPOT),
        Panel("inter-token latency, ms", _times(lambda run: run.figures.times[ITL])),
    )


def _spread(of: Callable[[Run], Spread | None]) -> Sequence[Curve]:
    def at(percent: int) -> Callable[[Run], float | None]:
        return lambda run: None if (found := of(run)) is None else found.percentiles[percent] * 1000

    return [Curve("p50", at(50), ":"), Curve("p99", at(99))]


def _times(of: Callable[[Run], Times | None]) -> Sequence[Curve]:
    return [
        Curve("p50", lambda run: None if (found := of(run)) is None else found.median, ":"),
        Curve("p99", lambda run: None if (found := of(run)) is None else found.p99),
    ]


def _draw(axes: Axes, panel: Panel, result: Result) -> None:
    several = len(result.disciplines) > 1
    for discipline in result.disciplines:
        runs = result.of(discipline)
        for curve in panel.curves:
            found = [(run.point.amount, value) for run in runs if (value := curve.value(run)) is not None]
            label = " ".join(word for word in (str(discipline) if several else "", curve.label) if word)
            loads, values = [load for load, _ in found], [value for _, value in found]
            axes.plot(loads, values, curve.style, marker="o", markersize=3, color=COLOURS[discipline], label=label)
    limit = None if result.slo is None or panel.limited is None else result.slo.limits.get(panel.limited)
    if limit is not None:
        axes.axhline(limit * 1000, color=LIMIT, linewidth=1, label="SLO")
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel("clients" if result.points[0].concurrency is not None else "arrivals/s")
    axes.set_ylim(bottom=0)
    axes.grid(linewidth=0.3)
    if any(curve.label for curve in panel.curves) or several:
        axes.legend(fontsize=7, frameon=False)
