"""The first request: a generating model, a pooling one, with a key, and servers that answer badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from llmservice_runtime.supervisor.client import SmokeFailed, first_request
from llmservice_runtime.supervisor.vllm_process import Flags

from tests.support.http_servers import streams
from tests.support.patience import PATIENCE

NOT_FOUND = (404, '{"detail":"Not Found"}')


@asynccontextmanager
async def serving(answers: dict[str, tuple[int, str]]) -> AsyncIterator[tuple[int, list[str]]]:
    """A server that answers by path, and the requests that it got."""
    requests: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
        requests.append(head + (await reader.readexactly(length)).decode())
        status, body = answers.get(head.split(" ")[1], NOT_FOUND)
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    async with streams(handle) as port:
        yield port, requests


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/pooling", "/classify"])
async def test_finds_what_the_model_does(path: str) -> None:
    async with serving({path: (200, "{}")}) as (port, requests):
        assert await first_request(Flags("m", ("a", "b"), port=port), {}, timeout=PATIENCE) == path
    assert json.loads(requests[-1].partition("\r\n\r\n")[2])["model"] == "a"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param((500, '{"error":{"message":"EngineCore died"}}'), "500: EngineCore died", id="engine error"),
        pytest.param((401, '{"error":"Unauthorized"}'), "401: Unauthorized", id="another key"),
        pytest.param((500, "Internal Server Error"), "500: Internal Server Error", id="no JSON"),
        pytest.param((404, '{"error":{"message":"no m","type":"NotFoundError"}}'), "404: no m", id="another model"),
    ],
)
async def test_says_what_the_server_said(answer: tuple[int, str], words: str) -> None:
    async with serving({"/v1/completions": answer}) as (port, _):
        with pytest.raises(SmokeFailed, match=words):
            await first_request(Flags("m", port=port), {}, timeout=PATIENCE)


async def test_a_server_without_any_such_route() -> None:
    async with serving({}) as (port, requests):
        with pytest.raises(SmokeFailed, match="none of /v1/completions"):
            await first_request(Flags("m", port=port), {}, timeout=PATIENCE)
    assert len(requests) == 4


@pytest.mark.parametrize(
    ("flag", "variable", "header"),
    [
        pytest.param(None, None, None, id="no key"),
        pytest.param(None, "from-env", "Bearer from-env", id="an earlier release's pod"),
        pytest.param("from-flag", "from-env", "Bearer from-flag", id="the flag wins, as in vLLM"),
    ],
)
async def test_sends_what_vllm_asks_for(flag: str | None, variable: str | None, header: str | None) -> None:
    async with serving({"/v1/completions": (200, "{}")}) as (port, requests):
        flags = Flags("m", port=port, api_key=flag)
        await first_request(
            flags, flags.authorization({"VLLM_API_KEY": variable} if variable else {}), timeout=PATIENCE
        )
    assert (f"Authorization: {header}\r\n" in requests[0]) is bool(header)
    assert ("Authorization" in requests[0]) is bool(header)
