"""While an edit is held back, what serves is kept up: scaled, repaired and reachable, and never restarted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.decide_world import World
from tests.unit.fit_world import H100, a_world, fits, kinds, plan, serving

Json = dict[str, Any]

TOO_LARGE: Json = {"precision": {"weights": "float32"}, "batching": {"maxModelLen": 2**21}}
UNKNOWN_MODEL: Json = {"model": {"uri": "hf://Qwen/Qwen3-8B"}}
CONFIG = ("ConfigMap", "x-adapters")

HOLDS = [
    pytest.param("DoesNotFit", TOO_LARGE, id="does not fit"),
    pytest.param("InspectingModel", UNKNOWN_MODEL, id="the model is looked at"),
]


def held(edit: Json, reason: str, **sections: Any) -> World:
    """A service that serves, with an edit that is held."""
    world = serving(H100, **sections)
    hold(world, edit, reason)
    return world


def hold(world: World, edit: Json, reason: str) -> None:
    if reason == "InspectingModel":
        world.lent = {}
    world.edit(**edit)
    world.settle()
    ready = world.conditions()["Ready"]
    assert (ready["status"], ready["reason"], fits(world)[1]) == ("False", reason, reason)


def recorded(world: World) -> list[Json]:
    return [child for (kind, _), child in world.children.items() if kind == "ControllerRevision"]


def drift(world: World) -> None:
    """What a user with kubectl does; API servers keep such a change, whoever manages the field."""
    (server,) = world.deployment["spec"]["template"]["spec"]["containers"]
    server["image"] = "registry.example/other:1"


def scale(replicas: int) -> Callable[[World], None]:
    return lambda world: world.edit(scaling={"replicas": replicas})


def delete(kind: str) -> Callable[[World], None]:
    def away(world: World) -> None:
        del world.children[kind, "x"]

    return away


def port(world: World) -> None:
    world.edit(endpoint={"port": 8080})


def strategy(world: World) -> None:
    world.edit(rollout={"strategy": "Recreate"})


REPAIRS = [
    # replicas before; what happens; the kinds that are applied; the kinds that are deleted; replicas afterwards
    pytest.param(1, scale(3), {"Deployment", "PodDisruptionBudget"}, set(), 3, id="scaled out"),
    pytest.param(3, scale(1), {"Deployment"}, {"PodDisruptionBudget"}, 1, id="scaled in"),
    pytest.param(3, scale(0), {"Deployment"}, {"PodDisruptionBudget"}, 0, id="scaled to zero"),
    pytest.param(1, delete("Service"), {"Service"}, set(), 1, id="the Service is deleted"),
    pytest.param(3, delete("PodDisruptionBudget"), {"PodDisruptionBudget"}, set(), 3, id="the budget is deleted"),
    pytest.param(1, drift, {"Deployment"}, set(), 1, id="the Deployment drifts"),
    pytest.param(1, port, {"Service"}, set(), 1, id="another port"),
    pytest.param(1, strategy, {"Deployment"}, set(), 1, id="another strategy"),
]


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
@pytest.mark.parametrize(("before", "happens", "applied", "pruned", "after"), REPAIRS)
def test_what_serves_is_kept_up(
    before: int,
    happens: Callable[[World], None],
    applied: set[str],
    pruned: set[str],
    after: int,
    reason: str,
    edit: Json,
) -> None:
    world = held(edit, reason, scaling={"replicas": before})
    template, records = copy.deepcopy(world.deployment["spec"]["template"]), copy.deepcopy(recorded(world))
    happens(world)
    decision = world.step()
    assert {apply.kind for apply in decision.apply} == applied
    assert {prune.kind for prune in decision.prune} == pruned
    world.settle()
    assert world.deployment["spec"]["replicas"] == after
    assert world.deployment["spec"]["template"] == template
    assert recorded(world) == records
    assert ("PodDisruptionBudget" in kinds(world)) is (after > 1)
    assert world.conditions()["Ready"]["reason"] == reason


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
def test_a_scale_with_the_edit_itself_is_carried_out(reason: str, edit: Json) -> None:
    world = held(edit | {"scaling": {"replicas": 3}}, reason)
    assert (world.deployment["spec"]["replicas"], len(recorded(world))) == (3, 1)
    assert world.obj["status"]["ready"] == "1/3"


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
def test_another_port_is_told_and_other_names_wait(reason: str, edit: Json) -> None:
    world = serving(H100)
    names = world.obj["status"]["endpoint"]["modelNames"]
    model = {"uri": world.obj["spec"]["model"]["uri"]} | edit.get("model", {}) | {"servedModelNames": ["other"]}
    hold(world, edit | {"model": model, "endpoint": {"port": 8080}}, reason)
    assert world.children["Service", "x"]["spec"]["ports"][0]["port"] == 8080
    assert world.obj["status"]["endpoint"] == {"url": "http://x.team-a.svc:8080/v1", "modelNames": names}


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
def test_before_the_first_start_nothing_is_made(reason: str, edit: Json) -> None:
    world = a_world(H100)
    hold(world, edit | {"scaling": {"replicas": 3}}, reason)
    assert kinds(world) <= {"Job"}


def foreign(world: World) -> None:
    world.deployment["metadata"]["ownerReferences"][0] |= {"kind": "Other", "name": "other", "uid": "another"}


def leaving(world: World) -> None:
    world.deployment["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"


def paused(world: World) -> None:
    world.edit(paused=True)


LEFT_ALONE = [
    pytest.param(foreign, id="somebody else's Deployment"),
    pytest.param(leaving, id="a Deployment on its way out"),
    pytest.param(paused, id="paused"),
]


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
@pytest.mark.parametrize("happens", LEFT_ALONE)
def test_nothing_is_touched(happens: Callable[[World], None], reason: str, edit: Json) -> None:
    world = held(edit, reason)
    happens(world)
    scale(3)(world)
    delete("Service")(world)
    before = copy.deepcopy(world.children)
    decision = world.step()
    assert not {apply.kind for apply in decision.apply} - {"Job"}
    assert not {prune.kind for prune in decision.prune} - {"Job"}
    assert {where: child for where, child in world.children.items() if where[0] != "Job"} == {
        where: child for where, child in before.items() if where[0] != "Job"
    }


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
def test_somebody_elses_service_is_told(reason: str, edit: Json) -> None:
    world = held(edit, reason)
    world.children["Service", "x"]["metadata"]["ownerReferences"][0] |= {"kind": "Other", "uid": "another"}
    decision = world.step()
    assert decision.apply == ()
    assert world.conditions()["Ready"]["reason"] == "NameConflict"


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
def test_without_its_record_the_deployment_stays_as_it_is(reason: str, edit: Json) -> None:
    world = held(edit, reason)
    for where in [where for where in world.children if where[0] == "ControllerRevision"]:
        del world.children[where]
    delete("Service")(world)
    drift(world)
    assert {apply.kind for apply in world.decide().apply} == {"Service"}


@pytest.mark.parametrize(("reason", "edit"), HOLDS)
@pytest.mark.parametrize("change", [{"adapters": []}, {"adapters": [{"name": "b", "uri": "hf://a/b"}]}])
def test_the_list_of_adapters_waits_with_the_edit(change: Json, reason: str, edit: Json) -> None:
    world = serving(H100, adapters=[{"name": "a", "uri": "hf://a/b"}])
    before = copy.deepcopy(world.children)
    hold(world, edit | change, reason)
    assert {where: child for where, child in world.children.items() if where[0] != "Job"} == before
    world.edit(precision={}, batching={}, model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct"}, fitPolicy="Ignore")
    world.settle()
    assert (CONFIG in world.children) is bool(change["adapters"])
    assert world.children.get(CONFIG) != before[CONFIG]


FAILED = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
AFTER_A_FAILURE = [
    # the edit after a rollout that failed; its reason; the condition beside Ready
    pytest.param(UNKNOWN_MODEL, "InspectingModel", "Reconciling", id="the model is looked at"),
    pytest.param(TOO_LARGE, "DoesNotFit", "Stalled", id="does not fit"),
    pytest.param({"batching": {"maxNumSeqs": 8}}, "Progressing", "Reconciling", id="starts"),
]


@pytest.mark.parametrize(("edit", "reason", "type_"), AFTER_A_FAILURE)
def test_the_edit_after_a_failed_rollout_is_told_by_itself(edit: Json, reason: str, type_: str) -> None:
    world = a_world(H100)
    world.settle()
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    world.deployment["status"]["conditions"] = [FAILED]
    world.settle()
    assert world.conditions()["Stalled"]["reason"] == "ProgressDeadlineExceeded"
    if reason == "InspectingModel":
        world.lent = {}
    world.edit(**edit)
    world.settle()
    conditions = world.conditions()
    assert (conditions[type_]["reason"], conditions[type_]["observedGeneration"]) == (reason, 2)
    assert len({"Stalled", "Reconciling"} & set(conditions)) == 1


INVALID: Json = {"runtime": {"extraArgs": ["--no-such-flag"]}, "paused": False}
BETWEEN: list[Any] = [
    # what happens between the edit that is held and its revert
    pytest.param([], id="at once"),
    pytest.param([{"paused": True}], id="paused"),
    pytest.param([INVALID], id="refused"),
    pytest.param([{"paused": True}, INVALID], id="paused and refused"),
]


@pytest.mark.parametrize("between", BETWEEN)
def test_an_edit_that_is_taken_back_leaves_no_verdict_behind(between: list[Json]) -> None:
    world = serving(H100)
    # These facts are no part of a revision: it is planned again, and only the status has that plan.
    world.edit(model=world.obj["spec"]["model"] | {"architecture": {"numHiddenLayers": 27}})
    world.settle()
    before = copy.deepcopy(world.obj["spec"]), plan(world), fits(world), copy.deepcopy(world.children)
    hold(world, TOO_LARGE, "DoesNotFit")
    assert plan(world) != before[1]
    for edit in between:
        world.edit(**edit)
        world.settle()
    assert (world.conditions()["Accepted"]["status"] == "False") is (INVALID in between)
    world.obj["spec"] = before[0]
    world.edit()
    world.settle()
    assert fits(world) == before[2] == ("True", "Fits")
    assert plan(world) == before[1]
    assert world.conditions()["Ready"]["status"] == "True"
    assert {kind: child for kind, child in world.children.items() if kind[0] != "Job"} == before[3]


def test_what_serves_keeps_its_plan_and_model_while_another_is_looked_at() -> None:
    world = serving(H100)
    before = {key: world.obj["status"][key] for key in ("plan", "model")}
    hold(world, UNKNOWN_MODEL, "InspectingModel")
    scale(2)(world)
    world.settle()
    assert {key: world.obj["status"].get(key) for key in before} == before


def test_the_plan_of_an_edit_that_is_held_is_not_told_of_the_revision_that_serves() -> None:
    world = held(TOO_LARGE, "DoesNotFit")
    hold(world, UNKNOWN_MODEL | {"precision": {}, "batching": {}}, "InspectingModel")
    assert "plan" not in world.obj["status"]
