"""LLMServices of kopf's watch and of lists in one cache: what a list finds, what it leaves alone, when one is made."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kubeloop import kopf_source
from kubeloop.errors import Forbidden, Gone
from kubeloop.informer import Cache, SyncState
from kubeloop.kopf_source import AFTER_RELIST, CURRENT_SECONDS, INTERVAL, LONGEST_RELIST, RETRY, Resync
from kubeloop.resources import Key
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.service.containment import InternalErrors, Part
from llmservice_operator.service.watch import (
    CHILD_RESOURCES,
    PARENT,
    PROJECTIONS,
    EventHandler,
)

from tests.support.patience import PATIENCE, until
from tests.unit.api_server import ApiServer, Connection
from tests.unit.api_server import llmservice as service

LIST = "list LLMService"
A, B, C = (Key("ns", name) for name in "abc")


class Harness:
    """One Resync whose time is a list of seconds that it slept."""

    def __init__(self, *listed: dict[str, Any], projections: Any = PROJECTIONS) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.brings_later: list[dict[str, Any]] = []
        """What the watch brings during the next sleep."""
        self.relist: Callable[[], None] = lambda: None
        """Called at the end of each sleep."""
        self.keys: list[Key] = []
        self.api, self.cache = ApiServer(*listed), Cache(projections)
        self.api.version, self.api.page = 100, 2
        self.sync = SyncState((None,), LLMSERVICE, CHILD_RESOURCES)
        self.handler = EventHandler(self.cache, self.keys.append, self.keys.append)
        self.resync = Resync(
            Connection(self.api),
            LLMSERVICE,
            self.handler,
            None,
            self.sync,
            contained=partial(InternalErrors().contained, Part.RESYNC),
            sleep=self._sleep,
            clock=lambda: self.now,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.relist()
        while self.brings_later:
            self.resync.event("ADDED", self.brings_later.pop())
        await asyncio.sleep(0)

    def watched(self, kind: str | None, *services: dict[str, Any]) -> None:
        for one in services:
            self.resync.event(kind, one)
        self.keys.clear()

    def between_pages(self, happens: Callable[[], None]) -> None:
        self.api.then[LIST] = lambda page: happens() if "continue" in page["metadata"] else None

    def cached(self) -> list[Key]:
        return sorted(self.cache.all_keys())


async def test_a_list_fills_the_cache_and_lets_kopf_start() -> None:
    made = Harness(*(service(name, 5) for name in "abc"))
    assert not made.resync.listed.is_set()
    assert await made.resync._list() == INTERVAL
    assert (made.cached(), made.keys) == ([A, B, C], [A, B, C])
    assert made.resync.listed.is_set()
    assert made.sync.listable.is_set()


async def test_what_vanished_unseen_is_forgotten_and_its_key_is_queued() -> None:
    made = Harness(service("a", 5), service("c", 5))
    made.watched(None, *(service(name, 5) for name in "abc"))
    await made.resync._list()
    assert (made.cached(), made.keys) == ([A, C], [B])


async def test_what_the_watch_did_not_bring_comes_with_the_list() -> None:
    made = Harness(service("a", 9, generation=2), service("b", 7))
    made.watched("ADDED", service("a", 5))
    await made.resync._list()
    assert made.keys == [A, B]
    assert made.cache.get(PARENT, "ns", "a").content["generation"] == 2


async def test_what_the_watch_brought_later_than_the_list_stays() -> None:
    made = Harness(service("a", 9))
    made.watched("ADDED", service("a", 120, generation=3), service("b", 110))
    await made.resync._list()
    assert (made.cached(), made.keys) == ([A, B], [])
    assert made.cache.get(PARENT, "ns", "a").content["generation"] == 3


async def test_another_object_of_the_same_name_replaces_the_first() -> None:
    made = Harness(service("a", 9, uid="second"))
    made.watched("ADDED", service("a", 5, uid="first"))
    await made.resync._list()
    assert made.cache.get(PARENT, "ns", "a").uid == "second"


async def test_what_is_deleted_between_two_pages_is_not_brought_back() -> None:
    made = Harness(*(service(name, 5) for name in "abc"))
    made.watched("ADDED", service("c", 5))
    made.between_pages(lambda: made.watched("DELETED", service("c", 105)))
    await made.resync._list()
    assert made.cached() == [A, B]


async def test_nothing_is_asked_about_single_objects() -> None:
    made = Harness(*(service(str(n), 5) for n in range(7)))
    await made.resync._list()
    made.keys.clear()
    await made.resync._list()
    assert (len(made.api.calls), made.keys) == (8, [])


async def test_one_that_cannot_be_read_is_tried_once_for_each_version() -> None:
    tried = 0

    def broken(raw: Any, known: Any) -> Any:
        nonlocal tried
        tried += 1
        raise KeyError("a defect")

    made = Harness(service("a", 9), projections={**PROJECTIONS, PARENT: broken})
    for _ in range(3):
        await made.resync._list()
    assert tried == 1
    made.api.replace(LLMSERVICE, service("a", 10))
    await made.resync._list()
    assert tried == 2
    made.api.objects.clear()
    await made.resync._list()
    assert made.handler._unreadable == {}


@pytest.mark.parametrize("error", [Gone("too old"), Forbidden("no", right="list x"), KeyError("an HTML page")], ids=str)
async def test_a_list_that_fails_is_tried_again_soon(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_source, "RETRY", 0.001)
    made = Harness(service("a", 5))
    made.api.fails[LIST] = [error]
    running = asyncio.create_task(made.resync.run())
    async with asyncio.timeout(PATIENCE):
        await made.resync.listed.wait()
    running.cancel()
    assert len(made.api.calls) == 2
    assert made.sync.problems() == ["not synced yet: " + made.sync.problems()[0].partition(": ")[2]]


async def test_a_right_that_is_missing_is_named_and_nothing_starts() -> None:
    made = Harness()
    made.api.fails[LIST] = [Forbidden("no", right="list llmservices.llmservice.dev")]
    assert await made.resync._list() == RETRY
    assert made.sync.problems() == ["missing right: list llmservices.llmservice.dev"]
    assert not made.resync.listed.is_set()
    assert not made.sync.listable.is_set()


async def test_it_lists_after_kopf_did_after_its_watch_ended_and_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Harness(service("a", 5))
    running = asyncio.create_task(made.resync.run())
    await until(lambda: len(made.api.calls) == 1)
    made.resync.event(None, service("a", 5))
    await until(lambda: len(made.api.calls) == 2)
    assert made.slept == [AFTER_RELIST], "when what kopf listed has come in"
    monkeypatch.setattr(kopf_source, "INTERVAL", 0.01)
    made.resync.ended("it was reset")
    assert made.sync.problems() == ["it was reset"]
    assert not made.resync.listed.is_set(), "kopf starts after the list"
    await until(lambda: len(made.api.calls) == 3)
    assert made.slept == [AFTER_RELIST], "at once"
    await until(lambda: len(made.api.calls) > 4)
    running.cancel()


async def test_while_kopf_lists_thousands_no_list_is_made_and_a_steady_stream_does_not_put_it_off_for_ever() -> None:
    made = Harness()
    lasts = 7.5

    def goes_on() -> None:
        if made.now < lasts:
            made.resync.event(None, service("a", 5))

    made.relist = goes_on
    running = asyncio.create_task(made.resync.run())
    await until(lambda: len(made.api.calls) == 1)
    made.resync.event(None, service("a", 5))
    await until(lambda: len(made.api.calls) == 2)
    assert made.slept == [AFTER_RELIST] * 3
    lasts = 1000.0
    made.resync.event(None, service("a", 5))
    await until(lambda: len(made.api.calls) == 3)
    lasts = 0.0
    running.cancel()
    assert sum(made.slept[3:]) == LONGEST_RELIST


async def test_the_first_list_for_kopf_is_soon_then_seldom_and_ends_with_its_first_event() -> None:
    made = Harness()
    checking = asyncio.create_task(made.resync.check_first_event())
    await asyncio.sleep(0)
    assert made.slept == [], "it did not start yet"
    made.resync.started()
    await until(lambda: len(made.slept) > 6)
    made.resync.event("ADDED", service("a", 5))
    await made.resync._list()
    await asyncio.sleep(0.01)
    assert made.slept[:6] == [10, 10, 20, 40, 60, 60]
    assert not checking.done()
    checking.cancel()


async def test_what_the_watch_missed_is_named_and_what_it_brings_a_moment_later_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kopf_source, "INTERVAL", 0.01)
    made = Harness(service("a", 5), service("b", 5))
    made.resync.started()
    running = asyncio.create_task(made.resync.run())
    await until(lambda: len(made.api.calls) > 2)
    assert "missed" not in caplog.text, "all was listed at the start"
    made.brings_later = [service("c", 5)]
    made.api.replace(LLMSERVICE, service("b", 6), service("c", 5))
    await until(lambda: "missed" in caplog.text)
    running.cancel()
    assert "missed changes of 2, found by a list: ns/a, ns/b" in caplog.text


async def test_the_watch_is_current_for_a_moment_and_never_before_a_list_has_followed_a_gap() -> None:
    made = Harness()
    made.resync.event("ADDED", service("a", 5))
    assert not made.resync.is_current("other"), "nothing is listed yet"
    await made.resync._list()
    assert made.resync.is_current("other")
    made.now += CURRENT_SECONDS + 0.1
    assert not made.resync.is_current("other"), "whether the watch still brings anything is not known"
    made.resync.event("MODIFIED", service("a", 6))
    assert made.resync.is_current("other")
    for by_kopf in (True, False):
        if by_kopf:
            made.resync.event(None, service("a", 6))
        else:
            made.resync.ended("it was reset")
            made.resync._due.clear()
            await made.resync._list()
            assert not made.resync.is_current("other"), "kopf does not watch again yet"
            made.resync._list_again(0.0)
        made.resync.event("MODIFIED", service("a", 7))
        assert not made.resync.is_current("other"), "others may have changed in the gap"
        made.resync._due.clear()
        await made.resync._list()
        assert made.resync.is_current("other")


def test_what_was_brought_itself_is_current_for_a_moment_whatever_else_was_missed() -> None:
    """After a start kopf brings all services in its list, and their first passes write before the next list."""
    made = Harness()
    made.resync.event(None, service("a", 5))
    uid = service("a", 5)["metadata"]["uid"]
    assert made.resync.is_current(uid)
    assert not made.resync.is_current("other"), "no list has followed kopf's yet"
    made.now += CURRENT_SECONDS - 1
    made.resync.event(None, service("b", 5))
    assert made.resync.is_current(uid)
    made.now += 1
    late = service("b", 5)["metadata"]["uid"]
    assert not made.resync.is_current(uid)
    assert not made.resync.is_current(late), "as old as the list that kopf brings one by one"
    made.resync.event("MODIFIED", service("b", 6))
    assert made.resync.is_current(late)
    made.resync.ended("it was reset")
    assert not made.resync.is_current(late)


async def test_a_gap_while_a_list_is_read_needs_another_list() -> None:
    made = Harness(*(service(name, 5) for name in "abc"))
    made.between_pages(lambda: made.resync.event(None, service("a", 5)))
    await made.resync._list()
    made.resync.event("MODIFIED", service("a", 101))
    assert not made.resync.is_current("other")
