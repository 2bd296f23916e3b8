"""The watches of the children, against a server that plays the API: what they ask, bring and survive."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.watch import children
from llmservice_operator.control.watch.cache import Cache
from llmservice_operator.control.watch.children import ChildrenWatch
from llmservice_operator.control.watch.ingest import EventHandler
from llmservice_operator.control.watch.kinds import OF_CHILDREN, PROJECTIONS
from llmservice_operator.control.watch.sync_state import WATCH, SyncState
from llmservice_operator.kube import informer
from llmservice_operator.kube.credentials import Credentials, Token
from llmservice_operator.kube.resources import CONTROLLER_REVISION as REVISION
from llmservice_operator.kube.resources import DEPLOYMENT, ENDPOINT_SLICE, JOB, LLMSERVICE, POD, Resource
from llmservice_operator.kube.transport import Transport

from tests.support.http_servers import application
from tests.unit.api_server import ApiServer as Api
from tests.unit.api_server import token_of

CHAT, OTHER = Key("ns", "chat"), Key("ns", "other")
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}


def pod(name: str, version: int, phase: str = "Pending", *, service: str = "chat", uid: str = "", **spec: Any) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"llmservice.dev/service": service},
        },
        "spec": spec,
        "status": {"phase": phase},
    }


def without_kind(obj: dict[str, Any]) -> dict[str, Any]:
    """As an item of a list."""
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}


class Watching:
    """What the watches brought so far."""

    def __init__(self, api: Api, sync: SyncState, cache: Cache, keys: list[Key], changed: asyncio.Event) -> None:
        self.api, self.sync, self.cache, self.keys, self._changed = api, sync, cache, keys, changed

    async def send(self, kind: str, obj: Any, resource: Resource = POD) -> None:
        await self.api.streams[resource].put({"type": kind, "object": obj})

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def pods(self) -> list[str]:
        return sorted(self.cache.of_service(CHAT).get("Pod", {}))


@pytest.fixture
async def api() -> Api:
    return Api()


@contextlib.asynccontextmanager
async def serving(api: Api, token: Token | None = None) -> AsyncIterator[Credentials]:
    async with application(api.answer) as url:
        yield Credentials(
            server=url,
            namespace="ns",
            token=token or Token.fixed("t"),
        )


@contextlib.asynccontextmanager
async def watching(api: Api, token: Token | None = None, *, wait: bool = True) -> AsyncIterator[Watching]:
    cache, keys, changed = Cache(PROJECTIONS), list[Key](), asyncio.Event()

    def enqueue(key: Key) -> None:
        keys.append(key)
        changed.set()

    async with serving(api, token) as credentials, Transport(credentials) as transport:
        sync = SyncState((None,), OF_CHILDREN)
        sync.synced(None, WATCH)
        children = ChildrenWatch(transport, EventHandler(cache, enqueue, enqueue), (None,), sync)
        running = asyncio.create_task(children.run())
        try:
            if wait:
                async with asyncio.timeout(10):
                    await sync.settled.wait()
                    for resource in OF_CHILDREN:
                        await api.watching[resource].wait()
            yield Watching(api, sync, cache, keys, changed)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for stream in api.streams.values():
                stream.put_nowait(None)


async def test_lists_changes_and_deletions_become_keys(api: Api) -> None:
    api.objects[POD] = [without_kind(pod("one", 5))]
    async with watching(api) as seen:
        assert seen.keys == [CHAT]
        await seen.send("MODIFIED", pod("one", 6, nobody="cares"))
        await seen.send("ADDED", pod("two", 7))
        await seen.until(lambda: len(seen.keys) == 2)
        assert seen.cache.get("Pod", "ns", "one").resource_version == "6"
        await seen.send("DELETED", pod("one", 8))
        await seen.until(lambda: len(seen.keys) == 3)
        assert seen.pods() == ["two"]


async def test_they_ask_the_server_for_our_labels_and_for_no_llmservice(api: Api) -> None:
    async with watching(api):
        pass
    for resource, selector in (
        (DEPLOYMENT, "llmservice.dev/service"),
        (JOB, "llmservice.dev/service"),
        # Pods that look at models do not carry the label that Services select by.
        (POD, "app.kubernetes.io/managed-by=llmservice-operator"),
    ):
        queries = [query for _, path, query in api.requests if path == resource.path(None)]
        assert {query.get("labelSelector") for query in queries} == {selector}
        assert [query.get("resourceVersion") for query in queries] == [None, "50"]
    assert {path for _, path, _ in api.requests} == {resource.path(None) for resource in OF_CHILDREN}
    assert {method for method, _, _ in api.requests} == {"GET"}
    assert LLMSERVICE not in OF_CHILDREN


async def test_a_list_comes_in_pages(api: Api) -> None:
    api.objects[POD] = [without_kind(pod(str(number), 5)) for number in range(7)]
    api.page = 3
    async with watching(api) as seen:
        assert seen.pods() == [str(number) for number in range(7)]


async def test_a_watch_that_ends_goes_on_where_it_was(api: Api) -> None:
    async with watching(api) as seen:
        await seen.send("ADDED", pod("one", 60))
        await seen.send("BOOKMARK", {"metadata": {"resourceVersion": "75"}})
        api.watching[POD].clear()
        await api.streams[POD].put(None)  # as the server does every ten minutes
        async with asyncio.timeout(10):
            await api.watching[POD].wait()
    queries = [query for _, path, query in api.requests if path == POD.path(None)]
    assert [query.get("resourceVersion") for query in queries] == [None, "50", "75"]


@pytest.mark.parametrize("expired", ["in the stream", "as the answer"])
async def test_one_that_lost_its_place_lists_again_and_what_vanished_is_gone(api: Api, expired: str) -> None:
    api.objects[POD] = [without_kind(pod(name, 5)) for name in ("one", "two", "three")]
    async with watching(api) as seen:
        api.objects[POD] = [
            without_kind(obj) for obj in (pod("two", 5), pod("three", 9, "Running"), pod("one", 8, uid="another"))
        ]
        seen.keys.clear()
        if expired == "in the stream":
            await seen.send("ERROR", GONE)
        else:
            api.refused[POD] = [410]
            await api.streams[POD].put(None)
        await seen.until(lambda: len(seen.keys) == 2)
        assert seen.pods() == ["one", "three", "two"]
        assert seen.cache.get("Pod", "ns", "one").uid == "another"
        api.objects[POD] = []
        await seen.send("ERROR", GONE)
        await seen.until(lambda: not seen.pods())


async def test_what_was_made_after_the_list_is_not_gone(api: Api) -> None:
    """Answers to our own writes come in beside the watches."""
    async with watching(api) as seen:
        seen.cache.update("Pod", pod("made", 70))
        await seen.send("ERROR", GONE)
        await seen.send("ADDED", pod("other", 80, service="other"))
        await seen.until(lambda: OTHER in seen.keys)
        assert seen.pods() == ["made"]


async def test_an_error_passes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.01)
    async with watching(api) as seen:
        api.refused[POD] = [500, 503]
        await seen.send("ERROR", {"kind": "Status", "code": 500, "message": "etcd is away"})
        await seen.send("ADDED", pod("one", 60))
        await seen.until(lambda: seen.keys == [CHAT])
    queries = [query for _, path, query in api.requests if path == POD.path(None)]
    assert [query.get("resourceVersion") for query in queries] == [None, "50", "50", "50", "50"], "it listed again"


async def first_pauses(api: Api, count: int) -> list[float]:
    """Seconds of the first pauses that an informer makes against this server."""
    paused: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == count:
            enough.set()
            await asyncio.Event().wait()

    handler = EventHandler(Cache(PROJECTIONS), lambda _: None, lambda _: None)
    async with serving(api) as credentials, Transport(credentials) as transport:
        asking = informer.Informer(transport, POD, None, "", handler, sleep=sleep, rng=lambda: 1.0)
        running = asyncio.create_task(asking.run())
        async with asyncio.timeout(10):
            await enough.wait()
        running.cancel()
    return paused


@pytest.mark.parametrize(
    "events",
    [pytest.param([], id="nothing"), pytest.param([{"type": "ERROR", "object": GONE}], id="that it is too old")],
)
async def test_one_that_brings_nothing_is_asked_less_and_less(api: Api, events: list[dict[str, Any]]) -> None:
    """Else a server that ends each watch at once would be asked as fast as it answers."""
    api.ends_at_once[POD] = events
    assert await first_pauses(api, 7) == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize(("code", "longest"), [(403, 30.0), (404, 30.0), (500, 10.0)])
async def test_what_is_missing_is_asked_for_seldom(api: Api, code: int, longest: float) -> None:
    api.refused[POD] = [code] * 9
    assert (await first_pauses(api, 8))[-1] == longest


async def test_a_watch_whose_kind_vanished_lists_again(api: Api) -> None:
    """An installed CRD's objects are none of those that its predecessor had."""
    api.objects[POD] = [without_kind(pod("one", 5))]
    async with watching(api) as seen:
        assert seen.pods() == ["one"]
        api.objects[POD], api.refused[POD] = [], [404]
        await api.streams[POD].put(None)
        await seen.until(lambda: not seen.pods())


