"""Reads a result file of `llmservice bench`, of this version or an earlier one, with bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from llmservice_runtime.bounded_json import Reader, Refused, clean, read

from llmservice_cli.bench.result import KIND, VERSION
from llmservice_cli.bench.schedule import Discipline

MAX_BYTES, MAX_PARTS = 256 << 20, 50_000_000
MOST_RUNS, MOST_PARAMETERS = 1000, 100
LONGEST_FACT = 200


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run, by its place in the file."""

    name: str
    place: tuple[str, ...]
    is_better_high: bool = False


FIGURES = (
    Figure("answered share", (), is_better_high=True),
    Figure("requests/s", ("summary", "requestsPerSecond"), is_better_high=True),
    Figure("goodput, requests/s", ("summary", "goodput"), is_better_high=True),
    Figure("output tokens/s", ("summary", "outputTokensPerSecond"), is_better_high=True),
    Figure("total tokens/s", ("vllmBenchServe", "total_token_throughput"), is_better_high=True),
    *(Figure(f"latency {percent}, s", ("summary", "latency", percent)) for percent in ("p50", "p95", "p99")),
    *(Figure(f"TTFT {percent}, s", ("summary", "timeToFirstToken", percent)) for percent in ("p50", "p95", "p99")),
    *(
        Figure(f"{what} {label}, ms", ("vllmBenchServe", f"{what.lower()}_{label.lower()}_ms"))
        for label in ("TPOT", "ITL")
        for what in ("Median", "P99")
    ),
)
"""Latency and TTFT count from arrival."""


class Load(NamedTuple):
    """What a run is named by."""

    discipline: str
    amount: str
    """As the table of a bench has it."""


@dataclass(frozen=True)
class Measured:
    """One file."""

    place: str
    is_partial: bool
    facts: Mapping[str, str]
    """Model, versions, and each parameter of the load, as text."""
    runs: Mapping[Load, Mapping[str, float]]
    """Figures by their names; those that the file does not have are absent."""

    @property
    def is_sweep(self) -> bool:
        return len({load.discipline for load in self.runs}) < len(self.runs)


def measured(path: Path) -> Measured:
    """Refused where it is no result; OSError where it cannot be read."""
    return measured_of(str(path), read(path, MAX_BYTES, max_items=MAX_PARTS))


def measured_of(place: str, document: object) -> Measured:
    """Raises Refused."""
    reader = Reader(document)
    if reader.word("kind", 64, default="") != KIND:
        raise Refused(f"it is no {KIND}")
    if reader.integer("version") != VERSION:
        raise Refused(f"its version is not {VERSION}")
    target, parameters = reader.within("target"), reader.within("parameters")
    facts = {"model": target.text("model", LONGEST_FACT, default="")}
    facts |= {"vLLM": target.text("vllmVersion", LONGEST_FACT, default="")}
    facts |= {"way": target.text("way", LONGEST_FACT, default="")}
    given = islice(reader.value("parameters").items(), MOST_PARAMETERS)
    facts |= {clean(name[:LONGEST_FACT]): json.dumps(value)[:LONGEST_FACT] for name, value in given}
    runs = dict(_run(Reader(one, "a run"), parameters) for one in reader.items("disciplines", MOST_RUNS))
    if not runs:
        raise Refused("it has no runs")
    return Measured(place, reader.flag("partial", default=False), facts, runs)


def _run(run: Reader, parameters: Reader) -> tuple[Load, Mapping[str, float]]:
    load = Load(str(run.one_of("discipline", Discipline)), _amount(run, parameters))
    summary = run.within("summary")
    figures = {FIGURES[0].name: summary.integer("answered") / max(1, summary.integer("planned"))}
    for figure in FIGURES[1:]:
        reader: Reader | None = run
        for part in figure.place[:-1]:
            reader = reader.within(part) if reader is not None and reader.has(part) else None
        if reader is not None and reader.has(figure.place[-1]):
            figures[figure.name] = reader.number(figure.place[-1])
    return load, figures


def _amount(run: Reader, parameters: Reader) -> str:
    """Files of earlier versions have the rate among the parameters only."""
    if run.has("concurrency"):
        return f"{run.integer('concurrency')} clients"
    return f"{(run if run.has('rate') else parameters).number('rate'):g}/s"
