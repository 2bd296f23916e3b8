"""The result as a picture, and as a page with it. matplotlib is imported only when one was asked for."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llmservice_cli.errors import CliError
from llmservice_cli.load.figures import Spread

from .lines import ABOUT, Cells, heading, remarks, summary_cells, vllm_cells
from .result import ITL, Result, Run, Time
from .traffic import Discipline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, which people with any colour vision can tell apart.
HELD, WAITING, ANSWERING, FAILED = "#BBBBBB", "#E69F00", "#0072B2", "#D55E00"
PARTS: Mapping[str, str] = {
    HELD: "held back by the client",
    WAITING: "sent, no token yet",
    ANSWERING: "being answered",
    FAILED: "not answered",
}
SHADES: Mapping[str, str] = {"p50": "#56B4E9", "p95": "#0072B2", "p99": "#003A5D"}
COLOURS = {Discipline.STATIC: "#E69F00", Discipline.DYNAMIC: "#009E73", Discipline.CONTINUOUS: "#0072B2"}
LIMIT = "#D55E00"
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""Of an SVG in a page: matplotlib's own is links."""
STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser refuses what a hostile server's words might smuggle in."""


def check(picture: Path | None, page: Path | None) -> None:
    """Before the load starts: whether a picture can be made at all."""
    if picture is not None and picture.suffix not in SUFFIXES:
        raise CliError(
            f"{picture} is no kind of picture that is known here", f"end its name with {', '.join(SUFFIXES)}"
        )
    if (picture or page) and importlib.util.find_spec("matplotlib") is None:
        option = "--picture" if picture else "--html"
        raise CliError("a picture needs matplotlib", f"pip install '.[bench]' in a checkout, or leave out {option}")


def draw(result: Result, path: Path) -> None:
    """A file of the kind that its name says."""
    _save(result, path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def _save(result: Result, to: Path | io.BytesIO, **options: Any) -> None:
    """Text as text, and names made from the content: small files that do not change without a reason. A dollar sign
    in a model's name is no formula."""
    from matplotlib import rc_context

    style = rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "llmservice",
            "font.size": 9,
            "font.sans-serif": ["DejaVu Sans"],
            "text.parse_math": False,
        }
    )
    with style:
        (_sweep(result) if result.is_sweep else _disciplines(result)).savefig(to, **options)


def page(result: Result) -> str:
    """HTML that loads nothing: tables, and the picture as SVG in it. What a server or a user wrote is escaped."""
    title = f"llmservice bench: {result.model}"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *_paragraphs([*heading(result), f"Started {result.started.isoformat(timespec='seconds')}."]),
            *_table(summary_cells(result)),
            *_paragraphs([ABOUT, *remarks(result)]),
            _svg(result),
            *_table(vllm_cells(result)),
            *_paragraphs(["The last table counts from a request's sending to its last token."]),
            "</body></html>",
            "",
        ]
    )


def _paragraphs(texts: Sequence[str]) -> Iterator[str]:
    return (f"<p>{escape(text)}</p>" for text in texts)


def _table(cells: Cells) -> Iterator[str]:
    header, rows = cells
    yield f"<table><thead>{_row('th', header)}</thead><tbody>"
    yield from (_row("td", row) for row in rows)
    yield "</tbody></table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _svg(result: Result) -> str:
    """The element, without prologue and links."""
    written = io.BytesIO()
    _save(result, written, format="svg", metadata=NO_METADATA)
    text = written.getvalue().decode()
    return text[text.index("<svg") :]


def _interrupted(result: Result) -> str:
    return " (interrupted)" if result.is_partial else ""


# The picture of a sweep: figures against the load.


Curves = Mapping[str, Callable[[Run], float | None]]
"""A figure of each run by its label; None where it has none."""
STYLES = {"p50": ":", "good": "--"}


class Panel(NamedTuple):
    title: str
    curves: Curves
    limited: Time | None = None
    """The limit of the objective that is drawn as a line, in milliseconds."""


