"""Reading pods: at once, within bounds, and none waits for another service's."""

from __future__ import annotations

import asyncio

import pytest
from llmservice_activator import answers
from llmservice_activator.answers import LoadReader
from llmservice_operator.readers import pod_port
from llmservice_operator.readers.pod_port import Requests, Unreadable

from tests.support.patience import PATIENCE

THREE = Requests(3, 7)

KEDA_WAITS = 3.0
"""Seconds of its metrics server for an answer to the HPA, over all connections between."""


class Pods:
    """Pods that answer when they are released; how many are asked at once is counted."""

    def __init__(self, *silent: str) -> None:
        self.released, self.asked = asyncio.Event(), asyncio.Event()
        self.silent, self.now, self.most = silent, 0, 0
        self.addresses: list[str] = []

    async def read(self, address: str) -> Requests:
        self.now += 1
        self.most = max(self.most, self.now)
        self.addresses.append(address)
        self.asked.set()
        try:
            if address in self.silent:
                raise Unreadable("no answer")
            await self.released.wait()
            return THREE
        finally:
            self.now -= 1


async def test_those_that_answer_are_in_the_result() -> None:
    pods = Pods("b")
    pods.released.set()
    assert await LoadReader(pods.read).requests(["a", "b", "c"]) == {"a": THREE, "c": THREE}
    assert await LoadReader(pods.read).requests([]) == {}


async def test_connections_are_bounded_over_all_services_and_for_each() -> None:
    pods = Pods()
    reader = LoadReader(pods.read, at_once=100)
    services = [asyncio.ensure_future(reader.requests([f"{n}-{i}" for i in range(200)])) for n in range(3)]
    await pods.asked.wait()
    assert pods.now == 100
    pods.released.set()
    assert [len(found) for found in await asyncio.gather(*services)] == [200] * 3
    assert pods.most == 100
    pods = Pods()
    alone = asyncio.ensure_future(LoadReader(pods.read).requests([str(i) for i in range(200)]))
    await pods.asked.wait()
    assert pods.now == answers.MAX_CONNECTIONS_OF_SERVICE < answers.MAX_CONNECTIONS
    pods.released.set()
    assert len(await alone) == 200


async def test_a_service_whose_pods_hang_delays_no_other() -> None:
    pods = Pods()
    reader = LoadReader(pods.read)
    hanging = asyncio.ensure_future(reader.requests([str(i) for i in range(1000)]))
    await pods.asked.wait()
    pods.asked.clear()
    quick = asyncio.ensure_future(reader.requests(["x"]))
    async with asyncio.timeout(PATIENCE):
        await pods.asked.wait()
    assert pods.addresses[-1] == "x", "it was asked while the others hang"
    pods.released.set()
    assert await quick == {"x": THREE}
    await hanging


async def test_a_pod_whose_turn_does_not_come_did_not_answer() -> None:
    pods = Pods()
    reader = LoadReader(pods.read, wait_seconds=0.05)
    async with asyncio.timeout(PATIENCE):
        assert await reader.requests([str(i) for i in range(500)]) == {}
    assert pods.now == 0


def test_keda_gets_an_answer_while_it_waits_for_one_though_no_pod_s_turn_comes() -> None:
    assert pod_port.TIMEOUT < answers.WAIT_SECONDS <= KEDA_WAITS - 0.5


async def test_an_unexpected_error_is_not_a_pod_that_is_silent() -> None:
    async def broken(address: str) -> Requests:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await LoadReader(broken).requests(["a"])
