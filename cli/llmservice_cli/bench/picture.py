"""The result as a picture. matplotlib is imported only here, and only when a picture was asked for."""

from __future__ import annotations

import importlib.util
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from llmservice_cli.errors import CliError
from llmservice_cli.load.figures import PERCENTILES, Spread

from .result import Result
from .summary import Summary
from .traffic import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, which people with any colour vision can tell apart.
HELD, WAITING, ANSWERING, FAILED = "#BBBBBB", "#E69F00", "#0072B2", "#D55E00"
SHADES = ("#56B4E9", "#0072B2", "#003A5D")


def check(path: Path) -> None:
    """Before the load starts: whether a picture can be made at all."""
    if path.suffix not in SUFFIXES:
        raise CliError(f"{path} is no kind of picture that is known here", f"end its name with {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CliError("a picture needs matplotlib", "pip install '.[bench]' in a checkout, or leave out --picture")


def draw(result: Result, path: Path) -> None:
    """Throughput and percentiles side by side; below, every request of every discipline on one time axis."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text as text, and names made from the content: small files that do not change without a reason.
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "llmservice", "font.size": 9, "font.sans-serif": ["DejaVu Sans"]}
    ):
        count = len(result.gathered)
        figure = Figure(figsize=(11, 3.2 + 2.1 * count), layout="constrained")
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.2, 2.1 * count))[:, 0]
        upper.suptitle(_title(result), fontsize=10)
        summaries = result.summaries
        requests, tokens, latency, ttft = upper.subplots(1, 4, width_ratios=(1, 1, 1.6, 1.6))
        _bars(requests, "answered requests/s", {str(d): s.requests_per_second for d, s in summaries.items()})
        _bars(tokens, "output tokens/s", {str(d): s.output_tokens_per_second for d, s in summaries.items()})
        _percentiles(latency, "latency from arrival, s", {str(d): s.latency for d, s in summaries.items()})
        _percentiles(ttft, "time to first token from arrival, s", {str(d): s.ttft for d, s in summaries.items()})
        timelines = lower.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        for axes, gathered in zip(timelines, result.gathered, strict=True):
            _timeline(axes, gathered.rows, summaries[gathered.discipline], str(gathered.discipline))
        timelines[-1].set_xlabel("seconds after the first arrival")
        _legend(timelines[0])
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=150)


def _title(result: Result) -> str:
    load = result.load
    unfinished = " (interrupted)" if result.is_partial else ""
    return (
        f"{result.model}: {load.requests} requests, {load.rate:g}/s, batches of {result.batching.size},"
        f" window {result.batching.window:g} s{unfinished}"
    )


def _bars(axes: Axes, title: str, values: dict[str, float]) -> None:
    bars = axes.bar(list(values), list(values.values()), color=ANSWERING, width=0.6)
    axes.bar_label(bars, fmt="{:.3g}", fontsize=8)
    axes.set_title(title, fontsize=9)
    axes.tick_params(axis="x", labelrotation=30)
    axes.margins(y=0.15)


def _percentiles(axes: Axes, title: str, spreads: dict[str, Spread | None]) -> None:
    width = 0.8 / len(PERCENTILES)
    for number, (percent, shade) in enumerate(zip(PERCENTILES, SHADES, strict=True)):
        heights = [0.0 if spread is None else spread.percentiles[percent] for spread in spreads.values()]
        places = [place + (number - 1) * width for place in range(len(spreads))]
        bars = axes.bar(places, heights, width, label=f"p{percent}", color=shade)
        axes.bar_label(bars, fmt="{:.2g}", fontsize=7)
    axes.set_xticks(range(len(spreads)), list(spreads))
    axes.set_title(title, fontsize=9)
    axes.margins(y=0.15)
    axes.legend(fontsize=7, frameon=False)


def _timeline(axes: Axes, rows: list[Row], summary: Summary, name: str) -> None:
    """One line for each request: held back by the client, waiting for its first token, being answered."""
    spans: dict[str, list[tuple[int, float, float]]] = {HELD: [], WAITING: [], ANSWERING: [], FAILED: []}
    for row in sorted(rows, key=lambda row: row.index):
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
    axes.set_ylim(summary.planned, -1)
    axes.grid(axis="x", linewidth=0.3)


def _legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D

    names = {HELD: "held back by the client", WAITING: "sent, no token yet", ANSWERING: "being answered"}
    handles = [Line2D([], [], color=colour, linewidth=2, label=name) for colour, name in names.items()]
    handles.append(Line2D([], [], color=FAILED, linewidth=2, label="not answered"))
    axes.legend(handles=handles, loc="upper right", fontsize=7, ncols=4, bbox_to_anchor=(1, 1.22), frameon=False)
