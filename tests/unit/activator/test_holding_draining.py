"""A pod that ends refuses what comes to it: such a request goes to another pod, or is held again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web
from llmservice_activator.holding.forward import REPLAY_BYTES
from llmservice_runtime.contract import DRAINING_HEADER

from tests.support.patience import until
from tests.unit.holding_world import KEY, chat, target, world

REFUSED = {"error": {"message": "This replica is being replaced", "type": "service_unavailable", "code": 503}}


async def drains(request: web.Request) -> web.Response:
    """As the middleware of a pod answers during its drain."""
    return web.json_response(REFUSED, status=503, headers={DRAINING_HEADER: "true", "Retry-After": "1"})


async def fails(request: web.Request) -> web.Response:
    """As vLLM may answer by itself."""
    return web.json_response(REFUSED, status=503, headers={"Retry-After": "1"})


async def test_a_request_that_comes_to_a_pod_that_ends_is_held_until_the_next_one() -> None:
    async with world() as w:
        ending, coming = await w.pod(drains), await w.pod()
        service = target(pods=(ending.url,))
        await w.serve(service)
        await w.ready(service)
        asked = w.asking(service, "a")
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(coming.url,)))
        answer = await asked
        assert (answer.status, coming.names) == (200, ["a"])
        assert coming.seen[0].body == ending.seen[0].body == json.dumps(chat("a")).encode()
        assert w.counted.of == {"held": 1, "forwarded after it was held": 1}
        await until(lambda: w.server.in_progress() == 0)
        assert w.server.held(KEY).bytes == 0


async def test_it_goes_to_another_pod_at_once() -> None:
    async with world() as w:
        ending, staying = await w.pod(drains), await w.pod()
        service = target(pods=(ending.url, staying.url))
        await w.serve(service)
        await until(lambda: ending.checks + staying.checks >= 2)
        await w.ready(service)
        answers = await asyncio.gather(*(w.asking(service, str(n)) for n in range(6)))
        assert {answer.status for answer in answers} == {200}
        assert sorted(staying.names) == [str(n) for n in range(6)]
        assert not w.counted.of["lost pod_failed"]


async def test_what_was_held_is_held_again() -> None:
    async with world() as w:
        ending, coming, service = await w.pod(drains), await w.pod(), target()
        await w.serve(service)
        asked = await w.holding(service, ["a", "b"])
        await w.serve(replace(service, pods=(ending.url,)))
        await until(lambda: len(ending.seen) > 0 and w.held(service) == 2)
        await w.serve(replace(service, pods=(coming.url,)))
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200, 200]
        assert sorted(coming.names) == ["a", "b"]


async def test_a_stream_that_waits_goes_on_waiting() -> None:
    async with world() as w:
        ending, coming, service = await w.pod(drains), await w.pod(), target()
        await w.serve(service)
        asked = w.asking(service, json=chat("a", stream=True))
        await until(lambda: w.held(service) == 1)
        await w.serve(replace(service, pods=(ending.url,)))
        await until(lambda: len(ending.seen) > 0 and w.held(service) == 1)
        await w.serve(replace(service, pods=(coming.url,)))
        answer = await asked
        assert answer.status == 200
        assert b"replaced" not in answer.body
        assert coming.names == ["a"]


async def test_one_that_always_refuses_is_asked_seldom_and_the_time_to_wait_ends() -> None:
    async with world() as w:
        ending = await w.pod(drains)
        service = target(pods=(ending.url,), timeout_seconds=1)
        await w.serve(service)
        await w.ready(service)
        answer = await w.ask(service)
        assert answer.status == 503
        assert "spec.scaling.holding.timeoutSeconds" in answer.error["message"]
        assert 2 <= len(ending.seen) <= 1 / 0.05 + 2


@pytest.mark.parametrize("case", ["without the header", "too large to be kept"])
async def test_other_refusals_reach_the_client_as_they_are(case: str) -> None:
    async with world() as w:
        pod = await w.pod(fails if case == "without the header" else drains)
        service = target(pods=(pod.url,))
        await w.serve(service)
        await w.ready(service)
        answer = await w.ask(service, json=chat("x" * (REPLAY_BYTES + 1) if case == "too large to be kept" else "x"))
        assert (answer.status, answer.json) == (503, REFUSED)
        assert answer.headers["Retry-After"] == "1"
        assert len(pod.seen) == 1
