"""The whole process at zero: from a request that comes in to the pod's answer, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from pathlib import Path

import aiohttp
import pytest
from llmservice_activator import targets
from llmservice_api.constants import LLMSERVICE
from llmservice_api.holding import LAST_USE_METRIC

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.unit.activator.test_scaler_targets import secret
from tests.unit.api_server import GONE, ApiServer
from tests.unit.scaler_world import World, certificates, pod, running
from tests.unit.scaler_zero_world import CHAT, Answer, ask, at_zero, follow_scale, server

__all__ = ["certificates"]


def replicas(world: World) -> int:
    obj = world.api.find("LLMService", "chat", "ns")
    assert obj is not None
    found: int = obj["spec"]["scaling"]["replicas"]
    return found


def last_use(world: World) -> list[tuple[str, str]]:
    """What the page says of it."""
    labels = 'method="(.*)",namespace="ns",path="(.*)",service="chat"'
    found = re.findall(f"^{LAST_USE_METRIC}{{{labels}}} ", world.page().decode(), re.MULTILINE)
    return [(str(method), str(path)) for method, path in found]


async def listening(world: World, port: int) -> None:
    await world.until(lambda: world.scaler.holding.is_listening("uid-chat", port))


async def test_a_request_at_zero_starts_a_replica_and_is_answered_by_it(certificates: Path) -> None:
    port = free_port()
    api = ApiServer(at_zero(port=port))
    async with server() as upstream, running(api, certificates) as world:
        follow_scale(world)
        upstream.released.set()
        await listening(world, port)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: replicas(world) == 1)
        held = world.scaler.holding.held(CHAT)
        assert (held.requests, asked.done()) == (1, False)
        assert last_use(world) == [("POST", "/v1/chat/completions")]
        # A pod that starts is not asked.
        await world.send("ADDED", pod("a", address=upstream.address, ready=False))
        await world.send("MODIFIED", pod("a", address=upstream.address, version=6))
        answer = await asked
        assert (answer.status, answer.body) == (200, {"served": 1})
        assert answer.headers["Connection"] == "close"
        await world.until(lambda: any(call == "event Scaled" for call in api.calls))
        assert sum(call == "patch LLMService" for call in api.calls) == 1
        text = world.page().decode()
        assert 'llmservice_activator_wakes_total{result="woken"} 1.0' in text
        assert 'llmservice_activator_forwarded_total{namespace="ns",service="chat"} 1.0' in text


async def test_a_hundred_requests_at_once_are_all_answered_and_the_next_is_refused(certificates: Path) -> None:
    port = free_port()
    status = {"effective": {"batching": {"maxNumSeqs": 16}, "scaling": {"concurrencyPerReplica": 16}}}
    api = ApiServer(at_zero(port=port, status=status))
    async with server() as upstream, running(api, certificates) as world:
        follow_scale(world)
        await listening(world, port)
        asked = [asyncio.create_task(ask(port)) for _ in range(100)]
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 100)
        refused = await ask(port)
        assert refused.status == 429
        assert "Retry-After" in refused.headers
        await world.send("ADDED", pod("a", address=upstream.address))
        await world.until(lambda: upstream.now == 16)
        upstream.released.set()
        answers: list[Answer] = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200] * 100
        assert upstream.most == 16, "no more than maxNumSeqs of one activator"
        assert sum(call == "patch LLMService" for call in api.calls) == 1


async def test_a_pod_that_serves_is_asked_at_once_and_nothing_is_woken(certificates: Path) -> None:
    """As on the way up: the slice is still there, and a pod already is."""
    port = free_port()
    api = ApiServer(at_zero(port=port, replicas=1))
    async with server() as upstream, running(api, certificates) as world:
        upstream.released.set()
        await world.send("ADDED", pod("a", address=upstream.address))
        await listening(world, port)
        assert (await ask(port)).status == 200
        assert "patch LLMService" not in api.calls


async def test_a_pod_that_serves_alone_is_not_reached_through_the_activator(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its NetworkPolicy admits the activator, and not who knows its port there."""
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.05)
    monkeypatch.setattr(targets, "LONGEST_ENDING_SECONDS", 0.2)
    port = free_port()
    serving = at_zero(port=port, replicas=1, status={"conditions": [{"type": "Available", "status": "True"}]})
    async with server() as upstream, running(ApiServer(serving, pod("a", address=upstream.address)), certificates) as w:
        await listening(w, port)
        upstream.released.set()
        async with asyncio.timeout(PATIENCE):
            while (answer := await ask(port)).status == 200:  # noqa: ASYNC110 - after a time
                await asyncio.sleep(0.01)
        assert (answer.status, answer.body["error"]["type"]) == (503, "NotRouted")
        await w.send("MODIFIED", at_zero(port=port, version=11, status=serving["status"]))
        async with asyncio.timeout(PATIENCE):
            while (await ask(port)).status != 200:  # noqa: ASYNC110 - once the watch brought it
                await asyncio.sleep(0.01)


