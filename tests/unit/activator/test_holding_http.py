"""What clients send on a socket: HTTP at its edges, listeners, clients that vanish, and the end of the process."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from kubeloop.resources import Key
from llmservice_activator.holding.limits import Limits
from llmservice_activator.holding.server import Connections, HoldingServer
from llmservice_runtime.contract import ACTIVATOR_PATH

from tests.support.patience import PATIENCE, until
from tests.support.ports import free_port
from tests.unit.holding_world import (
    CHAT,
    KEY,
    LIMITS,
    Answered,
    Counted,
    World,
    chat,
    everybody,
    head,
    nothing_new,
    nowhere,
    target,
    world,
)

BODY = json.dumps(chat()).encode()
FIELDS = f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


def post(extra: bytes = b"", version: bytes = b"1.1", path: bytes = CHAT.encode()) -> bytes:
    return b"POST " + path + b" HTTP/" + version + b"\r\nHost: x\r\n" + extra + FIELDS


async def test_the_port_says_which_service_whatever_the_host_header() -> None:
    async with world() as w:
        one, two = target(), target(Key("others", "two"), model_names=frozenset({"two"}))
        await w.serve(one, two)
        for host in ("llama.team.svc", "two.others.svc", "127.0.0.1"):
            for service in (one, two):
                answer = await w.ask(service, "/llmservice.dev/activator", "GET", headers={"Host": host})
                assert answer.json == {"uid": service.uid}
        absolute = b"GET http://two.others.svc/llmservice.dev/activator HTTP/1.1\r\nHost: two.others.svc\r\n\r\n"
        assert json.loads(head(await w.raw(one, absolute))[2]) == {"uid": one.uid}
        assert (await w.ask(one, json=chat() | {"model": "two"})).status == 404
        w.asking(two, json={"model": "two"})
        await until(lambda: w.server.all_held().keys() == {two.key})


async def test_expect_100_continue() -> None:
    async with world() as w:
        service, pod = target(keys=frozenset({"k"})), await w.pod()
        await w.serve(service)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(post(b"Authorization: Bearer k\r\nExpect: 100-continue\r\n"))
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(pod.url,)))
        status, _, _ = head(await asyncio.wait_for(reader.read(), PATIENCE))
        writer.close()
        assert status == 200
        assert "Expect" not in pod.seen[0].headers
        assert pod.seen[0].body == BODY
        # A body that would be refused is not asked for.
        assert head(await w.raw(service, post(b"Expect: 100-continue\r\n")))[0] == 401
        assert head(await w.raw(service, post(b"Authorization: Bearer k\r\nExpect: more\r\n")))[0] == 417
        await w.serve(replace(service, max_bytes=len(BODY) - 1))
        assert head(await w.raw(service, post(b"Authorization: Bearer k\r\nExpect: 100-continue\r\n")))[0] == 413


@pytest.mark.parametrize("is_ready", [True, False])
async def test_http_1_0(is_ready: bool) -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()  # chunked
        await response.prepare(request)
        await response.write(b"whole")
        return response

    async with world() as w:
        service, pod = target(), await w.pod(script)
        await w.serve(replace(service, pods=(pod.url,)) if is_ready else service)
        if is_ready:
            await w.ready(service)
        asked = asyncio.create_task(w.raw(service, post(version=b"1.0") + BODY))
        if not is_ready:
            await until(lambda: w.held(service) == 1)
            await w.serve(replace(service, pods=(pod.url,)))
        status, headers, body = head(await asked)
        assert (status, body) == (200, b"whole")
        assert "transfer-encoding" not in headers


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 503),
        (b"CONNECT example.com:80 HTTP/1.1\r\nHost: example.com:80\r\n\r\n", 503),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (post(b"Transfer-Encoding: chunked\r\n") + BODY, 400),
        (post(b"Content-Length: 3\r\n") + BODY, 400),
        (b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked, x\r\n\r\n", 400),
        (b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"x" * 33_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 33_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: 1\r\n" * 200 + b"\r\n", 431),
        (post().replace(b"Host: x\r\n", b"") + BODY, 400),
        (post(b"Host: y\r\n") + BODY, 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (post() + BODY + b"more than its length\r\n\r\n", 400),
    ],
)  # fmt: skip
async def test_refused_without_a_wake(text: bytes, status: int, caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        got = await w.raw(service, text)
        assert head(got)[0] == status
        error = Answered(*head(got)).error
        assert (error["code"], len(got) < 1000) == (status, True)
        assert got.count(b"HTTP/1.1 ") + got.count(b"HTTP/1.0 ") == 1
        await until(lambda: w.server.in_progress() == 0)
        assert w.woken == []
        if status == 503:
            assert head(got)[1]["retry-after"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_an_upgrade_that_servers_ignore_is_ignored() -> None:
    """Java's HTTP client proposes HTTP/2 with each first request."""
    async with world() as w:
        service, pod = target(), await w.pod()
        await w.serve(service)
        proposal = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
        asked = asyncio.create_task(w.raw(service, post(proposal) + BODY))
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(pod.url,)))
        assert head(await asked)[0] == 200
        assert not {"Upgrade", "HTTP2-Settings"} & set(pod.seen[0].headers)
        assert pod.seen[0].body == BODY


