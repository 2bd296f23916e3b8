"""The part of docs/reference/scale.md about services that scale with their load: a column for each kept run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.autoscaling.figures import Figures, goals, rest
from benchmarks.pages import header, number, row

FOLDER = "tools/benchmarks/autoscaling/results"
HEAD = """\
## Scaling with the load, nine of ten at zero

`make bench-autoscaling`, with files in `tools/benchmarks/autoscaling/results/`. One activator answers KEDA's calls
about all services, as one of two would, and holds requests. How each figure is taken stands
[there](../scale.md#services-at-zero)."""


def read(root: Path) -> list[Figures]:
    """All kept runs of a checkout, the fewest services first."""
    found = [Figures(**json.loads(path.read_text())) for path in (root / FOLDER).glob("*.json")]
    return sorted(found, key=lambda run: run.services)


def section(runs: list[Figures]) -> Iterator[str]:
    """Lines of the page; none where no run is kept."""
    if not runs:
        return
    yield from (HEAD, "", *header("figure", "goal", *(f"{run.services:,}" for run in runs)))
    for each in zip(*(goals(run) for run in runs), strict=True):
        limits = " / ".join(dict.fromkeys(f"{goal.limit:,g}" for goal in each))
        values = (number(goal.value) if goal.is_met else f"**{number(goal.value)}** missed" for goal in each)
        unit = f", {each[0].unit}" if each[0].unit else ""
        yield row(f"{each[0].what}{unit}", f"≤ {limits}", *values)
    for said in zip(*(rest(run) for run in runs), strict=True):
        yield row(said[0][0], "", *(value for _, value in said))
    yield row("machine", "", *(run.machine for run in runs))
