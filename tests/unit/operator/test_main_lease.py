"""What an operator does when it gains and loses its Lease."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.health import Stage
from kubeloop.informer import watch_of
from kubeloop.resources import ENDPOINT_SLICE, Key
from llmservice_api.constants import LLMSERVICE
from llmservice_api.holding import Activator
from llmservice_operator.__main__ import Operator
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.options import Options
from llmservice_operator.readers.pod_port import ActivatorReader, RequestsReader, StateReader
from llmservice_operator.service.metrics import Metrics
from llmservice_operator.service.watch import PARENT, watched_children

from tests.unit.api_server import ApiServer, Connection
from tests.unit.reconcile_world import parent

KEYS = [Key(f"team-{letter}", "chat") for letter in "abcd"]
STATUS = {"conditions": [{"type": "Ready", "reason": "Starting"}]}


def operator_with(**options: Any) -> Operator:
    api = Connection(ApiServer())
    return Operator(Options(**options), api, StateReader(), RequestsReader(), ActivatorReader(), Metrics())


@pytest.fixture
async def operator() -> Operator:
    """It has the Lease, and has reconciled everything."""
    made = operator_with(identity="me")
    for key in KEYS:
        made._ctx.cache.update(PARENT, parent(namespace=key.namespace, uid=str(key)))
    made._life.reach(Stage.ACTING)
    for resource in (
        watch_of(LLMSERVICE),
        LLMSERVICE.full_name,
        *(each.full_name for each in watched_children(Settings())),
    ):
        made._sync.synced(None, resource)
    gain(made)
    for key in KEYS:
        assert await made._ctx.queue.get() == key
        made._ctx.memory(key, str(key))
        made._ctx.metrics.set_status(key, STATUS)
    return made


def gain(operator: Operator) -> None:
    assert operator._lease is not None
    operator._lease.is_acting = True
    operator.gained()


def lose(operator: Operator) -> None:
    assert operator._lease is not None
    operator._lease.is_acting = False
    operator.lost()


def exported(operator: Operator) -> int:
    text = operator._metrics.exposition().decode()
    (line,) = [line for line in text.splitlines() if line.startswith("llmservice_services{")]
    return int(float(line.rpartition(" ")[2]))


async def test_all_services_are_queued_in_each_reign(operator: Operator) -> None:
    for key in KEYS:
        operator._ctx.queue.done(key)
    lose(operator)
    assert operator._ctx.queue.depth == 0
    gain(operator)
    assert [await operator._ctx.queue.get() for _ in KEYS] == KEYS


async def test_each_scrape_shows_how_many_services_wait() -> None:
    operator = operator_with(leader_elect=False)
    operator._ctx.queue.add(KEYS[0])
    operator._ctx.queue.add_after(KEYS[1], 60)
    operator._refresh_metrics()
    text = operator._metrics.exposition().decode().splitlines()
    assert {"llmservice_queue_depth 1.0", "llmservice_queue_delayed 1.0"} <= set(text)


async def test_what_happens_in_anothers_reign_is_anothers_affair(operator: Operator) -> None:
    for key in KEYS:
        operator._ctx.queue.done(key)
    lose(operator)
    operator._changed(KEYS[0])
    operator._children_changed(KEYS[1])
    assert (operator._ctx.queue.depth, operator._ctx.queue.delayed) == (0, 0)


async def test_when_the_lease_is_lost_services_are_forgotten_and_exported_no_more(operator: Operator) -> None:
    in_work, *done = KEYS
    for key in done:
        operator._ctx.queue.done(key)
    assert exported(operator) == len(KEYS)
    assert operator.is_busy()
    lose(operator)
    assert set(operator._ctx.memories) == {in_work}, "its worker forgets it"
    assert exported(operator) == 1
    operator._ctx.queue.done(in_work)
    assert not operator.is_busy()


@pytest.mark.parametrize("elects", [True, False])
async def test_who_acts_is_a_metric(elects: bool) -> None:
    operator = operator_with(leader_elect=elects)
    operator._refresh_metrics()
    assert f"llmservice_leader {0.0 if elects else 1.0}" in operator._metrics.exposition().decode().splitlines()


async def test_activators_that_come_or_go_wake_the_services_whose_requests_may_be_held() -> None:
    settings = Settings(scaler_address="llms-activator.system.svc:9443")
    operator = operator_with(leader_elect=False, services=settings)
    zero, one, plain, held = KEYS[:4]
    scalings: dict[Key, Any] = {
        zero: {"autoscaling": {"maxReplicas": 2, "minReplicas": 0}},
        one: {"autoscaling": {"maxReplicas": 2, "minReplicas": 1}, "holding": {"rollouts": False}},
        plain: {},
        held: {"holding": {"rollouts": True}},
    }
    for key, scaling in scalings.items():
        made = parent(namespace=key.namespace, uid=str(key))
        made["spec"] |= {"scaling": scaling}
        operator._ctx.cache.update(PARENT, made)
    for resource in (
        watch_of(LLMSERVICE),
        LLMSERVICE.full_name,
        *(each.full_name for each in watched_children(settings)),
    ):
        operator._sync.synced(None, resource)
    assert operator._activators is not None
    operator._life.reach(Stage.ACTING)
    slices = {"metadata": {"namespace": "system", "name": "a"}, "endpoints": [{"addresses": ["10.0.0.1"]}]}
    operator._activators.updated(ENDPOINT_SLICE, slices)
    operator._activators.listed(ENDPOINT_SLICE, "system", {("system", "a"): "u"}, "1")
    assert operator._ctx.queue.depth == 2
    assert {await operator._ctx.queue.get() for _ in range(2)} == {zero, held}
    assert operator._ctx.activators() == (Activator("10.0.0.1"),)
