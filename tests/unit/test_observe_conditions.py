"""Each state of the world has its conditions: nothing says Ready that does not answer, nor that all is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from llmservice_operator.api.status import LLMServiceStatus

from tests.unit.decide_world import World, a_pod
from tests.unit.status_states import CASES, ENDED, OLD, Case, edited, served, service

Json = dict[str, Any]
SAID = ("Available", "Ready", "Reconciling", "Stalled")


def true(conditions: dict[str, Json]) -> set[str]:
    return {type_ for type_ in SAID if conditions.get(type_, {}).get("status") == "True"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_conditions_of_each_state(case: Case) -> None:
    world = case.make()
    conditions = world.conditions()
    assert (true(conditions), conditions["Ready"]["reason"]) == (set(case.true), case.reason)
    assert {"Available", "Ready"} <= set(conditions), "told in every state"
    assert {conditions[type_]["status"] for type_ in ("Reconciling", "Stalled") if type_ in conditions} <= {"True"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_state_is_reported_by_the_conventions(case: Case) -> None:
    obj = case.make().obj
    status, generation = obj["status"], obj["metadata"]["generation"]
    assert status["observedGeneration"] == generation
    assert {c["observedGeneration"] for c in status["conditions"]} == {generation}
    types = [c["type"] for c in status["conditions"]]
    assert len(types) == len(set(types))
    assert all(c["reason"] and c["message"] and c["lastTransitionTime"] for c in status["conditions"])
    kept = LLMServiceStatus.model_validate(status).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert kept == json.loads(json.dumps(status)), "the CRD drops nothing of it"


def test_what_is_slow_is_reported_with_what_it_does_and_how_long_it_takes() -> None:
    ready = CASES["starting slowly"].make().conditions()["Ready"]
    assert "vLLM is loading the model." in ready["message"]
    assert "about 83 s" in ready["message"]


def test_what_stands_still_says_where_and_what_serves() -> None:
    alone, beside = (
        CASES["overdue"].make().obj["status"],
        CASES["overdue while the old pod serves"].make().obj["status"],
    )
    assert alone["failure"]["reason"] == beside["failure"]["reason"] == "ProgressDeadlineExceeded"
    assert "The model is being fetched or loaded. Nothing serves." in alone["failure"]["message"]
    assert "What served before goes on." in beside["failure"]["message"]
    assert alone["failure"]["evidence"] == ["Deployment: timed out", "The model is being fetched or loaded."]


def test_pods_without_endpoints_are_named() -> None:
    status = CASES["one of two without endpoint"].make().obj["status"]
    assert (status["ready"], status["readyReplicas"], status["failure"]["reason"]) == ("1/2", 1, "NoEndpoints")
    assert "no request reaches them: x-1." in status["failure"]["message"]
    assert status["failure"]["evidence"] == ["Pod x-1: Ready, in no EndpointSlice of the Service"]
    assert "failedRevision" not in status["rollout"], "the revision is as good as before"


def test_a_service_that_is_yet_to_be_made_is_no_failure_of_its_endpoints() -> None:
    assert "failure" not in CASES["the Service cannot be made yet"].make().obj["status"]


A_POD = st.fixed_dictionaries(
    {
        "ready": st.booleans(),
        "deleting": st.booleans(),
        "scheduled": st.booleans(),
        "state": st.sampled_from([None, {"terminated": ENDED}, {"waiting": {"reason": "ImagePullBackOff"}}]),
        "restarts": st.integers(0, 4),
    }
)
FACTS = st.fixed_dictionaries(
    {
        "new": st.lists(A_POD, max_size=3),
        "old": st.lists(A_POD, max_size=2),
        "unlisted": st.sets(st.sampled_from(["new-0", "new-1", "old-0"])),
        "counts": st.tuples(*[st.integers(0, 3)] * 4),
        "lag": st.booleans(),
        "late": st.booleans(),
        "wanted": st.integers(0, 3),
        "paused": st.booleans(),
        "invalid": st.booleans(),
        "is_blind": st.booleans(),
        "is_served": st.booleans(),
        "is_edited": st.booleans(),
    }
)


def world_of(facts: Json) -> World:
    """Whatever the watches may show, also what cannot be."""
    world = (served if facts["is_served"] else service)(max(1, facts["wanted"]))
    if facts["is_edited"]:
        edited(world)
    world.edit(scaling={"replicas": facts["wanted"]})
    world.settle()
    new, old = world.revision(), OLD
    world.pods = {f"new-{n}": a_pod(f"new-{n}", new, **pod) for n, pod in enumerate(facts["new"])}
    world.pods |= {f"old-{n}": a_pod(f"old-{n}", old, **pod) for n, pod in enumerate(facts["old"])}
    world.roll_out(**dict(zip(("replicas", "updated", "ready", "available"), facts["counts"], strict=True)))
    if facts["lag"]:
        world.deployment["status"]["observedGeneration"] -= 1
    if facts["late"]:
        late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        world.deployment["status"]["conditions"] = [late]
    world.unlisted, world.is_blind = facts["unlisted"], facts["is_blind"]
    if facts["paused"]:
        world.edit(paused=True)
    if facts["invalid"]:
        world.edit(runtime={"extraArgs": ["--no-such-flag"]})
    return world


@hypothesis_settings(max_examples=150)
@given(facts=FACTS)
def test_whatever_is_seen_the_conditions_do_not_contradict_each_other(facts: Json) -> None:
    world = world_of(facts)
    world.settle()
    conditions = world.conditions()
    said = true(conditions)
    assert not {"Reconciling", "Stalled"} <= said
    if "Ready" in said:
        assert not said & {"Reconciling", "Stalled"}
        assert "Available" in said or facts["wanted"] == 0
        assert not facts["invalid"]
    reached = [
        name
        for name, pod in world.pods.items()
        if a_ready(pod) and (facts["is_blind"] or name not in facts["unlisted"])
    ]
    assert ("Available" in said) == bool(reached)
    if "Ready" in said:
        assert len(reached) == facts["wanted"]
        assert all(name.startswith("new") for name in reached), reached
    first = json.dumps(world.obj["status"])
    assert world.decide().is_steady, "the same facts are told once"
    assert json.dumps(world.obj["status"]) == first


def a_ready(pod: Json) -> bool:
    is_ready = pod["status"]["conditions"][-1]["status"] == "True"
    return is_ready and "deletionTimestamp" not in pod["metadata"]
