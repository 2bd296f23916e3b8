"""Which activators are known: by the slices of their Service, without haste where the last one is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from kubeloop import informer
from kubeloop.errors import Forbidden, Unreachable
from kubeloop.resources import ENDPOINT_SLICE
from llmservice_api.holding import Activator
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.service.watch import ACTIVATOR_TRIES as TRIES
from llmservice_operator.service.watch import MOST, ActivatorsWatch
from llmservice_operator.service.watch import ready_activators as ready

from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer, Connection, over_http

Json = dict[str, Any]
ONE, TWO = Activator("10.0.0.1", "node-a"), Activator("10.0.0.2")
GRACE = 0.05


def endpoint(address: Any = "10.0.0.1", node: Any = None, **conditions: Any) -> Json:
    found: Json = {"addresses": [address], "conditions": conditions}
    return found | ({} if node is None else {"nodeName": node})


def a_slice(name: str, *endpoints: Any, version: int = 1) -> Json:
    metadata = {"namespace": "system", "name": name, "uid": name, "resourceVersion": str(version)}
    labels = {"kubernetes.io/service-name": "llms-activator"}
    found = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "endpoints": list(endpoints)}
    return found | {"metadata": metadata | {"labels": labels}}


ENDPOINTS: dict[str, tuple[list[Any], list[Activator]]] = {
    "ready": ([endpoint(node="node-a", ready=True)], [ONE]),
    "no condition, which means ready": ([endpoint("10.0.0.2")], [TWO]),
    "not ready": ([endpoint(ready=False)], []),
    "terminating": ([endpoint(ready=True, terminating=True)], []),
    "two families": ([endpoint("fd00:0::1"), endpoint("10.0.0.2")], [Activator("fd00::1"), TWO]),
    "a name for an address": ([endpoint("example.com")], []),
    "a number for an address": ([endpoint(True), endpoint(7)], []),
    "an address with a scope": ([endpoint("fe80::1%/../x")], []),
    "an address with more": ([endpoint("10.0.0.1/24"), endpoint("10.0.0.1:80")], []),
    "no address": ([{"conditions": {}}, {"addresses": []}, {"addresses": "10.0.0.1"}], []),
    "no conditions": ([endpoint("10.0.0.2") | {"conditions": 1}], [TWO]),
    "a long node": ([endpoint("10.0.0.2", "n" * 300)], [TWO]),
    "no node": ([endpoint("10.0.0.2", 5)], [TWO]),
    "no endpoint": ([None, "10.0.0.1", []], []),
    "many": ([endpoint("10.0.0.2")] * (MOST + 9), [TWO] * MOST),
}


@pytest.mark.parametrize("case", ENDPOINTS)
def test_the_endpoints_that_count(case: str) -> None:
    endpoints, wanted = ENDPOINTS[case]
    assert list(ready({"endpoints": endpoints})) == wanted


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=20) | some.ip_addresses().map(str),
    lambda inner: (
        some.lists(inner, max_size=4)
        | some.dictionaries(some.sampled_from(["addresses", "conditions", "ready", "nodeName"]), inner, max_size=4)
    ),
    max_leaves=16,
)


@given(VALUES)
def test_anything_else_is_no_activator(value: Any) -> None:
    for each in ready({"endpoints": value}):
        assert each.address.count(".") == 3 or each.is_ipv6
        assert isinstance(each.node, str)


class Watched:
    """The watch, and what it said was changed."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        transport = Connection(ApiServer())
        self.watch = ActivatorsWatch(transport, "llms-activator", "system", self._changed, grace=GRACE)

    def _changed(self) -> None:
        self.values.append(self.watch.known())

    def list(self, *slices: Json) -> None:
        for each in slices:
            self.watch.updated(ENDPOINT_SLICE, each)
        uids = {("system", each["metadata"]["name"]): each["metadata"]["uid"] for each in slices}
        self.watch.listed(ENDPOINT_SLICE, "system", uids, "5")

    def fail(self, *errors: Any) -> None:
        for error in errors:
            self.watch._reported(error)


