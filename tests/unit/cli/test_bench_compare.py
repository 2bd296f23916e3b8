"""`llmservice bench compare`: what differs, what is worse, files of earlier versions, and hostile ones."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from llmservice_cli.bench import Options
from llmservice_cli.bench.compare import Measured, compare, measured_of
from llmservice_cli.errors import ExitCode
from llmservice_runtime.bounded_json import Refused, parse

from tests.unit.cli_world import Command
from tests.unit.hostile import texts

Json = dict[str, Any]
OLD: Json = {
    "kind": "BenchResult",
    "version": 1,
    "started": "2026-01-02T03:04:05+00:00",
    "partial": False,
    "target": {"name": "team/chat", "way": "direct", "model": "chat", "vllmVersion": "0.31.0"},
    "parameters": {"requests": 4, "rate": 20.0, "seed": 1, "promptWords": [8], "outputTokens": [8]},
    "disciplines": [
        {
            "discipline": "continuous",
            "summary": {
                "planned": 4,
                "answered": 4,
                "failures": {},
                "requestsPerSecond": 10.0,
                "outputTokensPerSecond": 80.0,
                "latency": {"mean": 1.0, "p50": 1.0, "p95": 2.0, "p99": 2.0, "max": 2.0},
                "timeToFirstToken": {"mean": 0.1, "p50": 0.1, "p95": 0.2, "p99": 0.2, "max": 0.2},
            },
            "requests": [],
        }
    ],
}
"""As before there were sweeps."""


def run(rate: float | None = 20.0, clients: int | None = None, **summary: Any) -> Json:
    given = copy.deepcopy(OLD["disciplines"][0])
    given["summary"] |= {"goodput": 9.0, **summary}
    figures = {f"{what}_{name}_ms": 10.0 for name in ("tpot", "itl") for what in ("median", "p99")}
    vllm = {"total_token_throughput": 160.0, **figures}
    return {**given, "rate": rate, "concurrency": clients, "vllmBenchServe": vllm}


def result(*runs: Json, **parameters: Any) -> Json:
    given = {"rates": [20.0], "concurrency": [], "slo": None, **parameters}
    return {**OLD, "parameters": {**OLD["parameters"], **given}, "disciplines": list(runs or (run(),))}


@pytest.fixture
def bench(llmservice: Command) -> Any:
    """`bench compare` of these documents, as files a.json, b.json..."""

    def compared(*documents: Json, words: tuple[str, ...] = ()) -> Any:
        files = [llmservice.text(f"{'abc'[number]}.json", json.dumps(one)) for number, one in enumerate(documents)]
        return llmservice("bench", "compare", *files, *words)

    return compared


def test_the_same_has_ratios_of_one_and_no_notes(bench: Any) -> None:
    ran = bench(result(), result(), words=("--max-regression", "0"))
    assert (ran.code, ran.err) == (ExitCode.DONE, "")
    assert "note" not in ran.out
    assert "continuous, 20/s" in ran.out.splitlines()
    rows = [line.split() for line in ran.out.splitlines() if line.endswith("1.000")]
    assert len(rows) == 15, "every figure"


WORSE: dict[str, tuple[Json, float]] = {
    "fewer requests a second": ({"requestsPerSecond": 9.0}, 0.1),
    "less goodput": ({"goodput": 4.5}, 0.5),
    "fewer answers": ({"answered": 3}, 0.25),
    "longer latency": ({"latency": {"p50": 1.0, "p95": 2.0, "p99": 2.2}}, 0.1),
    "later first token": ({"timeToFirstToken": {"p50": 0.15, "p95": 0.2, "p99": 0.2}}, 0.5),
}


@pytest.mark.parametrize("case", WORSE)
def test_what_is_worse_by_more_ends_it_with_one(case: str, bench: Any) -> None:
    summary, by = WORSE[case]
    below, above = f"{by * 100 - 1:g}%", f"{by * 100 + 1:g}"
    ran = bench(result(), result(run(**summary)), words=("--max-regression", below))
    assert ran.code == ExitCode.FAILED
    assert f"error: worse by more than {below}: " in ran.err
    assert f"worse by {by:.1%}" in ran.out
    assert ran.err.count(" by ") == 2, "nothing else is worse"
    assert bench(result(), result(run(**summary)), words=("--max-regression", above)).code == ExitCode.DONE
    assert bench(result(), result(run(**summary))).code == ExitCode.DONE, "without a limit nothing is too much"
    assert bench(result(run(**summary)), result(), words=("--max-regression", "0")).code == ExitCode.DONE, "better"


def test_any_of_several_files_may_be_the_worse_one(bench: Any) -> None:
    slow = result(run(requestsPerSecond=5.0))
    ran = bench(result(), slow, result(), words=("--max-regression", "5%", "-o", "json"))
    assert ran.code == ExitCode.FAILED
    (figure,) = [one for one in ran.json["runs"][0]["figures"] if one["isWorse"]]
    assert (figure["name"], figure["better"]) == ("requests/s", "higher")
    assert (figure["values"], figure["ratios"]) == ([10.0, 5.0, 10.0], [0.5, 1.0])
    assert (ran.json["kind"], ran.json["version"], ran.json["maxRegression"]) == ("BenchComparison", 1, 0.05)


def test_a_file_of_an_earlier_version_is_compared_by_what_it_has(bench: Any) -> None:
    ran = bench(OLD, result(run(requestsPerSecond=11.0)), words=("-o", "json"))
    assert ran.code == ExitCode.DONE
    assert ran.json["notes"] == []
    figures = {one["name"]: one for one in ran.json["runs"][0]["figures"]}
    assert figures["requests/s"]["ratios"] == [1.1]
    assert (figures["P99 ITL, ms"]["values"], figures["P99 ITL, ms"]["ratios"]) == ([None, 10.0], [None])


def test_loads_that_differ_are_noted(bench: Any) -> None:
    other = {**result(run(rate=10.0), rate=10.0, seed=2), "partial": True}
    other["target"] = {**OLD["target"], "model": "other", "vllmVersion": None}
    ran = bench(result(), other, words=("-o", "json"))
    words = ["model differs: chat, other", "vLLM differs: 0.31.0, unknown", "rate differs: 20.0, 10.0"]
    assert ran.json["notes"][:4] == [*words, "seed differs: 1, 2"]
    assert [note.rpartition("/")[2] for note in ran.json["notes"][4:]] == ["b.json was interrupted"]
    assert ran.json["runs"][0]["load"] is None, "no file is a sweep: compared by discipline"


def test_points_of_sweeps_are_compared_with_their_like(bench: Any) -> None:
    first = result(run(1.0), run(2.0, requestsPerSecond=5.0), rate=None, rates=[1.0, 2.0])
    second = result(run(2.0, requestsPerSecond=4.0), run(None, 4), rate=None, rates=[2.0], concurrency=[4])
    ran = bench(first, second, words=("-o", "json"))
    (compared,) = ran.json["runs"]
    assert compared["load"] == "2/s"
    assert [one["ratios"] for one in compared["figures"] if one["name"] == "requests/s"] == [[0.8]]
    left_out = [" ".join(note.split()[:-1]) for note in ran.json["notes"]]
    assert left_out == ["not in every file: continuous 1/s of", "not in every file: continuous 4 clients of"]


WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "not JSON": (("{",), "b.json cannot be used: it is not JSON"),
    "another kind": (({"kind": "Plan"},), "it is no BenchResult"),
    "a later version": (({**OLD, "version": 2},), "its version is not 1"),
    "no runs": (({**OLD, "disciplines": []},), "it has no runs"),
    "nothing in common": ((result(run(5.0), run(7.0)),), "no run in common"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_no_result(case: str, llmservice: Command) -> None:
    (other,), message = WRONG[case]
    first = llmservice.text("a.json", json.dumps(OLD))
    second = llmservice.text("b.json", other if isinstance(other, str) else json.dumps(other))
    ran = llmservice("bench", "compare", first, second)
    assert (ran.code, ran.out) == (ExitCode.BAD_INPUT, "")
    assert message in ran.err
    assert "llmservice bench --out" in ran.err


def test_a_file_that_is_not_there(llmservice: Command) -> None:
    ran = llmservice("bench", "compare", llmservice.text("a.json", json.dumps(OLD)), "/no/such.json", "/nor/this")
    assert ran.code == ExitCode.BAD_INPUT
    assert ran.err.count("No such file") == 2, "every one is named"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "a.json"), "at least two files"),
        (("chat", "a.json", "b.json"), "one LLMService is measured, not chat and a.json"),
        (("compare", "a.json", "b.json", "--rate", "5"), "compare measures nothing: --rate"),
        (
            ("compare", "a.json", "b.json", "-n", "x", "--seed", "1", "--timeout", "600", "--requests", "96"),
            "compare measures nothing: --namespace, --requests, --seed, --timeout",
        ),
        (("chat", "--slo-share", "99%"), "--slo-share is of an objective"),
        (("chat", "--max-regression", "5%"), "--max-regression compares files"),
        (("compare", "a.json", "b.json", "--max-regression", "many"), "percentage"),
    ],
)
def test_arguments_that_do_not_go_together(words: tuple[str, ...], message: str, llmservice: Command) -> None:
    ran = llmservice("bench", *words)
    assert (ran.code, message in ran.err) == (ExitCode.USAGE, True), ran.err


def test_a_note_has_an_end_and_no_escape(bench: Any) -> None:
    hostile = {f"p\x1b[2J{number}": "x" * 5000 for number in range(500)}
    ran = bench(result(**hostile), result(**dict.fromkeys(hostile, 1)))
    assert ran.code == ExitCode.DONE
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) < 500
    assert ran.out.count("note: ") <= 100


def _compared(files: list[Measured]) -> None:
    for load, figures in compare(files).runs.items():
        assert all(one.worst >= 0 for one in figures), load


@given(texts(result(run(1.0), run(2.0))))
def test_any_document_is_read_or_refused(text: str) -> None:
    try:
        found = measured_of("a", parse(text))
    except Refused:
        return
    assert "\x1b" not in "".join(found.facts.values())
    _compared([found, measured_of("b", OLD)])


def test_every_option_of_a_measurement_is_refused(llmservice: Command) -> None:
    """Also one that repeats its default."""
    used = {"name", "files", "max_regression", "output", "quiet"}
    for field in dataclasses.fields(Options):
        if field.name in {*used, "given"}:
            continue
        option = f"--{field.name.replace('_', '-')}"
        value = field.default if isinstance(field.default, str) else "continuous" if field.name == "discipline" else "1"
        ran = llmservice("bench", "compare", "a.json", "b.json", option, value)
        assert (ran.code, f"compare measures nothing: {option}" in ran.err) == (ExitCode.USAGE, True), ran.err