def _sweep(result: Result) -> Figure:
    """Panels side by side, a curve for each discipline in each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    title = f"{result.model}: {result.load.requests} requests at each load{_interrupted(result)}"
    figure.suptitle(title, fontsize=10)
    for axes, panel in zip(figure.subplots(2, 3).flat, _panels(result), strict=True):
        _draw(axes, panel, result)
    return figure


def _panels(result: Result) -> Sequence[Panel]:
    good: Curves = {} if result.slo is None else {"good": lambda run: run.summary.goodput}
    return (
        Panel("requests/s", {"answered": lambda run: run.summary.requests_per_second, **good}),
        Panel("output tokens/s", {"": lambda run: run.summary.output_tokens_per_second}),
        Panel("latency from arrival, ms", _spread(lambda run: run.summary.latency), Time.E2EL),
        Panel("time to first token from arrival, ms", _spread(lambda run: run.summary.time_to_first_token), Time.TTFT),
        Panel("time per output token, ms", _times(Time.TPOT), Time.TPOT),
        Panel("inter-token latency, ms", _times(ITL)),
    )


def _spread(of: Callable[[Run], Spread | None]) -> Curves:
    return {
        "p50": lambda run: None if (found := of(run)) is None else found.p50 * 1000,
        "p99": lambda run: None if (found := of(run)) is None else found.p99 * 1000,
    }


def _times(name: str) -> Curves:
    return {"p50": lambda run: run.figures[f"median_{name}_ms"], "p99": lambda run: run.figures[f"p99_{name}_ms"]}


def _draw(axes: Axes, panel: Panel, result: Result) -> None:
    several = len(result.disciplines) > 1
    for discipline in result.disciplines:
        runs = result.of(discipline)
        for name, of in panel.curves.items():
            found = [(run.point.amount, value) for run in runs if (value := of(run)) is not None]
            loads, values = [load for load, _ in found], [value for _, value in found]
            label, style = " ".join(filter(None, (str(discipline) if several else "", name))), STYLES.get(name, "-")
            axes.plot(loads, values, style, marker="o", markersize=3, color=COLOURS[discipline], label=label)
    limit = None if result.slo is None or panel.limited is None else result.slo.limits.get(panel.limited)
    if limit is not None:
        axes.axhline(limit * 1000, color=LIMIT, linewidth=1, label="SLO")
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel("clients" if result.points[0].concurrency is not None else "arrivals/s")
    axes.set_ylim(bottom=0)
    axes.grid(linewidth=0.3)
    if any(panel.curves) or several:
        axes.legend(fontsize=7, frameon=False)


# The picture of one load: throughput and percentiles side by side; below, every request of every discipline on one time
# axis.


def _disciplines(result: Result) -> Figure:
    from matplotlib.figure import Figure

    runs = {str(run.point.discipline): run for run in result.runs}
    height = 2.1 * len(runs)
    figure = Figure(figsize=(11, 3.2 + height), layout="constrained")
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.2, height))[:, 0]
    batching = f"batches of {result.batching.size}, window {result.batching.window:g} s"
    load = f"{result.load.requests} requests, {result.points[0].load}, {batching}"
    upper.suptitle(f"{result.model}: {load}{_interrupted(result)}", fontsize=10)
    requests, tokens, latency, ttft = upper.subplots(1, 4, width_ratios=(1, 1, 1.6, 1.6))
    summaries = {name: run.summary for name, run in runs.items()}
    _bars(requests, "answered requests/s", {name: each.requests_per_second for name, each in summaries.items()})
    _bars(tokens, "output tokens/s", {name: each.output_tokens_per_second for name, each in summaries.items()})
    _percentiles(latency, "latency from arrival, s", {name: each.latency for name, each in summaries.items()})
    firsts = {name: each.time_to_first_token for name, each in summaries.items()}
    _percentiles(ttft, "time to first token from arrival, s", firsts)
    timelines = lower.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(timelines, runs.items(), strict=True):
        _timeline(axes, run, name)
    timelines[-1].set_xlabel("seconds after the first arrival")
    _legend(timelines[0])
    return figure


def _bars(axes: Axes, title: str, values: Mapping[str, float]) -> None:
    bars = axes.bar(list(values), list(values.values()), color=ANSWERING, width=0.6)
    axes.bar_label(bars, fmt="{:.3g}", fontsize=8)
    axes.set_title(title, fontsize=9)
    axes.tick_params(axis="x", labelrotation=30)
    axes.margins(y=0.15)


def _percentiles(axes: Axes, title: str, spreads: Mapping[str, Spread | None]) -> None:
    width = 0.8 / len(SHADES)
    for number, (percent, shade) in enumerate(SHADES.items()):
        heights = [0.0 if spread is None else getattr(spread, percent) for spread in spreads.values()]
        places = [place + (number - 1) * width for place in range(len(spreads))]
        bars = axes.bar(places, heights, width, label=percent, color=shade)
        axes.bar_label(bars, fmt="{:.2g}", fontsize=7)
    axes.set_xticks(range(len(spreads)), list(spreads))
    axes.set_title(title, fontsize=9)
    axes.margins(y=0.15)
    axes.legend(fontsize=7, frameon=False)


def _timeline(axes: Axes, run: Run, name: str) -> None:
    """One line for each request: held back by the client, waiting for its first token, being answered."""
    spans: dict[str, list[tuple[int, float, float]]] = {colour: [] for colour in PARTS}
    for row in run.rows:
        spans[HELD].append((row.index, row.arrival, row.sent))
        ended = row.sent if row.ended is None else row.ended
        if not row.is_answered:
            spans[FAILED].append((row.index, row.sent, ended))
            continue
        first = ended if row.first_token is None else row.first_token
        spans[WAITING].append((row.index, row.sent, first))
        spans[ANSWERING].append((row.index, first, ended))
    for colour, parts in spans.items():
        # One line with gaps for each colour: a line for each request makes a file ten times the size.
        moments = [moment for _, begin, end in parts for moment in (begin, end, nan)]
        places = [place for index, _, _ in parts for place in (index, index, nan)]
        axes.plot(moments, places, color=colour, linewidth=1.8, solid_capstyle="butt")
    axes.set_ylabel(f"{name}\nrequest")
    axes.set_ylim(run.summary.planned, -1)
    axes.grid(axis="x", linewidth=0.3)


def _legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=2, label=name) for colour, name in PARTS.items()]
    axes.legend(handles=handles, loc="upper right", fontsize=7, ncols=4, bbox_to_anchor=(1, 1.22), frameon=False)
