"""The port for the operator and the other activators, and the look through a service's ClusterIP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as some
from kubeloop.resources import Key
from llmservice_activator.peers import (
    ATTEMPTS,
    PeerReader,
    Reachability,
    uid_of,
    url_of,
)
from llmservice_activator.peers import (
    REACHABLE_SECONDS as CACHE_SECONDS,
)
from llmservice_runtime.contract import ACTIVATOR_PATH

from tests.support.http_servers import application
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import World, certificates, pod, running, service
from tests.unit.scaler_zero_world import CHAT, ask, at_zero

__all__ = ["certificates"]


async def said(world: World, path: str, method: str = "GET") -> tuple[int, Any]:
    url = f"http://127.0.0.1:{world.internal_port}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def test_what_is_said_of_a_service(certificates: Path) -> None:
    port = free_port()
    async with running(ApiServer(at_zero(port=port)), certificates) as world:
        await world.until(lambda: world.scaler.holding.is_listening("uid-chat", port))
        path = f"/services/ns/chat?uid=uid-chat&port={port}"
        found = {"version": 1, "listening": True, "reachable": False, "problem": "", "held": 0}
        assert await said(world, path) == (200, found)
        world.reached.add((CHAT, "uid-chat", 80))
        assert await said(world, path) == (200, found | {"reachable": True})
        other = found | {"listening": False}
        assert await said(world, f"/services/ns/chat?uid=uid-chat&port={port + 1}") == (200, other)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        assert await said(world, path) == (200, found | {"reachable": True, "held": 1})
        status, held = await said(world, "/held")
        assert (status, held["version"], held["services"]["ns/chat"]["held"]) == (200, 1, 1)
        assert held["services"]["ns/chat"]["bytes"] > 10
        async with PeerReader(port=world.internal_port, timeout=PATIENCE) as reader:
            assert await reader.read("127.0.0.1") == {CHAT: 1}, "as another activator reads it"
        asked.cancel()
        await world.until(lambda: not world.scaler.holding.held(CHAT).requests)
        assert await said(world, "/held") == (200, {"version": 1, "services": {}})


async def test_it_does_not_listen_while_it_knows_of_replicas_that_serve_alone(certificates: Path) -> None:
    """The operator would lead requests here, which are refused until the watches bring that the last replica goes."""
    port, status = free_port(), {"conditions": [{"type": "Available", "status": "True"}]}
    api = ApiServer(at_zero(port=port, status=status, replicas=1), pod("a"))
    async with running(api, certificates) as world:
        await world.until(lambda: world.scaler.holding.is_listening("uid-chat", port))
        path = f"/services/ns/chat?uid=uid-chat&port={port}"
        assert (await said(world, path))[1]["listening"] is False
        await world.send("MODIFIED", at_zero(port=port, status=status, version=900))
        await world.until(lambda: world.scaler.targets.leads_here(CHAT))
        assert (await said(world, path))[1]["listening"] is True


async def test_a_secret_that_cannot_be_read_is_a_problem_with_its_remedy(certificates: Path) -> None:
    port = free_port()
    spec = {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}
    api = ApiServer(at_zero(port=port, spec=spec))
    async with running(api, certificates) as world:
        await world.until(lambda: "there is no Secret keys" in world.scaler.targets.problem(CHAT))
        status, found = await said(world, f"/services/ns/chat?uid=uid-chat&port={port}")
        assert (status, found["listening"], found["reachable"]) == (200, False, False)
        assert found["problem"] == "there is no Secret keys; create it with API keys in api-key"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/services/ns/other?uid=uid-other&port=12000", 404),
        ("/services/ns/chat?uid=earlier&port=12000", 404),
        ("/services/ns/fixed?uid=uid-fixed&port=12000", 404),  # it always has a replica
        ("/services/ns/chat?uid=uid-chat&port=x", 400),
        ("/services/ns/chat?uid=uid-chat&port=99999999", 400),
        ("/services/ns/chat?uid=uid-chat&port=%D9%A3", 400),
        ("/services/ns/chat?uid=uid-chat", 400),
        ("/services/ns", 404),
        ("/", 404),
        ("/metrics", 404),
    ],
)
async def test_other_questions(path: str, status: int, certificates: Path) -> None:
    async with running(ApiServer(at_zero(port=free_port()), service("fixed")), certificates) as world:
        assert (await said(world, path))[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "PATCH"])
async def test_only_get_is_answered(method: str, certificates: Path) -> None:
    async with running(ApiServer(), certificates) as world:
        assert (await said(world, "/held", method))[0] == 405


class ClusterIp:
    """What is behind a service: each connection gets the next answer, the last one for ever."""

    def __init__(self, *answers: Callable[[], web.StreamResponse]) -> None:
        self.answers, self.asked = list(answers), 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.path == ACTIVATOR_PATH
        self.asked += 1
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()


def activator(uid: str = "u") -> Callable[[], web.StreamResponse]:
    return lambda: web.json_response({"uid": uid})


def other(status: int, text: str = "") -> Callable[[], web.StreamResponse]:
    return lambda: web.Response(status=status, text=text)


def moved() -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/elsewhere"})


@pytest.mark.parametrize(
    ("name", "answers", "is_reached"),
    [
        ("an activator", [activator()], True),
        ("an activator after pods", [other(404), other(401), other(404), other(404), activator()], True),
        ("pods only", [other(404)], False),
        ("another service's listener", [activator("v")], False),
        ("an answer of another code", [lambda: web.json_response({"uid": "u"}, status=201)], False),
        ("a page", [other(200, "u")], False),
        ("a long answer", [other(200, '{"uid":"u","x":"' + "x" * 5000 + '"}')], False),
        ("a redirect", [moved], False),
    ],
)
async def test_a_cluster_ip_leads_here(name: str, answers: list[Any], is_reached: bool) -> None:
    behind = ClusterIp(*answers)
    async with application(behind.answer) as url, Reachability(lambda key, port: url) as reachability:
        assert await reachability.is_reached(CHAT, "u", 80) is is_reached
        assert behind.asked <= ATTEMPTS


async def test_a_result_holds_for_two_seconds_and_for_this_service_only() -> None:
    now, behind = [100.0], ClusterIp(activator())
    async with (
        application(behind.answer) as url,
        Reachability(lambda key, port: url, lambda: now[0]) as reachability,
    ):
        results = await asyncio.gather(*(reachability.is_reached(CHAT, "u", 80) for _ in range(9)))
        first = behind.asked
        assert (results, first <= ATTEMPTS // 2) == ([True] * 9, True)
        behind.answers = [other(404)]
        assert await reachability.is_reached(CHAT, "u", 80)
        assert behind.asked == first
        assert not await reachability.is_reached(CHAT, "v", 80)
        now[0] += CACHE_SECONDS
        assert not await reachability.is_reached(CHAT, "u", 80)


async def test_nobody_behind_a_cluster_ip() -> None:
    async with Reachability(lambda key, port: f"http://127.0.0.1:{free_port()}") as reachability:
        assert not await reachability.is_reached(CHAT, "u", 80)


def test_the_address_that_clients_use() -> None:
    assert url_of(Key("team", "chat"), 8080) == "http://chat.team.svc:8080"


@given(some.binary(max_size=100) | some.text(max_size=20).map(lambda text: json.dumps({"uid": text}).encode()))
def test_any_answer_has_a_uid_or_none(body: bytes) -> None:
    uid = uid_of(body)
    assert uid is None or json.loads(body)["uid"] == uid