async def test_nothing_is_known_before_the_whole_list_and_changes_are_told_once() -> None:
    watched = Watched()
    watched.watch.updated(ENDPOINT_SLICE, a_slice("a", endpoint(node="node-a")))
    assert watched.watch.known() is None
    watched.list(a_slice("a", endpoint(node="node-a")), a_slice("b", endpoint("10.0.0.2")))
    assert watched.watch.known() == (ONE, TWO)
    same = watched.watch.known()
    watched.watch.updated(ENDPOINT_SLICE, a_slice("b", endpoint("10.0.0.2", ready=True), version=2))
    assert watched.watch.known() is same
    watched.watch.deleted(ENDPOINT_SLICE, a_slice("b"))
    assert watched.values == [(ONE, TWO), (ONE,)]
    watched.list(a_slice("c", endpoint("10.0.0.2")))
    assert watched.watch.known() == (TWO,), "what is not in a list is gone"


async def test_the_last_one_is_missed_only_once_it_stays_away() -> None:
    watched = Watched()
    watched.list(a_slice("a", endpoint("10.0.0.2")))
    for _ in range(2):
        watched.watch.updated(ENDPOINT_SLICE, a_slice("a", endpoint("10.0.0.2", ready=False)))
        watched.watch.updated(ENDPOINT_SLICE, a_slice("a"))
        assert watched.watch.known() is None
        watched.watch.updated(ENDPOINT_SLICE, a_slice("a", endpoint("10.0.0.2")))
    await asyncio.sleep(2 * GRACE)
    assert watched.watch.known() == (TWO,), "the time of an earlier absence is over"
    watched.watch.updated(ENDPOINT_SLICE, a_slice("a"))
    await asyncio.sleep(2 * GRACE)
    watched.watch.updated(ENDPOINT_SLICE, a_slice("a", version=3))
    assert watched.values == [(TWO,), None, (TWO,), None, (TWO,), None, ()]
    watched.watch.updated(ENDPOINT_SLICE, a_slice("a", endpoint("10.0.0.2")))
    assert watched.watch.known() == (TWO,)


GONE: dict[str, tuple[Callable[[Watched], None], Any]] = {
    "no slice at all": (lambda watched: watched.list(), ()),
    "no right": (lambda watched: watched.fail(*[Forbidden("no")] * TRIES), ()),
    "no right just now": (lambda watched: watched.fail(Forbidden("no")), None),
    "no API server": (lambda watched: watched.fail(*[Unreachable("no")] * 9), None),
}


@pytest.mark.parametrize("case", GONE)
async def test_without_any(case: str) -> None:
    happens, wanted = GONE[case]
    watched = Watched()
    happens(watched)
    assert watched.watch.known() is None
    await asyncio.sleep(2 * GRACE)
    assert watched.watch.known() == wanted


async def test_a_right_that_is_lost_and_granted_again() -> None:
    watched = Watched()
    watched.list(a_slice("a", endpoint("10.0.0.2")))
    for _ in range(TRIES):
        watched.fail(Forbidden("no"))
    await asyncio.sleep(2 * GRACE)
    assert watched.watch.known() == ()
    watched.fail(None)
    assert watched.watch.known() == (TWO,), "the watch goes on from where it was"


async def test_the_watch_of_the_right_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.01)
    api = ApiServer(a_slice("a", endpoint("10.0.0.2")))
    seen = asyncio.Event()
    async with over_http(api) as transport:
        watch = ActivatorsWatch(transport, "llms-activator", "system", seen.set)
        task = asyncio.create_task(watch.run())
        await asyncio.wait_for(seen.wait(), PATIENCE)
        assert watch.known() == (TWO,)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    _, path, query, _ = api.requests[0]
    assert path == "/apis/discovery.k8s.io/v1/namespaces/system/endpointslices"
    assert query["labelSelector"] == "kubernetes.io/service-name=llms-activator"


HOSTS = {
    "llms-activator.system.svc:9443": ("llms-activator", "system"),
    "llms-activator.system:9443": ("llms-activator", "system"),
    "llms-activator:9443": None,
    "10.0.0.1:9443": ("10", "0"),
    None: None,
}


@pytest.mark.parametrize("address", HOSTS)
def test_the_service_of_the_activators_by_the_scalers_address(address: str | None) -> None:
    assert Settings(scaler_address=address).activator_service == HOSTS[address]
