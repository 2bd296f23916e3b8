"""Until when the scaler answers from what its watches brought: a watch that fails makes it old, and then unusable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from kubeloop import informer
from kubeloop.errors import Gone
from kubeloop.resources import POD, Resource
from llmservice_activator import services as watches_module
from llmservice_activator.services import OUTDATED_AFTER, Services, Watches
from llmservice_api.constants import LLMSERVICE

from tests.support.patience import PATIENCE
from tests.unit.api_server import GONE, ApiServer, over_http
from tests.unit.scaler_world import Keda, certificates, pod, running, service

__all__ = ["certificates"]


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.001)


@contextlib.asynccontextmanager
async def watching(api: ApiServer, clock: Clock) -> AsyncIterator[Watches]:
    """Watches that were synced once."""
    async with over_http(api) as transport:
        watches = Watches(transport, (), Services(), clock=clock)
        task = asyncio.create_task(watches.run())
        try:
            await until(watches, synced=True)
            yield watches
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            api.end_watches()


async def until(watches: Watches, *, synced: bool | None = None, problem: str | None = None) -> None:
    """It is synced, or not; it has this problem, or (empty) none."""

    def is_so() -> bool:
        problems = " ".join(watches.problems("ns"))
        has = problem is None or (problem in problems if problem else not problems)
        return has and (synced is None or watches.is_synced("ns") == synced)

    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - there is no signal of it
            await asyncio.sleep(0.002)


def refuse_watches(api: ApiServer, resource: Resource) -> None:
    api.refused[f"watch {resource.plural}"] = (403, "no")
    api.streams[resource].put_nowait(None)


def expire_and_refuse_lists(api: ApiServer, resource: Resource) -> None:
    api.refused[resource.plural] = 403
    api.bring("ERROR", GONE, resource)


def answer_lists_with_gone(api: ApiServer, resource: Resource) -> None:
    api.fails[f"list {resource.kind}"] = [Gone("the continue token is too old", code=410)] * 1000
    api.bring("ERROR", GONE, resource)


def list_what_cannot_be_read(api: ApiServer, resource: Resource) -> None:
    api.objects[resource.path("ns", "odd")] = {"metadata": {"labels": pod("a")["metadata"]["labels"]}}
    api.bring("ERROR", GONE, resource)


def mend(api: ApiServer, resource: Resource) -> None:
    api.refused.clear()
    api.fails.clear()
    api.objects.pop(resource.path("ns", "odd"), None)


FAILURES = {
    "a watch that is refused": (refuse_watches, ": no;"),
    "a list that is refused": (expire_and_refuse_lists, "cannot list"),
    "a list that expires again and again": (answer_lists_with_gone, "continue token"),
    "a list that cannot be read": (list_what_cannot_be_read, "cannot be read"),
}


@pytest.mark.parametrize("resource", [LLMSERVICE, POD], ids=lambda resource: resource.kind)
@pytest.mark.parametrize("case", FAILURES)
async def test_what_a_failing_watch_brought_is_used_for_a_minute(case: str, resource: Resource) -> None:
    api, clock = ApiServer(service(), pod("a")), Clock()
    fail, problem = FAILURES[case]
    async with watching(api, clock) as watches:
        fail(api, resource)
        await until(watches, problem=problem)
        clock.now += OUTDATED_AFTER - 1
        assert watches.is_synced("ns")
        assert watches.is_ready()
        # Further tries that fail do not begin the minute anew.
        requests = len(api.requests)
        async with asyncio.timeout(PATIENCE):
            while len(api.requests) < requests + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        clock.now += 1
        assert not watches.is_synced("ns")
        assert watches.is_ready(), "while the API server is away, requests are still held"
        mend(api, resource)
        await until(watches, synced=True, problem="")
        assert watches.is_ready()
        clock.now += 10 * OUTDATED_AFTER
        assert watches.is_synced("ns"), "a watch that works is current, however quiet"


async def test_keda_is_told_why_and_is_answered_again_once_it_works(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = ApiServer(service(replicas=2), pod("a"), pod("b", address="10.0.0.2"))
    async with running(api, certificates) as world, world.keda() as keda:
        world.in_flight |= {"10.0.0.1": 1, "10.0.0.2": 0}
        refuse_watches(api, POD)
        await world.until(lambda: world.scaler.readiness().lines != ())
        assert await keda.replicas() == 1, "a moment is no outage"
        monkeypatch.setattr(watches_module, "OUTDATED_AFTER", 0.0)
        assert "of namespace ns are not known: pods: no;" in await refusal(keda)
        assert world.scaler.is_ready()
        mend(api, POD)
        await world.until(lambda: world.scaler.readiness().lines == ())
        assert await keda.replicas() == 1


async def test_the_message_names_the_problem_of_the_namespace_alone(certificates: Path) -> None:
    api = ApiServer(service())
    for namespace in ("a", "b", "c", "closed"):
        api.refused[f"{namespace}/pods"] = 403
    async with running(api, certificates, namespaces=("a", "b", "c", "closed", "ns")) as world, world.keda() as keda:
        said = await refusal(keda, "closed")
    assert "of namespace closed are not known: namespace closed: pods: User" in said
    assert "namespace a" not in said


async def refusal(keda: Keda, namespace: str = "ns") -> str:
    """The message of a call for replicas that is answered with UNAVAILABLE."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await keda.replicas(namespace=namespace)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details() or ""
