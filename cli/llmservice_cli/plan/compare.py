"""`--compare`: one model on several GPUs, in several precisions, as a grid that is printed or drawn."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from llmservice_planner import gpus
from llmservice_planner.changes import INT4, Alternatives, fp8_cache
from llmservice_planner.checks import Combination, verdicts
from llmservice_planner.plan import Device, Fit, Plan, Request
from llmservice_planner.remedies import counts, is_enough
from llmservice_planner.served import device_refusal

from llmservice_cli.errors import ExitCode
from llmservice_cli.plan import Options
from llmservice_cli.terminal import Row

from .answers import Json, best, code_of, figures, plan_of, precision, product, service_of, usual_devices
from .questions import Question
from .text import VERDICT_STYLES, escaped, saved
from .text import table as markdown_table

if TYPE_CHECKING:
    from llmservice_api.dtypes import KVCache
    from matplotlib.axes import Axes

NEEDED = "GPUs needed"
AS_IT_IS = "as it is"
_WEIGHTS = ("fp8", "int4")
_NEEDS_CHECKPOINT = "int4 weights need a checkpoint that is quantized so."
_SHOWN = (
    "verdict",
    "reason",
    "weightsGiB",
    "kvCacheGiB",
    "kvCacheTokens",
    "maxModelLen",
    "maxConcurrency",
    "errorBand",
)


@dataclass(frozen=True, slots=True)
class Precision:
    """A column: what weights and KV cache are held in."""

    weights: str
    kv_cache: KVCache

    @property
    def label(self) -> str:
        return f"{self.weights}, {self.kv_cache} KV"


@dataclass(frozen=True, slots=True)
class Cell:
    device: Device
    precision: Precision
    plan: Plan | None
    refused: str | None = None
    """Why vLLM does not serve that precision on that GPU."""


@dataclass(frozen=True, slots=True)
class Grid:
    question: Question
    devices: tuple[Device, ...]
    precisions: tuple[Precision, ...]
    cells: tuple[Cell, ...]
    needed: Mapping[Device, int | None] = field(default_factory=dict)
    """The fewest GPUs of a product with which one of its cells surely fits, where some product has none that does;
    None: none that a node has."""

    def exit_code(self, options: Options) -> ExitCode:
        """That of the best cell: one that can be run is enough."""
        return best(code_of(cell.plan.verdict, options) for cell in self.cells if cell.plan is not None)

    def row(self, device: Device) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.device == device)


def compare(question: Question) -> Grid:
    """Plan all of them: on the GPUs that were named, else on the usual ones."""
    is_whole = len(question.devices) > 1 or question.is_of_a_cluster
    devices = question.devices if is_whole else (question.devices + _usual_but(question.devices))
    columns = tuple(_precisions(question.request))
    cells = tuple(_cell(question, device, column) for device in devices for column in columns)
    return Grid(question, devices, columns, cells, _needed(question, devices, cells))


def _needed(question: Question, devices: Sequence[Device], cells: Sequence[Cell]) -> Mapping[Device, int | None]:
    """For every product, once one of them has no cell that fits; nothing for a model that is not known."""
    fits = {cell.device for cell in cells if cell.plan is not None and cell.plan.verdict is Fit.FITS}
    if fits >= set(devices) or question.request.architecture is None:
        return {}
    return {device: _fewest(question, [cell for cell in cells if cell.device == device]) for device in devices}


def _fewest(question: Question, cells: Sequence[Cell]) -> int | None:
    """Of all precisions that are served."""
    served = [(cell.plan, _asked(question, cell.device, cell.precision)) for cell in cells if cell.plan is not None]

    plan_for = partial(plan_of, question)
    for device in {cell.device for cell in cells if not cell.device.is_cpu}:
        for count in counts(device):
            if any(is_enough(asked, plan, count, device, plan_for) for plan, asked in served):
                return count
    return None


def document(grid: Grid) -> Json:
    needed = {device.name: count for device, count in grid.needed.items()}
    cells = [_cell_document(cell) for cell in grid.cells]
    return service_of(grid.question) | {"cells": cells} | ({"gpusNeeded": needed} if needed else {})


def csv_text(grids: Sequence[Grid]) -> str:
    """A line for each cell, under the names of the JSON; empty is what is not known."""
    names = ["service", "namespace", "gpu", "product", "weights", "kvCacheDtype", *_SHOWN, "gpusNeeded"]
    out = io.StringIO()
    table = csv.DictWriter(out, names, lineterminator="\n")
    table.writeheader()
    for grid in grids:
        for cell in grid.cells:
            table.writerow(
                service_of(grid.question) | _cell_document(cell) | {"gpusNeeded": grid.needed.get(cell.device)}
            )
    return out.getvalue()


def screen(grid: Grid, width: int) -> Iterator[Row]:
    """One grid where it is wide enough, else one for each type of the KV cache, else a list."""
    if grid.question.name:
        yield ((grid.question.name, "bold"),)
    by_kv = [
        [p for p in grid.precisions if p.kv_cache == kv] for kv in dict.fromkeys(p.kv_cache for p in grid.precisions)
    ]
    narrow = [(precision,) for precision in grid.precisions]
    for blocks in ([list(grid.precisions)], by_kv, narrow):
        drawn = [list(_block(grid, block)) for block in blocks]
        if blocks is narrow or all(sum(len(word) for word, _ in row) <= width for rows in drawn for row in rows):
            break
    for index, rows in enumerate(drawn):
        yield from ([()] if index else [])
        yield from rows
    yield ()
    yield from (((line, "dim"),) for line_of_legend in _legend(grid) for line in wrap(line_of_legend, width))


def _block(grid: Grid, precisions: Sequence[Precision]) -> Iterator[Row]:
    """A header and a row for each GPU."""
    cells = {(cell.device, cell.precision): cell for cell in grid.cells}
    names = {device: short_name(device.name) for device in grid.devices}
    first = max(len(name) for name in names.values())
    columns = [max(len(p.label), *(len(text(cells[device, p])) for device in names)) for p in precisions]
    labels = (f"  {p.label:<{size}}" for p, size in zip(precisions, columns, strict=True))
    last = f"  {NEEDED}" if grid.needed else ""
    yield ((f"{'':<{first}}{''.join(labels)}{last}".rstrip(), "bold"),)
    for device, name in names.items():
        row = [cells[device, precision] for precision in precisions]
        spans = ((f"  {text(cell):<{size}}", _style(cell)) for cell, size in zip(row, columns, strict=True))
        count = ((f"  {count_text(grid.needed[device]):<{len(NEEDED)}}", ""),) if grid.needed else ()
        yield ((f"{name:<{first}}", "bold"), *spans, *count)


def short_name(product: str) -> str:
    """Without what every label begins with; --gpu takes it."""
    return re.sub(r"^(NVIDIA-(GeForce-)?|Tesla-|AMD_Instinct_)", "", product)


def markdown(grid: Grid) -> Iterator[str]:
    if grid.question.name:
        yield from (f"### {escaped(grid.question.name)}", "")
    rows = [[escaped(device.name), *(text(cell) for cell in grid.row(device))] for device in grid.devices]
    for row, device in zip(rows, grid.devices, strict=True):
        row += [count_text(grid.needed[device])] if grid.needed else []
    yield from markdown_table(("", *(p.label for p in grid.precisions), *([NEEDED] if grid.needed else [])), rows)
    yield from ("", *(f"{escaped(line)}  " for line in _legend(grid)))


def _usual_but(named: Sequence[Device]) -> tuple[Device, ...]:
    """L4 is the NVIDIA-L4."""
    alike = {(device.memory_gib, device.capability) for device in named}
    return tuple(device for device in usual_devices() if (device.memory_gib, device.capability) not in alike)


def _precisions(request: Request) -> Iterator[Precision]:
    """As asked for first. A checkpoint that is quantized, or is to be, stays what it is."""
    model = request.architecture
    is_plain = request.weights == "auto" and request.quantization is None and request.weights_gib is None
    is_quantized = not is_plain or (model is not None and model.quantization is not None)
    for weights in (AS_IT_IS,) if is_quantized else (AS_IT_IS, *_WEIGHTS):
        for kv_cache in dict.fromkeys((request.kv_cache_dtype, "auto", "fp8")):
            yield Precision(weights, kv_cache)


def _asked(question: Question, device: Device, column: Precision) -> Request:
    return _held_in(column.weights, replace(question.request, device=device, kv_cache_dtype=column.kv_cache))


def _cell(question: Question, device: Device, column: Precision) -> Cell:
    request, asked = question.request, _asked(question, device, column)
    refused = refusal(asked)
    if refused is not None:
        return Cell(device, column, None, refused)
    plan = plan_of(question, asked)
    if column.kv_cache == "fp8" and request.kv_cache_dtype != "fp8" and _lacks_kernel(asked, plan):
        return Cell(device, column, None, f"no kernel reads an fp8 KV cache of this model on {device.name}.")
    return Cell(device, column, plan)


def _held_in(weights: str, request: Request) -> Request:
    """The request with its weights converted while they are loaded, or from another checkpoint."""
    if weights == "fp8":
        return replace(request, weights="fp8")
    if weights != "int4":
        return request
    model = request.architecture and replace(request.architecture, quantization=INT4)
    return replace(request, architecture=model, tensors=None, weights="int4", quantization="awq")


def _lacks_kernel(asked: Request, plan: Plan) -> bool:
    """By the rule of the remedies, which propose an fp8 cache where GPU and model have a kernel for it."""
    has_cache = (plan.kv_cache_gib or 0.0) > 0
    return has_cache and not list(fp8_cache(replace(asked, kv_cache_dtype="auto"), plan, Alternatives()))


def refusal(request: Request) -> str | None:
    """Why vLLM does not serve the precision of a request on its GPU; None where nothing speaks against it."""
    if request.device is None:
        return None
    found = verdicts(Combination(precision(request), request.device.name))
    return found[0].message if found else device_refusal(request)


def _cell_document(cell: Cell) -> Json:
    about: Json = {"gpu": cell.device.name, "weights": cell.precision.weights, "kvCacheDtype": cell.precision.kv_cache}
    about |= {"product": product(cell.device.name)}
    if cell.plan is None:
        return about | {"verdict": None, "reason": cell.refused}
    found = figures(cell.plan)
    return about | {name: found[name] for name in _SHOWN}


def text(cell: Cell) -> str:
    """`Fits 32k/96k`: verdict, longest request, tokens of the KV cache."""
    plan = cell.plan
    if plan is None:
        return "not served"
    if plan.verdict in (Fit.UNKNOWN, Fit.DOES_NOT_FIT) and not plan.max_model_len:
        return str(plan.verdict)
    return f"{plan.verdict} {_short(plan.max_model_len)}/{_short(plan.kv_cache_tokens)}"


def count_text(needed: int | None) -> str:
    return "-" if needed is None else str(needed)


def _short(tokens: int | None) -> str:
    """Thousands, rounded down, for what is promised must be there."""
    if tokens is None:
        return "?"
    if tokens < 10_000:
        return f"{tokens:,}"
    return f"{tokens // 1000:,}k" if tokens < 10_000_000 else f"{tokens // 1_000_000:,}M"


def _style(cell: Cell) -> str:
    return "dim" if cell.plan is None else VERDICT_STYLES[cell.plan.verdict].removeprefix("bold ")


def _legend(grid: Grid) -> Iterator[str]:
    wanted = next((cell.plan.requested_max_model_len for cell in grid.cells if cell.plan is not None), None)
    of = "" if wanted is None else f" for requests of {wanted:,} tokens"
    yield f"verdict{of}, longest request that fits for sure / tokens of the KV cache"
    count = next((cell.plan.gpus for cell in grid.cells if cell.plan is not None), 1)
    if count > 1:
        yield f"each on {count} GPUs"
        yield from filter(None, dict.fromkeys(gpus.note(count, device.name) for device in grid.devices))
    if grid.needed:
        yield f"{NEEDED}: the fewest on one node with which one of the precisions surely fits; -: no node has as many"
    if any(precision.weights == "int4" for precision in grid.precisions):
        yield _NEEDS_CHECKPOINT
    yield from dict.fromkeys(f"not served: {cell.refused}" for cell in grid.cells if cell.refused is not None)


COLOURS = {Fit.FITS: "#7FCEB5", Fit.TIGHT: "#F2CF80", Fit.DOES_NOT_FIT: "#EAAE80", Fit.UNKNOWN: "#DDDDDD"}
NOT_SERVED = "#F4F4F4"
_ROW = 0.34
"""Inches of a picture."""


def draw(grids: Sequence[Grid], path: Path) -> None:
    """Each grid as cells in the colour of their verdict."""
    heights = [_ROW * (len(grid.devices) + 3) for grid in grids]
    with saved(path, sum(heights)) as figure:
        all_axes = figure.subplots(len(grids), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, grid in zip(all_axes, grids, strict=True):
            _draw_grid(axes, grid)


def _draw_grid(axes: Axes, grid: Grid) -> None:
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
    return NOT_SERVED if cell.plan is None else COLOURS[cell.plan.verdict]