async def test_it_goes_on_with_a_renewed_token(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t")
    async with watching(api, token_of(path)) as seen:
        path.write_text("renewed")
        api.token = "renewed"
        await api.streams[POD].put(None)
        await seen.send("ADDED", pod("one", 60))
        await seen.until(lambda: seen.keys == [CHAT])


async def test_an_object_that_cannot_be_read_stops_no_other(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(api) as seen:
        strange = pod("strange", 60) | {"status": {"conditions": "none"}}
        await seen.send("ADDED", strange)
        await seen.send("ADDED", pod("one", 61))
        await seen.until(lambda: seen.keys == [CHAT])
    said = [r.exc_info[1] for r in caplog.records if r.levelno >= logging.ERROR and r.exc_info]
    assert [str(error) for error in said] == ["Pod ns/strange cannot be read: TypeError"]


WITHOUT = [
    ("no right on jobs", JOB, 403, True),
    ("no right on slices", ENDPOINT_SLICE, 403, True),
    ("jobs cannot be had", JOB, 500, False),
    ("no right on what services are made of", DEPLOYMENT, 403, False),
    ("no CRD of an optional kind", REVISION, 404, True),
    ("no right on an optional kind", REVISION, 403, True),
    ("an optional kind cannot be had", REVISION, 500, False),
    ("no such kind, and it is not optional", DEPLOYMENT, 404, False),
    ("jobs are not served", JOB, 404, False),
]


@pytest.mark.parametrize(("resource", "code", "is_warm"), [row[1:] for row in WITHOUT], ids=[r[0] for r in WITHOUT])
async def test_the_start_does_without_jobs_and_slices_and_without_nothing_else(
    api: Api,
    resource: Resource,
    code: int,
    is_warm: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(children, "OPTIONAL", (REVISION,))
    api.refused[resource] = [code] * 8
    async with watching(api, wait=False) as seen:
        complete = asyncio.create_task(seen.sync.settled.wait())
        async with asyncio.timeout(10):
            if is_warm:
                await complete
            while api.refused[resource] and not is_warm:
                api.answered.clear()
                await api.answered.wait()
        assert complete.done() is is_warm
        assert seen.sync.hidden("ns") == ({resource.kind} if is_warm else set())
        complete.cancel()
    said = [record for record in caplog.records if f"without {resource.plural}" in record.message]
    assert len(said) == int(is_warm)


@pytest.mark.parametrize("odd", ["\ud800", 10**400], ids=["half a pair", "400 digits"])
async def test_one_object_that_no_reader_likes_keeps_nobody_from_the_others(api: Api, odd: object) -> None:
    """The API server stores a ControllerRevision's data unread, and orjson refuses the list and the event with it."""
    api.objects[POD] = [without_kind(pod("odd", 5, x=odd)), without_kind(pod("one", 6))]
    async with watching(api) as seen:
        assert "one" in seen.pods()
        await seen.send("ADDED", pod("odder", 7, x=odd))
        await seen.send("ADDED", pod("two", 8))
        await seen.until(lambda: "two" in seen.pods())
