"""Held requests are released to pods: in order, within bounds, with the answer as the pod wrote it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web
from kubeloop.resources import Key

from tests.support.patience import PATIENCE, until
from tests.support.ports import free_port
from tests.unit.holding_world import CHAT, KEY, chat, target, world


async def test_held_until_a_pod_is_ready_then_released_in_order() -> None:
    async with world() as w:
        service, pod = target(at_once=1), await w.pod()
        await w.serve(service)
        asked = await w.holding(service, ["a", "b", "c", "d"])
        assert w.woken[:4] == [KEY] * 4
        held = w.server.held(KEY)
        assert held.requests == 4
        assert held.bytes == sum(len(json.dumps(chat(name))) for name in "abcd")
        assert w.server.all_held() == {KEY: held}
        assert not pod.seen
        await w.serve(replace(service, pods=(pod.url,)))
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200] * 4
        assert pod.names == ["a", "b", "c", "d"]
        assert {answer.headers["Connection"] for answer in answers} == {"close"}
        assert w.counted.of == {"held": 4, "forwarded after it was held": 4}
        await until(lambda: w.server.in_progress() == 0)
        assert w.server.held(KEY).requests == w.server.held(KEY).bytes == 0


async def test_since_is_the_arrival_of_the_oldest() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        before = asyncio.get_running_loop().time()
        await w.holding(service, ["old", "new"])
        since = w.server.held(KEY).since
        assert since is not None
        assert before <= since <= asyncio.get_running_loop().time()
        assert w.server.held(Key("no", "one")).since is None


async def test_at_most_at_once_requests_are_at_the_pods() -> None:
    async with world() as w:
        service, pods = target(at_once=3), [await w.pod(), await w.pod()]
        for pod in pods:
            pod.close_gate()
        await w.serve(service)
        asked = await w.holding(service, [str(n) for n in range(8)])
        await w.serve(replace(service, pods=tuple(pod.url for pod in pods)))
        await until(lambda: sum(pod.at_once for pod in pods) == 3)
        assert w.held(service) == 5
        for pod in pods:
            for _ in range(8):
                pod.gate.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert max(pod.most_at_once for pod in pods) <= 3
        assert all(pod.seen for pod in pods)  # both are used


async def test_a_new_request_does_not_overtake_held_ones() -> None:
    async with world() as w:
        service, pod = target(at_once=1), await w.pod()
        pod.close_gate()
        await w.serve(service)
        asked = await w.holding(service, ["a", "b"])
        await w.serve(replace(service, pods=(pod.url,)))
        await until(lambda: pod.names == ["a"])
        asked += await w.holding(service, ["c"])
        for _ in range(3):
            pod.gate.release()
        await asyncio.gather(*asked)
        assert pod.names == ["a", "b", "c"]


async def test_a_pod_is_used_only_after_it_answered_health() -> None:
    async with world() as w:
        pod = await w.pod()
        pod.is_healthy = False
        service = target(pods=(pod.url,))
        await w.serve(service)
        asked = w.asking(service)
        await until(lambda: pod.checks > 2 and w.held(service) == 1)
        assert not pod.seen
        pod.is_healthy = True
        assert (await asked).status == 200
        checks = pod.checks
        assert (await w.ask(service)).status == 200
        assert pod.checks == checks  # once for each pod


async def test_a_pod_that_is_no_longer_named_is_not_used() -> None:
    async with world() as w:
        first, second = await w.pod(), await w.pod()
        service = target(pods=(first.url,))
        await w.serve(service)
        await w.ask(service)
        await w.serve(replace(service, pods=(second.url,)))
        await w.ask(service)
        assert len(first.seen) == len(second.seen) == 1


async def test_a_ready_pod_answers_everything_at_once_even_what_is_unknown_here() -> None:
    async with world() as w:
        pod = await w.pod()
        service = target(pods=(pod.url,), max_bytes=10)
        await w.serve(service)
        await w.ready(service)
        await w.ask(service)
        for method, path in [("GET", "/v1/models"), ("GET", "/version?x=%2F"), ("PUT", "/new"), ("POST", "/unknown")]:
            assert (await w.ask(service, path, method)).status == 200, path
        assert [seen.path for seen in pod.seen] == [CHAT, "/v1/models", "/version?x=%2F", "/new", "/unknown"]
        assert w.counted.of == {"forwarded": 5}
        assert (await w.ask(service, "/llmservice.dev/activator", "GET")).json == {"uid": service.uid}
        assert len(pod.seen) == 5


async def test_headers_pass_but_those_of_a_connection() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        headers = {"X-Answer": "1", "Connection": "keep-alive, X-Hop", "X-Hop": "2", "Content-Type": "text/odd"}
        return web.Response(status=418, reason="Teapot", body=b"tea", headers=headers)

    async with world() as w:
        pod = await w.pod(script)
        service = target()
        await w.serve(service)
        sent = {
            "Authorization": "Bearer k", "X-Id": "7", "Host": "model.example", "Connection": "X-Mine", "X-Mine": "1",
            "Keep-Alive": "5", "TE": "trailers", "Accept-Encoding": "odd", "User-Agent": "me", "Upgrade": "h2c",
        }  # fmt: skip
        asked = w.asking(service, headers=sent)
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(pod.url,)))
        answer = await asked
        assert (answer.status, answer.body) == (418, b"tea")
        assert answer.headers["X-Answer"] == "1"
        assert answer.headers["Content-Type"] == "text/odd"
        assert answer.headers["Connection"] == "close"
        assert "X-Hop" not in answer.headers
        (got,) = pod.seen
        for name in ("Authorization", "X-Id", "Host", "Accept-Encoding", "User-Agent"):
            assert got.headers[name] == sent[name]
        assert not {"X-Mine", "Keep-Alive", "TE", "Upgrade"} & set(got.headers)
        assert json.loads(got.body) == chat()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_refused_connection_is_tried_at_another_pod(is_first: bool) -> None:
    """The pod answered the check, and is gone when the request comes."""
    async with world() as w:
        pod = await w.pod()
        nobody = f"http://127.0.0.1:{free_port()}"
        pods = (nobody, pod.url) if is_first else (pod.url, nobody)
        service = target(pods=pods)
        await w.serve(service)
        w.believe(service, nobody)
        assert (await w.ask(service)).status == 200
        assert (await w.ask(service)).status == 200
        assert len(pod.seen) == 2


async def test_with_no_other_pod_the_request_is_held_on_at_the_front() -> None:
    async with world() as w:
        nobody, pod = f"http://127.0.0.1:{free_port()}", await w.pod()
        service = target(at_once=1)
        await w.serve(service)
        asked = await w.holding(service, ["a", "b", "c"])
        await w.serve(replace(service, pods=(nobody,)))
        w.believe(service, nobody)
        await until(lambda: not w.server._services[KEY].pods.any_answers)
        await until(lambda: w.held(service) == 3)
        await w.serve(replace(service, pods=(pod.url,)))
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert pod.names == ["a", "b", "c"]
        assert w.counted.of == {"held": 3, "forwarded after it was held": 3}


@pytest.mark.parametrize("is_held", [True, False])
async def test_an_error_after_the_connection_is_not_tried_again(is_held: bool) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with world() as w:
        dying, other = await w.pod(script), await w.pod()
        service = target(at_once=1, pods=() if is_held else (dying.url,))
        await w.serve(service)
        asked = w.asking(service)
        if is_held:
            await until(lambda: w.held(service) == 1)
            await w.serve(replace(service, pods=(dying.url,)))
        answer = await asked
        assert answer.status == 502
        assert answer.error["type"] == "bad_gateway"
        assert len(dying.seen) == 1
        assert not other.seen
        assert w.counted.of["lost pod_failed"] == 1
        await w.serve(replace(service, pods=(other.url,)))
        assert (await w.ask(service)).status == 200  # the slot is free again


async def test_an_answer_that_breaks_off_is_not_made_whole() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async with world() as w:
        pod = await w.pod(script)
        service = target(pods=(pod.url,))
        await w.serve(service)
        request = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n{"x":1}'
        answer = await w.raw(service, request)
        assert b"half" in answer
        assert not answer.endswith(b"0\r\n\r\n")
        await until(lambda: w.counted.of["lost pod_failed"] == 1)


async def test_a_body_is_sent_on_as_it_arrives_and_the_answer_as_it_comes() -> None:
    """While a pod is ready nothing waits for a whole body, either way."""
    halves = [asyncio.Event(), asyncio.Event()]
    got = bytearray()

    async def application(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        got.extend(await request.content.readexactly(5))
        halves[0].set()
        got.extend(await request.content.readexactly(5))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await halves[1].wait()
        await response.write(b"second")
        return response

    server = await asyncio.get_running_loop().create_server(web.Server(application), "127.0.0.1", free_port())
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with world() as w:
        service = target(pods=(url,))
        await w.serve(service)
        await w.ready(service)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhello")
        await asyncio.wait_for(halves[0].wait(), PATIENCE)
        writer.write(b"world")
        await asyncio.wait_for(reader.readuntil(b"first"), PATIENCE)
        halves[1].set()
        assert b"second" in await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        assert got == b"helloworld"
        assert w.counted.of == {"forwarded": 1}
    server.close()
