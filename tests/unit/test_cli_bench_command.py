"""`llmservice bench` as a user runs it: exit codes, messages with a remedy, JSON, picture, Ctrl-C."""

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
from llmservice_cli.app import make_parser
from llmservice_cli.errors import CliError, ExitCode

from tests.unit.fake_vllm import FakeVllm, never_answers, refuses, serving

SMALL = ("--requests", "12", "--rate", "500", "--batch", "4", "--output-tokens", "2,2,12", "--window", "0.01", "-q")


async def bench(*words: str) -> ExitCode:
    options = make_parser().parse_args(["bench", *words])
    code: ExitCode = await options.run(options)
    return code


async def test_the_result_has_everything_that_was_asked_and_all_that_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    async with serving(FakeVllm()) as fake:
        assert await bench("--url", fake.url, *SMALL, "--out", str(out)) == ExitCode.DONE
    result = json.loads(out.read_text())
    assert (result["kind"], result["version"], result["partial"]) == ("BenchResult", 1, False)
    assert result["target"] == {"name": fake.url, "way": "direct", "model": "chat", "vllmVersion": "0.32.0"}
    assert result["parameters"] == {
        "requests": 12,
        "rate": 500.0,
        "seed": 1,
        "promptWords": [8, 32],
        "outputTokens": [2, 2, 12],
        "batch": 4,
        "window": 0.01,
        "warmup": 8,
        "timeout": 600.0,
    }
    assert [each["discipline"] for each in result["disciplines"]] == ["static", "dynamic", "continuous"]
    for each in result["disciplines"]:
        summary, rows = each["summary"], each["requests"]
        assert (summary["planned"], summary["answered"], summary["failures"]) == (12, 12, {})
        assert [row["index"] for row in rows] == list(range(12))
        assert all(
            row["arrival"] <= row["sent"] <= row["firstToken"] <= row["ended"] <= summary["makespan"] for row in rows
        )
        assert summary["outputTokens"] == sum(row["outputTokens"] for row in rows)
        assert set(summary["latency"]) == set(summary["timeToFirstToken"]) == {"mean", "p50", "p95", "p99", "max"}
    assert len({tuple(row["arrival"] for row in each["requests"]) for each in result["disciplines"]}) == 1
    printed = capsys.readouterr()
    assert "LATENCY P95" in printed.out
    assert printed.err == ""


async def test_no_discipline_finds_its_prompts_in_the_cache_of_another() -> None:
    async with serving(FakeVllm()) as fake:
        await bench("--url", fake.url, *SMALL)
        await bench("--url", fake.url, *SMALL, "--discipline", "static")
    salts = Counter(body["cache_salt"] for body in fake.bodies)
    assert len(salts) == 8 + 3 * 12 + 8 + 12
    assert set(salts.values()) == {1}


async def test_requests_that_are_not_answered_are_told_and_change_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    async with serving(FakeVllm(misbehaves={5: refuses(503, "the queue is full")})) as fake:
        code = await bench("--url", fake.url, *SMALL, "--discipline", "continuous", "--out", str(out))
    assert code == ExitCode.REQUESTS_FAILED
    summary = json.loads(out.read_text())["disciplines"][0]["summary"]
    assert (summary["answered"], summary["failures"]) == (11, {"503": 1})
    assert "continuous: not answered: 1 × 503 (first: the queue is full)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fake", "words", "message"),
    [
        pytest.param(FakeVllm(models=("a", "b")), ("--model", "c"), "--model: a, b", id="unknown model"),
        pytest.param(FakeVllm(models=()), (), "serves no model", id="no model"),
        pytest.param(FakeVllm(api_key="secret"), (), "--api-key-env VARIABLE", id="401"),
        pytest.param(FakeVllm(), ("--api-key-env", "NOT_SET_ANYWHERE"), "export NOT_SET_ANYWHERE", id="no such key"),
        pytest.param(FakeVllm(), ("--out", "/no/such/folder/x.json"), "/no/such/folder", id="no folder"),
        pytest.param(FakeVllm(), ("--picture", "x.gif"), ".svg, .png, .pdf", id="unknown kind of picture"),
    ],
)
async def test_what_cannot_be_done_is_told_with_the_remedy(
    fake: FakeVllm, words: tuple[str, ...], message: str
) -> None:
    async with serving(fake):
        with pytest.raises(CliError) as caught:
            await bench("--url", fake.url, *SMALL, *words)
    assert message in str(caught.value)
    assert fake.bodies == []


async def test_a_server_that_is_not_there() -> None:
    with pytest.raises(CliError, match=r"(?s)no answer from http://127\.0\.0\.1:1: .*what to do: check the address"):
        await bench("--url", "http://127.0.0.1:1/v1", *SMALL)


async def test_an_api_key_opens_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_KEY", "secret")
    async with serving(FakeVllm(api_key="secret")) as fake:
        assert await bench("--url", f"{fake.url}/v1", *SMALL, "--api-key-env", "BENCH_KEY") == ExitCode.DONE


async def test_nothing_is_measured_when_the_warm_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def complete(request: Any) -> Any:
        return await refuses(400, "maximum context length is 16")(request, {})

    fake = FakeVllm()
    monkeypatch.setattr(fake, "complete", complete)
    async with serving(fake):
        with pytest.raises(CliError, match=r"warm-up requests: 400: maximum context length is 16"):
            await bench("--url", fake.url, *SMALL)
    assert fake.log == []


async def test_a_picture_shows_every_discipline(tmp_path: Path) -> None:
    picture = tmp_path / "result.svg"
    async with serving(FakeVllm(misbehaves={5: refuses(503, "full")})) as fake:
        await bench("--url", fake.url, *SMALL, "--picture", str(picture))
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    for words in ("static", "dynamic", "continuous", "answered requests/s", "p95", "held back by the client"):
        assert f">{words}<" in drawn, words


async def test_without_matplotlib_nothing_is_sent_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    async with serving(FakeVllm()) as fake:
        with pytest.raises(CliError, match=r"pip install \'\.\[bench\]\'"):
            await bench("--url", fake.url, *SMALL, "--picture", "x.svg")
    assert fake.bodies == []


async def test_matplotlib_is_imported_for_a_picture_only() -> None:
    code = "import sys, llmservice_cli.app; print('matplotlib' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert printed.decode().strip() == "False"


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
            await asyncio.wait_for(stuck.get(), 60)
        process.send_signal(signal.SIGINT)
        printed, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == ExitCode.INTERRUPTED, errors.decode()
    assert "static: 4 requests interrupted, 4 never sent" in printed.decode()
    result = json.loads(out.read_text())
    assert result["partial"] is True
    outcomes = Counter(row["outcome"] for row in result["disciplines"][0]["requests"])
    assert outcomes == {"answered": 8, "interrupted": 4}
    assert errors == b""