async def test_what_follows_a_request_is_ignored() -> None:
    """One answer and the end of the connection; no second request is kept, forwarded or answered."""
    async with world() as w:
        service, pod = target(), await w.pod()
        await w.serve(service)
        asked = asyncio.create_task(w.raw(service, post() + BODY + post() + BODY))
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(pod.url,)))
        got = await asked
        assert got.count(b"HTTP/1.1 ") == 1
        assert b"Connection: close" in got
        assert len(pod.seen) == 1
        assert pod.seen[0].body == BODY
        probe = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await w.raw(replace(service, pods=()), probe * 3)).count(b"HTTP/1.1 ") == 1


async def test_chunked_bodies() -> None:
    async with world() as w:
        service, pod = target(), await w.pod()
        await w.serve(service)
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:7], BODY[7:])) + b"0\r\n\r\n"
        text = post().replace(f"Content-Length: {len(BODY)}".encode(), b"Transfer-Encoding: chunked")
        asked = asyncio.create_task(w.raw(service, text + chunks))
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(pod.url,)))
        assert head(await asked)[0] == 200
        assert pod.seen[0].body == BODY


async def test_a_client_that_is_gone_is_dropped_and_never_forwarded() -> None:
    async with world() as w:
        service, pod = target(at_once=1), await w.pod()
        await w.serve(service)
        (leaving,) = await w.holding(service, ["leaving"])
        kept = await w.holding(service, ["kept"])
        leaving.cancel()
        await until(lambda: w.held(service) == 1)
        assert w.counted.of["lost client_gone"] == 1
        await w.serve(replace(service, pods=(pod.url,)))
        assert (await kept[0]).status == 200
        assert pod.names == ["kept"]
        assert not w.server._ledger._bytes
        assert not w.server._ledger._requests


async def test_a_client_that_sends_on_and_leaves_is_noticed() -> None:
    """What it sends after its request is neither kept nor keeps its end from being seen."""
    async with world() as w:
        service = target()
        await w.serve(service)
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(post() + BODY)
        await until(lambda: w.held(service) == 1)
        writer.write((post() + BODY) * 20_000)
        await writer.drain()
        writer.close()
        await until(lambda: w.held(service) == 0)
        assert w.counted.of == {"held": 1, "lost client_gone": 1}


async def test_a_client_that_leaves_during_its_upload_wakes_nobody() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(post() + BODY[:-1])
        await until(lambda: w.server._ledger._requests[KEY] == 1)
        writer.close()
        await until(lambda: not w.server._ledger._requests)
        assert w.woken == []
        assert w.counted.of == {"lost client_gone": 1}


async def test_a_client_that_leaves_frees_its_slot_and_ends_its_request_at_the_pod() -> None:
    async with world() as w:
        service, pod = target(at_once=1), await w.pod()
        pod.close_gate()
        await w.serve(service)
        first, second = await w.holding(service, ["first", "second"])
        await w.serve(replace(service, pods=(pod.url,)))
        await until(lambda: pod.names == ["first"])
        first.cancel()
        await until(lambda: pod.names == ["first", "second"])
        pod.gate.release()
        pod.gate.release()
        assert (await second).status == 200


async def test_a_client_that_reads_nothing_frees_its_slot() -> None:
    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 100_000)

    async with world(write_seconds=0.1) as w:
        pod = await w.pod(script)
        service = target(at_once=1, pods=(pod.url,))
        await w.serve(service)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=1000)
        writer.write(post() + BODY)
        await until(lambda: w.counted.of["lost client_stalled"] == 1)
        await until(lambda: w.server.in_progress() == 0)
        writer.close()
        del reader


async def test_a_listener_moves_to_another_port() -> None:
    async with world() as w:
        service, pod = target(), await w.pod()
        await w.serve(service)
        asked = await w.holding(service, ["a"])
        moved = replace(service, port=free_port(), pods=(pod.url,))
        await w.serve(moved)
        assert w.server.is_listening(service.uid, moved.port)
        assert not w.server.is_listening(service.uid, service.port)
        assert (await asked[0]).status == 200
        assert (await w.ask(moved)).status == 200
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", service.port)


