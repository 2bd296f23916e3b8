"""Browsers, whose pages are of other origins: answered as by vLLM, and nobody is woken by a preflight."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.testclient import TestClient

from tests.support.patience import PATIENCE
from tests.unit.activator.test_holding_answers import KEYED, PAUSED
from tests.unit.holding_world import CHAT, chat, head, target, world

ORIGIN = {"Origin": "https://a.example"}
PREFLIGHT = ORIGIN | {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}
SERVICES: dict[str, dict[str, Any]] = {"open": {}, "with keys": KEYED, "paused": {"refusal": PAUSED}}


def of_cors(headers: Any) -> dict[str, str]:
    """What browsers read."""
    names = {name.lower(): value for name, value in headers.items()}
    return {name: value for name, value in names.items() if name.startswith(("access-control-", "vary"))}


def methods(headers: Mapping[str, str]) -> set[str]:
    return set(headers["access-control-allow-methods"].split(", "))


@pytest.fixture(scope="module")
def vllms() -> dict[str, str]:
    """vLLM's middleware with vLLM's defaults (vllm/entrypoints/serve/middleware/register.py)."""
    defaults: Any = {"allow_origins": ["*"], "allow_methods": ["*"], "allow_headers": ["*"], "allow_credentials": False}
    with TestClient(Starlette(middleware=[Middleware(CORSMiddleware, **defaults)])) as client:
        answer = client.options(CHAT, headers=PREFLIGHT)
    assert answer.status_code == 200
    return of_cors(answer.headers)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/health", "/nothing"])
@pytest.mark.parametrize("service", SERVICES)
async def test_a_preflight_is_answered_as_by_vllm(service: str, path: str, vllms: dict[str, str]) -> None:
    async with world() as w:
        of = target(**SERVICES[service])
        await w.serve(of)
        answer = await w.ask(of, path, "OPTIONS", headers=PREFLIGHT)
        assert (answer.status, answer.body) == (200, b"")
        found = of_cors(answer.headers)
        assert found.keys() == vllms.keys()
        for name in ("access-control-allow-origin", "access-control-allow-headers", "access-control-max-age"):
            assert found[name] == vllms[name]
        assert "POST" in methods(found) <= methods(vllms)
        assert w.woken == []
        assert w.counted.of == {"answered probed": 1}


NONE: dict[str, tuple[dict[str, Any], dict[str, str], int]] = {
    "no origin": ({}, {"Access-Control-Request-Method": "POST"}, 405),
    "no method": ({}, ORIGIN, 405),
    "no method, with keys": (KEYED, ORIGIN, 401),
    "flags about origins": ({"any_origin": False}, PREFLIGHT, 405),
    "flags about origins, paused": ({"any_origin": False, "refusal": PAUSED}, PREFLIGHT, 503),
}


@pytest.mark.parametrize("case", NONE)
async def test_what_is_no_preflight_or_is_not_answered_as_one(case: str) -> None:
    changes, headers, status = NONE[case]
    async with world() as w:
        of = target(**changes)
        await w.serve(of)
        answer = await w.ask(of, CHAT, "OPTIONS", headers=headers)
        assert answer.status == status
        assert not {name for name in of_cors(answer.headers) if name.startswith("access-control-allow-m")}
        assert "spec.paused" not in answer.body.decode(), "without a key nobody learns why"
        assert w.woken == []


@pytest.mark.parametrize("any_origin", [True, False])
async def test_pages_may_read_answers_and_streams_that_wait(any_origin: bool) -> None:
    async with world() as w:
        of = target(any_origin=any_origin)
        await w.serve(of)
        expected = {"access-control-allow-origin": "*", "vary": "Origin"} if any_origin else {}
        for how in ({"path": "/v1/models", "method": "GET"}, {"json": chat() | {"model": "gpt"}}):
            assert of_cors((await w.ask(of, headers=ORIGIN, **how)).headers) == expected
        assert of_cors((await w.ask(of, "/v1/models", "GET")).headers) == {}
        body = json.dumps(chat(stream=True))
        reader, writer = await asyncio.open_connection("127.0.0.1", of.port)
        fields = f"Host: x\r\nOrigin: {ORIGIN['Origin']}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"POST {CHAT} HTTP/1.1\r\n{fields}{body}".encode())
        status, headers, _ = head(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE))
        assert (status, of_cors(headers)) == (200, expected)
        writer.close()


async def test_a_preflight_with_a_pod_is_the_pods() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(headers={"Access-Control-Allow-Origin": "https://b.example"})

    async with world() as w:
        pod = await w.pod(script)
        of = target(pods=(pod.url,), **SERVICES["with keys"])
        await w.serve(of)
        await w.ready(of)
        answer = await w.ask(of, CHAT, "OPTIONS", headers=PREFLIGHT)
        assert of_cors(answer.headers) == {"access-control-allow-origin": "https://b.example"}
