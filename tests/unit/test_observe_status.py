"""What the status says of each situation, and that it says nothing new while nothing happens."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from llmservice_operator.observe.status.status import is_stored, moment_of, status_of
from llmservice_operator.observe.status.verdict import Subject, Verdict

from tests.unit.decide_world import UID, World, a_pod, an_llmservice, spec

Json = dict[str, Any]

WAITING = {"waiting": {"reason": "ContainerCreating"}}
NO_GPU = (
    "0/{nodes} nodes are available: {a} Insufficient nvidia.com/gpu, {b} node(s) had untolerated taint "
    "{{a: b, c}}. preemption: 0/{nodes} nodes are available: {a} No preemption victims found for incoming pod."
)
FAILURE = json.dumps(
    {
        "version": 1,
        "reason": "KVCacheTooSmall",
        "message": "vLLM says: too small.",
        "remedy": "Lower spec.batching.maxModelLen.",
        "evidence": ["line 1", "line 2"],
        "exitCode": 1,
    }
)
ENDED = {"reason": "Error", "exitCode": 1, "message": FAILURE, "finishedAt": "2026-01-02T03:01:00Z"}


def rolling_out(**sections: object) -> World:
    """Children are applied, and the Deployment controller has seen them."""
    world = World(an_llmservice(spec(**sections)))
    world.settle()
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    return world


def with_pod(**pod: Any) -> World:
    world = rolling_out()
    world.pods = {"x-0": a_pod("x-0", world.revision(), **pod)}
    world.settle()
    return world


ENDED_AT = "2026-01-02T03:01:00Z"
SITUATIONS = [
    pytest.param({"scheduled": False}, "Progressing", "Reconciling", None, id="not yet scheduled"),
    pytest.param(
        {"unschedulable": NO_GPU.format(nodes=3, a=2, b=1)},
        "InsufficientGPUs",
        "Reconciling",
        "Insufficient nvidia.com/gpu; node(s) had untolerated taint {a: b, c}",
        id="unschedulable",
    ),
    pytest.param({"state": WAITING}, "Progressing", "Reconciling", None, id="pulling"),
    pytest.param({}, "Starting", "Reconciling", None, id="loading the model"),
    pytest.param(
        {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}, "last": ENDED},
        "KVCacheTooSmall",
        "Stalled",
        "vLLM says: too small",
        id="crash loop",
    ),
    pytest.param({"last": ENDED, "restarts": 1}, "KVCacheTooSmall", "Stalled", "too small", id="started again"),
    pytest.param(
        {"state": {"terminated": {"reason": "Error", "exitCode": 3, "message": "a\nboom\n", "finishedAt": ENDED_AT}}},
        "Unknown",
        "Reconciling",
        "exit code 3",
        id="supervisor killed",
    ),
    pytest.param(
        {"last": {"reason": "Error", "exitCode": 3, "finishedAt": ENDED_AT}, "restarts": 3},
        "CrashLoop",
        "Stalled",
        "exit code 3",
        id="and again and again",
    ),
]


@pytest.mark.parametrize(("pod", "reason", "type_", "message"), SITUATIONS)
def test_a_pod_on_its_way(pod: Json, reason: str, type_: str, message: str | None) -> None:
    world = with_pod(**pod)
    conditions = world.conditions()
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", reason)
    assert conditions[type_]["reason"] == reason
    assert {"Reconciling", "Stalled"} - set(conditions), "never both"
    assert conditions["Available"]["status"] == "False"
    assert ("failure" in world.obj["status"]) is (message is not None)
    if message is not None:
        assert message in conditions["Ready"]["message"]


def test_the_runtimes_own_words_reach_the_status() -> None:
    failure = with_pod(state={"terminated": ENDED}).obj["status"]["failure"]
    assert failure == {
        "reason": "KVCacheTooSmall",
        "message": "vLLM says: too small.",
        "remedy": "Lower spec.batching.maxModelLen.",
        "pod": "x-0",
        "since": "2026-01-02T03:01:00Z",
        "evidence": ["line 1", "line 2"],
    }


def served() -> World:
    world = rolling_out(scaling={"replicas": 2})
    world.roll_out()
    world.settle()
    return world


NOT_READY = [
    pytest.param({"replicas": 3, "updated": 2, "ready": 2, "available": 2}, id="an old replica is left"),
    pytest.param({"replicas": 2, "updated": 1, "ready": 2, "available": 2}, id="one is not updated"),
    pytest.param({"replicas": 2, "updated": 2, "ready": 1, "available": 1}, id="one is not ready"),
    pytest.param({"replicas": 2, "updated": 2, "ready": 2, "available": 1}, id="one is not available"),
]


@pytest.mark.parametrize("counts", NOT_READY)
def test_not_ready_while_one_replica_is_not(counts: dict[str, int]) -> None:
    world = served()
    world.roll_out(**counts)
    world.settle()
    assert world.conditions()["Ready"]["status"] == "False"
    assert world.conditions()["Available"]["status"] == "True"
    assert world.conditions()["Reconciling"]["status"] == "True"


def test_a_condition_that_is_no_longer_reported_is_taken_away() -> None:
    status = served().obj["status"]
    for gone in ("Fits", "Stalled"):
        less = {**status, "conditions": [c for c in status["conditions"] if c["type"] != gone]}
        before = [*less["conditions"], {"type": gone, "status": "True"}]
        assert is_stored(less, less)
        assert not is_stored(less, {**status, "conditions": before})


@pytest.mark.parametrize("part", ["plan", "model", "measured"])
def test_a_part_that_changed_is_reported(part: str) -> None:
    status = served().obj["status"]
    assert not is_stored({**status, part: {"verdict": "Fits"}}, status)


def test_a_failed_rollout_leaves_the_service_available() -> None:
    world = served()
    world.edit(batching={"maxNumSeqs": 8})
    world.settle()
    world.roll_out(replicas=3, updated=1, ready=2, available=2)
    world.pods["new"] = a_pod("new", world.revision(), state={"terminated": ENDED})
    world.settle()
    statuses = {type_: c["status"] for type_, c in world.conditions().items()}
    assert statuses == {
        "Accepted": "True",
        "Fits": "Unknown",
        "Available": "True",
        "Ready": "False",
        "Stalled": "True",
    }
    assert world.obj["status"]["rollout"]["failedRevision"] == world.revision()
    world.edit(batching={})
    world.settle()
    world.roll_out()
    world.settle()
    assert "failedRevision" not in world.obj["status"]["rollout"]
    assert "failure" not in world.obj["status"]


def test_a_transition_time_moves_only_with_its_status() -> None:
    world = with_pod(scheduled=False)
    before = world.conditions()
    world.now += timedelta(minutes=1)
    world.pods["x-0"] = a_pod("x-0", world.revision())
    world.settle()
    after = world.conditions()
    assert after["Ready"]["reason"] != before["Ready"]["reason"]
    assert after["Ready"]["lastTransitionTime"] == before["Ready"]["lastTransitionTime"]
    world.now += timedelta(minutes=1)
    world.roll_out()
    world.settle()
    assert world.conditions()["Ready"]["lastTransitionTime"] == "2026-01-02T03:06:05Z"
    assert world.conditions()["Accepted"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_pods_that_come_and_go_unschedulable_write_nothing_new() -> None:
    """The scheduler says other numbers every time, and a new pod says nothing until it was looked at."""
    world = with_pod(unschedulable=NO_GPU.format(nodes=200, a=199, b=1))
    writes = world.status_writes
    for n in range(50):
        world.now += timedelta(seconds=1)
        world.pods = {}
        world.roll_out(replicas=0, updated=0, ready=0, available=0)
        world.settle()
        world.pods = {f"x-{n}": a_pod(f"x-{n}", world.revision(), scheduled=False)}
        world.roll_out(replicas=1, updated=1, ready=0, available=0)
        world.settle()
        message = NO_GPU.format(nodes=200 + n, a=199 - n, b=1 + n)
        world.pods = {f"x-{n}": a_pod(f"x-{n}", world.revision(), unschedulable=message)}
        world.settle()
    assert world.status_writes == writes


def test_causes_that_alternate_add_up() -> None:
    """Each new cause is told once; that it is gone for a moment is not news."""
    world = with_pod(unschedulable="0/2 nodes are available: 2 Insufficient cpu.")
    writes = world.status_writes
    rng = random.Random(3)
    causes = ["Insufficient cpu", "Insufficient memory", "node(s) were unschedulable"]
    for _ in range(60):
        some = rng.sample(causes, rng.randint(1, 3))
        message = "0/9 nodes are available: " + ", ".join(f"{rng.randint(1, 9)} {cause}" for cause in some) + "."
        world.pods["x-0"] = a_pod("x-0", world.revision(), unschedulable=message)
        world.settle()
    assert world.status_writes <= writes + 2


@hypothesis_settings(max_examples=50)
@given(
    pods=st.lists(st.sampled_from([s.values[0] for s in SITUATIONS] + [{"ready": True}]), max_size=3),
    counts=st.tuples(*[st.integers(0, 3)] * 4),
)
def test_the_same_facts_make_the_same_status(pods: list[Json], counts: tuple[int, ...]) -> None:
    world = rolling_out(scaling={"replicas": 2})
    world.roll_out(**dict(zip(("replicas", "updated", "ready", "available"), counts, strict=True)))
    world.pods = {f"x-{n}": a_pod(f"x-{n}", world.revision(), **pod) for n, pod in enumerate(pods)}
    world.step()
    first = json.dumps(world.obj["status"])
    world.now += timedelta(hours=1)
    assert world.decide().is_steady
    verdict = Verdict(revision=world.revision(), replicas=2)
    subject = Subject("x", "team-a", UID, 1, json.loads(first))
    moment = moment_of(subject, world.observed(), verdict)
    one = status_of(subject, world.observed(), verdict, moment, world.now)
    again = status_of(subject, world.observed(), verdict, moment, world.now)
    assert one == again
    types = {c["type"] for c in one["conditions"]}
    assert not {"Reconciling", "Stalled"} <= types


def test_what_others_add_to_the_status_does_not_make_it_written_again() -> None:
    world = served()
    world.obj["status"]["conditions"].append({"type": "Audited", "status": "True"})
    world.obj["status"]["measured"] = {"startSeconds": 3.0}
    assert world.decide().is_steady
    status = json.loads(json.dumps(world.obj["status"]))
    world.obj["status"]["conditions"][0]["status"] = "Unknown"
    assert not is_stored(status, world.obj["status"])
