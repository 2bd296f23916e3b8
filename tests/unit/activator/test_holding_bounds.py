"""What is held is bounded: by service, namespace and process, in requests, bytes, time and connections."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from kubeloop.resources import Key
from llmservice_activator.holding.interface import HoldingTarget
from llmservice_activator.holding.limits import HoldingLimits, Ledger
from llmservice_activator.holding.server import FairShares

from tests.support.patience import PATIENCE, until
from tests.unit.holding_world import CHAT, KEY, World, chat, head, target, world

LENGTH = 1000
BEGUN = (
    f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {LENGTH}\r\n\r\n".encode()
)


async def test_the_101st_request_gets_429_and_those_before_are_answered() -> None:
    async with world() as w:
        service, pod = target(), await w.pod()
        await w.serve(service)
        asked = [w.asking(service, str(n)) for n in range(100)]
        await until(lambda: w.held(service) == 100)
        answer = await w.ask(service)
        assert answer.status == 429
        assert answer.headers["Retry-After"]
        assert answer.error["type"] == "rate_limit_exceeded"
        assert "100 requests" in answer.error["message"]
        assert w.counted.of["answered full"] == 1
        await w.serve(replace(service, pods=(pod.url,)))
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert len(pod.seen) == 100


@pytest.mark.parametrize(("held_by_others", "here"), [(0, 100), (1, 99), (60, 40), (99, 1), (100, 0), (5000, 0)])
async def test_what_other_activators_hold_counts_towards_a_services_bound(held_by_others: int, here: int) -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        w.held_by_others[KEY] = held_by_others
        asked = [w.asking(service, str(n)) for n in range(here)]
        await until(lambda: w.held(service) == here)
        assert (await w.ask(service)).status == 429
        assert not any(task.done() for task in asked)


async def test_a_namespace_holds_ten_times_what_a_service_may() -> None:
    async with world() as w:
        services = [target(Key("team", f"s{n}"), max_requests=1) for n in range(11)]
        other = target(Key("others", "s"), max_requests=1)
        await w.serve(*services, other)
        for service in services[:10]:
            await w.holding(service, ["x"])
        answer = await w.ask(services[10])
        assert answer.status == 429
        assert "10 requests" in answer.error["message"]
        await w.holding(other, ["y"])


async def test_bytes_of_a_service_and_of_the_process() -> None:
    async with world(held_bytes=8000) as w:
        services = [target(Key(f"team{n}", "s"), max_bytes=2500) for n in range(5)]
        await w.serve(*services)
        large = chat("x" * 1900)
        w.asking(services[0], json=large)
        await until(lambda: w.held(services[0]) == 1)
        answer = await w.ask(services[0], json=large)
        assert answer.status == 429
        assert "2500 bytes" in answer.error["message"]
        for each in services[1:3]:
            w.asking(each, json=large)
        await until(lambda: [w.held(each) for each in services[1:3]] == [1, 1])
        answer = await w.ask(services[3], json=large)
        assert answer.status == 429
        assert "as much as it can" in answer.error["message"]
        await w.holding(services[4], ["what is left is for those with less"])
        await w.server.remove(services[0].key)
        w.asking(services[3], json=large)
        await until(lambda: w.held(services[3]) == 1)


@pytest.mark.parametrize("services", [1, 10_000])
def test_a_chunk_of_a_body_costs_the_same_whatever_the_services_of_its_namespace(services: int) -> None:
    ledger = Ledger(1 << 30)
    for n in range(services):
        ledger.bound(Key("team", f"s{n}"), HoldingLimits(100, 1 << 20))
    began = time.thread_time()
    entry = ledger.enter(Key("team", "s0"))
    for _ in range(1000):
        entry.add(1)
    assert time.thread_time() - began < 0.5
    entry.close()
    for n in range(services):
        ledger.forget(Key("team", f"s{n}"))
    assert not ledger._largest


async def test_a_namespace_leaves_bytes_of_the_process_to_others() -> None:
    async with world(held_bytes=8000) as w:
        greedy, other = target(Key("greedy", "s"), max_bytes=8000), target(Key("other", "s"))
        await w.serve(greedy, other)
        answer = await w.ask(greedy, json=chat("x" * 2000))
        assert answer.status == 429
        assert "the namespace hold 2000 bytes" in answer.error["message"]
        w.asking(other)
        await until(lambda: w.held(other) == 1)


async def test_bytes_of_a_namespace() -> None:
    async with world() as w:
        services = [target(Key("team", f"s{n}"), max_bytes=1000) for n in range(11)]
        await w.serve(*services)
        for service in services[:10]:
            w.asking(service, json=chat("x" * 850))
        await until(lambda: len(w.server.all_held()) == 10)
        answer = await w.ask(services[10], json=chat("x" * 850))
        assert answer.status == 429
        assert "namespace" in answer.error["message"]


async def test_bodies_that_never_end_are_counted_as_they_arrive() -> None:
    """Neither their requests nor their bytes escape the bounds, and they wake nobody."""
    async with world() as w:
        service = target(max_requests=3, max_bytes=LENGTH + 400)
        await w.serve(service)
        half = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(2)]
        for _, writer in half:
            writer.write(BEGUN + b" " * 600)
        ledger = w.server._ledger
        await until(lambda: ledger._bytes[KEY] == 1200)
        answer = await w.ask(service, json=chat("x" * 300))
        assert (answer.status, answer.error["type"]) == (429, "rate_limit_exceeded")
        third = await asyncio.open_connection("127.0.0.1", service.port)
        third[1].write(BEGUN)
        await until(lambda: ledger._requests[KEY] == 3)
        answer = await w.ask(service, json=chat())
        assert "3 requests" in answer.error["message"]
        assert w.woken == []
        assert w.server.held(KEY).requests == 0
        for _, writer in (*half, third):
            writer.close()
        await until(lambda: not ledger._bytes and not ledger._requests)


async def test_a_body_without_progress_gets_408() -> None:
    async with world(body_seconds=0.05) as w:
        service = target()
        await w.serve(service)
        status, headers, body = head(await w.raw(service, BEGUN + b"{"))
        assert status == 408
        assert headers["connection"] == "close"
        assert b"request_timeout" in body
        assert w.woken == []


async def test_a_body_that_trickles_gets_408_after_the_services_timeout() -> None:
    async with world() as w:
        service = target(timeout_seconds=1)
        await w.serve(service)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(BEGUN)
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))

        async def trickle() -> None:
            while not answer.done():
                writer.write(b" ")
                await asyncio.wait({answer}, timeout=0.05)

        async with asyncio.timeout(PATIENCE):
            await trickle()
        assert head(await answer)[0] == 408
        writer.close()


async def test_held_too_long_gets_503() -> None:
    async with world() as w:
        service = target(timeout_seconds=0)
        await w.serve(service)
        answer = await w.ask(service)
        assert answer.status == 503
        assert answer.headers["Retry-After"]
        assert "within 0 seconds" in answer.error["message"]
        assert w.counted.of["answered timed_out"] == 1
        assert w.held(service) == 0


HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
IDLE: dict[str, tuple[list[str], str, str]] = {
    "another namespace": (["a", "b"], "c", HERE),
    "another client of another namespace": (["a", "b"], "c", ELSEWHERE),
    "another client of the same namespace": (["a"], "a", ELSEWHERE),
    "a client after four namespaces": (["a", "b", "d", "e"], "c", ELSEWHERE),
}


@pytest.mark.parametrize("case", IDLE)
async def test_idle_connections_of_one_client_leave_some_to_others(case: str) -> None:
    """Who has no key, too: a connection is all it takes."""
    flooded, asked, address = IDLE[case]
    async with world(connections=40) as w:
        services = {name: target(Key(name, "s")) for name in "abcde"}
        await w.serve(*services.values())
        opened = []
        for name in flooded:
            opened += [await connected(services[name]) for _ in range(45)]
        refused = head(await opened[-1][0].read())
        assert refused[0] == 503
        assert refused[1]["retry-after"]
        assert int(refused[1]["content-length"]) == len(refused[2])
        assert await health(services[asked], address) == 200
        for _, writer in opened:
            writer.close()
        await until(lambda: not connections(w))
        assert (await w.ask(services["a"], "/health", "GET")).status == 200


async def test_a_gateway_has_most_connections_where_nobody_else_asks() -> None:
    """One address for all clients of some namespaces."""
    async with world(connections=40) as w:
        services = [target(Key(name, "s")) for name in "abcdef"]
        await w.serve(*services)
        opened = [await connected(each) for each in services for _ in range(5)]
        await until(lambda: len(connections(w)) == 30)
        for _, writer in opened:
            writer.close()
        await until(lambda: not connections(w))


async def connected(of: HoldingTarget, address: str = HERE) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HERE, of.port, local_addr=(address, 0))


async def health(of: HoldingTarget, address: str) -> int:
    reader, writer = await connected(of, address)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    status, _, _ = head(await asyncio.wait_for(reader.read(), PATIENCE))
    writer.close()
    return status


def connections(w: World) -> list[object]:
    assert w.server._connections is not None
    return list(w.server._connections.connections)


@pytest.mark.parametrize(
    ("namespaces", "addresses", "each"),
    [(1, 1, 1755), (1, 2, 1890), (2, 1, 1228 * 2), (4, 1, 768 * 4), (1000, 1, 3072), (1, 100, 2047), (300, 50, 4082)],
)
def test_shares_of_a_total(namespaces: int, addresses: int, each: int) -> None:
    """All take in turns what they get; then a namespace and an address that have nothing get some."""
    shares, took = FairShares(4096), True
    while took:
        took = False
        for n in range(namespaces):
            for a in range(addresses):
                took |= shares.take(f"n{n}", f"a{a}")
    assert abs(shares.used - each) <= addresses, shares.used
    assert shares.take("new", "new")
    if namespaces < 10:
        assert shares.take("n0", "new")
    for n in range(namespaces):
        for a in range(addresses):
            while shares._of[f"n{n}", f"a{a}"]:
                shares.give_back(f"n{n}", f"a{a}")
    shares.give_back("new", "new")
    assert shares.used == shares.of_namespace("new") + (namespaces < 10)


async def test_an_idle_connection_is_closed() -> None:
    async with world(idle_seconds=0.05) as w:
        service = target()
        await w.serve(service)
        assert await w.raw(service, b"POST /v1/chat") == b""
        await until(lambda: not connections(w))


async def test_a_flood_of_some_namespaces_delays_no_other() -> None:
    """Two namespaces have every slot, and more requests wait: one at a time of another's is sent beyond them."""
    async with world(slots=4, slots_of_one_namespace=2) as w:
        pod, others = await w.pod(), await w.pod()
        pod.close_gate()
        others.close_gate()
        flood = [target(Key(f"flood{n}", "s")) for n in range(2)]
        calm = target(Key("calm", "s"), pods=(others.url,))
        await w.serve(*flood, calm)
        await w.ready(calm)
        for each in flood:
            await w.holding(each, [str(n) for n in range(5)])
            await w.serve(replace(each, pods=(pod.url,)))
        await until(lambda: pod.at_once == 4)
        first = w.asking(calm, "first")
        await until(lambda: others.at_once == 1)
        (second,) = await w.holding(calm, ["second"])
        others.gate.release()
        await until(lambda: others.names == ["first", "second"])
        assert pod.most_at_once == 4
        others.gate.release()
        assert [answer.status for answer in await asyncio.gather(first, second)] == [200, 200]


