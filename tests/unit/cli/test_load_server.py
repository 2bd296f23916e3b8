"""What a server says of itself before it is asked anything: bounded in time and length, and shown without controls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from aiohttp import web
from hypothesis import given
from llmservice_cli.errors import CliError
from llmservice_cli.load import server
from llmservice_runtime.bounded_json import Refused

from tests.support.http_servers import application
from tests.support.patience import PATIENCE
from tests.unit.cli_world import Command
from tests.unit.hostile import texts

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
CONTROLS = "\x1b]0;title\x07\x1b[2J\x9b"
LIST = {"data": [{"id": "one"}, {"id": "two"}]}


def says(document: Any, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        if isinstance(document, bytes):
            return web.Response(body=document, status=status)
        return web.json_response(document, status=status)

    return answer


async def never(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")


async def stops_in_the_middle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"data": [')
    return await never(request)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 2**16)


async def packed(request: web.Request) -> web.StreamResponse:
    """A list that it packs whatever is asked."""
    response = web.json_response(LIST)
    response.enable_compression(web.ContentCoding.gzip)
    return response


WRONG: dict[str, tuple[Answer, str, str]] = {
    "never answers": (never, "no whole answer from .* to /v1/models within 0.2 s", "that the server is up"),
    "stops": (stops_in_the_middle, "no whole answer from .* to /v1/models within 0.2 s", "that the server is up"),
    "endless": (endless, "answers /v1/models with more than 1048576 bytes", "check the address"),
    "packed": (packed, "something else than a list of models", "a server of the OpenAI API"),
    "a page": (says(b"<html>" + CONTROLS.encode()), "something else than a list of models", "OpenAI API"),
    "a refusal": (says({"error": {"message": CONTROLS}}, 500), "answers 500", "check the address"),
    "other names": (says({"data": [{"id": f"x{CONTROLS}"}]}), "does not serve a model named 'mine'", "--model: x"),
    "many names": (says({"data": [{"id": f"m{n}"} for n in range(3000)]}), "does not serve", "m19, and 2980 more"),
    "a name without an end": (says({"data": [{"id": "x" * 5000}]}), "something else than", "OpenAI API"),
}


@pytest.mark.parametrize(("answer", "why", "remedy"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("words", [("chat", "-m", "Hello"), ("bench", "-q")], ids=["chat", "bench"])
async def test_a_server_that_cannot_be_used(
    llmservice: Command,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    answer: Answer,
    why: str,
    remedy: str,
) -> None:
    is_slow = answer in (never, stops_in_the_middle)
    monkeypatch.setattr(server, "ASK_SECONDS", 0.2 if is_slow else server.ASK_SECONDS)
    async with application(answer, 0.1) as url:
        with pytest.raises(CliError, match=why) as refused:
            await asyncio.wait_for(llmservice.within(*words, "--url", url, "--model", "mine"), PATIENCE)
    message = str(refused.value)
    assert remedy in refused.value.remedy
    assert not {"\x1b", "\x07", "\x9b"} & {*message}
    assert len(message) < 2000


async def test_a_version_that_does_not_come_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (says(LIST) if request.path == "/v1/models" else never)(request)

    monkeypatch.setattr(server, "ASK_SECONDS", 5.0)
    async with application(answer, 0.1) as url, httpx.AsyncClient(base_url=url, timeout=None) as http:
        found = await server.inspect(server.direct(url, http), "two")
    assert found == server.Served("two", None)


async def test_a_key_that_no_header_can_hold(llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYX", "é")
    with pytest.raises(CliError, match="KEYX has no key that can be sent"):
        await llmservice.within("bench", "--url", "http://127.0.0.1:1", "-q", "--api-key-env", "KEYX")


@given(texts(LIST))
def test_any_list_is_read_or_refused(text: str) -> None:
    try:
        names = server.models_in(text.encode(errors="replace"))
    except Refused:
        return
    assert not {chr(code) for code in (*range(9), *range(0xB, 0x20), *range(0x7F, 0xA0))} & {*"".join(names)}


def test_the_names_of_models() -> None:
    assert server.models_in(json.dumps(LIST).encode()) == ["one", "two"]
