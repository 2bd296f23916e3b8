"""The watches of the children, against a server that simulates the API."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubeloop import informer
from kubeloop.credentials import Token
from kubeloop.informer import Cache, SyncState, watch_of
from kubeloop.resources import CONTROLLER_REVISION as REVISION
from kubeloop.resources import DEPLOYMENT, ENDPOINT_SLICE, JOB, POD, Key, Resource
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.service import watch
from llmservice_operator.service.watch import (
    CHILD_RESOURCES,
    PROJECTIONS,
    ChildrenWatch,
    EventHandler,
)

from tests.support.patience import PATIENCE, SLOWNESS
from tests.unit.api_server import GONE, over_http, token_of
from tests.unit.api_server import ApiServer as Api

CHAT, OTHER = Key("ns", "chat"), Key("ns", "other")


def pod(name: str, version: int, phase: str = "Pending", *, service: str = "chat", uid: str = "", **spec: Any) -> Any:
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    labels = {"llmservice.dev/service": service, "app.kubernetes.io/managed-by": "llmservice-operator"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"labels": labels},
        "spec": spec,
        "status": {"phase": phase},
    }


@dataclass
class Watching:
    """What the watches delivered so far."""

    api: Api
    sync: SyncState
    cache: Cache
    keys: list[Key]
    changed: asyncio.Event

    def versions(self) -> list[str | None]:
        """From which each request for pods began."""
        return [query.get("resourceVersion") for _, path, query, _ in self.api.requests if path == POD.path(None)]

    async def send(self, kind: str, obj: Any, resource: Resource = POD) -> None:
        self.api.bring(kind, obj, resource)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def pods(self) -> list[str]:
        return sorted(self.cache.of_service(CHAT).get("Pod", {}))


@pytest.fixture
async def api() -> Api:
    return Api()


@contextlib.asynccontextmanager
async def watching(api: Api, token: Token | None = None, *, wait: bool = True) -> AsyncIterator[Watching]:
    cache, keys, changed = Cache(PROJECTIONS), list[Key](), asyncio.Event()

    def enqueue(key: Key) -> None:
        keys.append(key)
        changed.set()

    async with over_http(api, token) as transport:
        sync = SyncState((None,), LLMSERVICE, CHILD_RESOURCES)
        for part in (watch_of(LLMSERVICE), LLMSERVICE.full_name):
            sync.synced(None, part)
        watch = ChildrenWatch(transport, EventHandler(cache, enqueue, enqueue), (None,), sync)
        running = asyncio.create_task(watch.run())
        patch = pytest.MonkeyPatch()
        patch.setattr(informer, "FIRST_PAUSE", 0.001)
        try:
            if wait:
                async with asyncio.timeout(PATIENCE):
                    await sync.settled.wait()
                    for resource in CHILD_RESOURCES:
                        await api.watching[resource].wait()
            yield Watching(api, sync, cache, keys, changed)
        finally:
            patch.undo()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for stream in api.streams.values():
                stream.put_nowait(None)


async def test_pages_of_lists_changes_and_deletions_become_keys(api: Api) -> None:
    api.replace(POD, *(pod(name, 5) for name in ("one", "a", "b", "c")))
    api.page = 3
    async with watching(api) as seen:
        assert seen.pods() == ["a", "b", "c", "one"]
        assert set(seen.keys) == {CHAT}
        seen.keys[:] = [CHAT]
        await seen.send("MODIFIED", pod("one", 6, nobody="cares"))
        await seen.send("ADDED", pod("two", 7))
        await seen.until(lambda: len(seen.keys) == 2)
        assert seen.cache.get("Pod", "ns", "one").resource_version == "6"
        await seen.send("DELETED", pod("one", 8))
        await seen.until(lambda: len(seen.keys) == 3)
        assert seen.pods() == ["a", "b", "c", "two"]


async def test_children_are_watched_by_our_labels_and_no_llmservice(api: Api) -> None:
    async with watching(api):
        pass
    for resource, selector in (
        (DEPLOYMENT, "llmservice.dev/service"),
        (JOB, "llmservice.dev/service"),
        # Pods of inspections do not carry the label that Services select by.
        (POD, "app.kubernetes.io/managed-by=llmservice-operator"),
    ):
        queries = [query for _, path, query, _ in api.requests if path == resource.path(None)]
        assert {query.get("labelSelector") for query in queries} == {selector}
        assert [query.get("resourceVersion") for query in queries] == [None, "50"]
    assert {path for _, path, *_ in api.requests} == {resource.path(None) for resource in CHILD_RESOURCES}
    assert {method for method, *_ in api.requests} == {"GET"}
    assert LLMSERVICE not in CHILD_RESOURCES


async def test_a_watch_that_ends_goes_on_where_it_was(api: Api) -> None:
    async with watching(api) as seen:
        await seen.send("ADDED", pod("one", 60))
        await seen.send("BOOKMARK", {"metadata": {"resourceVersion": "75"}})
        api.watching[POD].clear()
        await api.streams[POD].put(None)  # as the server does every ten minutes
        async with asyncio.timeout(PATIENCE):
            await api.watching[POD].wait()
        assert seen.versions() == [None, "50", "75"]


@pytest.mark.parametrize("expired", ["in the stream", "as the answer"])
async def test_an_expired_watch_lists_again_and_removes_what_is_gone(api: Api, expired: str) -> None:
    api.replace(POD, *(pod(name, 5) for name in ("one", "two", "three")))
    async with watching(api) as seen:
        now = (pod("two", 5), pod("three", 9, "Running"), pod("one", 8, uid="another"))
        api.replace(POD, *now)
        seen.keys.clear()
        if expired == "in the stream":
            await seen.send("ERROR", GONE)
        else:
            api.refused["pods"] = [410]
            await api.streams[POD].put(None)
        await seen.until(lambda: len(seen.keys) == 2)
        assert seen.pods() == ["one", "three", "two"]
        assert seen.cache.get("Pod", "ns", "one").uid == "another"
        api.objects.clear()
        await seen.send("ERROR", GONE)
        await seen.until(lambda: not seen.pods())


async def test_an_object_that_was_created_after_the_list_stays(api: Api) -> None:
    """Answers to our own writes update the cache too."""
    async with watching(api) as seen:
        seen.cache.update("Pod", pod("made", 70))
        await seen.send("ERROR", GONE)
        await seen.send("ADDED", pod("other", 80, service="other"))
        await seen.until(lambda: OTHER in seen.keys)
        assert seen.pods() == ["made"]


async def test_an_error_passes(api: Api) -> None:
    async with watching(api) as seen:
        api.refused["pods"] = [500, 503]
        await seen.send("ERROR", {"kind": "Status", "code": 500, "message": "etcd is away"})
        await seen.send("ADDED", pod("one", 60))
        await seen.until(lambda: seen.keys == [CHAT])
        assert seen.versions() == [None, "50", "50", "50", "50"], "it did not list again"


async def test_a_quiet_watch_is_asked_again_and_is_no_problem(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server sends no bookmark of a kind that has not changed since the watch began."""
    monkeypatch.setattr(informer, "SILENCE", SLOWNESS)  # an answer that begins later is a problem
    async with watching(api) as seen:
        while len(seen.versions()) < 3:
            api.watching[POD].clear()
            await api.watching[POD].wait()
        assert set(seen.versions()[1:]) == {"50"}, "it does not list again"
        assert seen.sync.problems() == []
    assert [record.message for record in caplog.records if record.levelno >= logging.INFO] == []


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
    async with over_http(api) as transport:
        asking = informer.Informer(transport, POD, None, "", handler, sleep=sleep, rng=lambda: 1.0)
        running = asyncio.create_task(asking.run())
        async with asyncio.timeout(PATIENCE):
            await enough.wait()
        running.cancel()
    return paused


