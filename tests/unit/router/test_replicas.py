"""What the DNS says of replicas, and what vllm-router says of its workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from llmservice_router import envoy
from llmservice_router.replicas import Address, Replicas, absolute, resolve, url, workers_of

from tests.support.http_servers import application
from tests.support.patience import until

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "")
ANSWERS: dict[str, tuple[Any, frozenset[Address] | None]] = {
    "two pods": ([(*V4, ("10.0.0.2", 80)), (*V4, ("10.0.0.1", 80))], frozenset({("10.0.0.1", 80), ("10.0.0.2", 80)})),
    "a pod with two families": ([(*V6, ("fd00::1", 80, 0, 0)), (*V4, ("10.0.0.1", 80))], frozenset({("10.0.0.1", 80)})),
    "IPv6 alone": ([(*V6, ("fd00::1", 80, 0, 0))], frozenset({("fd00::1", 80)})),
    "no such name": (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), frozenset()),
    "no address": (socket.gaierror(socket.EAI_NODATA, "No address associated with hostname"), frozenset()),
    "no answer": (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), None),
    "refused": (socket.gaierror(socket.EAI_FAIL, "Non-recoverable failure in name resolution"), None),
    "no socket": (OSError(24, "Too many open files"), None),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_the_dns(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said, wanted = ANSWERS[case]

    async def answer(*_: Any, **__: Any) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answer)
    assert await resolve("x-direct", 80) == wanted


CONFIGURATIONS = {
    "of a pod": (
        "search team.svc.cluster.local svc.cluster.local cluster.local corp.example",
        "x.team.svc.cluster.local.",
    ),
    "of a namespace svc": ("search svc.svc.cluster.local svc.cluster.local cluster.local", "x.svc.svc.cluster.local."),
    "another domain": ("nameserver 10.0.0.1\nsearch team.svc.k8s.corp svc.k8s.corp k8s.corp\n", "x.team.svc.k8s.corp."),
    "without search": ("nameserver 10.0.0.1\noptions ndots:5\n", "x"),
    "of a node": ("search corp.example\n", "x"),
    "empty": ("", "x"),
}


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_a_name_is_of_the_clusters_own_domain(case: str) -> None:
    text, wanted = CONFIGURATIONS[case]
    assert absolute("x", text) == wanted


@given(st.text())
def test_any_configuration_gives_a_name(text: str) -> None:
    assert absolute("x", text).startswith("x")


def test_an_address_of_ipv6_is_in_brackets() -> None:
    assert [url(("fd00::1", 80)), url(("10.0.0.1", 80))] == ["http://[fd00::1]:80", "http://10.0.0.1:80"]


BODIES: dict[str, tuple[bytes, set[str] | None]] = {
    "two": (b'{"workers":[{"url":"http://a"},{"url":"http://b","load":1}]}', {"http://a", "http://b"}),
    "none": (b'{"workers":[]}', set()),
    "others": (b'{"workers":[1,{"url":2},{},null]}', set()),
    "no list": (b'{"workers":{}}', None),
    "no object": (b"[]", None),
    "cut": (b'{"workers":[', None),
    "no text": (b"\xff\xfe", None),
}


@pytest.mark.parametrize("case", BODIES)
def test_the_list_of_workers(case: str) -> None:
    body, wanted = BODIES[case]
    if wanted is not None:
        assert workers_of(body) == wanted
    else:
        with pytest.raises(ValueError):
            workers_of(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda part: st.lists(part) | st.dictionaries(st.text(), part)
)


@given(st.binary() | st.builds(lambda value: json.dumps({"workers": value}).encode(), JSON))
def test_any_list_is_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert all(isinstance(each, str) for each in workers_of(body))


class Router:
    """vllm-router's list of workers."""

    def __init__(self) -> None:
        self.workers: list[str] = []
        self.asked: list[str] = []
        self.is_slow = asyncio.Event()
        self.is_slow.set()
        self.status = 200

    async def has(self, worker: str) -> None:
        await until(lambda: worker in self.workers)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if self.status != 200:
            return web.Response(status=self.status)
        if request.method == "POST":
            worker = (await request.json())["url"]
            if "slow" in worker:
                await self.is_slow.wait()
            self.workers.append(worker)
        elif request.method == "DELETE":
            self.workers.remove(request.path.removeprefix("/workers/"))
        return web.json_response({"workers": [{"url": each} for each in self.workers]})


