"""Scaling to zero: when the last replica goes, when requests are sent to the activators, and what the status says."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from llmservice_operator.api.holding import Activator, HoldingReport, PortClaim
from llmservice_operator.decide.zero import PATIENCE, SELDOM_AFTER, SELDOM_SECONDS, SPREAD_SECONDS
from llmservice_operator.observe.observed import Refusal
from llmservice_operator.observe.projections.pods import PodFacts

from tests.unit.decide_world import H100, Json, World, a_pod, an_llmservice, serving, spec
from tests.unit.test_decide_autoscaling import READY, SCALING

ONE, TWO = Activator("10.1.0.1", "node-a"), Activator("10.1.0.2")
SIX = Activator("fd00::1", "node-a")
SLICE, SLICE_6 = ("EndpointSlice", "x-activator-ipv4"), ("EndpointSlice", "x-activator-ipv6")
GOOD = HoldingReport(is_listening=True, is_reachable=True)
LISTENING, SILENT = HoldingReport(is_listening=True), HoldingReport()
NO_KEY = HoldingReport(is_listening=True, is_reachable=True, problem="Secret k cannot be read. Grant get on it.")


@functools.cache
def _served(replicas: int) -> World:
    scaling = {"replicas": replicas, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
    world = World(an_llmservice(spec(scaling=scaling)), settings=SCALING, activators=(ONE, TWO))
    world.gpus = serving(H100).gpus
    world.holding = {ONE.address: GOOD, TWO.address: GOOD}
    serve(world)
    world.children["ScaledObject", "x"]["status"] = {"conditions": [READY]}
    world.settle()
    return world


def a_world(replicas: int = 1) -> World:
    """Rolled out, with two activators that can hold."""
    return copy.deepcopy(_served(replicas))


def serve(world: World) -> None:
    world.settle()
    follow(world)
    world.settle()


def follow(world: World, *, ready: bool = True) -> None:
    """The cluster makes as many pods as the Deployment asks for."""
    wanted = world.deployment["spec"]["replicas"]
    world.roll_out(**({} if ready else dict.fromkeys(("updated", "ready", "available"), 0)))
    names = [f"x-{n}" for n in range(wanted)]
    pods = [a_pod(name, world.revision(), ready=ready, address=f"10.2.0.{n}") for n, name in enumerate(names)]
    world.pods = dict(zip(names, pods, strict=True))
    world.in_flight = dict.fromkeys(names, 0)


def scale(world: World, replicas: int) -> None:
    """As KEDA and the activators do, by /scale."""
    world.obj["spec"]["scaling"]["replicas"] = replicas
    world.obj["metadata"]["generation"] += 1


def at_zero() -> World:
    world = a_world()
    scale(world, 0)
    world.settle()
    assert made(world) == 0
    follow(world)
    world.settle()
    return world


def made(world: World) -> int:
    """Replicas of the Deployment."""
    replicas: int = world.deployment["spec"]["replicas"]
    return replicas


def is_held(world: World) -> bool:
    return bool(world.of_kind("EndpointSlice"))


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


def busy(world: World) -> None:
    world.in_flight = {"x-0": 1}


def mute(world: World) -> None:
    world.in_flight = {}


def taken(world: World) -> None:
    owner = {"kind": "App", "name": "a", "uid": "b", "controller": True}
    world.children[SLICE] = a_slice(ownerReferences=[owner])


def refused(world: World) -> None:
    world.refused = {SLICE: Refusal(403, "denied by a policy")}


def a_slice(**metadata: Any) -> Json:
    given = {"name": SLICE[1], "namespace": "team-a", "uid": "theirs", "resourceVersion": "1", "generation": 1}
    return {"kind": "EndpointSlice", "metadata": given | metadata, "addressType": "IPv4", "endpoints": [], "ports": []}


STAYS: dict[str, tuple[Callable[[World], None], bool, str]] = {
    "one does not listen yet": (reporting(SILENT), False, ""),
    "one never listens": (waiting(PATIENCE, reporting(SILENT)), False, "10.1.0.1 does not listen on port 20000"),
    "one has not reached it yet": (reporting(GOOD, LISTENING), True, ""),
    "one never reaches it": (waiting(PATIENCE, reporting(GOOD, LISTENING)), False, "10.1.0.2 is not reached through"),
    "it is tried again": (waiting(SELDOM_AFTER, reporting(GOOD, LISTENING)), True, "10.1.0.2 is not reached through"),
    "no key": (reporting(NO_KEY), False, "Secret k cannot be read. Grant get on it."),
    "the slices are new": (waiting(SPREAD_SECONDS / 2), True, ""),
    "a request is in flight": (busy, True, ""),
    "a request is in flight for long": (waiting(3 * PATIENCE, busy), True, ""),
    "the pod does not answer yet": (mute, True, ""),
    "the pod does not answer": (waiting(PATIENCE, mute), True, "Pod x-0 does not say"),
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


def test_nothing_is_asked_but_while_the_last_replica_is_to_go() -> None:
    for world in (a_world(), a_world(3), at_zero()):
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
    assert world.status["holding"] == {"port": 20_000}
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
    assert world.status["holding"] == {"port": 20_000}


# The port


def test_a_stored_port_is_kept_and_one_that_is_none_of_ours_is_not() -> None:
    world = a_world()
    world.claim = PortClaim(31_000)
    world.settle()
    assert world.status["holding"] == {"port": 20_000}
    for odd in (80, 40_000, True, "20000", 1.5, None):
        world.obj["status"]["holding"] = {"port": odd}
        world.settle()
        assert world.status["holding"] == {"port": 31_000}, odd


# Ends of it


def test_autoscaling_removed_at_zero_leaves_zero_to_the_user() -> None:
    world = at_zero()
    world.edit(scaling={"replicas": 0})
    world.settle()
    assert (made(world), is_held(world)) == (0, False)
    assert world.condition("Ready") == ("True", "ScaledToZero")
    assert "holding" not in world.status
    assert "ScaledObject" not in world.kinds()


def test_a_minimum_of_one_at_zero_is_keda_to_raise() -> None:
    world = at_zero()
    world.edit(scaling={"replicas": 0, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}})
    world.settle()
    assert (made(world), is_held(world)) == (0, False)
    assert world.condition("Autoscaled") == ("False", "ScaledToZero")


def test_an_installation_without_autoscaling_has_no_slices() -> None:
    world = at_zero()
    world.settings = a_world().settings.__class__()
    world.settle()
    assert (made(world), is_held(world)) == (0, False)
    assert world.condition("Autoscaled") == ("False", "AutoscalingDisabled")


def test_paused_takes_the_slices_away_and_changes_nothing_else() -> None:
    world = at_zero()
    world.edit(paused=True)
    world.settle()
    assert (made(world), is_held(world)) == (0, False)
    scale(world, 1)
    world.settle()
    assert made(world) == 0
    world.edit(paused=False)
    world.settle()
    assert (made(world), is_held(world)) == (1, True)


@pytest.mark.parametrize("make", [at_zero, a_world])
def test_an_invalid_spec_and_a_deletion_change_nothing(make: Callable[[], World]) -> None:
    world = make()
    before = copy.deepcopy(world.children)
    world.edit(model={"uri": "nowhere"})
    world.settle()
    assert world.children == before
    assert world.status["holding"] == {"port": 20_000}
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert world.decide().is_steady


def test_a_held_edit_goes_to_zero_and_comes_back_as_it_serves() -> None:
    world = a_world()
    world.edit(batching={"maxModelLen": 2**21}, precision={"weights": "float32"}, fitPolicy="Enforce")
    world.settle()
    assert world.condition("Ready") == ("False", "DoesNotFit")
    scale(world, 0)
    world.settle()
    assert (made(world), is_held(world)) == (0, True)
    follow(world)
    scale(world, 1)
    world.settle()
    assert made(world) == 1
    follow(world)
    world.settle()
    assert not is_held(world)


def test_an_edit_at_zero_starts_nothing() -> None:
    world = at_zero()
    before = world.revision()
    world.edit(batching={"maxNumSeqs": 8})
    world.settle()
    follow(world)
    world.settle()
    assert world.revision() != before
    assert (made(world), is_held(world)) == (0, True)
    assert world.condition("Ready") == ("True", "Idle")


def test_somebody_elses_slice_at_zero_brings_a_replica() -> None:
    world = at_zero()
    taken(world)
    theirs = world.children[SLICE]
    world.settle()
    assert made(world) == 1
    assert world.children[SLICE] is theirs
    assert world.condition("Accepted") == ("True", "Valid")
    assert world.condition("Autoscaled") == ("False", "HoldingUnavailable")


def test_a_slice_that_was_deleted_or_changed_is_made_again_without_a_replica() -> None:
    world = at_zero()
    del world.children[SLICE]
    world.settle()
    assert (made(world), is_held(world)) == (0, True)
    world.children[SLICE]["endpoints"] = []
    world.settle()
    assert (made(world), len(world.children[SLICE]["endpoints"])) == (0, 2)


# Whatever happens, in whatever order

STEPS = some.one_of(
    some.tuples(some.just("scale"), some.sampled_from([0, 1, 2])),
    some.tuples(some.just("pods"), some.booleans()),
    some.tuples(some.just("activators"), some.sampled_from([None, (), (ONE,), (ONE, TWO), (TWO, SIX)])),
    some.tuples(some.just("reports"), some.sampled_from([GOOD, GOOD, LISTENING, SILENT, NO_KEY])),
    some.tuples(some.just("requests"), some.sampled_from([0, 0, 1, None])),
    some.tuples(some.just("time"), some.sampled_from([0.0, 5.0, 15.0, 65.0])),
    some.tuples(some.just("slice"), some.sampled_from(["deleted", "refused", "taken"])),
)


def act(world: World, what: str, value: Any) -> None:
    if what == "scale":
        scale(world, value)
    elif what == "pods":
        follow(world, ready=value)
    elif what == "activators":
        world.activators = value
    elif what == "reports":
        world.holding = dict.fromkeys((ONE.address, TWO.address, SIX.address), value)
    elif what == "requests":
        world.in_flight = {} if value is None else dict.fromkeys(world.pods, value)
    elif what == "time":
        world.asked_for = value
    elif value == "refused":
        world.refused = {} if world.refused else {SLICE: Refusal(500, "a webhook is away")}
    elif value == "taken" and SLICE not in world.children:
        taken(world)
    elif value == "deleted":
        world.children.pop(SLICE, None)


def is_proven(world: World) -> bool:
    """By the table of the module, told in another way."""
    asked = [each.address for each in world.activators or () if each != SIX or world.activators == (SIX,)]
    reports = [world.holding.get(address) == GOOD for address in asked]
    pods = [PodFacts.from_object(pod) for pod in world.pods.values()]
    counts = [world.in_flight.get(pod.name) == 0 for pod in pods if pod.ready]
    slices = {name for kind, name in world.children if kind == "EndpointSlice"}
    is_spread = world.asked_for >= SPREAD_SECONDS
    return bool(asked) and all(reports) and all(counts) and bool(slices) and is_spread and not is_taken(world)


@settings(max_examples=80, deadline=None)
@given(some.lists(STEPS, max_size=14))
def test_no_order_of_events_loses_the_last_replica_or_keeps_the_activators_in_the_path(steps: list[Any]) -> None:
    world = a_world()
    for what, value in steps:
        act(world, what, value)
        for _ in range(6):
            before, proven = made(world), is_proven(world)
            decision = world.step()
            assert made(world) >= min(before, 1) or proven, "the last replica went without proof"
            if decision.is_steady:
                break
        else:
            raise AssertionError(f"never steady: {world.decide()}")
        check_settled(world)


def check_settled(world: World) -> None:
    """What holds between two events, whatever came before."""
    asked = world.obj["spec"]["scaling"]["replicas"]
    ours = [each for each in world.of_kind("EndpointSlice") if not is_theirs(each)]
    if asked and world.endpoints() and world.activators is not None:
        assert not ours, "a replica that is to stay is listed, and so are the activators"
    if world.activators and asked and not world.endpoints() and not (world.refused or is_taken(world)):
        assert ours, "no replica is listed, and no activator"
    if world.activators and not asked and not made(world):
        assert ours, "neither pods nor activators"
    if asked:
        assert made(world) == asked
    elif world.activators and world.endpoints() and made(world):
        asks = [world.holding.get(each.address, SILENT) for each in world.activators if not each.is_ipv6]
        assert not ours or all(each.is_listening and not each.problem for each in asks), "an activator cannot hold"


def is_taken(world: World) -> bool:
    return SLICE in world.children and is_theirs(world.children[SLICE])


def is_theirs(child: Json) -> bool:
    return bool(child["metadata"]["ownerReferences"][0]["kind"] == "App")
