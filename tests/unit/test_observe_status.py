"""What the status shows, and that it is written again only where something changed."""

from __future__ import annotations

import copy
import random
from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.observe.status.status import is_stored

from tests.unit.decide_world import World, a_pod
from tests.unit.status_states import CASES, ENDED, edited, served, service, with_pods

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
