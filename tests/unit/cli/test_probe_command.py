"""`llmservice probe --url`: what is lost, of which kind, exit codes, retries, marks, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

import httpx
import pytest
from aiohttp import web
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.load.client import Exchange, Request
from llmservice_cli.probe import sender

from tests.support.patience import PATIENCE
from tests.unit.cli.fake_vllm import END, FakeVllm, Handler, never_answers, piece, serving, stream, usage, whole
from tests.unit.cli.fake_vllm import refuses as saying
from tests.unit.cli_world import Command

QUICK = ("--rate", "100", "--duration", "0.2", "-q", "-o", "json")  # twenty requests
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


async def test_a_good_server_loses_nothing(llmservice: Command) -> None:
    async with serving(FakeVllm()) as server:
        ran = await llmservice.within("probe", "--url", server.url, *QUICK)
    found = ran.json
    assert (ran.code, found["kind"], found["version"], found["partial"]) == (ExitCode.DONE, "ProbeResult", 1, False)
    assert found["target"] == {"name": server.url, "way": "from here", "model": "chat"}
    summary = found["summary"]
    assert (summary["sent"], summary["complete"], summary["lost"], summary["firstLoss"]) == (20, 20, 0, None)
    assert summary["latency"]["p50"] <= summary["latency"]["max"]
    assert found["losses"] == found["marks"] == []
    asked = [(bool(body.get("stream")), body["max_tokens"], body["ignore_eos"]) for body in server.bodies]
    assert sorted(set(asked)) == [(False, 8, True), (False, 32, True), (True, 8, True), (True, 32, True)]
    assert all(body["stream_options"] == {"include_usage": True} for body in server.bodies if body.get("stream"))


LOSSES: list[tuple[Handler, str, str]] = [
    (refuses, "stream-pooled", "http-503"),
    (aborts, "stream-fresh", "aborted"),
    (aborts, "whole-fresh", "aborted"),
    (hangs_up_at_once, "whole-pooled", "disconnected"),
    (hangs_up_in_the_middle, "stream-pooled", "cut"),
    (hangs_up_in_the_middle, "whole-pooled", "cut"),
    (never_answers, "stream-fresh", "timeout"),
]


@pytest.mark.parametrize(("handler", "mode", "kind"), LOSSES)
async def test_an_incomplete_answer_is_lost(handler: Handler, mode: str, kind: str, llmservice: Command) -> None:
    async with serving(FakeVllm(misbehaves={5: handler})) as server:
        timeout = "5" if handler is never_answers else "30"  # the others are to be answered in it
        ran = await llmservice.within("probe", "--url", server.url, *QUICK, "--mode", mode, "--timeout", timeout)
    summary, (loss,) = ran.json["summary"], ran.json["losses"]
    assert (ran.code, summary["sent"], summary["complete"]) == (ExitCode.REQUESTS_FAILED, 20, 19)
    assert (summary["lostByKind"], summary["lostByMode"]) == ({kind: 1}, {mode: 1})
    assert (loss["kind"], loss["mode"], loss["attempts"]) == (kind, mode, 1)
    assert loss["sent"] <= loss["ended"] == summary["firstLoss"]


async def test_a_server_that_is_gone_refuses_connections(llmservice: Command) -> None:
    words = ("--url", "http://127.0.0.1:1", "--model", "chat", "--rate", "100", "--duration", "0.05", "-q")
    ran = await llmservice.within("probe", *words)
    assert ran.code == ExitCode.REQUESTS_FAILED
    assert "sent 5, complete 0, lost 5" in ran.out
    assert "by kind: 5 × not-connected" in ran.out


@pytest.mark.parametrize("mode", ["whole-pooled", "whole-fresh"])
async def test_pooled_connections_are_used_again_and_fresh_ones_are_not(mode: str, llmservice: Command) -> None:
    async def seen_enough(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        os.kill(os.getpid(), signal.SIGINT)  # the command ends with this request, however long three have taken
        return await whole(request, body)

    words = ("--concurrency", "1", "--duration", "10m", "--mode", mode, "-q", "--rows", "--model", "chat")
    async with serving(FakeVllm(misbehaves={3: seen_enough})) as server:
        ran = await llmservice.within("probe", "--url", server.url, *words)
    _, *rows, _ = [json.loads(line) for line in ran.out.splitlines()]
    is_pooled, count = mode == "whole-pooled", len(server.bodies)
    assert count >= 3
    assert (len(set(map(id, server.connections))) == 1) is is_pooled
    assert [row["reused"] for row in rows] == [False] + [is_pooled] * (count - 1)


RETRIES: list[tuple[Handler, str, int, int]] = [
    # complete, sent
    (refuses, "stream-fresh", 20, 21),
    (hangs_up_at_once, "whole-fresh", 20, 21),
    (hangs_up_in_the_middle, "whole-fresh", 20, 21),
    (hangs_up_in_the_middle, "stream-fresh", 19, 20),  # half a stream is its caller's own
    (aborts, "whole-fresh", 19, 20),  # an aborted answer has status 200
]


@pytest.mark.parametrize(("handler", "mode", "complete", "sent"), RETRIES)
async def test_retries_are_those_of_the_openai_client(
    handler: Handler, mode: str, complete: int, sent: int, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "FIRST_RETRY_SECONDS", 0.01)
    async with serving(FakeVllm(misbehaves={3: handler})) as server:
        ran = await llmservice.within("probe", "--url", server.url, *QUICK, "--mode", mode, "--retries", "2")
    summary = ran.json["summary"]
    assert (summary["sent"], summary["complete"], summary["retried"]) == (20, complete, sent - 20)
    assert len(server.bodies) == sent


async def test_the_first_key_of_a_secret_with_several_opens_the_server(
    monkeypatch: pytest.MonkeyPatch, llmservice: Command
) -> None:
    monkeypatch.setenv("KEYS", "first\nsecond\n")
    words = ("--api", "chat", "--model", "chat", "--api-key-env", "KEYS")
    async with serving(FakeVllm(api_key="first")) as server:
        ran = await llmservice.within("probe", "--url", f"{server.url}/v1", *QUICK, *words)
    assert (ran.code, set(server.paths)) == (ExitCode.DONE, {"/v1/chat/completions"})
    assert all(body["messages"] for body in server.bodies)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("2", 2.0), ("0", 0.0), ("nan", None), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), (None, None)],
)
def test_a_retry_after_that_is_no_time_is_none(header: str | None, expected: float | None) -> None:
    exchange = Exchange(Request.of("chat", "Hello", 1), time.monotonic)
    assert sender.retry_after(exchange) is None, "no answer came"
    exchange.response = httpx.Response(503, headers={} if header is None else {"Retry-After": header})
    assert sender.retry_after(exchange) == expected


@pytest.mark.parametrize(
    ("words", "message"), [((), "no answer from http://127.0.0.1:1"), (("--api-key-env", "NOT_SET"), "export NOT_SET")]
)
async def test_an_error_has_a_remedy(words: tuple[str, ...], message: str, llmservice: Command) -> None:
    with pytest.raises(CliError) as caught:
        await llmservice.within("probe", "--url", "http://127.0.0.1:1", *words)
    assert message in str(caught.value)


async def test_lines_are_marks_and_ctrl_c_awaits_requests_in_flight() -> None:
    """Request number 10 is under way at the mark, and when the user has seen enough; its answer still counts."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reached.set()
        await release.wait()
        return await whole(request, body)

    words = ["probe", "--rate", "50", "--duration", "10m", "--marks", "-o", "json"]
    async with serving(FakeVllm(misbehaves={10: slow})) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "llmservice_cli", *words, "--url", server.url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stderr is not None
        await asyncio.wait_for(reached.wait(), PATIENCE)
        process.stdin.write(b"node drained\n")
        while b"mark node drained" not in await asyncio.wait_for(process.stderr.readline(), PATIENCE):
            pass
        process.send_signal(signal.SIGINT)
        while b"stopping" not in await asyncio.wait_for(process.stderr.readline(), PATIENCE):
            pass
        release.set()
        printed, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == ExitCode.INTERRUPTED, errors.decode()
    found = json.loads(printed)
    assert (found["partial"], found["summary"]["lost"]) == (True, 0)
    assert found["summary"]["sent"] == len(server.bodies)
    (mark,) = found["marks"]
    assert (mark["name"], mark["lostInFlight"], mark["lostLater"]) == ("node drained", 0, 0)
    assert mark["inFlight"] >= 1  # the slow one, and maybe one of the others


async def test_rows_are_a_line_of_json_for_each_request(llmservice: Command) -> None:
    async with serving(FakeVllm(misbehaves={0: refuses})) as server:
        words = ("--url", server.url, "--rate", "100", "--duration", "0.05", "--rows", "-q")
        ran = await llmservice.within("probe", *words)
    first, *rows, last = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == ExitCode.DONE  # whoever reads the rows judges them
    assert (set(first), last) == ({"begin"}, {"end": 5})
    assert sorted(row["index"] for row in rows) == [0, 1, 2, 3, 4]
    assert [row["loss"] for row in rows if "loss" in row] == ["http-503"]