async def test_a_request_that_comes_while_the_last_replica_goes_starts_one_at_once(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 10 * PATIENCE)  # not when held requests are looked at again
    port = free_port()
    api = ApiServer(at_zero(port=port, replicas=1))
    async with running(api, certificates) as world:
        await listening(world, port)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        assert "get LLMService" not in api.calls, "a replica is wanted already"
        gone = api.put(at_zero(port=port, replicas=0, generation=2), resourceVersion="60")
        await world.send("MODIFIED", gone)
        async with asyncio.timeout(PATIENCE):
            while replicas(world) != 1:  # noqa: ASYNC110 - a process with no signal for its tests
                await asyncio.sleep(0.002)
        await world.send("DELETED", gone)
        assert (await asked).status == 503


async def test_a_paused_service_and_a_failing_one_refuse_what_is_held(certificates: Path) -> None:
    port = free_port()
    api = ApiServer(at_zero(port=port))
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "CrashLoop",
        "message": "The server ended five times.",
        "observedGeneration": 2,
    }
    async with running(api, certificates) as world:
        await listening(world, port)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: replicas(world) == 1)
        obj = at_zero(port=port, replicas=1, version=900, generation=2, status={"conditions": [stalled]})
        await world.send("MODIFIED", obj)
        answer = await asked
        assert answer.status == 503
        assert answer.body["error"]["type"] == "CrashLoop"
        assert "The server ended five times." in answer.body["error"]["message"]
        # A correction is a new generation, which may start: its requests are held.
        await world.send("MODIFIED", at_zero(port=port, replicas=1, version=901, generation=3, status=obj["status"]))
        later = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        await world.send("MODIFIED", at_zero(port=port, replicas=1, version=902, spec={"paused": True}))
        answer = await later
        assert (answer.status, answer.body["error"]["type"]) == (503, "Paused")
        assert (await ask(port)).status == 503


async def test_an_edit_that_cannot_be_read_is_answered_with_its_field(certificates: Path) -> None:
    """What is held, and what comes afterwards, until it is corrected."""
    port = free_port()
    night = {"start": "0 22 * * *", "end": "0 6 * * *", "timeZone": "Europe/Berln"}
    wrong = at_zero(port=port, version=900)
    wrong["spec"]["scaling"]["autoscaling"]["schedule"] = [night]
    async with running(ApiServer(at_zero(port=port)), certificates) as world:
        await listening(world, port)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        await world.send("MODIFIED", wrong)
        for answer in (await asked, await ask(port)):
            assert (answer.status, answer.body["error"]["type"]) == (503, "InvalidSpec")
            assert "'Europe/Berln'" in answer.body["error"]["message"]
        await world.send("MODIFIED", at_zero(port=port, version=901))
        later = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        later.cancel()


@pytest.mark.parametrize("is_served", [True, False], ids=["a pod serves", "its pod was lost"])
async def test_a_key_that_was_rotated_while_a_pod_served_is_valid_at_once(certificates: Path, is_served: bool) -> None:
    port = free_port()
    spec = {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}
    api = ApiServer(at_zero(port=port, spec=spec), secret(b"old"))
    async with running(api, certificates) as world, server() as there:
        await listening(world, port)
        there.released.set()
        await world.send("ADDED", pod("a", address=there.address))
        await world.until(lambda: bool(world.scaler.services.pods(CHAT)))
        assert (await ask(port, key="old")).status == 200
        api.put(secret(b"new"))
        world.scaler._keys._clock = lambda: time.monotonic() + 7200
        if not is_served:
            await world.send("DELETED", pod("a", address=there.address, version=900))
        asked = asyncio.create_task(ask(port, key="new"))
        if is_served:
            assert (await asked).status == 200
        else:
            await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
            asked.cancel()
        await world.until(lambda: world.scaler.targets.is_settled())
        assert (await ask(port, key="old")).status == 401
        reads = api.calls.count("get Secret")
        assert [(await ask(port, key="wrong")).status for _ in range(20)] == [401] * 20
        assert api.calls.count("get Secret") == reads


async def test_a_deleted_service_answers_what_it_holds(certificates: Path) -> None:
    port = free_port()
    api = ApiServer(at_zero(port=port))
    async with running(api, certificates) as world:
        await listening(world, port)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        await world.send("DELETED", at_zero(port=port, version=900))
        assert (await asked).status == 503
        assert not world.scaler.holding.is_listening("uid-chat", port)


