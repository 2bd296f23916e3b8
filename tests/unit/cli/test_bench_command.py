"""`llmservice bench --url`: exit codes, messages with a remedy, JSON, picture, Ctrl-C."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.errors import CliError, ExitCode

from tests.support.patience import PATIENCE
from tests.unit.cli.fake_vllm import FakeVllm, never_answers, refuses, serving
from tests.unit.cli_world import Command

SMALL = ("--requests", "12", "--rate", "500", "--batch", "4", "--output-tokens", "2,2,12", "--window", "0.01", "-q")


PARAMETERS = {
    "requests": 12,
    "rate": 500.0,
    "rates": [500.0],
    "concurrency": [],
    "slo": None,
    "seed": 1,
    "promptWords": [8, 32],
    "outputTokens": [2, 2, 12],
    "batch": 4,
} | {"window": 0.01, "warmup": 8, "timeout": 600.0}


async def test_the_result_has_the_parameters_and_every_request(llmservice: Command) -> None:
    out, picture = llmservice.folder / "result.json", llmservice.folder / "result.svg"
    async with serving(FakeVllm()) as fake:
        words = ("--url", fake.url, *SMALL, "--out", str(out), "--picture", str(picture))
        ran = await llmservice.within("bench", *words)
    result = json.loads(out.read_text())
    assert (result["kind"], result["version"], result["partial"]) == ("BenchResult", 1, False)
    target = {"name": fake.url, "way": "direct", "notes": [], "model": "chat", "vllmVersion": "0.32.0"}
    assert result["target"] == target
    assert result["parameters"] == PARAMETERS
    assert [each["discipline"] for each in result["disciplines"]] == ["static", "dynamic", "continuous"]
    for each in result["disciplines"]:
        summary, rows = each["summary"], each["requests"]
        assert (summary["planned"], summary["answered"], summary["failures"]) == (12, 12, {})
        assert [row["index"] for row in rows] == list(range(12))
        for row in rows:
            times = [row[name] for name in ("arrival", "sent", "firstToken", "ended")]
            assert [*times, summary["makespan"]] == sorted([*times, summary["makespan"]])
        assert summary["outputTokens"] == sum(row["outputTokens"] for row in rows)
        assert set(summary["latency"]) == set(summary["timeToFirstToken"]) == {"mean", "p50", "p95", "p99", "max"}
    assert len({tuple(row["arrival"] for row in each["requests"]) for each in result["disciplines"]}) == 1
    assert (ran.code, "LATENCY P95" in ran.out, ran.err) == (ExitCode.DONE, True, "")
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    for label in ("static", "dynamic", "continuous", "answered requests/s", "p95", "held back by the client"):
        assert f">{label}<" in drawn, label


async def test_no_discipline_finds_its_prompts_in_the_cache_of_another(llmservice: Command) -> None:
    async with serving(FakeVllm()) as fake:
        await llmservice.within("bench", "--url", fake.url, *SMALL)
        await llmservice.within("bench", "--url", fake.url, *SMALL, "--discipline", "static")
    salts = Counter(body["cache_salt"] for body in fake.bodies)
    assert (len(salts), set(salts.values())) == (8 + 3 * 12 + 8 + 12, {1})


async def test_failed_requests_are_reported_and_change_the_exit_code(llmservice: Command) -> None:
    out, picture = llmservice.folder / "result.json", llmservice.folder / "result.svg"
    async with serving(FakeVllm(misbehaves={5: refuses(503, "the queue is full")})) as fake:
        words = ("--url", fake.url, *SMALL, "--discipline", "continuous", "--out", str(out), "--picture", str(picture))
        ran = await llmservice.within("bench", *words)
    summary = json.loads(out.read_text())["disciplines"][0]["summary"]
    assert (ran.code, summary["answered"], summary["failures"]) == (ExitCode.REQUESTS_FAILED, 11, {"503": 1})
    assert "continuous: not answered: 1 × 503 (first: the queue is full)" in ran.out
    assert ">not answered<" in picture.read_text()


WRONG: dict[str, tuple[FakeVllm, tuple[str, ...], str]] = {
    "unknown model": (FakeVllm(models=("a", "b")), ("--model", "c"), "--model: a, b"),
    "no model": (FakeVllm(models=()), (), "serves no model"),
    "401": (FakeVllm(api_key="secret"), (), "--api-key-env VARIABLE"),
    "no such key": (FakeVllm(), ("--api-key-env", "NOT_SET_ANYWHERE"), "export NOT_SET_ANYWHERE"),
    "no folder": (FakeVllm(), ("--out", "/no/such/folder/x.json"), "/no/such/folder"),
    "unknown kind of picture": (FakeVllm(), ("--picture", "x.gif"), ".svg, .png, .pdf"),
    "no matplotlib": (FakeVllm(), ("--picture", "x.svg"), "pip install '.[bench]'"),
    "no server": (FakeVllm(), ("--url", "http://127.0.0.1:1/v1"), "no answer from http://127.0.0.1:1: "),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_error_has_a_remedy(name: str, llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, words, message = WRONG[name]
    if name == "no matplotlib":
        monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    async with serving(fake):
        with pytest.raises(CliError) as caught:
            await llmservice.within("bench", "--url", fake.url, *SMALL, *words)
    assert message in str(caught.value)
    assert fake.bodies == []


async def test_an_api_key_opens_the_server(monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> None:
    monkeypatch.setenv("BENCH_KEY", "secret")
    async with serving(FakeVllm(api_key="secret")) as fake:
        ran = await llmservice.within("bench", "--url", f"{fake.url}/v1", *SMALL, "--api-key-env", "BENCH_KEY")
    assert ran.code == ExitCode.DONE


async def test_nothing_is_measured_when_the_warm_up_fails(monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> None:
    async def complete(request: Any) -> Any:
        return await refuses(400, "maximum context length is 16")(request, {})

    fake = FakeVllm()
    monkeypatch.setattr(fake, "complete", complete)
    async with serving(fake):
        with pytest.raises(CliError, match=r"warm-up requests: 400: maximum context length is 16"):
            await llmservice.within("bench", "--url", fake.url, *SMALL)
    assert fake.log == []


async def test_ctrl_c_gives_what_was_measured(tmp_path: Path) -> None:
    """The third batch is never answered; once the server has all of it, the user loses patience."""
    stuck: asyncio.Queue[None] = asyncio.Queue()

    async def answer(request: Any, body: Any) -> Any:
        stuck.put_nowait(None)
        return await never_answers(request, body)

    out = tmp_path / "result.json"
    async with serving(FakeVllm(misbehaves=dict.fromkeys(range(8, 12), answer))) as fake:
        words = ["bench", "--url", fake.url, *SMALL, "--requests", "16", "--discipline", "static", "--out", str(out)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "llmservice_cli", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        for _ in range(4):
            await asyncio.wait_for(stuck.get(), PATIENCE)
        process.send_signal(signal.SIGINT)
        printed, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == ExitCode.INTERRUPTED, errors.decode()
    assert "static: 4 requests interrupted, 4 never sent" in printed.decode()
    result = json.loads(out.read_text())
    assert result["partial"] is True
    outcomes = Counter(row["outcome"] for row in result["disciplines"][0]["requests"])
    assert outcomes == {"answered": 8, "interrupted": 4}
    assert errors == b""
