"""`llmservice probe --url` as a user runs it: what is lost, of which kind, exit codes, retries, marks, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli.app import make_parser
from llmservice_cli.errors import CliError, ExitCode

from tests.unit.fake_vllm import END, FakeVllm, Handler, never_answers, piece, serving, stream, usage, whole
from tests.unit.fake_vllm import refuses as saying

QUICK = ("--rate", "100", "--duration", "0.2", "-q", "--json")  # twenty requests


refuses = saying(503, "This replica is being replaced; please try again.", {"Retry-After": "0.01"})


async def aborts(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if not body.get("stream"):
        return web.json_response({**usage(1), **piece("", "abort")})
    return await stream(request, [piece("x", "abort"), END])


async def hangs_up_at_once(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hangs_up_in_the_middle(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Content-Length": "5000"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"text": "x", "finish_reason": null}]}\n\n')
    assert request.transport is not None
    request.transport.abort()
    return response


async def probe(*words: str) -> ExitCode:
    options = make_parser(["probe"]).parse_args(["probe", *words])
    code: ExitCode = await options.run(options)
    return code


async def test_a_good_server_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeVllm()) as server:
        assert await probe("--url", server.url, *QUICK) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["version"], told["partial"]) == ("ProbeResult", 1, False)
    assert told["target"] == {"name": server.url, "way": "from here", "model": "chat"}
    summary = told["summary"]
    assert (summary["sent"], summary["complete"], summary["lost"], summary["firstLoss"]) == (20, 20, 0, None)
    assert summary["latency"]["p50"] <= summary["latency"]["max"]
    assert told["losses"] == told["marks"] == []
    asked = [(bool(body.get("stream")), body["max_tokens"], body["ignore_eos"]) for body in server.bodies]
    assert sorted(set(asked)) == [(False, 8, True), (False, 32, True), (True, 8, True), (True, 32, True)]
    assert all(body["stream_options"] == {"include_usage": True} for body in server.bodies if body.get("stream"))


@pytest.mark.parametrize(
    ("handler", "mode", "kind"),
    [
        pytest.param(refuses, "stream-pooled", "http-503", id="refused"),
        pytest.param(aborts, "stream-fresh", "aborted", id="a stream aborted"),
        pytest.param(aborts, "whole-fresh", "aborted", id="an answer of one piece aborted"),
        pytest.param(hangs_up_at_once, "whole-pooled", "disconnected", id="hung up before the answer"),
        pytest.param(hangs_up_in_the_middle, "stream-pooled", "cut", id="hung up in a stream"),
        pytest.param(hangs_up_in_the_middle, "whole-pooled", "cut", id="hung up in an answer of one piece"),
        pytest.param(never_answers, "stream-fresh", "timeout", id="no answer"),
    ],
)
async def test_what_is_not_answered_whole_is_lost(
    handler: Handler, mode: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(FakeVllm(misbehaves={5: handler})) as server:
        patience = "0.5" if handler is never_answers else "30"
        code = await probe("--url", server.url, *QUICK, "--mode", mode, "--timeout", patience)
    assert code == ExitCode.REQUESTS_FAILED
    told = json.loads(capsys.readouterr().out)
    assert (told["summary"]["sent"], told["summary"]["complete"]) == (20, 19)
    assert (told["summary"]["lostByKind"], told["summary"]["lostByMode"]) == ({kind: 1}, {mode: 1})
    (loss,) = told["losses"]
    assert (loss["kind"], loss["mode"], loss["attempts"]) == (kind, mode, 1)
    assert loss["sent"] <= loss["ended"] == told["summary"]["firstLoss"]


async def test_a_server_that_is_gone_refuses_connections(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeVllm()) as server:
        gone = server.url
    code = await probe("--url", gone, "--model", "chat", "--rate", "100", "--duration", "0.05", "--timeout", "5", "-q")
    assert code == ExitCode.REQUESTS_FAILED
    printed = capsys.readouterr().out
    assert "sent 5, complete 0, lost 5" in printed
    assert "by kind: 5 × not-connected" in printed


async def test_pooled_connections_are_used_again_and_fresh_ones_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    counts, reused = {}, {}
    for mode in ("whole-pooled", "whole-fresh"):
        async with serving(FakeVllm()) as server:
            words = ("--concurrency", "1", "--duration", "1", "--mode", mode, "-q", "--rows")
            await probe("--url", server.url, "--model", "chat", *words)
            counts[mode] = (len(set(map(id, server.connections))), len(server.bodies))
        _, *rows, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        reused[mode] = [row["reused"] for row in rows]
    assert counts["whole-pooled"][0] == 1
    assert counts["whole-pooled"][1] > 2
    assert counts["whole-fresh"][0] > 1
    assert reused["whole-pooled"] == [False] + [True] * (counts["whole-pooled"][1] - 1)
    assert set(reused["whole-fresh"]) == {False}


@pytest.mark.parametrize(
    ("handler", "mode", "complete", "sent"),
    [
        pytest.param(refuses, "stream-fresh", 20, 21, id="a refusal"),
        pytest.param(hangs_up_at_once, "whole-fresh", 20, 21, id="no answer"),
        pytest.param(hangs_up_in_the_middle, "whole-fresh", 20, 21, id="half an answer of one piece"),
        pytest.param(hangs_up_in_the_middle, "stream-fresh", 19, 20, id="half a stream is the caller's own"),
        pytest.param(aborts, "whole-fresh", 19, 20, id="an aborted answer has status 200"),
    ],
)
async def test_retries_are_those_of_the_openai_client(
    handler: Handler, mode: str, complete: int, sent: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(FakeVllm(misbehaves={3: handler})) as server:
        await probe("--url", server.url, *QUICK, "--mode", mode, "--retries", "2")
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert (summary["sent"], summary["complete"], summary["retried"]) == (20, complete, sent - 20)
    assert len(server.bodies) == sent


async def test_the_first_key_of_a_secret_with_several_opens_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEYS", "first\nsecond\n")
    async with serving(FakeVllm(api_key="first")) as server:
        words = ("--api", "chat", "--model", "chat", "--api-key-env", "KEYS")
        assert await probe("--url", f"{server.url}/v1", *QUICK, *words) == ExitCode.DONE
    assert set(server.paths) == {"/v1/chat/completions"}
    assert all(body["messages"] for body in server.bodies)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--url", "http://127.0.0.1:1"), "no answer from http://127.0.0.1:1", id="nobody there"),
        pytest.param(("--url", "http://127.0.0.1:1", "--api-key-env", "NOT_SET"), "export NOT_SET", id="no key"),
    ],
)
async def test_what_cannot_be_done_is_told_with_the_remedy(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(CliError) as caught:
        await probe(*words)
    assert message in str(caught.value)


async def test_lines_are_marks_and_ctrl_c_awaits_what_is_under_way() -> None:
    """Request number 10 is under way at the mark, and when the user has seen enough; its answer still counts."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reached.set()
        await release.wait()
        return await whole(request, body)

    words = ["probe", "--rate", "50", "--duration", "10m", "--marks", "--json"]
    async with serving(FakeVllm(misbehaves={10: slow})) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "llmservice_cli", *words, "--url", server.url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stderr is not None
        await asyncio.wait_for(reached.wait(), 60)
        process.stdin.write(b"node drained\n")
        while b"mark node drained" not in await asyncio.wait_for(process.stderr.readline(), 60):
            pass
        process.send_signal(signal.SIGINT)
        while b"stopping" not in await asyncio.wait_for(process.stderr.readline(), 60):
            pass
        release.set()
        printed, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == ExitCode.INTERRUPTED, errors.decode()
    told = json.loads(printed)
    assert (told["partial"], told["summary"]["lost"]) == (True, 0)
    assert told["summary"]["sent"] == len(server.bodies)
    (mark,) = told["marks"]
    assert (mark["name"], mark["lostInFlight"], mark["lostLater"]) == ("node drained", 0, 0)
    assert mark["inFlight"] >= 1  # the slow one, and maybe one of the others


async def test_rows_are_a_line_of_json_for_each_request(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeVllm(misbehaves={0: refuses})) as server:
        code = await probe("--url", server.url, "--rate", "100", "--duration", "0.05", "--rows", "-q")
    first, *rows, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == ExitCode.DONE  # whoever reads the rows judges them
    assert set(first) == {"begin"}
    assert last == {"end": 5}
    assert sorted(row["index"] for row in rows) == [0, 1, 2, 3, 4]
    assert [row["loss"] for row in rows if "loss" in row] == ["http-503"]
