"""The conditions of each state: Ready only where every replica answers, Stalled only where it lasts."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from llmservice_operator.api.status import LLMServiceStatus

from tests.unit.decide_world import World, a_pod
from tests.unit.status_states import CASES, ENDED, OLD, edited, served, service, state

Json = dict[str, Any]
TYPES = ("Available", "Ready", "Reconciling", "Stalled")


def true(conditions: dict[str, Json]) -> set[str]:
    return {type_ for type_ in TYPES if conditions.get(type_, {}).get("status") == "True"}


@pytest.mark.parametrize("name", CASES)
def test_the_conditions_of_each_state(name: str) -> None:
    case, world = CASES[name], state(name)
    conditions = world.conditions()
    assert (true(conditions), conditions["Ready"]["reason"]) == (set(case.true), case.reason)
    assert {"Available", "Ready"} <= set(conditions), "reported in every state"
    assert {conditions[type_]["status"] for type_ in ("Reconciling", "Stalled") if type_ in conditions} <= {"True"}


@pytest.mark.parametrize("name", CASES)
def test_every_state_is_reported_by_the_conventions(name: str) -> None:
    obj = state(name).obj
    status, generation = obj["status"], obj["metadata"]["generation"]
    assert status["observedGeneration"] == generation
    assert {c["observedGeneration"] for c in status["conditions"]} == {generation}
    types = [c["type"] for c in status["conditions"]]
    assert len(types) == len(set(types))
    assert all(c["reason"] and c["message"] and c["lastTransitionTime"] for c in status["conditions"])
    kept = LLMServiceStatus.model_validate(status).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert kept == json.loads(json.dumps(status)), "the CRD drops nothing of it"
    if (failure := status.get("failure")) is not None:
        ready = state(name).conditions()["Ready"]
        assert (ready["status"], ready["reason"]) == ("False", failure["reason"])
        assert all(failure[field] for field in ("message", "remedy", "since", "evidence")), failure


def test_a_slow_start_reports_its_phase_and_the_usual_time() -> None:
    message = state("starting slowly").conditions()["Ready"]["message"]
    assert "vLLM is loading the model." in message
    assert "about 83 s" in message


def test_an_overdue_rollout_reports_its_phase_and_what_serves() -> None:
    alone, serving = (state(name).obj["status"]["failure"] for name in ("overdue", "overdue while the old pod serves"))
    assert "The model is being fetched or loaded. Nothing serves." in alone["message"]
    assert "What served before goes on." in serving["message"]
    assert alone["evidence"] == ["Deployment: timed out", "The model is being fetched or loaded."]


def test_pods_without_endpoints_are_named() -> None:
    status = state("one of two without endpoint").obj["status"]
    assert (status["ready"], status["readyReplicas"], status["failure"]["reason"]) == ("1/2", 1, "NoEndpoints")
    assert "no request reaches them: x-1." in status["failure"]["message"]
    assert status["failure"]["evidence"] == ["Pod x-1: Ready, in no EndpointSlice of the Service"]
    assert "failedRevision" not in status["rollout"], "the revision is as good as before"


def test_a_service_that_is_not_yet_created_is_no_failure_of_its_endpoints() -> None:
    assert "failure" not in state("the Service cannot be made yet").obj["status"]


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
    """Any combination that the watches may show, also impossible ones."""
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


@hypothesis_settings(max_examples=50)
@given(facts=FACTS)
def test_conditions_do_not_contradict_each_other(facts: Json) -> None:
    world = world_of(facts)
    world.settle()
    conditions = world.conditions()
    found = true(conditions)
    assert not {"Reconciling", "Stalled"} <= found
    if "Ready" in found:
        assert not found & {"Reconciling", "Stalled"}
        assert "Available" in found or facts["wanted"] == 0
        assert not facts["invalid"]
    is_listed = {name for name in world.pods if facts["is_blind"] or name not in facts["unlisted"]}
    reached = [name for name, pod in world.pods.items() if name in is_listed and is_ready(pod)]
    assert ("Available" in found) == bool(reached)
    if "Ready" in found:
        assert len(reached) == facts["wanted"]
        assert all(name.startswith("new") for name in reached), reached
    world.now += timedelta(hours=1)
    world.settle()  # what is tried on for ten minutes is Stalled by now
    assert not {"Reconciling", "Stalled"} <= true(world.conditions())
    world.now += timedelta(hours=1)
    assert world.decide().is_steady, "the same facts are written once"


def is_ready(pod: Json) -> bool:
    return pod["status"]["conditions"][-1]["status"] == "True" and "deletionTimestamp" not in pod["metadata"]
