"""Plans as a picture. matplotlib is imported only here, and only when a picture was asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmservice_planner.plan import Fit

from llmservice_cli.errors import BadInput

from .answers import Answer
from .compare import NEEDED, Cell, Grid, count_text, short_name, text
from .text import facts, headline, memory_title, segments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPTION = "--picture"
SUFFIXES = (".svg", ".png")
# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = dict(
    zip("WNAGK.?", ("#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#EEEEEE", "#BBBBBB"), strict=True)
)
"""By the letter of a segment."""
VERDICTS = {Fit.FITS: "#7FCEB5", Fit.TIGHT: "#F2CF80", Fit.DOES_NOT_FIT: "#EAAE80", Fit.UNKNOWN: "#DDDDDD"}
NOT_SERVED = "#F4F4F4"
WIDTH, ROW, PLAN = 10.0, 0.34, 2.6
"""Inches: of a picture, of a row of a grid, of a plan."""


def check(path: Path) -> None:
    """Before anything is planned: BadInput where no picture can be made."""
    if path.suffix not in SUFFIXES:
        raise BadInput.of(
            OPTION, f"{path} is no kind of picture that is known here.", f"Write {' or '.join(SUFFIXES)}."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput.of(OPTION, "a picture needs matplotlib.", "Install it, or leave the picture out.")


def of_plans(answers: Sequence[Answer], path: Path) -> None:
    """The memory of one GPU for each plan, as a bar with its legend."""
    with _saved(path, PLAN * len(answers)) as figure:
        all_axes = figure.subplots(len(answers), 1, squeeze=False)[:, 0]
        for axes, one in zip(all_axes, answers, strict=True):
            _bar(axes, one)


def of_grids(grids: Sequence[Grid], path: Path) -> None:
    """Each grid as cells in the colour of their verdict."""
    heights = [ROW * (len(grid.devices) + 3) for grid in grids]
    with _saved(path, sum(heights)) as figure:
        all_axes = figure.subplots(len(grids), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, grid in zip(all_axes, grids, strict=True):
            _grid(axes, grid)


@contextmanager
def _saved(path: Path, height: float) -> Iterator[Figure]:
    """A figure that is written at the end. Text as text, and names made from the content: small files that do not
    change without a reason."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "llmservice",
            "font.size": 9,
            "font.sans-serif": ["DejaVu Sans"],
            "text.parse_math": False,
        }
    ):
        figure = Figure(figsize=(WIDTH, max(1.5, height)), layout="constrained")
        yield figure
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror or error}."
            raise BadInput.of(OPTION, message, "Name a file in a folder that you may write to.") from None


def _bar(axes: Axes, answer: Answer) -> None:
    plan, (name, on) = answer.plan, headline(answer)
    axes.set_title(f"{name}{plan.verdict}{on}", loc="left", fontsize=10, fontweight="bold")
    axes.set_yticks([])
    parts, begin = segments(plan), 0.0
    if not parts or plan.memory_gib is None:
        axes.set_axis_off()
        axes.text(0, 0.5, plan.reason, wrap=True, transform=axes.transAxes)
        return
    for part in parts:
        label = f"{part.label}: {part.gib:.2f} GiB"
        axes.barh(0, part.gib, 0.6, left=begin, color=COLOURS[part.letter], label=label, edgecolor="white")
        begin += part.gib
    for moment, style in ((plan.budget_gib, "--"), (plan.memory_gib, "-")):
        if moment is not None:
            axes.axvline(moment, ymax=0.68, color="#333333", linestyle=style, linewidth=1)
    axes.set_xlim(0, max(begin, plan.memory_gib) * 1.01)
    rows = "\n".join(f"{name}: {value}" for name, value in facts(plan))
    axes.set_xlabel(f"{memory_title(plan)} (dashed)\n{rows}", loc="left", fontsize=8)
    narrow = {"handlelength": 1.0, "columnspacing": 1.2, "borderpad": 0.0, "fontsize": 7.0}
    axes.legend(loc="upper left", ncols=len(parts), frameon=False, **narrow)
    axes.set_ylim(-0.35, 0.75)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _grid(axes: Axes, grid: Grid) -> None:
    columns = [*(one.label for one in grid.precisions), *([NEEDED] if grid.needed else [])]
    words, colours = [], []
    for device in grid.devices:
        row = grid.row(device)
        needed = [count_text(grid.needed[device])] if grid.needed else []
        words.append([*map(text, row), *needed])
        colours.append([*map(_colour, row), *("white" for _ in needed)])
    axes.set_axis_off()
    title = f"{grid.question.name}: " if grid.question.name else ""
    axes.set_title(f"{title}longest request that fits for sure / tokens of the KV cache", loc="left", fontsize=9)
    names = [short_name(device.name) for device in grid.devices]
    edges: dict[str, Any] = {"loc": "upper center", "bbox": (0.12, 0, 0.88, 1)}
    table = axes.table(words, cellColours=colours, rowLabels=names, colLabels=columns, cellLoc="center", **edges)
    table.auto_set_font_size(False)
    table.set_fontsize(7.5)
    for cell in table.get_celld().values():
        cell.set_edgecolor("white")


def _colour(cell: Cell) -> str:
    return NOT_SERVED if cell.plan is None else VERDICTS[cell.plan.verdict]