@pytest.mark.parametrize("events", [[], [{"type": "ERROR", "object": GONE}]], ids=["nothing", "expired"])
async def test_pauses_grow_while_watches_deliver_nothing(api: Api, events: list[dict[str, Any]]) -> None:
    """Else a server that ends each watch at once would get requests as fast as it answers."""
    api.answers[f"WATCH {POD.path(None)}"] = "".join(json.dumps(event) + "\n" for event in events)
    assert await first_pauses(api, 7) == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize(("code", "longest"), [(403, 30.0), (404, 30.0), (500, 10.0)])
async def test_the_longest_pause_is_longer_without_right_or_kind(api: Api, code: int, longest: float) -> None:
    api.refused["pods"] = [code] * 9
    assert (await first_pauses(api, 8))[-1] == longest


async def test_a_watch_whose_kind_was_removed_lists_again(api: Api) -> None:
    """A CRD that is installed again has other objects."""
    api.replace(POD, pod("one", 5))
    async with watching(api) as seen:
        assert seen.pods() == ["one"]
        api.objects.clear()
        api.refused["pods"] = [404]
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


async def test_an_unreadable_object_does_not_hide_the_others(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(api) as seen:
        await seen.send("ADDED", pod("odd", 60) | {"status": {"conditions": "none"}})
        await seen.send("ADDED", pod("one", 61))
        await seen.until(lambda: seen.keys == [CHAT])
    errors = [str(r.exc_info[1]) for r in caplog.records if r.levelno >= logging.ERROR and r.exc_info]
    assert errors == ["Pod ns/odd cannot be read: TypeError"]


WITHOUT: dict[str, tuple[Resource, int, bool]] = {
    "no right on jobs": (JOB, 403, True),
    "no right on slices": (ENDPOINT_SLICE, 403, True),
    "jobs fail": (JOB, 500, False),
    "no right on a required kind": (DEPLOYMENT, 403, False),
    "no CRD of an optional kind": (REVISION, 404, True),
    "no right on an optional kind": (REVISION, 403, True),
    "an optional kind fails": (REVISION, 500, False),
    "a required kind is missing": (DEPLOYMENT, 404, False),
    "jobs are missing": (JOB, 404, False),
}


@pytest.mark.parametrize("case", WITHOUT)
async def test_the_start_needs_all_kinds_but_jobs_slices_and_optional_ones(
    api: Api, case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "OPTIONAL", (REVISION,))
    resource, code, is_warm = WITHOUT[case]
    codes = api.refused[resource.plural] = [code] * 8
    async with watching(api, wait=False) as seen:
        complete = asyncio.create_task(seen.sync.settled.wait())
        async with asyncio.timeout(PATIENCE):
            if is_warm:
                await complete
            while codes and not is_warm:  # noqa: ASYNC110 - of a server with no signal for its tests
                await asyncio.sleep(0.002)
        assert complete.done() is is_warm
        assert seen.sync.hidden("ns") == ({resource.kind} if is_warm else set())
        complete.cancel()
    logged = [record for record in caplog.records if f"without {resource.plural}" in record.message]
    assert len(logged) == int(is_warm)


@pytest.mark.parametrize("odd", ["\ud800", 10**400], ids=["half a pair", "400 digits"])
async def test_an_object_with_invalid_json_does_not_hide_the_others(api: Api, odd: object) -> None:
    """The API server stores a ControllerRevision's data unread, and orjson refuses the list and the event with it."""
    api.replace(POD, pod("odd", 5, x=odd), pod("one", 6))
    async with watching(api) as seen:
        assert "one" in seen.pods()
        await seen.send("ADDED", pod("odder", 7, x=odd))
        await seen.send("ADDED", pod("two", 8))
        await seen.until(lambda: "two" in seen.pods())
