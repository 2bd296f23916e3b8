"""The other activators: who they are, what they hold, and what is made of one that does not say it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kubeloop.errors import Forbidden
from kubeloop.resources import ENDPOINT_SLICE, Key
from llmservice_activator.answers import HeldTotal
from llmservice_activator.peers import (
    CACHE_SECONDS,
    HELD_PATH,
    MOST_PEERS,
    MOST_REQUESTS,
    OtherActivator,
    OtherActivators,
    PeerReader,
    endpoints_of,
    exposed,
    parsed,
)
from llmservice_operator.readers.pod_port import Unreadable
from llmservice_runtime.supervisor import state_server

from tests.support.ports import free_port

CHAT, DRAFT = Key("ns", "chat"), Key("ns", "draft")


def endpoint(name: str, address: str, *, ready: bool | None = True) -> dict[str, Any]:
    conditions = {} if ready is None else {"ready": ready, "serving": ready, "terminating": not ready}
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def slice_of(name: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": "activator"}
    metadata = {"namespace": "system", "name": name, "uid": f"u-{name}", "resourceVersion": "1", "labels": labels}
    return {"kind": "EndpointSlice", "metadata": metadata, "endpoints": list(endpoints)}


class World:
    """The activator `one` among others, whose answers are here by address."""

    def __init__(self, **held: int | None) -> None:
        self.answers: dict[str, dict[Key, int] | None] = {}
        self.asked: list[str] = []
        self.time, self.changed = 100.0, 0
        self.peers = OtherActivators(
            self.read, own_name="one", own_address="10.0.0.1", changed=self.change, clock=lambda: self.time
        )

    def change(self) -> None:
        self.changed += 1

    async def read(self, address: str) -> dict[Key, int]:
        self.asked.append(address)
        await asyncio.sleep(0)
        answer = self.answers.get(address)
        if answer is None:
            raise Unreadable("no answer")
        return answer

    def see(self, *slices: dict[str, Any]) -> None:
        for each in slices:
            self.peers.updated(ENDPOINT_SLICE, each)


ONE, TWO, THREE = endpoint("one", "10.0.0.1"), endpoint("two", "10.0.0.2"), endpoint("three", "10.0.0.3")


async def test_what_the_others_hold_is_added_up() -> None:
    world = World()
    world.see(slice_of("a", ONE, TWO, THREE))
    world.answers = {"10.0.0.2": {CHAT: 3}, "10.0.0.3": {CHAT: 4, DRAFT: 1}}
    assert await world.peers.held(CHAT) == HeldTotal(7, 0)
    assert await world.peers.held(DRAFT) == HeldTotal(1, 0)
    assert await world.peers.held(Key("ns", "other")) == HeldTotal(0, 0)
    assert sorted(world.asked) == ["10.0.0.2", "10.0.0.3"], "each once for all services, and never itself"
    assert world.peers.activators == 3


async def test_they_are_asked_once_a_second_however_many_ask() -> None:
    world = World()
    world.see(slice_of("a", ONE, TWO))
    world.answers["10.0.0.2"] = {CHAT: 3}
    assert await asyncio.gather(*(world.peers.held(CHAT) for _ in range(20))) == [HeldTotal(3, 0)] * 20
    world.answers["10.0.0.2"] = {}
    world.time += CACHE_SECONDS / 2
    assert await world.peers.held(CHAT) == HeldTotal(3, 0)
    world.time += CACHE_SECONDS / 2
    assert await world.peers.held(CHAT) == HeldTotal(0, 0)
    assert len(world.asked) == 2


async def test_one_that_does_not_answer_is_unheard_unless_it_ends() -> None:
    world = World()
    world.see(slice_of("a", ONE, TWO, endpoint("three", "10.0.0.3", ready=False)))
    assert await world.peers.held(CHAT) == HeldTotal(0, 1)
    assert world.peers.activators == 2
    # One that ends holds requests until then.
    world.answers["10.0.0.3"] = {CHAT: 5}
    world.time += CACHE_SECONDS
    assert await world.peers.held(CHAT) == HeldTotal(5, 1)


async def test_alone_nobody_is_asked() -> None:
    world = World()
    assert await world.peers.held(CHAT) == HeldTotal(0, 1), "who else there is was not listed yet"
    world.see(slice_of("a", ONE))
    world.peers.listed(ENDPOINT_SLICE, "system", {("system", "a"): "u"}, "1")
    assert await world.peers.held(CHAT) == HeldTotal(0, 0)
    assert (world.asked, world.peers.activators) == ([], 1)


def test_a_watch_that_is_refused_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    peers = World().peers
    for _ in range(3):
        peers.report(Forbidden("no", code=403, right="watch endpointslices.discovery.k8s.io"))
    assert caplog.text.count("cannot be watched: no; grant it: watch endpointslices") == 1
    peers.report(None)
    peers.report(Forbidden("no", code=403))
    assert caplog.text.count("cannot be watched") == 2


async def test_slices_of_both_families_and_several_slices_are_merged() -> None:
    world = World()
    six = slice_of("six", endpoint("one", "fd00::1"), endpoint("two", "fd00::2"))
    world.see(slice_of("four", ONE, TWO), six, slice_of("more", THREE))
    assert world.peers.activators == 3
    world.peers.deleted(ENDPOINT_SLICE, slice_of("more"))
    assert world.peers.activators == 2
    world.peers.listed(ENDPOINT_SLICE, "system", {("system", "six"): "u"}, "9")
    assert world.peers.activators == 2
    world.peers.listed(ENDPOINT_SLICE, "system", {}, "10")
    assert world.peers.activators == 1
    assert world.changed == 4, "told where the number changed: 1 to 2, 3, 2, 1"


async def test_more_than_may_be_asked_are_unheard() -> None:
    world = World()
    many = [endpoint(f"p{i}", f"10.0.1.{i}") for i in range(MOST_PEERS + 3)]
    world.answers = {f"10.0.1.{i}": {} for i in range(MOST_PEERS + 3)}
    world.see(slice_of("a", *many))
    assert await world.peers.held(CHAT) == HeldTotal(0, 3)
    assert len(world.asked) == MOST_PEERS


def test_endpoints_of_odd_slices() -> None:
    assert endpoints_of({"endpoints": None}) == {}
    assert endpoints_of(slice_of("a", {"addresses": ["nonsense"]}, {"addresses": []}, {})) == {}
    assert endpoints_of(slice_of("a", endpoint("x", "10.0.0.9", ready=None))) == {"x": OtherActivator("10.0.0.9", True)}
    assert endpoints_of(slice_of("a", {"addresses": ["10.0.0.9"]})) == {"10.0.0.9": OtherActivator("10.0.0.9", True)}


async def test_what_is_exposed_is_read_over_http() -> None:
    port = free_port()
    body = exposed({CHAT: (3, 1024), DRAFT: (0, 0)}).decode()

    def answer(path: str) -> state_server.Reply:
        return state_server.Reply(200 if path == HELD_PATH else 404, body, "application/json")

    async with await state_server.serve(port, answer), PeerReader(port=port) as reader:
        assert await reader.read("127.0.0.1") == {CHAT: 3}
    async with PeerReader(port=port) as reader:
        with pytest.raises(Unreadable):
            await reader.read("127.0.0.1")


REFUSED = {
    "no JSON": b"{",
    "a list": b"[]",
    "nothing": b"{}",
    "another version": b'{"version":2,"services":{}}',
    "no services": b'{"version":1,"services":[]}',
    "no key": b'{"version":1,"services":{"chat":{"held":1,"bytes":1}}}',
    "a key of a path": b'{"version":1,"services":{"../a/b":{"held":1,"bytes":1}}}',
    "no number": b'{"version":1,"services":{"a/b":{"held":"1","bytes":1}}}',
    "a boolean": b'{"version":1,"services":{"a/b":{"held":true,"bytes":1}}}',
    "negative": b'{"version":1,"services":{"a/b":{"held":-1,"bytes":1}}}',
    "none held": b'{"version":1,"services":{"a/b":{"held":0,"bytes":1}}}',
    "too many": b'{"version":1,"services":{"a/b":{"held":1000001,"bytes":1}}}',
    "no bytes": b'{"version":1,"services":{"a/b":{"held":1}}}',
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_answers_are_refused(case: str) -> None:
    with pytest.raises(Unreadable) as refused:
        parsed(REFUSED[case])
    assert refused.value.is_invalid
    assert len(str(refused.value)) < 80


PARTS = some.sampled_from(
    ['{"version":1,"services":', "{", "}", '"a/b":', '"held":', '"bytes":', "1", "-3", "1e9", ",", "[", "]", "null"]
)


@given(some.lists(PARTS, max_size=20).map("".join) | some.text(max_size=50))
def test_any_answer_gives_bounded_numbers_or_a_refusal(text: str) -> None:
    try:
        found = parsed(text.encode("utf-8", "surrogatepass"))
    except Unreadable:
        return
    assert all(0 < held <= MOST_REQUESTS and len(key.namespace) <= 63 for key, held in found.items())


@given(
    some.dictionaries(some.sampled_from([CHAT, DRAFT]), some.tuples(some.integers(0, 10**6), some.integers(0, 2**40)))
)
def test_what_is_exposed_is_what_is_read(held: dict[Key, tuple[int, int]]) -> None:
    assert parsed(exposed(held)) == {key: requests for key, (requests, _) in held.items() if requests}
