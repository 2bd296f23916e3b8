"""kopf as the watch of LLMServices, against a server that plays the API: what it asks, brings and never does."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import kopf
import pytest
from kubeloop import kopf_source
from kubeloop.credentials import Token
from kubeloop.informer import Cache, SyncState
from kubeloop.resources import Key, Resource
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.service.watch import CHILD_RESOURCES, PROJECTIONS, EventHandler

from tests.support.patience import PATIENCE
from tests.unit.api_server import RESET, ApiServer, over_http, token_of
from tests.unit.api_server import llmservice as service


class Watching:
    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.keys: list[Key] = []
        self.cache = Cache(PROJECTIONS)
        self.sync = SyncState((None,), LLMSERVICE, CHILD_RESOURCES)
        self.spawned = 0

    def take_signals(self) -> None:
        self.spawned += 1

    def lists(self) -> int:
        """How often kopf listed."""
        lists = [query for _, path, query, _ in self.api.requests if path == LLMSERVICE.path(None)]
        return sum(query.get("limit") == "500" for query in lists)

    async def send(self, kind: str, obj: dict[str, Any]) -> None:
        self.api.bring(kind, obj)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.01)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(kopf_source, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(kopf_source, "AFTER_RELIST", 0.1)
    monkeypatch.setattr(kopf_source, "RETRY", 0.1)
    yield ApiServer()
    gc.collect()  # a session that kopf left open would be another test's affair


@contextlib.asynccontextmanager
async def watching(api: ApiServer, token: Token | None = None, *, begun: bool = True) -> AsyncIterator[Watching]:
    """kopf and the lists beside it; `begun`: from when kopf watches."""
    async with over_http(api, token) as transport, asyncio.TaskGroup() as group:
        seen = Watching(api)
        handler = EventHandler(seen.cache, seen.keys.append, seen.keys.append)
        lists = kopf_source.Resync(transport, LLMSERVICE, handler, None, seen.sync, contained=contextlib.nullcontext)
        watch = kopf_source.Watch(transport.credentials, lists, None, "test", spawned=seen.take_signals)
        running = [group.create_task(lists.run()), group.create_task(watch.run())]
        try:
            if begun:
                await asyncio.wait_for(api.watching[LLMSERVICE].wait(), PATIENCE)
            yield seen
        finally:
            for stream in api.streams.values():
                stream.put_nowait(None)
            for task in running:
                task.cancel()
            await asyncio.wait(running)


async def test_lists_changes_and_deletions_become_keys(api: ApiServer) -> None:
    api.replace(LLMSERVICE, service("one", 5))
    async with watching(api) as seen:
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
        await seen.send("MODIFIED", service("one", 56, labels={"nobody": "cares"}))
        await seen.send("ADDED", service("two", 57))
        await seen.until(lambda: len(seen.keys) == 2)
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one").resource_version == "56"
        await seen.send("DELETED", service("one", 58))
        await seen.until(lambda: len(seen.keys) == 3)
        assert seen.keys == [Key("ns", "one"), Key("ns", "two"), Key("ns", "one")]
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one") is None
        assert (seen.lists(), seen.spawned) == (1, 1)


async def test_nothing_is_ever_written_and_nothing_but_llmservices_is_listed(api: ApiServer) -> None:
    """No finalizer, no annotation, no event, and the other operator's marks stay; no right on namespaces or CRDs."""
    api.replace(LLMSERVICE, service("one", 5), service("two", 5, deletionTimestamp="2026-01-01T00:00:00Z"))
    async with watching(api) as seen:
        await seen.until(lambda: len(seen.keys) == 2)
        for version in range(56, 60):
            await seen.send("MODIFIED", service("one", version, generation=version))
        await seen.until(lambda: len(seen.keys) == 6)
    assert {method for method, *_ in api.requests} == {"GET"}
    assert {path for _, path, query, _ in api.requests if query} == {LLMSERVICE.path(None)}