async def test_after_sigterm_what_is_held_is_answered_and_then_the_process_ends(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmservice_activator.__main__.QUIET_SECONDS", 0.2)
    monkeypatch.setattr("llmservice_activator.__main__.END_SECONDS", 0.01)
    port = free_port()
    api = ApiServer(at_zero(port=port))
    async with server() as upstream, running(api, certificates, grace=60.0) as world:
        follow_scale(world)
        await listening(world, port)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: replicas(world) == 1)
        began = time.monotonic()
        world.scaler.stop()
        assert not world.scaler.is_ready()
        # It still listens, and still learns of pods.
        late = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 2)
        upstream.released.set()
        await world.until(lambda: time.monotonic() - began > 0.5)
        await world.send("ADDED", pod("a", address=upstream.address))
        assert [(await each).status for each in (asked, late)] == [200, 200]
        assert await asyncio.wait_for(asyncio.shield(world.running), PATIENCE) == 0


async def test_after_sigterm_new_requests_come_for_a_while_though_none_is_held(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmservice_activator.__main__.QUIET_SECONDS", 0.2)
    async with running(ApiServer(), certificates, grace=60.0) as world:
        began = time.monotonic()
        world.scaler.stop()
        assert await asyncio.wait_for(asyncio.shield(world.running), PATIENCE) == 0
        assert time.monotonic() - began >= 0.2, "nodes learn later that the endpoint is gone"


@pytest.mark.parametrize("grace", [60.0, 4.0])
async def test_after_sigterm_it_goes_on_while_connections_come_within_its_grace_period(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """With a thousand services an operator takes a while to lead them elsewhere, and longer while it is replaced."""
    monkeypatch.setattr("llmservice_activator.__main__.QUIET_SECONDS", 2.0)
    port = free_port()

    async def keep_asking(world: World) -> None:
        """The last connection may be accepted as the grace period ends; its answer is then 503."""
        with contextlib.suppress(aiohttp.ClientError):
            while True:
                answer = await ask(port, path="/nothing")
                if answer.status == 503 and grace < 10:
                    return await world.until(world.running.done)
                assert answer.status == 404
                await asyncio.sleep(0.05)

    async with running(ApiServer(at_zero(port=port)), certificates, grace=grace) as world:
        await listening(world, port)
        asking = asyncio.create_task(keep_asking(world))
        world.scaler.stop()
        if grace > 10:
            await asyncio.sleep(3.0)
            assert not world.running.done()
            asking.cancel()
        assert await asyncio.wait_for(asyncio.shield(world.running), PATIENCE) == 0
        asking.cancel()
        (ended,) = await asyncio.gather(asking, return_exceptions=True)
        assert ended is None or isinstance(ended, asyncio.CancelledError)


async def test_the_grace_period_ends_what_is_still_held(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmservice_activator.__main__.QUIET_SECONDS", 0.1)
    monkeypatch.setattr("llmservice_activator.__main__.CALLS_SECONDS", 0.1)
    port = free_port()
    async with running(ApiServer(at_zero(port=port)), certificates, grace=0.5) as world:
        await listening(world, port)
        asked = asyncio.create_task(ask(port))
        await world.until(lambda: world.scaler.holding.held(CHAT).requests == 1)
        world.scaler.stop()
        assert (await asked).status == 503
        assert await asyncio.wait_for(asyncio.shield(world.running), PATIENCE) == 0


async def test_a_connection_without_a_request_ends_with_it(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time ends while it waits for such a connection."""
    monkeypatch.setattr("llmservice_activator.__main__.QUIET_SECONDS", 0.1)
    monkeypatch.setattr("llmservice_activator.__main__.END_SECONDS", 0.1)
    port = free_port()
    async with running(ApiServer(at_zero(port=port)), certificates, grace=5.0) as world:
        await listening(world, port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        await world.until(lambda: world.scaler.holding.last_connection() > 0)
        world.scaler.stop()
        assert await asyncio.wait_for(asyncio.shield(world.running), PATIENCE) == 0
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_it_is_ready_when_the_ports_are_open(certificates: Path) -> None:
    """Before, a slice that has its address would lead nowhere."""
    ports = [free_port() for _ in range(5)]
    spec = {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}
    services = [at_zero(f"s{i}", port=port, spec=spec) for i, port in enumerate(dict.fromkeys(ports))]
    async with running(ApiServer(*services, secret()), certificates) as world:
        assert all(world.scaler.holding.is_listening(f"uid-s{i}", port) for i, port in enumerate(dict.fromkeys(ports)))


async def test_a_watch_that_was_away_does_not_forget_a_port(certificates: Path) -> None:
    port = free_port()
    api = ApiServer(at_zero(port=port))
    async with running(api, certificates) as world:
        await listening(world, port)
        api.bring("ERROR", GONE, LLMSERVICE)
        lists = sum(call == "list LLMService" for call in api.calls)
        await world.until(lambda: sum(call == "list LLMService" for call in api.calls) > lists)
        assert world.scaler.holding.is_listening("uid-chat", port)