@pytest.fixture
async def followed(tmp_path: Path) -> Any:
    router, found = Router(), [frozenset[Address]()]

    async def find() -> frozenset[Address]:
        return found[0]

    async with application(router.answer) as address, aiohttp.ClientSession() as session:
        host, _, port = address.removeprefix("http://").rpartition(":")
        yield router, found, Replicas(find, (host, int(port)), session, tmp_path), tmp_path / envoy.ENDPOINTS_FILE


async def settled(replicas: Replicas) -> None:
    for _ in range(3):
        await replicas.follow()
        await asyncio.gather(*replicas._adding.values())


async def test_a_worker_that_does_not_answer_keeps_no_other_waiting(followed: Any) -> None:
    router, found, replicas, _ = followed
    router.is_slow.clear()
    found[0] = frozenset({("slow", 80), ("a", 80)})
    await replicas.follow()
    await asyncio.sleep(0)
    await router.has("http://a:80")
    found[0] = frozenset({("slow", 80), ("b", 80)})
    await replicas.follow()
    assert "http://a:80" not in router.workers
    await router.has("http://b:80")
    assert not replicas.are_workers
    router.is_slow.set()
    await settled(replicas)
    assert replicas.are_workers


async def test_a_router_that_started_again_gets_all_workers_again(followed: Any) -> None:
    router, found, replicas, _ = followed
    found[0] = frozenset({("a", 80), ("b", 80)})
    await settled(replicas)
    router.workers.clear()
    await settled(replicas)
    assert sorted(router.workers) == ["http://a:80", "http://b:80"]


async def test_a_router_that_does_not_answer_is_asked_again_and_envoy_goes_on(followed: Any) -> None:
    router, found, replicas, file = followed
    router.status = 500
    found[0] = frozenset({("a", 80)})
    await replicas.follow()
    assert not replicas.are_workers
    assert '"a"' in file.read_text()
    router.status = 200
    await settled(replicas)
    assert replicas.are_workers


async def test_the_file_is_written_when_it_changes(followed: Any) -> None:
    _, found, replicas, file = followed
    found[0] = frozenset({("a", 80)})
    await settled(replicas)
    before = file.stat().st_ino
    await settled(replicas)
    assert file.stat().st_ino == before


async def test_the_last_replicas_are_kept_while_they_drain(followed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router's pod stays an endpoint for some seconds more."""
    router, found, replicas, file = followed
    found[0] = frozenset({("a", 80)})
    await settled(replicas)
    found[0] = frozenset()
    await settled(replicas)
    assert replicas.is_empty
    assert router.workers == ["http://a:80"]
    assert '"a"' in file.read_text()
    monkeypatch.setattr("llmservice_router.replicas.PROPAGATION_SECONDS", 0)
    await settled(replicas)
    assert router.workers == []
    assert '"a"' not in file.read_text()


async def test_while_it_ends_the_last_replicas_stay(followed: Any) -> None:
    router, found, replicas, _ = followed
    found[0] = frozenset({("a", 80)})
    await settled(replicas)
    replicas.is_ending = True
    found[0] = frozenset()
    await settled(replicas)
    assert router.workers == ["http://a:80"]


async def test_prompts_go_to_vllm_router_while_it_has_workers_and_else_to_the_replicas(followed: Any) -> None:
    router, found, replicas, file = followed
    servers = file.with_name(envoy.ROUTER_FILE)

    def leads_to() -> list[str]:
        (made,) = json.loads(servers.read_text())["resources"]
        every = (
            each["endpoint"]["address"]["socket_address"] for one in made["endpoints"] for each in one["lb_endpoints"]
        )
        return ["vllm-router" if each["address"] == "127.0.0.1" else each["address"] for each in every]

    assert leads_to() == []
    found[0] = frozenset({("a", 80), ("b", 80)})
    await replicas.follow()
    assert leads_to() == ["a", "b"], "it has no worker yet"
    await settled(replicas)
    assert leads_to() == ["vllm-router"]
    replicas.router_ended()
    assert leads_to() == ["a", "b"]
    router.status = 500
    await settled(replicas)
    assert leads_to() == ["a", "b"]
    router.status = 200
    await settled(replicas)
    assert leads_to() == ["vllm-router"]
    found[0] = frozenset({("c", 80)})
    await replicas.follow()
    assert leads_to() == ["c"], "those that it has are gone"
