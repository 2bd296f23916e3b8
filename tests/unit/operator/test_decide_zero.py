"""Scaling to zero: when the last replica goes, when requests are sent to the activators, and what the status says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from llmservice_api.holding import HoldingReport, PortClaim
from llmservice_operator.behaviours.holding import SELDOM_AFTER, SELDOM_SECONDS, SPREAD_LIMIT_SECONDS
from llmservice_operator.observe.activators import SPREAD_SECONDS
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import World
from tests.unit.operator.decide_zero_world import (
    GOOD,
    LISTENING,
    NO_KEY,
    ONE,
    SILENT,
    SIX,
    SLICE,
    SLICE_6,
    TWO,
    a_world,
    at_zero,
    busy,
    follow,
    held_in_rollouts,
    is_held,
    made,
    mute,
    scale,
    taken,
)

# Down


def test_the_slice_comes_first_and_the_last_replica_goes_once_it_is_proven() -> None:
    world = a_world()
    assert not is_held(world)
    scale(world, 0)
    world.step()
    assert (made(world), is_held(world)) == (1, True), "the slice first"
    assert world.condition("Ready") == ("True", "RolledOut")
    world.step()
    assert (made(world), is_held(world)) == (0, True)
    follow(world)
    world.settle()
    assert is_held(world)


def test_what_the_slices_are() -> None:
    world = a_world()
    world.activators = (ONE, TWO, SIX)
    scale(world, 0)
    world.settle()
    found = world.children[SLICE]
    conditions = {"ready": True, "serving": True, "terminating": False}
    assert found["addressType"] == "IPv4"
    assert found["endpoints"] == [
        {"addresses": ["10.1.0.1"], "conditions": conditions, "nodeName": "node-a"},
        {"addresses": ["10.1.0.2"], "conditions": conditions},
    ]
    assert found["ports"] == [{"name": "http", "port": 20_000, "protocol": "TCP", "appProtocol": "http"}]
    assert found["metadata"]["ownerReferences"][0]["uid"] == world.obj["metadata"]["uid"]
    labels = found["metadata"]["labels"]
    assert labels["kubernetes.io/service-name"] == labels["llmservice.dev/service"] == "x"
    assert labels["endpointslice.kubernetes.io/managed-by"] == "llmservice.dev"
    other = world.children[SLICE_6]
    assert (other["addressType"], other["endpoints"][0]["addresses"]) == ("IPv6", ["fd00::1"])
    world.activators = (TWO, SIX)
    world.settle()
    assert [each["addresses"] for each in world.children[SLICE]["endpoints"]] == [["10.1.0.2"]]
    world.activators = (TWO,)
    world.settle()
    assert SLICE_6 not in world.children


def reporting(one: HoldingReport, two: HoldingReport = GOOD) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.holding = {ONE.address: one, TWO.address: two}

    return change


def waiting(seconds: float, change: Callable[[World], None] = lambda world: None) -> Callable[[World], None]:
    def changed(world: World) -> None:
        change(world)
        world.asked_for = seconds

    return changed


def refused(world: World) -> None:
    world.refused = {SLICE: Refusal(403, "denied by a policy")}


STAYS: dict[str, tuple[Callable[[World], None], bool, str]] = {
    "one does not listen yet": (reporting(SILENT), False, ""),
    "one never listens": (
        waiting(SPREAD_LIMIT_SECONDS, reporting(SILENT)),
        False,
        "10.1.0.1 does not listen on port 20000",
    ),
    "one has not reached it yet": (reporting(GOOD, LISTENING), True, ""),
    "one never reaches it": (
        waiting(SPREAD_LIMIT_SECONDS, reporting(GOOD, LISTENING)),
        False,
        "10.1.0.2 is not reached through",
    ),
    "it is tried again": (waiting(SELDOM_AFTER, reporting(GOOD, LISTENING)), True, "10.1.0.2 is not reached through"),
    "no key": (reporting(NO_KEY), False, "Secret k cannot be read. Grant get on it."),
    "the slices are new": (waiting(SPREAD_SECONDS / 2), True, ""),
    "a request is in flight": (busy, True, ""),
    "a request is in flight for long": (waiting(3 * SPREAD_LIMIT_SECONDS, busy), True, ""),
    "the pod does not answer yet": (mute, True, ""),
    "the pod does not answer": (waiting(SPREAD_LIMIT_SECONDS, mute), True, "Pod x-0 does not say"),
    "a slice of the name is somebody's": (taken, True, "x-activator-ipv4 exists already"),
    "the slice is refused": (refused, False, "cannot be applied: denied by a policy"),
}


@pytest.mark.parametrize("case", STAYS)
def test_the_last_replica_stays_and_the_condition_says_why(case: str) -> None:
    change, held, problem = STAYS[case]
    world = a_world()
    if "slice" not in case:
        scale(world, 0)
        world.step()
    change(world)
    scale(world, 0)
    for _ in range(4):
        decision = world.step()
    assert made(world) == 1
    assert is_held(world) == held
    reason = ("False", "HoldingUnavailable") if problem else ("True", "Autoscaling")
    assert world.condition("Autoscaled") == reason
    assert problem in world.message("Autoscaled")
    assert world.condition("Ready") == ("True", "RolledOut")
    assert world.status["ready"] == "1/1"
    if "slice" not in case or "new" in case:
        wanted = SELDOM_SECONDS if world.asked_for >= SELDOM_AFTER else 1.0
        assert decision.requeue_after == wanted


def test_several_replicas_go_but_for_the_last_one() -> None:
    world = a_world(3)
    scale(world, 0)
    world.holding = {}
    world.settle()
    assert made(world) == 1
    follow(world)
    world.holding = {ONE.address: GOOD, TWO.address: GOOD}
    world.settle()
    assert made(world) == 0


def test_nothing_is_asked_while_a_replica_is_to_stay() -> None:
    for world in (a_world(), a_world(3)):
        inputs = world.inputs()
        assert (inputs.holding, inputs.in_flight, inputs.port_claim) == (None, None, None)
        assert world.decide().is_steady
        assert world.decide().requeue_after is None


# At zero, and up


def test_at_zero_it_is_ready_and_idle_and_says_what_a_request_would_do() -> None:
    world = at_zero()
    assert world.condition("Ready") == ("True", "Idle")
    assert world.condition("Available") == ("False", "Idle")
    assert world.condition("Autoscaled") == ("True", "Autoscaling")
    assert "held and starts a replica" in world.message("Ready")
    assert world.message("Ready").endswith("for up to 600 s.")
    assert world.status["ready"] == "0/0"
    assert world.status["gpus"] == 0
    assert world.status["holding"] == {"port": 20_000, "idle": True}
    assert world.status["effective"]["scaling"]["idleSeconds"] == 600
    assert "PodDisruptionBudget" not in world.kinds()
    assert "ScaledObject" in world.kinds()


def test_the_slice_goes_as_soon_as_a_pod_is_listed() -> None:
    world = at_zero()
    scale(world, 1)
    world.settle()
    assert (made(world), is_held(world)) == (1, True)
    follow(world, ready=False)
    world.settle()
    assert is_held(world)
    follow(world)
    world.unlisted = {"x-0"}
    world.settle()
    assert is_held(world), "the Service does not send requests to it yet"
    world.unlisted = set()
    world.settle()
    assert not is_held(world)
    assert world.condition("Ready") == ("True", "RolledOut")


def test_back_at_one_before_the_last_replica_went() -> None:
    world = a_world()
    busy(world)
    scale(world, 0)
    world.settle()
    assert is_held(world)
    scale(world, 1)
    world.settle()
    assert (made(world), is_held(world)) == (1, False)


def test_the_first_start_and_a_lost_pod_are_held_too() -> None:
    world = a_world()
    follow(world, ready=False)
    world.settle()
    assert is_held(world)
    follow(world)
    world.settle()
    assert not is_held(world)


# Without autoscaling


def test_a_service_that_holds_in_rollouts_is_held_while_no_pod_is_listed() -> None:
    world = held_in_rollouts()
    assert not is_held(world)
    assert world.status["holding"]["port"] == 20_000
    assert world.condition("Autoscaled") == ("", "")
    follow(world, ready=False)
    world.settle()
    assert (made(world), is_held(world)) == (1, True)
    world.activators = None
    world.settle()
    assert is_held(world)
    world.activators = (ONE, TWO)
    follow(world)
    world.settle()
    assert not is_held(world)


def test_zero_that_a_user_set_holds_nothing() -> None:
    world = held_in_rollouts()
    follow(world, ready=False)
    world.settle()
    assert is_held(world)
    scale(world, 0)
    world.settle()
    assert (made(world), is_held(world)) == (0, False)
    follow(world)
    world.settle()
    assert world.condition("Ready")[1] != "Idle"


def test_without_the_section_a_lost_pod_is_not_held() -> None:
    world = a_world()
    world.edit(scaling={"replicas": 1, "holding": {"maxRequests": 5}})
    world.settle()
    follow(world, ready=False)
    world.settle()
    assert not is_held(world)


# Without activators


def test_without_an_activator_a_replica_comes_first_and_then_the_slice_goes() -> None:
    world = at_zero()
    world.activators = ()
    world.settle()
    assert (made(world), is_held(world)) == (1, True)
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")
    assert "No activator is ready." in world.message("Autoscaled")
    assert world.condition("Ready")[0] == "False"
    assert world.obj["spec"]["scaling"]["replicas"] == 0
    follow(world)
    world.settle()
    assert (made(world), is_held(world)) == (1, False)
    assert world.condition("Ready") == ("True", "RolledOut")
    world.activators = (ONE, TWO)
    world.settle()
    assert made(world) == 0
    follow(world)
    world.settle()
    assert world.condition("Autoscaled") == ("True", "Autoscaling")


def test_a_replica_that_nobody_asked_for_is_an_event_once() -> None:
    world = at_zero()
    world.activators = ()
    reported = [event.reason for _ in range(3) for event in world.step().events]
    follow(world)
    reported += [event.reason for _ in range(3) for event in world.step().events]
    assert reported.count("HoldingUnavailable") == 1
    world.activators = (ONE, TWO)
    world.settle()
    follow(world)
    world.settle()
    world.activators = ()
    assert "HoldingUnavailable" in [event.reason for event in world.step().events], "and again the next time"


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "no activator": ({"activators": ()}, "No activator is ready."),
    "no port": ({"claim": PortClaim(None, "grant it: create leases.")}, "No port could be allotted: grant it: create"),
    "no right on slices": ({"hidden": frozenset({"EndpointSlice"})}, "may not list endpointslices.discovery.k8s.io"),
}


@pytest.mark.parametrize("case", CAUSES)
@pytest.mark.parametrize("start", [1, 0])
def test_nobody_can_hold(case: str, start: int) -> None:
    changes, cause = CAUSES[case]
    world = a_world() if start else at_zero()
    for name, value in changes.items():
        setattr(world, name, value)
    if case == "no port":
        del world.obj["status"]["holding"]
    if case == "no right on slices":
        world.is_blind = True
    scale(world, 0)
    world.settle()
    assert made(world) == 1
    assert cause in world.message("Autoscaled")
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")


@pytest.mark.parametrize("start", ["at one", "going down", "at zero", "coming up", "without activators"])
def test_an_operator_that_does_not_know_the_activators_yet_changes_nothing(start: str) -> None:
    world = at_zero() if start in ("at zero", "coming up", "without activators") else a_world()
    if start == "going down":
        busy(world)
        scale(world, 0)
    if start == "coming up":
        scale(world, 1)
    if start == "without activators":
        world.activators = ()
    world.settle()
    before = copy.deepcopy(world.children)
    world.activators = None
    decision = world.decide()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.children == before
    wanted = ("True", "Idle") if start == "at zero" else world.condition("Ready")
    world.settle()
    assert world.condition("Ready") == wanted
    assert world.status["holding"]["port"] == 20_000


def test_a_replica_that_stays_since_the_activators_are_not_known_is_reported_after_a_minute() -> None:
    world = a_world()
    busy(world)
    scale(world, 0)
    world.settle()
    world.activators, world.unknown_for = None, SELDOM_AFTER - 1
    assert world.decide().requeue_after == 1.0
    world.settle()
    assert world.condition("Autoscaled") == ("True", "Autoscaling")
    world.unknown_for = SELDOM_AFTER
    world.settle()
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")
    assert "EndpointSlices of their Service cannot be listed" in world.message("Autoscaled")
    assert (made(world), is_held(world)) == (1, True)


# The port


def test_a_stored_port_is_kept_and_one_that_is_none_of_ours_is_not() -> None:
    world = a_world()
    world.claim = PortClaim(31_000)
    world.settle()
    assert world.status["holding"]["port"] == 20_000
    for odd in (80, 40_000, True, "20000", 1.5, None):
        world.obj["status"]["holding"] = {"port": odd}
        world.settle()
        assert world.status["holding"]["port"] == 31_000, odd
