"""The ports of services at the activators: unique, found again, and taken over from services that are gone."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.errors import Conflict, Forbidden, KubeError, NotLeader
from kubeloop.resources import Key
from llmservice_api.holding import FIRST_PORT, LAST_PORT
from llmservice_operator.readers import holding_ports
from llmservice_operator.readers.holding_ports import MOST_TRIES, HoldingPorts, candidates

from tests.unit.api_server import ApiServer, Connection, llmservice

KEY, UID = Key("ns", "chat"), "uid-chat"
FIRST, SECOND, THIRD = islice(candidates(UID), 3)


class Closed:
    """This process does not lead."""

    def remaining(self) -> float:
        return 0.0


def a_lease(port: int, holder: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": "system", "name": f"llmservice-port-{port}"},
        "spec": {"holderIdentity": holder},
    }


def ports(api: ApiServer, gate: Any = None) -> HoldingPorts:
    return HoldingPorts(KubeClient(Connection(api), gate or AlwaysOpen()), "system")


def holder(api: ApiServer, port: int) -> Any:
    lease = api.find("Lease", f"llmservice-port-{port}", "system")
    return None if lease is None else lease["spec"]["holderIdentity"]


OURS, OTHER = "ns/chat/uid-chat", "ns/other/uid-other"
DELETED = "deleted"
LOOK = ["create Lease", "get Lease", "get LLMService"]
TAKEN: dict[str, tuple[list[Any], int, list[str]]] = {
    "free": ([], FIRST, [*["get Lease"] * 2, "create Lease"]),
    "ours already": ([OURS], FIRST, ["get Lease"]),
    "another's": ([OTHER], SECOND, [*["get Lease"] * 3, *LOOK, "create Lease"]),
    "two others'": ([OTHER, OTHER], THIRD, [*["get Lease"] * 4, *LOOK * 2, "create Lease"]),
    "one was deleted, then ours": ([DELETED, OURS], SECOND, ["get Lease"] * 2),
    "another's, then ours": ([OTHER, OURS], SECOND, []),
    "of a service that is gone": (["ns/gone/u"], FIRST, []),
    "of a service that is gone, then ours": (["ns/gone/u", OURS], SECOND, []),
    "of an earlier service of its name": (["ns/other/uid-before"], FIRST, []),
    "of an earlier one of our name": (["ns/chat/uid-before"], FIRST, []),
    "of nobody": ([""], SECOND, []),
    "of no service": (["operator-7d9f"], SECOND, []),
    "of half a service": (["ns//u"], SECOND, []),
    "of too much": (["a/b/c/d"], SECOND, []),
    "no text": ([7], SECOND, []),
    "no holder": ([None], SECOND, []),
}


@pytest.mark.parametrize("case", TAKEN)
async def test_which_port_is_taken(case: str) -> None:
    holders, wanted, calls = TAKEN[case]
    api = ApiServer(llmservice("chat", 1), llmservice("other", 2))
    for port, each in zip((FIRST, SECOND), holders, strict=False):
        if each != DELETED:
            api.put(a_lease(port, each))
    assert await ports(api).claim(KEY, UID) == wanted
    assert holder(api, wanted) == OURS
    assert not calls or api.calls == calls
    kept = [(port, each) for port, each in zip((FIRST, SECOND), holders, strict=False) if each != DELETED]
    others = [(port, each) for port, each in kept if port != wanted]
    assert [holder(api, port) for port, _ in others] == [each for _, each in others], "others' are left alone"
    api.calls.clear()
    assert await ports(api).claim(KEY, UID) == wanted, "after a restart too"
    assert not {"update Lease"} & set(api.calls)


STORED = FIRST + 5_000
LEASES: dict[str, tuple[dict[int, str], int, int]] = {
    "names the service": ({STORED: OURS, FIRST: OTHER}, STORED, 1),
    "was deleted": ({}, STORED, 3),
    "names a service that took it since": ({STORED: OTHER}, FIRST, 7),
    "names one that is gone": ({STORED: "ns/gone/u"}, STORED, 7),
    "names another, and another Lease names the service": ({STORED: OTHER, FIRST: OURS}, FIRST, 2),
    "was deleted, and another Lease names the service": ({FIRST: OURS}, FIRST, 2),
}


@pytest.mark.parametrize("case", LEASES)
async def test_the_lease_of_the_stored_port(case: str) -> None:
    """Whatever it says, the service has one Lease, and its port is that one's."""
    leases, wanted, requests = LEASES[case]
    api = ApiServer(llmservice("chat", 1), llmservice("other", 2), *(a_lease(*each) for each in leases.items()))
    assert await ports(api).claim(KEY, UID, STORED) == wanted
    assert len(api.calls) == requests
    assert [port for port in (STORED, FIRST, SECOND) if holder(api, port) == OURS] == [wanted]
    assert all(holder(api, port) == each for port, each in leases.items() if each == OTHER)


async def test_a_takeover_that_another_process_was_faster_at() -> None:
    api = ApiServer(a_lease(FIRST, "ns/gone/u"))
    api.fails["update Lease"] = [Conflict("it changed", code=409)]
    assert await ports(api).claim(KEY, UID) == SECOND


async def test_a_holder_that_may_not_be_read_keeps_its_port() -> None:
    api = ApiServer(a_lease(FIRST, "elsewhere/chat/u"))
    api.fails["get LLMService"] = [Forbidden("no", right="get llmservices", code=403)]
    assert await ports(api).claim(KEY, UID) == SECOND
    assert holder(api, FIRST) == "elsewhere/chat/u"


async def test_many_services_at_once_have_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them look at the same ports, in the same order."""
    monkeypatch.setattr(holding_ports, "FIRST_PORT", LAST_PORT - 39)
    services = [llmservice(f"s{n}", n + 1) for n in range(40)]
    api = ApiServer(*services)
    made = ports(api)
    found = await asyncio.gather(*(made.claim(Key("ns", f"s{n}"), f"uid-s{n}") for n in range(40)))
    assert sorted(found) == list(range(LAST_PORT - 39, LAST_PORT + 1))
    with pytest.raises(KubeError, match=r"ports from .* is free"):
        await made.claim(KEY, UID)


async def test_errors_are_the_callers() -> None:
    api = ApiServer()
    api.fails["create Lease"] = [Forbidden("no", right="create leases", code=403)]
    with pytest.raises(Forbidden):
        await ports(api).claim(KEY, UID)
    with pytest.raises(NotLeader):
        await ports(api, Closed()).claim(KEY, UID)
    assert holder(api, FIRST) is None


@given(some.text(max_size=40))
def test_every_uid_has_its_ports(uid: str) -> None:
    found = list(candidates(uid))
    assert len(set(found)) == len(found) == MOST_TRIES
    assert all(FIRST_PORT <= port <= LAST_PORT for port in found)
    assert found == list(candidates(uid))