async def test_a_port_that_is_taken_is_an_error_and_is_tried_again() -> None:
    async with world() as w:
        service = target()
        with socket.create_server(("127.0.0.1", service.port)):
            with pytest.raises(OSError):
                await w.serve(service)
            assert not w.server.is_listening(service.uid, service.port)
        await w.serve(service)
        assert w.server.is_listening(service.uid, service.port)
        assert not w.server.is_listening("another", service.port)
        assert (await w.ask(service, "/health", "GET")).status == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_all_addresses_of_both_families(address: str) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    woken: list[Key] = []
    server = HoldingServer(
        held_by_others=nowhere, admits=everybody, renews=nothing_new, wake=woken.append, count=Counted(), limits=LIMITS
    )
    await server.start()
    service = target()
    await server.update(service)
    reader, writer = await asyncio.open_connection(address, service.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head(await asyncio.wait_for(reader.read(), PATIENCE))[0] == 200
    writer.close()
    await server.stop()


async def test_stop_finishes_what_is_in_progress() -> None:
    async with world() as w:
        service, pod = target(at_once=1), await w.pod()
        pod.close_gate()
        await w.serve(service)
        asked = await w.holding(service, ["a", "b"])
        await w.serve(replace(service, pods=(pod.url,)))
        await until(lambda: pod.names == ["a"])
        assert w.server.in_progress() == 2
        stopping = asyncio.create_task(w.server.stop())
        await until(lambda: not w.server.is_listening(service.uid, service.port))
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", service.port)
        assert not stopping.done()
        pod.gate.release()
        pod.gate.release()
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200, 200]
        await asyncio.wait_for(stopping, PATIENCE)
        assert w.server.in_progress() == 0


async def test_a_connection_that_is_handed_over_after_the_end_is_told_of_it() -> None:
    """A listener accepts in one round of the event loop, and hands over in a later one."""

    async def nobody(service: object, request: object) -> web.StreamResponse:
        raise AssertionError

    connections = Connections(nobody, Limits())
    await connections.shutdown(0)
    service: Any = None
    listener = await connections.listen(service, "127.0.0.1", port := free_port())
    async with listener, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answered = await reader.read()
        writer.close()
    assert answered.startswith(b"HTTP/1.1 503 ")
    assert b"The process that holds requests ends. Try again." in answered


async def test_a_stop_that_is_cancelled_answers_what_is_held() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        asked = await w.holding(service, ["a"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await w.server.stop()
        answer = await asked[0]
        assert (answer.status, answer.error["type"]) == (503, "Stopping")


@pytest.mark.parametrize("cancelled", ["while a service is changed", "and once more while held requests are answered"])
async def test_a_stop_leaves_no_connections_whenever_it_is_cancelled(
    cancelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as w:
        session = w.server._started().session
        await w.serve(service := target())
        asked = await w.holding(service, ["a"])
        answering = asyncio.Event()

        async def answers(*_: object) -> None:
            answering.set()
            await asyncio.Event().wait()

        if cancelled.startswith("while"):
            async with w.server._change:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await w.server.stop()
        else:
            with monkeypatch.context() as patched:
                patched.setattr(w.server, "_remove", answers)
                stopping = asyncio.create_task(w.server.stop())
                await until(lambda: not w.server.is_listening(service.uid, service.port))
                stopping.cancel()
                await answering.wait()
                stopping.cancel()
                await asyncio.wait([stopping])
        assert session.closed
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await w.server.stop()
        assert (await asked[0]).status == 503


async def test_an_error_of_ours_about_one_request_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        break_wake(w)
        assert (await w.ask(service)).status == 500
        assert w.counted.of["lost internal"] == 1
        assert w.held(service) == 0
        assert not w.server._ledger._requests
    assert "a request failed" in caplog.text


def break_wake(w: World) -> None:
    def wake(_: Key) -> None:
        raise LookupError("planted")

    assert w.server._shared is not None
    w.server._shared = replace(w.server._shared, wake=wake)


async def test_while_its_service_leads_to_replicas_alone_nothing_is_forwarded() -> None:
    """But what was in progress before."""
    async with world() as w:
        pod = await w.pod()
        service = target(pods=(pod.url,))
        await w.serve(service)
        await w.ready(service)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n".encode())
        await until(lambda: w.server.in_progress() == 1)
        await asyncio.sleep(0.05)
        await w.serve(replace(service, is_routed=False))
        for method, path in [("POST", CHAT), ("GET", "/any"), ("GET", "/v1/models")]:
            answer = await w.ask(service, path, method)
            assert (answer.status, answer.error["type"]) == (503, "NotRouted"), path
            assert answer.headers["Retry-After"]
        for path in ("/health", "/metrics"):
            assert (await w.ask(service, path, "GET")).status == 503
        assert (await w.ask(service, ACTIVATOR_PATH, "GET")).json == {"uid": service.uid}
        writer.write(b'{"model": "llama"}')
        assert head(await asyncio.wait_for(reader.read(), PATIENCE))[0] == 200
        writer.close()
        assert [seen.path for seen in pod.seen] == [CHAT]
        await w.serve(service)
        assert (await w.ask(service)).status == 200
