"""kopf as the watch of LLMServices, against a server that plays the API: what it asks, brings and never does."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kopf
import pytest
from llmservice_operator import handlers
from llmservice_operator.api.service import Key
from llmservice_operator.control.watch.cache import Cache
from llmservice_operator.control.watch.ingest import Intake
from llmservice_operator.control.watch.kinds import PROJECTIONS
from llmservice_operator.kube.credentials import Credentials, Token
from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.resources import LLMSERVICE

from tests.support.http_servers import application
from tests.unit.watched_api import Api, token_of


def service(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": LLMSERVICE.api_version,
        "kind": LLMSERVICE.kind,
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "generation": 1,
            # Objects that another kopf operator handles carry these; they are not ours to touch.
            "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"],
            "annotations": {"kopf.zalando.org/last-handled-configuration": "{}"},
            **metadata,
        },
        "spec": {"model": {"uri": "hf://a/b"}},
    }


class Watching:
    def __init__(self, api: Api, cache: Cache) -> None:
        self.api = api
        self.cache = cache
        self.keys: list[Key] = []
        self.relisted = 0
        self.changed = asyncio.Event()
        self.starts = asyncio.Semaphore(0)
        self.told: list[KubeError | str | None] = []

    def list_again(self) -> None:
        self.relisted += 1

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def api() -> Iterator[Api]:
    yield Api()
    gc.collect()  # a session that kopf left open would be another test's affair


async def no_sleep(_: float) -> None:
    return


async def nothing_in_the_way() -> None:
    return


@contextlib.asynccontextmanager
async def watching(api: Api, token: Token | None = None) -> AsyncIterator[Watching]:
    async with application(api.answer) as url:
        seen = Watching(api, Cache(PROJECTIONS))
        intake = Intake(seen.cache, seen.keys.append, seen.keys.append)
        memo = handlers.Memo(intake, relisted=seen.list_again, arrived=seen.changed.set)
        credentials = Credentials(
            server=url,
            namespace="ns",
            token=token or Token.fixed("t"),
        )
        stop = asyncio.Event()
        watch = handlers.Watch(
            credentials, memo, None, "test", probe=nothing_in_the_way, told=seen.told.append,
            started=seen.starts.release, look_every=0.2, sleep=no_sleep,
        )  # fmt: skip
        running = asyncio.create_task(watch.run(stop))
        try:
            await asyncio.wait_for(api.watching[LLMSERVICE].wait(), 10)
            yield seen
        finally:
            for stream in api.streams.values():
                stream.put_nowait(None)
            stop.set()
            await asyncio.wait_for(running, 10)


async def test_lists_changes_and_deletions_become_keys(api: Api) -> None:
    api.objects[LLMSERVICE] = [service("one", 5)]
    async with watching(api) as seen:
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
        stream = api.streams[LLMSERVICE]
        await stream.put({"type": "MODIFIED", "object": service("one", 6, labels={"nobody": "cares"})})
        await stream.put({"type": "ADDED", "object": service("two", 7)})
        await seen.until(lambda: len(seen.keys) == 2)
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one").resource_version == "6"
        await stream.put({"type": "DELETED", "object": service("one", 8)})
        await seen.until(lambda: len(seen.keys) == 3)
        assert seen.keys == [Key("ns", "one"), Key("ns", "two"), Key("ns", "one")]
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one") is None
        assert seen.relisted == 1


async def test_nothing_is_ever_written(api: Api) -> None:
    """No finalizer, no annotation, no event, and the other operator's marks stay."""
    api.objects[LLMSERVICE] = [service("one", 5), service("two", 5, deletionTimestamp="2026-01-01T00:00:00Z")]
    async with watching(api) as seen:
        await seen.until(lambda: len(seen.keys) == 2)
        for version in range(6, 10):
            await api.streams[LLMSERVICE].put(
                {"type": "MODIFIED", "object": service("one", version, generation=version)}
            )
        await seen.until(lambda: len(seen.keys) == 6)
    assert {method for method, _, _ in api.requests} == {"GET"}


async def test_nothing_but_llmservices_is_listed(api: Api) -> None:
    """No right on namespaces or CRDs is needed."""
    async with watching(api):
        pass
    assert {path for _, path, query in api.requests if query} == {LLMSERVICE.path(None)}


async def test_a_watch_that_lost_its_place_asks_for_a_comparison(api: Api) -> None:
    api.objects[LLMSERVICE] = [service("one", 5), service("two", 5)]
    async with watching(api) as seen:
        await seen.until(lambda: len(seen.keys) == 2)
        api.objects[LLMSERVICE] = [service("two", 5)]
        expired = {"kind": "Status", "code": 410, "reason": "Expired"}
        await api.streams[LLMSERVICE].put({"type": "ERROR", "object": expired})
        await seen.until(lambda: seen.relisted == 3)
        # kopf itself says nothing about the one that vanished.
        assert len(seen.keys) == 2
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one") is not None


async def test_watches_go_on_with_a_renewed_token(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t")
    async with watching(api, token_of(path)) as seen:
        path.write_text("renewed")
        api.token = "renewed"
        api.watching[LLMSERVICE].clear()
        await api.streams[LLMSERVICE].put(None)  # as the server does every ten minutes
        await asyncio.wait_for(api.watching[LLMSERVICE].wait(), 10)
        await api.streams[LLMSERVICE].put({"type": "ADDED", "object": service("one", 60)})
        await seen.until(lambda: seen.keys == [Key("ns", "one")])


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")  # kopf's own session
async def test_an_answer_that_ends_kopf_does_not_end_the_watch(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(api) as seen:
        api.refused[LLMSERVICE] = [410]
        api.objects[LLMSERVICE] = [service("one", 60)]
        await api.streams[LLMSERVICE].put(None)
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
        await seen.starts.acquire()
        await seen.starts.acquire()
    assert "the watch of LLMServices ended and is started again" in caplog.text
    assert any(isinstance(why, str) for why in seen.told), "meanwhile the process is not ready"


async def test_one_that_hangs_is_started_again(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As kopf does when several of its tasks fail at once: some of them wait for others that are gone."""
    real, hung = kopf.operator, 0

    async def hangs(*, ready_flag: asyncio.Event, **_: Any) -> None:
        nonlocal hung
        hung += 1
        monkeypatch.setattr(kopf, "operator", real)
        ready_flag.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(kopf, "operator", hangs)
    monkeypatch.setattr(handlers, "LOOKS_AT_FIRST", 3)
    api.objects[LLMSERVICE] = [service("one", 60)]
    async with watching(api) as seen:
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
    assert hung == 1
    assert "its tasks are gone" in caplog.text


async def test_one_that_watches_is_left_alone(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(api) as seen:
        await asyncio.sleep(1)  # five looks at its tasks
        await api.streams[LLMSERVICE].put({"type": "ADDED", "object": service("one", 60)})
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
    assert "started again" not in caplog.text


async def test_a_signal_that_kopf_took_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the process would go on after a SIGTERM in its first moments."""

    async def returns(**_: Any) -> None:
        return

    monkeypatch.setattr(kopf, "operator", returns)
    credentials = Credentials(server="http://nobody", namespace="ns", token=Token.fixed("t"))
    memo = handlers.Memo(Intake(Cache(PROJECTIONS), print, print), relisted=print, arrived=print)
    async with asyncio.timeout(5):
        watch = handlers.Watch(credentials, memo, None, "test", probe=nothing_in_the_way, told=print, started=print)
        await watch.run(asyncio.Event())
