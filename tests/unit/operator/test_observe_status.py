"""What the status shows, its conditions in each state, and that it is written again only where something changed."""

from __future__ import annotations

import copy
import json
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from llmservice_api.lifecycle import MOST_CONCURRENCY, Autoscaling
from llmservice_api.status import LLMServiceStatus
from llmservice_operator.service.status import concurrency_of, effective_scaling, is_stored

from tests.unit.decide_world import H100, World, a_pod, serving
from tests.unit.status_states import CASES, ENDED, OLD, edited, served, service, state, with_pods

Json = dict[str, Any]

NO_GPU = (
    "0/{nodes} nodes are available: {a} Insufficient nvidia.com/gpu, {b} node(s) had untolerated taint "
    "{{a: b, c}}. preemption: 0/{nodes} nodes are available: {a} No preemption victims found for incoming pod."
)


def with_pod(**pod: Any) -> World:
    world = service()
    return with_pods(world, a_pod("x-0", world.revision(), **pod))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("unschedulable", "Insufficient nvidia.com/gpu; node(s) had untolerated taint {a: b, c}"),
        ("crash loop", "Too small"),
        ("the supervisor was killed", "exit code 3"),
        ("it was killed again and again", "exit code 3"),
    ],
)
def test_the_cause_is_in_the_condition(case: str, message: str) -> None:
    assert message in CASES[case].make().conditions()["Ready"]["message"]


def test_the_runtimes_report_is_the_failure() -> None:
    assert with_pod(state={"terminated": ENDED}).obj["status"]["failure"] == {
        "reason": "KVCacheTooSmall",
        "message": "Too small.",
        "remedy": "Lower it.",
        "pod": "x-0",
        "since": "2026-01-02T03:01:00Z",
        "evidence": ["line 1", "line 2"],
    }


@pytest.mark.parametrize("counts", [(3, 2, 2, 2), (2, 1, 2, 2), (2, 2, 1, 1), (2, 2, 2, 1)])
def test_not_ready_while_one_replica_is_old_or_not_updated_ready_or_available(counts: tuple[int, ...]) -> None:
    world = served(2)
    world.roll_out(**dict(zip(("replicas", "updated", "ready", "available"), counts, strict=True)))
    world.settle()
    statuses = [world.conditions()[type_]["status"] for type_ in ("Ready", "Available", "Reconciling")]
    assert statuses == ["False", "True", "True"]


def test_a_condition_that_is_no_longer_reported_is_removed() -> None:
    status = served().obj["status"]
    for gone in ("Fits", "Stalled"):
        less = {**status, "conditions": [c for c in status["conditions"] if c["type"] != gone]}
        assert is_stored(less, less)
        assert not is_stored(less, less | {"conditions": [*less["conditions"], {"type": gone, "status": "True"}]})


@pytest.mark.parametrize("part", ["plan", "model", "measured", "observedGeneration", "rollout", "ready"])
def test_a_part_that_changed_is_reported(part: str) -> None:
    status = served().obj["status"]
    assert not is_stored({**status, part: {"verdict": "Fits"}}, status)


def test_what_others_add_to_the_status_does_not_make_it_written_again() -> None:
    world = served()
    world.obj["status"]["conditions"].append({"type": "Audited", "status": "True"})
    assert world.decide().is_steady
    status = copy.deepcopy(world.obj["status"])
    world.obj["status"]["conditions"][0]["status"] = "Unknown"
    assert not is_stored(status, world.obj["status"])


def test_a_failed_revision_is_named_until_another_is_rolled_out() -> None:
    world = edited(served())
    with_pods(world, a_pod("x-1", world.revision(), state={"terminated": ENDED}))
    assert world.obj["status"]["rollout"]["failedRevision"] == world.revision()
    edited(world, batching={})
    world.roll_out()
    world.settle()
    assert "failedRevision" not in world.obj["status"]["rollout"]
    assert "failure" not in world.obj["status"]


def test_a_transition_time_changes_only_with_its_status() -> None:
    world = with_pod(scheduled=False)
    before = world.conditions()["Ready"]
    world.now += timedelta(minutes=1)
    with_pods(world, a_pod("x-0", world.revision()))
    after = world.conditions()["Ready"]
    assert after["reason"] != before["reason"]
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
    world.now += timedelta(minutes=1)
    world.roll_out()
    world.settle()
    times = [world.conditions()[type_]["lastTransitionTime"] for type_ in ("Ready", "Accepted")]
    assert times == ["2026-01-02T03:06:05Z", "2026-01-02T03:04:05Z"]


