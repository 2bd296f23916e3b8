"""The comparison with a list finds what the watches missed, and only that."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.watch.cache import Cache, Seen
from llmservice_operator.control.watch.ingest import Intake
from llmservice_operator.control.watch.kinds import PARENT, PROJECTIONS, WATCHED
from llmservice_operator.control.watch.resync import AFTER_RELIST, CURRENT, Resync, compare
from llmservice_operator.control.watch.sync_state import SyncState
from llmservice_operator.kube.client import KubeClient
from llmservice_operator.kube.errors import Gone, Unreachable
from llmservice_operator.kube.resources import LLMSERVICE, Resource

WHERE = ("ns", "p")


@pytest.mark.parametrize(
    ("cached", "listed", "vanished", "missed"),
    [
        pytest.param(Seen("u", "5"), Seen("u", "5"), False, False, id="the same"),
        pytest.param(Seen("u", "7"), Seen("u", "5"), False, False, id="the watch is ahead"),
        pytest.param(Seen("u", "5"), None, True, False, id="vanished"),
        pytest.param(Seen("u", "12"), None, False, False, id="made after the list"),
        pytest.param(Seen("u", "5"), Seen("v", "8"), True, True, id="replaced by another of its name"),
        pytest.param(Seen("u", "5"), Seen("u", "6"), False, True, id="the watch lags"),
        pytest.param(None, Seen("u", "5"), False, True, id="never seen"),
    ],
)
def test_compare(cached: Seen | None, listed: Seen | None, vanished: bool, missed: bool) -> None:
    difference = compare({WHERE: cached} if cached else {}, {WHERE: listed} if listed else {}, "10")
    assert (WHERE in difference.vanished, WHERE in difference.missed) == (vanished, missed)


def service(name: str, version: str, generation: int = 1) -> dict[str, Any]:
    metadata = {
        "namespace": "ns",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": version,
        "generation": generation,
    }
    return {"apiVersion": LLMSERVICE.api_version, "kind": LLMSERVICE.kind, "metadata": metadata, "spec": {}}


class Lists(KubeClient):
    """Answers lists from memory, two objects a page, and counts requests."""

    def __init__(self, *objects: dict[str, Any], gone_once: bool = False) -> None:
        self.objects = objects
        self.requests: list[bool] = []
        self.gone_once = gone_once
        self.listed: Callable[[], None] = lambda: None

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str = "",
        metadata_only: bool = False,
        limit: int = 500,
    ) -> AsyncIterator[dict[str, Any]]:
        assert resource is LLMSERVICE
        self.listed()
        for start in range(0, max(1, len(self.objects)), 2):
            self.requests.append(metadata_only)
            yield {"metadata": {"resourceVersion": "100"}, "items": self.objects[start : start + 2]}
            if self.gone_once:
                self.gone_once = False
                raise Gone("too old")


class Told(SyncState):
    """Says when the cache is complete."""

    def __init__(self) -> None:
        super().__init__((None,), WATCHED)
        self.complete = asyncio.Event()

    def synced(self, namespace: str | None, part: str) -> None:
        assert part == LLMSERVICE.full_name
        self.complete.set()


async def no_sleep(_: float) -> None:
    return


def resync(kube: Lists, cache: Cache) -> tuple[Resync, list[Key]]:
    keys: list[Key] = []
    intake = Intake(cache, keys.append, keys.append)
    return Resync(kube, intake, None, SyncState((None,), WATCHED), sleep=no_sleep), keys


def intake_of(cache: Cache) -> Intake:
    return Intake(cache, lambda _: None, lambda _: None)


def cache_of(*services: dict[str, Any]) -> Cache:
    cache = Cache(PROJECTIONS)
    for one in services:
        cache.update(PARENT, one)
    return cache


async def test_what_vanished_unseen_is_forgotten_and_looked_at() -> None:
    cache = cache_of(*(service(name, "5") for name in "abc"))
    checker, keys = resync(Lists(service("a", "5"), service("c", "5")), cache)
    await checker.check()
    assert keys == [Key("ns", "b")]
    assert sorted(cache.all_keys()) == [Key("ns", "a"), Key("ns", "c")]


async def test_nothing_is_asked_about_single_objects() -> None:
    services = [service(str(n), "5") for n in range(7)]
    kube = Lists(*services)
    checker, keys = resync(kube, cache_of(*services))
    await checker.check()
    assert kube.requests == [True] * 4
    assert keys == []


async def test_what_the_watch_does_not_show_in_time_is_read_in_full() -> None:
    cache = cache_of(service("a", "5"))
    kube = Lists(service("a", "9", generation=2))
    checker, keys = resync(kube, cache)
    await checker.check()
    assert kube.requests == [True, False]
    assert keys == [Key("ns", "a")]
    assert cache.get(PARENT, "ns", "a").content["generation"] == 2


async def test_one_that_cannot_be_read_is_read_once_and_not_at_each_comparison() -> None:
    def broken(raw: Any, known: Any) -> Any:
        raise KeyError("a defect")

    kube, cache = Lists(service("a", "9")), Cache({**PROJECTIONS, PARENT: broken})
    checker, _ = resync(kube, cache)
    for _ in range(3):
        await checker.check()
    assert kube.requests == [True, False, True, True]
    kube.objects = (service("a", "10"),)
    await checker.check()
    assert kube.requests[4:] == [True, False], "it changed since"
    kube.objects = ()
    await checker.check()
    assert checker._intake._unreadable == {}


async def test_a_list_that_grew_too_old_between_pages_starts_again() -> None:
    services = [service(str(n), "5") for n in range(3)]
    kube = Lists(*services, gone_once=True)
    checker, keys = resync(kube, cache_of(*services))
    await checker.check()
    assert len(kube.requests) == 3
    assert keys == []


async def test_it_compares_when_the_watch_listed_again_and_when_the_interval_is_over() -> None:
    kube = Lists()
    slept: list[float] = []
    compared = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    told = Told()
    checker = Resync(kube, intake_of(Cache(PROJECTIONS)), None, told, sleep=sleep, interval=0.05)
    kube.listed = compared.set
    running = asyncio.create_task(checker.run())
    async with asyncio.timeout(5):
        await told.complete.wait()
        for is_relisted in (True, False):
            compared.clear()
            if is_relisted:
                checker.relisted()
            await compared.wait()
    running.cancel()
    assert slept == [AFTER_RELIST], "once for what was listed again, and not for the interval"


class Unready(KubeClient):
    """Does not answer at first."""

    def __init__(self) -> None:
        self.asked = 0

    async def list_pages(self, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked += 1
        if self.asked == 1:
            raise Unreachable("no answer")
        yield {"metadata": {"resourceVersion": "100"}, "items": [service("a", "5")]}


async def test_the_start_waits_until_the_cache_has_what_a_list_has() -> None:
    cache, kube = Cache(PROJECTIONS), Unready()
    asked = asyncio.Event()

    async def sleep(_: float) -> None:
        asked.set()

    told = Told()
    checker = Resync(kube, intake_of(cache), None, told, sleep=sleep)
    running = asyncio.create_task(checker.run())
    async with asyncio.timeout(5):
        await asked.wait()
        assert not told.complete.is_set()
        cache.update(PARENT, service("a", "5"))
        checker.arrived()
        await told.complete.wait()
    running.cancel()
    assert kube.asked == 2


def test_a_watch_that_brought_something_a_moment_ago_is_current() -> None:
    now = 100.0
    checker = Resync(Lists(), intake_of(Cache(PROJECTIONS)), None, Told(), clock=lambda: now)
    assert not checker.is_current(), "nothing was brought yet"
    checker.arrived()
    now += CURRENT - 0.1
    assert checker.is_current()
    now += 0.2
    assert not checker.is_current(), "whether it still brings anything is not known"