async def test_one_namespace_does_not_take_all_slots() -> None:
    async with world(slots=4, slots_of_one_namespace=2) as w:
        pod, others = await w.pod(), await w.pod()
        pod.close_gate()
        flood, calm = target(Key("flood", "s")), target(Key("calm", "s"), pods=(others.url,))
        await w.serve(flood, calm)
        await w.holding(flood, [str(n) for n in range(5)])
        await w.serve(replace(flood, pods=(pod.url,)))
        await until(lambda: pod.at_once == 2)
        assert (await w.ask(calm)).status == 200
        assert pod.most_at_once == 2
        for _ in range(5):
            pod.gate.release()
        await until(lambda: len(pod.seen) == 5)


async def test_checks_of_pods_are_bounded_by_namespace() -> None:
    """Who may run pods may run many that take a connection and never answer."""
    async with world() as w:
        silent, serving = await w.pod(), await w.pod()
        silent.close_gate()
        await w.serve(target(pods=[f"{silent.url}/{n}" for n in range(50)]))
        await until(lambda: silent.at_once == 32)
        other = target(Key("others", "s"), pods=(serving.url,))
        await w.serve(other)
        assert (await w.ask(other)).status == 200
        assert silent.most_at_once == 32
        for _ in range(50):
            silent.gate.release()
        await until(lambda: len(silent.seen) == 50)


async def test_a_pod_that_fails_its_check_is_checked_less_often() -> None:
    async with world(retry_health_seconds=0.01) as w:
        pod = await w.pod()
        pod.is_healthy = False
        await w.serve(target(pods=(pod.url,)))
        await until(lambda: pod.checks > 1)
        await asyncio.sleep(1)
        assert pod.checks < 15
        pod.is_healthy = True
        assert (await w.ask(w.server._services[KEY].target)).status == 200
