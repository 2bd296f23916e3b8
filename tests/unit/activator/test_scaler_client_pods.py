"""Whose an address is: what the API server is asked, how long an answer holds, and the bounds of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kubeloop.errors import Forbidden, Unreachable
from llmservice_activator import admission
from llmservice_activator.admission import (
    ABSENT_SECONDS,
    LABELS_SECONDS,
    POD_SECONDS,
    ClientPod,
    ClientPods,
    Unidentified,
    client_pods_of,
)

from tests.unit.api_server import ApiServer, Connection

Json = dict[str, Any]


def pod(name: str = "a", address: str = "10.0.0.1", *, phase: str = "Running", **spec: Any) -> Json:
    namespace, _, name = name.rpartition("/")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace or "ns", "name": name, "uid": f"u-{name}", "labels": {"app": name}},
        "spec": spec,
        "status": {"podIP": address, "phase": phase},
    }


def namespace(**labels: str) -> Json:
    metadata = {"name": "ns", "uid": "u-ns", "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


class World:
    def __init__(self, *objects: Json, namespaces: tuple[str, ...] = ()) -> None:
        self.api, self.time = ApiServer(*objects), 100.0
        self.go = asyncio.Event()
        self.go.set()
        self.connection = Connection(self.api)
        self.connection.delay = self.go.wait
        self.client_pods = ClientPods(self.connection, namespaces, clock=lambda: self.time)


A = ClientPod("ns", {"app": "a"})
FOUND: list[tuple[str, list[Json], ClientPod | None]] = [
    ("a pod", [pod(), pod("b", "10.0.0.2")], A),
    ("none", [pod("b", "10.0.0.2")], None),
    ("the host's network", [pod(hostNetwork=True)], None),
    ("ended", [pod(phase="Succeeded"), pod("b", phase="Failed")], None),
    ("the address is another's now", [pod("b", phase="Failed"), pod()], A),
]


@pytest.mark.parametrize(("name", "objects", "expected"), FOUND, ids=[case[0] for case in FOUND])
async def test_the_pod_of_an_address(name: str, objects: list[Json], expected: ClientPod | None) -> None:
    assert await World(*objects).client_pods.pod("10.0.0.1") == expected


async def test_of_watched_namespaces_only_where_there_are_some() -> None:
    world = World(pod("one/a"), pod("two/b", "10.0.0.2"), pod("three/c", "10.0.0.3"), namespaces=("one", "two"))
    assert await world.client_pods.pod("10.0.0.2") == ClientPod("two", {"app": "b"})
    assert await world.client_pods.pod("10.0.0.3") is None


async def test_answers_are_kept_for_their_time() -> None:
    world = World(pod(), namespace(team="a"))
    for _ in range(2):
        assert await world.client_pods.pod("10.0.0.1") == A
        assert await world.client_pods.pod("10.0.0.9") is None
        assert await world.client_pods.namespace("ns") == {"team": "a"}
    assert world.api.calls == ["list Pod", "list Pod", "get Namespace"]
    world.api.remove("Pod", "a")
    world.time += ABSENT_SECONDS
    world.api.put(pod("b", "10.0.0.9"))
    assert await world.client_pods.pod("10.0.0.9") == ClientPod("ns", {"app": "b"})
    assert await world.client_pods.pod("10.0.0.1") == A
    world.time += POD_SECONDS
    assert await world.client_pods.pod("10.0.0.1") is None
    world.api.put(namespace(team="b"))
    assert await world.client_pods.namespace("ns") == {"team": "a"}
    world.time += LABELS_SECONDS
    assert await world.client_pods.namespace("ns") == {"team": "b"}


@pytest.mark.parametrize("error", [Forbidden("no", code=403), Unreachable("away")])
async def test_a_failure_is_no_answer_and_is_not_kept(error: Exception) -> None:
    world = World(pod(), namespace())
    world.api.fails = {"list Pod": [error], "get Namespace": [error]}
    with pytest.raises(Unidentified):
        await world.client_pods.pod("10.0.0.1")
    with pytest.raises(Unidentified):
        await world.client_pods.namespace("ns")
    assert await world.client_pods.pod("10.0.0.1") == A
    assert await world.client_pods.namespace("ns") == {}


async def test_of_two_pods_with_one_address_it_is_not_known_which() -> None:
    with pytest.raises(Unidentified, match="several"):
        await World(pod(), pod("b")).client_pods.pod("10.0.0.1")


def slow() -> World:
    """The API server answers when `go` is set."""
    world = World(pod())
    world.go.clear()
    return world


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_address_is_asked_for_once_at_a_time_also_where_who_asked_first_goes() -> None:
    world = slow()
    first, *others = [asyncio.create_task(world.client_pods.pod("10.0.0.1")) for _ in range(5)]
    await settle()
    first.cancel()
    await settle()
    world.go.set()
    assert await asyncio.gather(*others) == [A] * 4
    assert world.api.calls == ["list Pod"]


async def test_lookups_are_bounded_at_once_and_in_what_waits() -> None:
    world = slow()
    most = admission.MAX_WAITING
    tasks = [asyncio.create_task(world.client_pods.pod(f"10.0.{n // 256}.{n % 256}")) for n in range(most)]
    await settle()
    assert world.connection.at_once == admission.MAX_RUNNING
    with pytest.raises(Unidentified, match="too many"):
        await world.client_pods.pod("10.9.9.9")
    world.go.set()
    await asyncio.gather(*tasks)
    assert world.connection.most_at_once == admission.MAX_RUNNING
    assert await world.client_pods.pod("10.9.9.9") is None


async def test_a_server_that_does_not_answer_is_waited_for_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "LOOKUP_SECONDS", 0.02)
    with pytest.raises(Unidentified, match="in time"):
        await slow().client_pods.pod("10.0.0.1")


async def test_no_more_addresses_are_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_CACHED", 20)
    world = World(pod())
    for number in range(100):
        await world.client_pods.pod(f"10.0.0.{number}")
    known = world.client_pods._pods
    assert list(known._answers) == [f"10.0.0.{number}" for number in range(80, 100)]
    assert not known._asking


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=8) | some.just("10.0.0.1"),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(
            some.sampled_from(["items", "metadata", "spec", "status", "namespace", "labels", "podIP", "hostNetwork"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(some.dictionaries(some.just("items"), JSON | some.lists(JSON)))
def test_whatever_the_answer_is_it_has_pods_of_this_address_or_none(answer: Json) -> None:
    for source in client_pods_of(answer, "10.0.0.1"):
        assert isinstance(source.namespace, str)
        assert all(isinstance(text, str) for pair in source.labels.items() for text in pair)
