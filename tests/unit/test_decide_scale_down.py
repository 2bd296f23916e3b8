"""Before a Deployment is made smaller, the least busy ready pods are marked; nothing else is written to pods."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from llmservice_operator.api.constants import DELETION_COST_ANNOTATION
from llmservice_operator.api.service import LLMService
from llmservice_operator.decide.scale_down import addresses, deletion_costs
from llmservice_operator.observe.observed import Observed

from tests.unit.decide_world import World, a_pod, an_llmservice, spec

Costs = Mapping[int, str]
NO_COSTS: Costs = MappingProxyType({})


@functools.cache
def served(pods: int) -> World:
    """Rolled out; the tests change copies of it."""
    world = World(an_llmservice(spec(scaling={"replicas": pods})))
    world.serve()
    return world


def a_world(
    *, wanted: int, pods: int = 4, unready: int = 0, going: int = 0, costs: Mapping[int, str] = NO_COSTS
) -> World:
    """So many replicas serve, and so many are wanted now; of the pods the last are not ready, or on their way out."""
    world = copy.deepcopy(served(pods))
    states = ["ready"] * (pods - unready) + ["unready"] * unready + ["going"] * going
    for number, state in enumerate(states):
        pod = a_pod(f"x-{number}", world.revision(), ready=state != "unready", address=f"10.0.0.{number}")
        if state == "going":
            pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        if number in costs:
            pod["metadata"]["annotations"] = {DELETION_COST_ANNOTATION: costs[number]}
        world.pods[f"x-{number}"] = pod
    world.obj["spec"]["scaling"]["replicas"] = wanted
    world.obj["metadata"]["generation"] += 1
    return world


BUSY = {"x-0": 7, "x-1": 0, "x-2": 3, "x-3": 1}

CASES: dict[str, tuple[dict[str, Any], Mapping[str, int], dict[str, int]]] = {
    "one is to go": ({"wanted": 3}, BUSY, {"x-1": -1}),
    "two are": ({"wanted": 2}, BUSY, {"x-1": -1, "x-3": -1}),
    "equally busy, by name": ({"wanted": 3}, dict.fromkeys(BUSY, 5), {"x-0": -1}),
    "more is wanted": ({"wanted": 5}, BUSY, {}),
    "as many are wanted": ({"wanted": 4}, BUSY, {}),
    "none is wanted": ({"wanted": 0}, BUSY, {}),
    "one that starts goes first": ({"wanted": 3, "unready": 1}, BUSY, {}),
    "one that starts, and another": ({"wanted": 2, "unready": 1}, BUSY, {"x-1": -1}),
    "one that is on its way does not count": ({"wanted": 3, "going": 1}, BUSY | {"x-4": 0}, {"x-1": -1}),
    "one that cannot be read stays": ({"wanted": 3}, {"x-0": 7, "x-2": 3}, {"x-2": -1}),
    "none can be read": ({"wanted": 3}, {}, {}),
    "it is marked already": ({"wanted": 3, "costs": {1: "-1"}}, BUSY, {}),
    "another was marked before": ({"wanted": 3, "costs": {0: "-1"}}, BUSY, {"x-0": 0, "x-1": -1}),
    "a user's costs are not ours": ({"wanted": 3, "costs": {0: "-9", 2: "50"}}, BUSY, {"x-1": -1}),
    "a cost that is no number": ({"wanted": 3, "costs": {1: "low"}}, BUSY, {"x-1": -1}),
}


@pytest.mark.parametrize("case", CASES)
def test_which_pods_are_marked(case: str) -> None:
    state, in_flight, wanted = CASES[case]
    world = a_world(**state)
    found = deletion_costs(world.service(), world.observed(), in_flight)
    assert {each.pod: each.cost for each in found} == wanted
    assert all(each.uid == f"uid-{each.pod}" for each in found)


def test_the_requests_are_counted_only_before_a_scale_down() -> None:
    world = a_world(wanted=3, unready=1)
    assert addresses(world.service(), world.observed()) == (), "the one that starts goes"
    world = a_world(wanted=2, unready=1)
    assert addresses(world.service(), world.observed()) == tuple((f"x-{n}", f"10.0.0.{n}") for n in range(3))
    assert world.inputs().in_flight is not None
    assert a_world(wanted=4).inputs().in_flight is None


def test_the_marks_come_with_the_smaller_deployment_and_no_other_time() -> None:
    world = a_world(wanted=3)
    decision = world.decide(in_flight=BUSY)
    assert [each.pod for each in decision.deletion_costs] == ["x-1"]
    assert [apply.manifest["spec"]["replicas"] for apply in decision.apply if apply.kind == "Deployment"] == [3]
    world.obj["spec"]["paused"] = True
    assert world.decide(in_flight=BUSY).deletion_costs == ()


def test_a_held_edit_is_scaled_down_as_well() -> None:
    world = a_world(wanted=3)
    world.obj["spec"] |= {"batching": {"maxModelLen": 2**21}, "fitPolicy": "Enforce"}
    world.obj["spec"]["precision"] = {"weights": "float32"}
    assert [each.pod for each in world.decide(in_flight=BUSY).deletion_costs] == ["x-1"]


@functools.cache
def observed_of_one() -> Observed:
    return served(1).observed()


def scaling(wanted: int, pods: int, ready: int) -> tuple[LLMService, Observed]:
    """From so many pods, of which the first are ready, to another number."""
    world, observed = served(1), observed_of_one()
    (pod,) = observed.pods
    assert observed.deployment is not None
    facts = tuple(replace(pod, name=f"x-{n}", uid=f"uid-x-{n}", ready=n < ready) for n in range(pods))
    wants = LLMService.from_object(world.obj | {"spec": spec(scaling={"replicas": wanted})})
    return wants, replace(observed, pods=facts, deployment=replace(observed.deployment, spec_replicas=pods))


@given(
    pods=some.integers(1, 12),
    wanted=some.integers(0, 12),
    unready=some.integers(0, 12),
    requests=some.dictionaries(some.integers(0, 11), some.integers(0, 50)),
)
def test_no_pod_that_is_less_busy_than_a_marked_one_stays(
    pods: int, wanted: int, unready: int, requests: dict[int, int]
) -> None:
    service, observed = scaling(wanted, pods, pods - min(unready, pods))
    in_flight = {f"x-{n}": count for n, count in requests.items()}
    marked = {each.pod for each in deletion_costs(service, observed, in_flight)}
    ready = {pod.name for pod in observed.pods if pod.ready}
    assert marked <= ready & in_flight.keys()
    assert len(marked) <= max(0, pods - wanted)
    rest = ready & in_flight.keys() - marked
    assert not marked or max(in_flight[name] for name in marked) <= min((in_flight[n] for n in rest), default=50)
