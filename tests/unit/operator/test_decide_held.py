"""While an edit is held back, what serves is kept up: scaled, repaired and reachable, and never restarted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.decide_world import H100, World, a_world, serving

Json = dict[str, Any]

TOO_LARGE: Json = {"precision": {"weights": "float32"}, "batching": {"maxModelLen": 2**21}}
UNKNOWN_MODEL: Json = {"model": {"uri": "hf://Qwen/Qwen3-8B"}}
CONFIG = ("ConfigMap", "x-adapters")

HOLDS = [
    pytest.param("DoesNotFit", TOO_LARGE, id="does not fit"),
    pytest.param("InspectingModel", UNKNOWN_MODEL, id="the model is inspected"),
]


HELD = pytest.mark.parametrize(("reason", "edit"), HOLDS)


def held(edit: Json, reason: str, **sections: Any) -> World:
    """A service that serves, with an edit that is held."""
    world = serving(H100, **sections)
    hold(world, edit, reason)
    return world


def hold(world: World, edit: Json, reason: str) -> None:
    if reason == "InspectingModel":
        world.sibling_model = {}
    world.change(**edit)
    assert (world.condition("Ready"), world.condition("Fits")[1]) == (("False", reason), reason)


def without_jobs(world: World) -> dict[tuple[str, str], Json]:
    return {where: child for where, child in copy.deepcopy(world.children).items() if where[0] != "Job"}


def delete_budget(world: World) -> None:
    delete(world, "PodDisruptionBudget")


def drift(world: World) -> None:
    """What a user with kubectl does; API servers keep such a change, whoever manages the field."""
    (server,) = world.template["spec"]["containers"]
    server["image"] = "registry.example/other:1"


def delete(world: World, kind: str = "Service") -> None:
    del world.children[kind, "x"]


def editing(**sections: Any) -> Callable[[World], None]:
    return lambda world: world.edit(**sections)


def scale(replicas: int) -> Callable[[World], None]:
    return editing(scaling={"replicas": replicas})


REPAIRS = [
    # replicas before; what happens; the kinds that are applied; the kinds that are deleted; replicas afterwards
    pytest.param(1, scale(3), {"Deployment", "PodDisruptionBudget"}, set(), 3, id="scaled out"),
    pytest.param(3, scale(1), {"Deployment"}, {"PodDisruptionBudget"}, 1, id="scaled in"),
    pytest.param(3, scale(0), {"Deployment"}, {"PodDisruptionBudget"}, 0, id="scaled to zero"),
    pytest.param(1, delete, {"Service"}, set(), 1, id="the Service is deleted"),
    pytest.param(
        3,
        delete_budget,
        {"PodDisruptionBudget"},
        set(),
        3,
        id="the budget is deleted",
    ),
    pytest.param(1, drift, {"Deployment"}, set(), 1, id="the Deployment drifts"),
    pytest.param(1, editing(endpoint={"port": 8080}), {"Service"}, set(), 1, id="another port"),
    pytest.param(1, editing(rollout={"strategy": "Recreate"}), {"Deployment"}, set(), 1, id="another strategy"),
]


@HELD
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
    template, records = copy.deepcopy(world.template), copy.deepcopy(world.of_kind("ControllerRevision"))
    happens(world)
    decision = world.step()
    assert {apply.kind for apply in decision.apply} == applied
    assert {prune.kind for prune in decision.prune} == pruned
    world.settle()
    assert world.deployment["spec"]["replicas"] == after
    assert world.template == template
    assert world.of_kind("ControllerRevision") == records
    assert ("PodDisruptionBudget" in world.kinds()) is (after > 1)
    assert world.condition("Ready")[1] == reason


@HELD
def test_a_scale_with_the_edit_itself_is_carried_out(reason: str, edit: Json) -> None:
    world = held(edit | {"scaling": {"replicas": 3}}, reason)
    assert (world.deployment["spec"]["replicas"], len(world.of_kind("ControllerRevision"))) == (3, 1)
    assert world.status["ready"] == "1/3"


@HELD
def test_another_port_is_used_and_other_names_wait(reason: str, edit: Json) -> None:
    world = serving(H100)
    names = world.status["endpoint"]["modelNames"]
    model = {"uri": world.obj["spec"]["model"]["uri"]} | edit.get("model", {}) | {"servedModelNames": ["other"]}
    hold(world, edit | {"model": model, "endpoint": {"port": 8080}}, reason)
    assert world.children["Service", "x"]["spec"]["ports"][0]["port"] == 8080
    assert world.status["endpoint"] == {"url": "http://x.team-a.svc:8080/v1", "modelNames": names}


@HELD
def test_before_the_first_start_nothing_is_made(reason: str, edit: Json) -> None:
    world = a_world(H100)
    hold(world, edit | {"scaling": {"replicas": 3}}, reason)
    assert world.kinds() <= {"Job"}


def foreign(world: World) -> None:
    world.deployment["metadata"]["ownerReferences"][0] |= {"kind": "Other", "name": "other", "uid": "another"}


def leaving(world: World) -> None:
    world.deployment["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"


@HELD
@pytest.mark.parametrize("happens", [foreign, leaving, editing(paused=True)], ids=["foreign", "leaving", "paused"])
def test_nothing_is_touched(happens: Callable[[World], None], reason: str, edit: Json) -> None:
    world = held(edit, reason)
    happens(world)
    scale(3)(world)
    delete(world)
    before = without_jobs(world)
    decision = world.step()
    changes: list[Any] = [*decision.apply, *decision.prune]
    assert {change.kind for change in changes} <= {"Job"}
    assert without_jobs(world) == before


@HELD
def test_somebody_elses_service_is_reported(reason: str, edit: Json) -> None:
    world = held(edit, reason)
    world.children["Service", "x"]["metadata"]["ownerReferences"][0] |= {"kind": "Other", "uid": "another"}
    decision = world.step()
    assert decision.apply == ()
    assert world.condition("Ready")[1] == "NameConflict"


@HELD
def test_without_its_record_the_deployment_stays_as_it_is(reason: str, edit: Json) -> None:
    world = held(edit, reason)
    for where in [where for where in world.children if where[0] == "ControllerRevision"]:
        del world.children[where]
    delete(world)
    drift(world)
    assert {apply.kind for apply in world.decide().apply} == {"Service"}


@HELD
@pytest.mark.parametrize("change", [{"adapters": []}, {"adapters": [{"name": "b", "uri": "hf://a/b"}]}])
def test_the_list_of_adapters_waits_with_the_edit(change: Json, reason: str, edit: Json) -> None:
    world = serving(H100, adapters=[{"name": "a", "uri": "hf://a/b"}])
    before = copy.deepcopy(world.children)
    hold(world, edit | change, reason)
    assert without_jobs(world) == before
    world.change(precision={}, batching={}, model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct"}, fitPolicy="Ignore")
    assert (CONFIG in world.children) is bool(change["adapters"])
    assert world.children.get(CONFIG) != before[CONFIG]


FAILED = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
AFTER_A_FAILURE = [
    # the edit after a rollout that failed; its reason; the condition beside Ready
    pytest.param(UNKNOWN_MODEL, "InspectingModel", "Reconciling", id="the model is inspected"),
    pytest.param(TOO_LARGE, "DoesNotFit", "Stalled", id="does not fit"),
    pytest.param({"batching": {"maxNumSeqs": 8}}, "Progressing", "Reconciling", id="starts"),
]


@pytest.mark.parametrize(("edit", "reason", "type_"), AFTER_A_FAILURE)
def test_the_edit_after_a_failed_rollout_is_reported_by_itself(edit: Json, reason: str, type_: str) -> None:
    world = a_world(H100)
    world.settle()
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    world.deployment["status"]["conditions"] = [FAILED]
    world.settle()
    assert world.condition("Stalled")[1] == "ProgressDeadlineExceeded"
    if reason == "InspectingModel":
        world.sibling_model = {}
    world.change(**edit)
    conditions = world.conditions()
    assert (conditions[type_]["reason"], conditions[type_]["observedGeneration"]) == (reason, 2)
    assert len({"Stalled", "Reconciling"} & set(conditions)) == 1


INVALID: Json = {"runtime": {"extraArgs": ["--no-such-flag"]}, "paused": False}


@pytest.mark.parametrize("between", [[], [{"paused": True}], [{"paused": True}, INVALID]], ids=len)
def test_an_edit_that_is_taken_back_leaves_no_verdict_behind(between: list[Json]) -> None:
    """At once, or after it was paused, or refused."""
    world = serving(H100)
    # These facts are no part of a revision: it is planned again, and only the status has that plan.
    world.change(model=world.obj["spec"]["model"] | {"architecture": {"numHiddenLayers": 27}})
    before = copy.deepcopy(world.obj["spec"]), world.plan, world.condition("Fits"), without_jobs(world)
    hold(world, TOO_LARGE, "DoesNotFit")
    assert world.plan != before[1]
    for edit in between:
        world.change(**edit)
    assert (world.condition("Accepted")[0] == "False") is (INVALID in between)
    world.obj["spec"] = before[0]
    world.change()
    assert world.condition("Fits") == before[2] == ("True", "Fits")
    assert world.plan == before[1]
    assert world.condition("Ready")[0] == "True"
    assert without_jobs(world) == before[3]


def test_what_serves_keeps_its_plan_and_model_while_another_is_inspected() -> None:
    world = serving(H100)
    before = {key: world.status[key] for key in ("plan", "model")}
    hold(world, UNKNOWN_MODEL, "InspectingModel")
    scale(2)(world)
    world.settle()
    assert {key: world.status.get(key) for key in before} == before


def test_the_plan_of_an_edit_that_is_held_is_not_reported_for_the_revision_that_serves() -> None:
    world = held(TOO_LARGE, "DoesNotFit")
    hold(world, UNKNOWN_MODEL | {"precision": {}, "batching": {}}, "InspectingModel")
    assert "plan" not in world.status
