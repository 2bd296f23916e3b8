"""Rollouts whose new pod waits at a scheduling gate, as Kueue's: what serves meanwhile, and until when it may take."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.decide_world import NOW, World, a_pod
from tests.unit.operator.test_decide_rollouts import GATED, KUEUE, LACK, a_room, later, surging

FOREIGN = "example.com/approval"
GATES: dict[str, tuple[tuple[str, ...], tuple[str, str], bool]] = {
    # gates, the queues of the old and of the new pod, whether an old one is given up
    "Kueue's, in one queue": ((KUEUE,), ("team", "team"), True),
    "two of Kueue's": ((KUEUE, "kueue.x-k8s.io/topology"), ("team", "team"), True),
    "another's": ((FOREIGN,), ("team", "team"), False),
    "another's beside Kueue's": ((KUEUE, FOREIGN), ("team", "team"), False),
    "a name that only looks like Kueue's": (("kueue.x-k8s.io.example.com/a",), ("team", "team"), False),
    "another queue": ((KUEUE,), ("team", "other"), False),
    "the old pod is in no queue": ((KUEUE,), ("", "team"), False),
    "no queue is named": ((KUEUE,), ("", ""), False),
}


@pytest.mark.parametrize(("gates", "queues", "falls"), GATES.values(), ids=GATES.keys())
def test_an_old_pod_is_given_up_only_for_a_gate_that_its_quota_opens(
    gates: tuple[str, ...], queues: tuple[str, str], falls: bool
) -> None:
    world = surging(lack=GATED, gates=gates, queues=queues)
    later(world, 125)
    world.settle()
    assert world.strategy() == ("Replace" if falls else "Surge")
    assert (world.rollout.get("reason", "").startswith("A new pod was held by Kueue's")) is falls
    assert world.condition("Available")[0] == "True"
    assert all(name in world.status["failure"]["message"] for name in gates)


LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}


def made_at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_late_pod(world: World, name: str = "x-new", lack: str | None = None, made: float = 0, **more: Any) -> None:
    """A pod of the new revision that is at no gate."""
    pod = a_pod(name, world.revision(), unschedulable=lack, **more)
    pod["metadata"]["creationTimestamp"] = made_at(made)
    world.pods[name] = pod


def test_time_at_a_scheduling_gate_does_not_count_towards_the_deadline() -> None:
    """The Deployment's own clock runs on: the pod has the whole deadline from the gate's end, and from its place."""
    world = surging(strategy="Surge", lack=GATED)
    world.obj["spec"]["rollout"]["autoRollback"] = True
    world.deployment["status"]["conditions"] = [LATE]
    later(world, 20_000)
    assert (world.condition("Ready")[1], "Stalled" in world.conditions()) == ("SchedulingGated", False)
    assert KUEUE in world.message("Ready")
    assert world.step().is_steady
    late, deadline = world.revision(), world.deployment["spec"]["progressDeadlineSeconds"]
    for lack, seconds in ((None, 1), (LACK, 30), (LACK, deadline - 10)):  # then it waits for the node of an autoscaler
        a_late_pod(world, lack=lack, scheduled=False)
        decision = later(world, 20_000 + seconds)
        assert ("failedRevision" in world.rollout, "Stalled" in world.conditions()) == (False, False)
    assert decision.requeue_after is not None
    assert decision.requeue_after <= 11
    a_late_pod(world)
    world.pods["x-new"]["status"]["conditions"][0]["lastTransitionTime"] = made_at(20_000 + deadline - 5)
    decision = later(world, 20_000 + 2 * deadline - 15)
    assert "Stalled" not in world.conditions()
    assert decision.requeue_after is not None
    assert decision.requeue_after <= 10
    later(world, 20_000 + 2 * deadline)
    assert world.condition("Stalled")[1] == "ProgressDeadlineExceeded"
    assert world.rollout["failedRevision"] == late


OVERDUE: dict[str, tuple[Callable[[World], Any], float, bool]] = {
    # what becomes of the pod at the gate, seconds after 20,000, whether the rollout is late
    "a node never comes": (lambda w: a_late_pod(w, lack=LACK), 8_999, False),
    "for the whole deadline": (lambda w: a_late_pod(w, lack=LACK), 9_001, True),
    "it is deleted and not made again yet": (lambda w: w.pods.pop("x-new"), 1, False),
    "a sibling is late": (lambda w: a_late_pod(w, "x-2"), 1, True),
    "a sibling was made a moment ago": (lambda w: a_late_pod(w, "x-2", made=19_990), 1, False),
}  # fmt: skip


@pytest.mark.parametrize(("becomes", "seconds", "late"), OVERDUE.values(), ids=OVERDUE.keys())
def test_each_pod_has_its_own_deadline_where_one_waited_at_a_gate(
    becomes: Callable[[World], Any], seconds: float, late: bool
) -> None:
    world = surging(strategy="Surge", lack=GATED)
    assert world.deployment["spec"]["progressDeadlineSeconds"] == 9_000
    world.deployment["status"]["conditions"] = [LATE]
    later(world, 19_999)
    becomes(world)
    later(world, 20_000)
    later(world, 20_000 + seconds)
    assert ("failedRevision" in world.rollout) is late


def test_more_pods_at_a_gate_than_the_status_names_are_excused() -> None:
    world = surging(strategy="Surge", lack=GATED)
    world.deployment["status"]["conditions"] = [LATE]
    gated = world.pods["x-new"]
    for n in range(70):
        world.pods[f"x-{n + 2}"] = gated | {"metadata": gated["metadata"] | {"name": f"x-{n + 2}", "uid": f"uid-{n}"}}
    later(world, 20_000)
    assert "failedRevision" not in world.rollout
    assert len(world.rollout["gatedPods"]) == 64
    assert later(world, 20_001).status is None


def test_time_at_a_gate_is_no_time_without_room() -> None:
    world = surging(lack=GATED, gates=(FOREIGN,))
    later(world, 20_000)
    a_late_pod(world, lack=LACK)
    world.room = a_room(0)
    for seconds, strategy in ((20_001, "Surge"), (20_120, "Surge"), (20_121, "Replace")):
        later(world, seconds)
        assert world.rollout["strategy"] == strategy
