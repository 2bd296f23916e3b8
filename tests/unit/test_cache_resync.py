"""The comparison with a list finds what the watches missed, and only that."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.cache import Cache, Seen
from llmservice_operator.control.kinds import PROJECTIONS
from llmservice_operator.control.resync import Resync, compare
from llmservice_operator.kube.client import KubeClient
from llmservice_operator.kube.errors import Forbidden, Gone, KubeError, Refused, Unreachable
from llmservice_operator.kube.resources import DEPLOYMENT, JOB, POD, Resource

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


def pod(name: str, uid: str, version: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": uid,
            "resourceVersion": version,
            "labels": {"llmservice.dev/service": "chat"},
        },
        "spec": {},
        "status": {"phase": phase},
    }


class Lists(KubeClient):
    """Answers lists from memory, two objects a page, and counts requests."""

    def __init__(self, *objects: dict[str, Any], gone_once: bool = False) -> None:
        self.objects = objects
        self.requests: list[bool] = []
        self.gone_once = gone_once

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str = "",
        metadata_only: bool = False,
        limit: int = 500,
    ) -> AsyncIterator[dict[str, Any]]:
        assert label_selector == "app.kubernetes.io/managed-by=llmservice-operator"
        for start in range(0, max(1, len(self.objects)), 2):
            self.requests.append(metadata_only)
            yield {"metadata": {"resourceVersion": "100"}, "items": self.objects[start : start + 2]}
            if self.gone_once:
                self.gone_once = False
                raise Gone("too old")


async def no_sleep(_: float) -> None:
    return


def resync(kube: Lists, cache: Cache) -> tuple[Resync, list[Key]]:
    keys: list[Key] = []
    return Resync(kube, cache, keys.append, (None,), sleep=no_sleep), keys


async def test_a_pod_that_vanished_unseen_is_forgotten_and_its_service_looked_at() -> None:
    cache = Cache(PROJECTIONS)
    for name in ("a", "b", "c"):
        cache.update("Pod", pod(name, f"uid-{name}", "5"))
    kube = Lists(pod("a", "uid-a", "5"), pod("c", "uid-c", "5"))
    checker, keys = resync(kube, cache)
    await checker.check(POD, None)
    assert keys == [Key("ns", "chat")]
    assert sorted(cache.around(Key("ns", "chat"))["Pod"]) == ["a", "c"]


async def test_nothing_is_asked_about_single_objects() -> None:
    cache = Cache(PROJECTIONS)
    pods = [pod(str(n), f"uid-{n}", "5") for n in range(7)]
    for one in pods:
        cache.update("Pod", one)
    kube = Lists(*pods)
    checker, keys = resync(kube, cache)
    await checker.check(POD, None)
    assert kube.requests == [True] * 4
    assert keys == []


async def test_what_the_watch_does_not_show_in_time_is_read_in_full() -> None:
    cache = Cache(PROJECTIONS)
    cache.update("Pod", pod("a", "uid-a", "5", "Pending"))
    kube = Lists(pod("a", "uid-a", "9", "Running"))
    checker, keys = resync(kube, cache)
    await checker.check(POD, None)
    assert kube.requests == [True, False]
    assert keys == [Key("ns", "chat")]
    assert cache.get("Pod", "ns", "a").phase == "Running"


async def test_a_list_that_grew_too_old_between_pages_starts_again() -> None:
    cache = Cache(PROJECTIONS)
    pods = [pod(str(n), f"uid-{n}", "5") for n in range(3)]
    for one in pods:
        cache.update("Pod", one)
    kube = Lists(*pods, gone_once=True)
    checker, keys = resync(kube, cache)
    await checker.check(POD, None)
    assert len(kube.requests) == 3
    assert keys == []


async def test_a_pod_with_a_copied_label_is_not_waited_for() -> None:
    """The watch brings it, and no projection keeps it: the start would wait for it for ever."""
    cache = Cache(PROJECTIONS)
    stranger = pod("a", "uid-a", "5")
    stranger["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "llmservice-operator"}
    assert cache.update("Pod", stranger) == ()
    kube = Lists(stranger)
    checker, keys = resync(kube, cache)
    await checker.check(POD, None)
    assert kube.requests == [True], "the full list was read as well"
    assert keys == []


async def test_a_pod_that_looks_at_a_model_belongs_to_its_service() -> None:
    cache = Cache(PROJECTIONS)
    looks = pod("a", "uid-a", "5")
    looks["metadata"]["labels"] = {"llmservice.dev/inspects": "chat"}
    assert cache.update("Pod", looks) == (Key("ns", "chat"),)
    checker, keys = resync(Lists(), cache)
    await checker.check(POD, None)
    assert keys == [Key("ns", "chat")]
    assert cache.get("Pod", "ns", "a") is None


async def test_a_pod_that_looks_at_a_model_and_was_missed_is_read() -> None:
    looks = pod("a", "uid-a", "5")
    looks["metadata"]["labels"] = {"llmservice.dev/inspects": "chat"}
    kube = Lists(looks)
    checker, keys = resync(kube, Cache(PROJECTIONS))
    await checker.check(POD, None)
    assert kube.requests == [True, False]
    assert keys == [Key("ns", "chat")]


class Without(KubeClient):
    """Answers lists of one kind with an error, and others with nothing."""

    def __init__(self, resource: Resource, error: KubeError) -> None:
        self.resource, self.error = resource, error
        self.asked: list[str] = []
        self.compared = asyncio.Event()
        """The interval's comparison came round, in both namespaces."""

    async def list_pages(self, resource: Resource, namespace: str | None, **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(resource.kind)
        if self.asked.count("Pod") == 4:
            self.compared.set()
        if resource is self.resource:
            raise self.error
        yield {"metadata": {"resourceVersion": "100"}, "items": []}


FORBIDDEN = Forbidden("jobs is forbidden", right="list jobs", code=403)
WARM = [
    ("no right on jobs", JOB, FORBIDDEN, True),
    ("another authorizer, in words of its own", JOB, Refused("not for you", code=403), True),
    ("jobs cannot be reached", JOB, Unreachable("no answer"), False),
    ("no right on what services are made of", DEPLOYMENT, FORBIDDEN, False),
]


@pytest.mark.parametrize(("resource", "error", "is_warm"), [row[1:] for row in WARM], ids=[row[0] for row in WARM])
async def test_the_start_does_without_jobs_and_without_nothing_else(
    resource: Resource, error: KubeError, is_warm: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kube = Without(resource, error)
    tries = asyncio.Event()

    async def sleep(_: float) -> None:
        if kube.asked.count(resource.kind) > 2:
            tries.set()
            await asyncio.Event().wait()

    checker = Resync(kube, Cache(PROJECTIONS), lambda _: None, ("a", "b"), sleep=sleep, interval=0.01)
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(checker.run())
        awaited: Callable[[], Any] = checker.warm.wait if is_warm else tries.wait
        async with asyncio.timeout(5):
            await awaited()
            if is_warm:
                await kube.compared.wait()
        running.cancel()
    assert checker.warm.is_set() is is_warm
    assert checker.hidden == ({"Job"} if is_warm else set())
    if is_warm:
        assert len([record for record in caplog.records if "without jobs" in record.message]) == 1
        assert kube.asked.count("Job") == 3, "not again, nor in the other namespace"
