"""The plain runs as a picture: how seconds, memory and an edit's latency grow with the number of services."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.scale.figures import Figures
from benchmarks.scale.kept import Kept
from benchmarks.scale.peers import KUBERAY, PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

COUNTS = (100, 1000, 5000, 10000)
OURS, KUBERAY_NAME, FLOOR = "this operator", "KubeRay, as published", "floor: CPU until Ready ÷ cores"
MEMORY = "operator's memory, MiB"
LEGEND = "LLMKube, Hearth, KubeAI and vLLM production-stack: on a faster machine of the same size"
# Okabe and Ito's colours, which people with any colour vision can tell apart.
PEER_COLOURS = ("#E69F00", "#009E73", "#CC79A7", "#56B4E9")


@dataclass(frozen=True)
class Style:
    """Of a line, wherever it is drawn."""

    colour: str
    width: float = 1.2
    dashes: str = "-"
    marker: str = "o"

    @property
    def words(self) -> dict[str, Any]:
        """As matplotlib calls them."""
        looks = {"color": self.colour, "linestyle": self.dashes, "marker": self.marker}
        return {**looks, "linewidth": self.width, "markersize": 2.5 + self.width}


STYLES: Mapping[str, Style] = {
    OURS: Style("#0072B2", 2.4),
    FLOOR: Style("#000000", 1.2, "--", "None"),
    **{
        name: Style(colour)
        for name, colour in zip(dict.fromkeys(peer.name for peer in PEERS), PEER_COLOURS, strict=True)
    },
    KUBERAY_NAME: Style("#D55E00", 1.2, ":", "s"),
}
Points = Mapping[int, float]
"""Value by number of services."""


def draw(runs: Sequence[Kept]) -> str:
    """SVG, the same for the same figures: a test compares it with the file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text as text, and names made from the content: a small file that does not change without a reason.
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "llmservice", "font.size": 9, "font.sans-serif": ["DejaVu Sans"]}
    ):
        figure = Figure(figsize=(11, 7))
        grid = figure.subplots(2, 2)
        for axes, (title, lines) in zip(grid.flat, panels(runs).items(), strict=True):
            _panel(axes, title, lines)
        for axes in grid[1]:
            axes.set_xlabel("services")
        figure.subplots_adjust(left=0.07, right=0.98, top=0.95, bottom=0.17, hspace=0.25, wspace=0.16)
        shown = [name for name in STYLES if any(name in lines for lines in panels(runs).values())]
        handles = [_line(name) for name in shown]
        figure.legend(
            handles=handles, loc="lower center", ncols=4, fontsize=8, frameon=False, title=LEGEND, title_fontsize=8
        )
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def panels(runs: Sequence[Kept]) -> dict[str, dict[str, Points]]:
    """What is drawn: lines by panel and by name. A run that does not say a figure is no point."""

    def ours(figure: Callable[[Figures], float]) -> Points:
        return {run.figures.services: figure(run.figures) for run in runs}

    return {
        "seconds until all have their children": _lines(ours(lambda found: found.children_seconds), "children_seconds"),
        "seconds until all are Ready": {
            **_lines(ours(lambda found: found.ready_seconds), "ready_seconds"),
            KUBERAY_NAME: KUBERAY,
            **_known({FLOOR: ours(lambda found: found.floor_seconds)}),
        },
        MEMORY: _lines(ours(lambda found: found.peak_mib), "mib"),
        "milliseconds from an edit to its child, median": _lines(ours(lambda found: found.edits_ms["p50"]), "edit_ms"),
    }


def _lines(ours: Points, figure_of_peers: str) -> dict[str, Points]:
    by_name: dict[str, dict[int, float]] = {}
    for peer in PEERS:
        by_name.setdefault(peer.name, {})[peer.services] = getattr(peer, figure_of_peers)
    return {**by_name, **_known({OURS: ours})}


def _known(lines: Mapping[str, Points]) -> dict[str, Points]:
    # Nor is NaN more than nothing, and a logarithm has no place for nothing.
    known = {name: {at: value for at, value in points.items() if value > 0} for name, points in lines.items()}
    return {name: points for name, points in known.items() if points}


def _panel(axes: Axes, title: str, lines: Mapping[str, Points]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    for name, points in lines.items():
        axes.plot(list(points), list(points.values()), **STYLES[name].words)
    axes.set_title(title, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(COUNTS[0] * 0.8, COUNTS[-1] * 1.25)
    counts = sorted({*COUNTS, *(count for points in lines.values() for count in points)})
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(linewidth=0.3)
    if title == MEMORY:
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(_some))
    axes.tick_params(axis="y", which="minor", labelsize=7)


def _some(value: float, _: int | None) -> str:
    """Between powers of ten, 2 and 5 say enough."""
    return f"{value:,g}" if f"{value:e}"[0] in "25" else ""


def _line(name: str) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=name, **STYLES[name].words)