async def test_watches_go_on_with_a_renewed_token(api: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t")
    async with watching(api, token_of(path)) as seen:
        path.write_text("renewed")
        api.token = "renewed"
        api.watching[LLMSERVICE].clear()
        await api.streams[LLMSERVICE].put(None)  # as the server does every ten minutes
        await asyncio.wait_for(api.watching[LLMSERVICE].wait(), PATIENCE)
        await seen.send("ADDED", service("one", 60))
        await seen.until(lambda: seen.keys == [Key("ns", "one")])


async def test_a_lost_place_in_the_stream_is_kopfs_to_mend_and_a_list_finds_what_vanished(api: ApiServer) -> None:
    api.replace(LLMSERVICE, service("one", 5), service("two", 5))
    async with watching(api) as seen:
        await seen.until(lambda: len(seen.keys) == 2)
        api.replace(LLMSERVICE, service("two", 5))
        await seen.send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
        await seen.until(lambda: seen.cache.get(LLMSERVICE.kind, "ns", "one") is None)
        await seen.until(lambda: seen.lists() == 2)
        assert seen.spawned == 1


# A single answer is to a watch, which is kopf's: a list beside it, which may be due at this moment, would take it.
UNEXPECTED = [
    pytest.param({"watch llmservices": [410]}, None, id="the place is lost, as the answer"),
    pytest.param({"watch llmservices": [422]}, None, id="a refusal"),
    pytest.param({"watch llmservices": [404]}, None, id="the CRD is gone for a moment"),
    pytest.param({"llmservices": [403, 500] * 3}, None, id="forbidden, or etcd is away, for a while"),
    pytest.param({}, b"<html>sign in</html>\n", id="a page of a proxy"),
    pytest.param({}, b'{"type": "ERROR", "object": {"code": 500}}\n', id="an error in the stream"),
    pytest.param({}, b'{"type": "ADDED"}\n', id="an event without an object"),
]


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")  # kopf's own session
@pytest.mark.parametrize(("refused", "line"), UNEXPECTED)
async def test_an_answer_that_ends_kopf_does_not_end_the_watch(
    api: ApiServer,
    refused: dict[str, list[int]],
    line: bytes | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = kopf_source.settings

    def impatient(resource: Resource) -> kopf.OperatorSettings:
        made = real(resource)
        made.networking.error_backoffs = (0.01, 0.01)
        return made

    monkeypatch.setattr(kopf_source, "settings", impatient)
    api.replace(LLMSERVICE, service("one", 5))
    async with watching(api) as seen:
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
        api.replace(LLMSERVICE, service("two", 49))
        api.end_watches()
        if line is not None:
            for each in (line, None):
                api.streams[LLMSERVICE].put_nowait(each)
        api.refused |= refused
        await seen.until(lambda: seen.spawned > 1 and not seen.sync.problems()[1:])
        assert set(seen.keys) == {Key("ns", "one"), Key("ns", "two")}
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one") is None, "it vanished in the gap"
        await seen.until(lambda: seen.lists() > 1)
        await seen.send("ADDED", service("three", 60))
        await seen.until(lambda: Key("ns", "three") in seen.keys)
    assert "the watch of LLMServices ended and is started again" in caplog.text


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
async def test_where_discovery_lags_kopf_is_started_again_until_it_watches(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The CRD is new, and the API server that kopf asked does not know it yet: kopf then waits for ever."""
    monkeypatch.setattr(kopf_source, "FIRST_EVENT", 0.1)
    monkeypatch.setattr(kopf_source, "LONGEST_FIRST_EVENT", 0.2)
    api.answers[f"/apis/{LLMSERVICE.api_version}"] = 404
    async with watching(api, begun=False) as seen:
        await seen.until(lambda: seen.spawned == 1 and not seen.sync.problems()[1:])
        await asyncio.sleep(0.5)
        assert seen.spawned == 1, "of nothing it brings nothing"
        api.replace(LLMSERVICE, service("one", 5))
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
        await seen.until(lambda: seen.spawned > 1)
        monkeypatch.setattr(kopf_source, "FIRST_EVENT", 5.0)  # on a busy machine kopf takes its time
        monkeypatch.setattr(kopf_source, "LONGEST_FIRST_EVENT", 5.0)
        api.answers.clear()
        await asyncio.wait_for(api.watching[LLMSERVICE].wait(), PATIENCE)
        spawned = seen.spawned
        await seen.send("ADDED", service("two", 60))
        await seen.until(lambda: Key("ns", "two") in seen.keys)
        await asyncio.sleep(0.3)
        assert seen.spawned == spawned, "it watches"
    assert "started again: WatchesNothingError: no event came" in caplog.text


async def test_a_connection_that_is_reset_is_made_again_where_the_watch_was(api: ApiServer) -> None:
    async with watching(api) as seen:
        await seen.send("ADDED", service("one", 55))
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
        api.streams[LLMSERVICE].put_nowait(RESET)
        await seen.send("ADDED", service("two", 56))
        await seen.until(lambda: Key("ns", "two") in seen.keys)
        assert seen.spawned == 1


@pytest.mark.parametrize("how", ["raises", "returns"])
async def test_any_task_of_kopfs_that_ends_is_the_end_of_its_watch(
    how: str, api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its other tasks may wait for that one for ever: they are cancelled, and none stays behind.

    kopf itself would kill the process, by SIGKILL, ten minutes after its tasks were cancelled.
    """
    assert kopf_source.settings(LLMSERVICE).process.ultimate_exiting_timeout is None
    real, others = kopf.spawn_tasks, list[asyncio.Task[Any]]()

    async def ends() -> None:
        if how == "raises":
            raise RuntimeError("a defect")

    async def broken(**more: Any) -> Any:
        monkeypatch.setattr(kopf, "spawn_tasks", real)
        others.extend(await real(**more))
        return [*others, asyncio.create_task(ends())]

    monkeypatch.setattr(kopf, "spawn_tasks", broken)
    api.replace(LLMSERVICE, service("one", 5))
    async with watching(api) as seen:
        assert seen.spawned == 2
        assert all(task.done() for task in others)
        await seen.send("ADDED", service("two", 60))
        await seen.until(lambda: Key("ns", "two") in seen.keys)
    reason = {"raises": "RuntimeError: a defect", "returns": "a task of kopf's returned"}[how]
    assert f"started again: {reason}" in caplog.text


async def test_its_end_leaves_no_task_behind(api: ApiServer) -> None:
    before = asyncio.all_tasks()
    async with watching(api) as seen:
        assert len(asyncio.all_tasks()) > len(before) + 5
        await seen.until(lambda: seen.spawned == 1)
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() - before if "kopf" in repr(task)] == []