def test_unschedulable_pods_that_are_replaced_cause_no_writes() -> None:
    """The scheduler reports other numbers every time, and nothing of a new pod at first."""
    world = with_pod(unschedulable=NO_GPU.format(nodes=200, a=199, b=1))
    writes = world.status_writes
    for n in range(20):
        world.now += timedelta(seconds=1)
        with_pods(world)
        with_pods(world, a_pod(f"x-{n}", world.revision(), scheduled=False))
        message = NO_GPU.format(nodes=200 + n, a=199 - n, b=1 + n)
        with_pods(world, a_pod(f"x-{n}", world.revision(), unschedulable=message))
    assert world.status_writes == writes


def test_causes_that_alternate_accumulate() -> None:
    """Each new cause is reported once; that it is absent for a moment is no change."""
    world = with_pod(unschedulable="0/2 nodes are available: 2 Insufficient cpu.")
    writes = world.status_writes
    rng = random.Random(3)
    causes = ["Insufficient cpu", "Insufficient memory", "node(s) were unschedulable"]
    for _ in range(30):
        some = rng.sample(causes, rng.randint(1, 3))
        message = "0/9 nodes are available: " + ", ".join(f"{rng.randint(1, 9)} {cause}" for cause in some) + "."
        with_pods(world, a_pod("x-0", world.revision(), unschedulable=message))
    assert world.status_writes <= writes + 2


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


SEQUENCES: Json = {"batching": {"maxNumSeqs": 256}}
SCALING_CASES: dict[str, tuple[Json, Json, Json, int | None]] = {
    "nothing is known": ({}, {}, {}, None),
    "only the sequences": (SEQUENCES, {}, {}, 256),
    "only the measured cache": ({}, {"kvCacheTokens": 20_480}, {}, 10),
    "only the planned cache": ({}, {}, {"kvCacheTokens": 40_960}, 20),
    "the sequences are fewer": ({"batching": {"maxNumSeqs": 8}}, {"kvCacheTokens": 204_800}, {}, 8),
    "the cache holds fewer": (SEQUENCES, {"kvCacheTokens": 204_800}, {}, 100),
    "measured comes before planned": (SEQUENCES, {"kvCacheTokens": 20_480}, {"kvCacheTokens": 40_960}, 10),
    "rounded down": ({}, {"kvCacheTokens": 4095}, {}, 1),
    "never below one": (SEQUENCES, {"kvCacheTokens": 100}, {}, 1),
    "never above what the spec may say": ({}, {"kvCacheTokens": 10**12}, {}, MOST_CONCURRENCY),
    "short requests, as measured": (SEQUENCES, {"kvCacheTokens": 20_480, "maxModelLen": 512}, {}, 40),
    "short requests, as in force": ({"batching": {"maxModelLen": 1024}}, {"kvCacheTokens": 20_480}, {}, 20),
    "short requests, as planned": ({}, {}, {"kvCacheTokens": 20_480, "requestedMaxModelLen": 1024}, 20),
    "a length that vLLM chooses": ({"batching": {"maxModelLen": "auto"}}, {"kvCacheTokens": 20_480}, {}, 10),
    "no tokens at all": (SEQUENCES, {"kvCacheTokens": 0}, {}, 256),
    "not measured yet, and why": (SEQUENCES, {"reason": "no answer"}, {}, 256),
}


@pytest.mark.parametrize("case", SCALING_CASES)
def test_the_concurrency_of_a_replica(case: str) -> None:
    effective, measured, plan, wanted = SCALING_CASES[case]
    assert concurrency_of(effective, measured, plan) == wanted


def test_a_stated_number_is_in_force_as_it_is() -> None:
    stated = Autoscaling.model_validate({"maxReplicas": 3, "target": {"concurrencyPerReplica": 7}})
    found = effective_scaling(stated, SEQUENCES, {"kvCacheTokens": 1}, {})
    assert found == {"minReplicas": 1, "maxReplicas": 3, "concurrencyPerReplica": 7}


def test_bounds_without_a_known_load() -> None:
    auto = Autoscaling.model_validate({"minReplicas": 2, "maxReplicas": 3})
    assert effective_scaling(auto, {}, {}, {}) == {"minReplicas": 2, "maxReplicas": 3}


def test_the_status_has_it_only_with_autoscaling_and_no_load_changes_it() -> None:
    world = serving(H100, scaling={"replicas": 1, "autoscaling": {"maxReplicas": 4}})
    planned = world.status["effective"]["scaling"]["concurrencyPerReplica"]
    assert planned == min(world.status["effective"]["batching"]["maxNumSeqs"], world.plan["kvCacheTokens"] // 2048)
    world.edit(scaling={"replicas": 3, "autoscaling": {"maxReplicas": 4}})
    world.serve()
    assert world.status["effective"]["scaling"]["concurrencyPerReplica"] == planned
    world.edit(scaling={"replicas": 3})
    world.settle()
    assert "scaling" not in world.status["effective"]
