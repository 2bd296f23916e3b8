"""What `bench` and `probe` print, write and draw of requests that are known: the texts in fixtures/measured/.

A change that is meant: `WRITE=1 pytest tests/unit/cli/test_measured.py` writes them anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from llmservice_cli.bench.lines import to_lines as bench_lines
from llmservice_cli.bench.picture import page
from llmservice_cli.bench.result import Result, Slo, Time
from llmservice_cli.bench.result import to_document as bench_document
from llmservice_cli.bench.traffic import (
    ANSWERED,
    INTERRUPTED,
    Batching,
    Discipline,
    Gathered,
    LoadOptions,
    Point,
    RequestRecord,
)
from llmservice_cli.load.answer import Loss
from llmservice_cli.load.figures import counted
from llmservice_cli.probe import Mode, Options
from llmservice_cli.probe.report import Mark, ProbedRequest, Report, to_document, to_lines

FOLDER = Path(__file__).parents[1] / "fixtures" / "measured"
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LIMITS = {Time.TTFT: 0.1, Time.TPOT: 0.02, Time.E2EL: 1.0}


def answered(index: int, arrival: float, late: float, tokens: int, gap: float) -> RequestRecord:
    sent = arrival + late
    pieces = [sent + 0.05 + gap * number for number in range(tokens)]
    counts = {"prompt_tokens": 8 + index, "output_tokens": tokens, "asked_tokens": 8}
    ends = {"first_token": pieces[0], "last_token": pieces[-1], "ended": pieces[-1] + 0.001}
    return RequestRecord(index, arrival, sent, ANSWERED, finish_reason="length", pieces=pieces, **counts, **ends)  # type: ignore[arg-type]


def gathered(point: Point, gap: float, *failed: RequestRecord) -> Gathered:
    """Six requests, of which one came to nothing at some points."""
    late = {Discipline.STATIC: 0.4, Discipline.DYNAMIC: 0.15, Discipline.CONTINUOUS: 0.001}[point.discipline]
    whole = [answered(index, index / 10, late * (1 + index), 8 - index % 2, gap) for index in range(6 - len(failed))]
    return Gathered(point, 6, 6, [*reversed(whole), *failed])


def result(runs: Sequence[Gathered], slo: Slo | None, *notes: str, is_partial: bool = False) -> Result:
    return Result(
        started=STARTED,
        target="team/chat",
        way="direct",
        model="org/model <8b>",
        server_version="0.32.0",
        load=LoadOptions(6, runs[0].point.rate, 1, (8, 32), (8,)),
        points=[run.point for run in runs],
        batching=Batching(4, 0.25),
        warmup=8,
        timeout=600.0,
        is_partial=is_partial,
        gathered=runs,
        slo=slo,
        notes=notes,
    )


FAILED = RequestRecord(5, 0.5, 0.51, "503", ended=0.7, asked_tokens=8, error="the queue is <full>")
STOPPED = RequestRecord(5, 0.5, 0.51, INTERRUPTED, asked_tokens=8)


def points(*rates: float, disciplines: Sequence[Discipline]) -> Sequence[Point]:
    return [Point(discipline, rate=rate) for discipline in disciplines for rate in rates]


def of_rates() -> Result:
    found = points(10.0, 20.0, 40.0, disciplines=(Discipline.STATIC, Discipline.CONTINUOUS))
    fails = [*[()] * 5, (FAILED,)]
    runs = [gathered(point, (point.rate or 0) / 2000, *failed) for point, failed in zip(found, fails, strict=True)]
    return result(runs, Slo(LIMITS, 0.8))


def of_clients() -> Result:
    runs = [gathered(Point(Discipline.CONTINUOUS, concurrency=clients), clients / 100) for clients in (1, 4)]
    return result(runs, None, "pod chat-1 alone")


def of_disciplines() -> Result:
    found = points(20.0, disciplines=list(Discipline))
    fails = ((FAILED,), (), (STOPPED,))
    runs = [gathered(point, 0.01, *failed) for point, failed in zip(found, fails, strict=True)]
    return result(runs, None, is_partial=True)


def of_nothing() -> Result:
    return result([Gathered(Point(Discipline.CONTINUOUS, rate=5.0), 6, 1, [FAILED])], Slo(LIMITS, 0.8))


RESULTS: Mapping[str, Callable[[], Result]] = {
    "rates": of_rates,
    "clients": of_clients,
    "disciplines": of_disciplines,
    "nothing": of_nothing,
}


def recorded(name: str, text: str) -> None:
    """That it is what the file has."""
    file = FOLDER / name
    if "WRITE" in os.environ:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def written(document: object) -> str:
    return json.dumps(document, indent=1) + "\n"


@pytest.mark.parametrize("name", RESULTS)
def test_a_bench_for_people(name: str) -> None:
    recorded(f"bench-{name}.txt", "\n".join([*bench_lines(RESULTS[name](), 100), ""]))


@pytest.mark.parametrize("name", RESULTS)
def test_a_bench_for_programs(name: str) -> None:
    document = bench_document(RESULTS[name]())
    document["disciplines"] = document["disciplines"][:1] + document["disciplines"][1:][-1:]
    for run in document["disciplines"]:
        run["requests"] = run["requests"][-2:]
    recorded(f"bench-{name}.json", written(document))


@pytest.mark.parametrize("name", RESULTS)
def test_a_page_of_a_bench_and_words_and_lines_of_its_picture(name: str) -> None:
    text = page(RESULTS[name]())
    (picture,) = re.findall(r"<svg.*</svg>\n?", text, re.DOTALL)
    words = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    styles = counted(re.findall(r"(?:stroke|fill)[^\"]*: #[^\"]*", picture))
    told = [*words, *(f"{times} x {style}" for style, times in styles.items())]
    recorded(f"bench-{name}.html", text.replace(picture, "".join(f"{line}\n" for line in told)))


BEGAN = 1_767_323_045.0
LOSSES = {3: Loss.CUT, 7: "http-503", 8: Loss.TIMEOUT, 13: "http-503"}


def probed(
    marks: Sequence[Mark] = (), losses: Mapping[int, str] = LOSSES, *, rate: float | None = 4.0, requests: int = 24
) -> Report:
    rows = []
    for index, mode in zip(range(requests), (mode for _ in count() for mode in Mode), strict=False):
        sent, loss = BEGAN + index / 4, losses.get(index)
        ended = sent + 0.5 + index / 50
        token = sent + 0.1 if mode.is_streamed and loss is None else None
        error = None if loss is None else f"why {index} was lost"
        reused = {0: False, 1: None}.get(index % 5, True)
        rows.append(ProbedRequest(index, mode, sent, ended, loss, token, 1 + (index == 10), reused, 100 * index, error))
    retries, clients = (2, None) if rate else (0, 4)
    words = {"output_tokens": (8, 32), "duration": 90.0, "timeout": 120.0, "retries": retries}
    options = Options(rate=rate, concurrency=clients, **words)  # type: ignore[arg-type]
    return Report("http://chat.team.svc", "from here", "chat", options, rows, marks, is_partial=rate is None)


MARKS = [Mark("drain", BEGAN + 3.3), Mark("kill", BEGAN + 1.6)]
REPORTS: Mapping[str, Callable[[], Report]] = {
    "marks": lambda: probed(MARKS),
    "good": lambda: probed(losses={}, rate=None),
    "lost": lambda: probed(losses=dict.fromkeys(range(24), Loss.NOT_CONNECTED)),
    "nothing": lambda: probed(MARKS[:1], requests=0),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_probe(name: str) -> None:
    report = REPORTS[name]()
    recorded(f"probe-{name}.txt", "\n".join([*to_lines(report), ""]))
    recorded(f"probe-{name}.json", written(to_document(report)))
