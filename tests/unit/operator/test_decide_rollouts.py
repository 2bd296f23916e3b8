"""How a rollout begins and goes on by what is free on the nodes, and what is said of it beforehand."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.decision import Decision
from llmservice_operator.workload.port import Strategy
from llmservice_planner.room import Holder, NodeRoom, Room, amounts

from tests.unit.decide_world import NOW, World, a_pod
from tests.unit.decide_world import serving as rolled_out

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
LACK = f"0/1 nodes are available: 1 Insufficient {GPU}."


def a_room(free: int, *, has: int = 2, name: str = "node-a", cpu: str = "64", **more: Any) -> Room:
    """One node with some of its GPUs free."""
    allocatable = amounts({GPU: str(has), "cpu": cpu, "memory": "512Gi", "pods": "110"})
    used = amounts({GPU: str(has - free), "cpu": "4", "memory": "16Gi", "pods": "2"})
    holders = (Holder("team-a", "x", has - free),)
    return Room((NodeRoom(name, "NVIDIA-L4", allocatable, used, holders=holders, **more),))


def serving(replicas: int = 1, strategy: str | None = None, **sections: Any) -> World:
    """Rolled out on node-a."""
    rollout = {} if strategy is None else {"rollout": {"strategy": strategy}}
    sections = {"scaling": {"replicas": replicas}, "fitPolicy": "Ignore"} | rollout | sections
    return rolled_out(**sections)


def edited(world: World, room: Room | None = None, **sections: Any) -> Decision:
    """A change that needs a restart, and the first decision about it."""
    world.room = room if room is not None else world.room
    world.edit(**(sections or {"batching": {"maxNumSeqs": 4}}))
    return world.step()


NO_RIGHT = Room(unknown="the operator has no right to list pods in all namespaces")

TWO = {"parallelism": {"tensorParallelSize": 2}}
ELSEWHERE = {"podTemplate": {"spec": {"nodeSelector": {"pool": "b"}}}}
TAINTS = (("team", "b", "NoSchedule"),)
SLICED = {f"{GPU}.product": "NVIDIA-L4-SHARED", f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "time-slicing"}
MPS = SLICED | {f"{GPU}.sharing-strategy": "mps"}
MEMORY = "may hold their memory"


def shares(free: int, has: int = 4, labels: Json = SLICED) -> Room:
    return a_room(free, has=has, labels=labels)


# id, replicas, what is free, the change, the strategy, words of the reason
BEGUN: list[tuple[str, int, Room, Json, Strategy, str]] = [
    ("room for one more", 1, a_room(1), {}, "Surge", "There is room for one more pod"),
    ("room for one more of two", 2, a_room(1, has=3), {}, "Surge", "There is room"),
    ("no room", 2, a_room(0), {}, "Replace", "it needs 1 x nvidia.com/gpu, and of those on nodes"),
    ("no room and one replica", 1, a_room(0), {}, "Replace", "until its successor is ready nothing answers"),
    ("a GPU, but no CPU", 2, a_room(1, has=3, cpu="4"), {}, "Replace", "short of cpu"),
    ("too large for the place of an old one", 1, a_room(0), TWO, "Surge", "even without an old one"),
    ("one place and one free are enough", 1, a_room(1), TWO, "Replace", "it needs 2 x nvidia.com/gpu"),
    ("no node of the selector", 1, a_room(1), ELSEWHERE, "Surge", "No node takes such a pod"),
    ("no node without a taint", 1, a_room(1, taints=TAINTS), {}, "Surge", "No node takes such a pod"),
    ("the old one is on another node", 1, a_room(0, name="node-b"), {}, "Surge", "even without an old one"),
    ("shares of the one card", 1, shares(3), {}, "Replace", MEMORY),
    ("of one that another service uses too", 2, shares(1), {}, "Replace", MEMORY),
    ("a card of its own beside that", 1, shares(7, has=8), {}, "Surge", "There is room"),
    ("cards of which each may be in use", 2, shares(6, has=8), {}, "Replace", MEMORY),
    ("all shares of all cards", 2, shares(0), {}, "Replace", "it needs 1 x nvidia.com/gpu"),
    ("a part of the memory for each", 1, shares(3, labels=MPS), {}, "Surge", "There is room"),
    ("nobody may look", 1, NO_RIGHT, {}, "Surge", "no right to list pods"),
]  # fmt: skip


RENAMED: dict[str, tuple[Json, Strategy, str]] = {
    "by the resource": ({"resourceName": f"{GPU}.shared"}, "Replace", "by the name of the resource"),
    "by the product": ({"products": ["NVIDIA-L4-SHARED"]}, "Replace", "by the name of the product"),
    "not shared": ({}, "Surge", "no right to list pods"),
}


@pytest.mark.parametrize("case", RENAMED)
def test_what_shares_a_card_is_replaced_where_nobody_may_look(case: str) -> None:
    accelerator, strategy, words = RENAMED[case]
    world = serving(2, accelerator={"type": "nvidia"} | accelerator)
    edited(world, NO_RIGHT)
    assert (world.strategy(), words in world.rollout["reason"]) == (strategy, True), world.rollout["reason"]


BUSY = {"version": 1, "reason": "GPUMemoryBusy", "message": "1.2 of 22 GiB are free.", "remedy": "", "evidence": []}
# id, the nodes, the new pod's server now, whether an old pod is given up
WAITS: Json = {"waiting": {"reason": "CrashLoopBackOff"}}
RUNS: Json = {"running": {"startedAt": "2026-01-02T03:06:00Z"}}
HELD: list[tuple[str, Room, Json, bool]] = [
    ("they share a card", shares(2), WAITS, True),
    ("the memory became free, and the model is loaded", shares(2), RUNS, False),
    ("each has a part of the memory", shares(2, labels=MPS), WAITS, False),
    ("each has a card", a_room(0), WAITS, False),
    ("nobody may look", NO_RIGHT, WAITS, False),
]


@pytest.mark.parametrize(("room", "state", "falls"), [row[1:] for row in HELD], ids=[row[0] for row in HELD])
def test_a_surge_whose_memory_the_old_pod_holds_falls_back(room: Room, state: Json, falls: bool) -> None:
    """It was begun by an earlier release, or before the cards were shared."""
    world = surging(1, lack=None)
    ended = {"reason": "Error", "exitCode": 1, "message": json.dumps(BUSY), "finishedAt": "2026-01-02T03:05:00Z"}
    (status,) = world.pods["x-new"]["status"]["containerStatuses"]
    status |= {"state": state, "lastState": {"terminated": ended}}
    world.room = room
    later(world, 30)
    assert world.strategy() == "Surge"
    later(world, 300)
    world.settle()
    assert world.strategy() == ("Replace" if falls else "Surge")


@pytest.mark.parametrize(
    ("replicas", "room", "change", "strategy", "words"), [row[1:] for row in BEGUN], ids=[row[0] for row in BEGUN]
)
def test_auto_goes_by_what_is_free(replicas: int, room: Room, change: Json, strategy: Strategy, words: str) -> None:
    world = serving(replicas)
    before = world.revision()
    edited(world, room, **change)
    world.settle()
    assert world.strategy() == strategy == world.rollout["strategy"]
    assert words in world.rollout["reason"]
    assert world.room_reads == 1
    assert world.revision() != before == world.rollout["stableRevision"]


def test_a_gap_is_reported_before_the_deployment_is_changed() -> None:
    world = serving(1)
    before = world.revision()
    decision = edited(world, a_room(0))
    assert world.revision() == before
    assert (world.rollout["strategy"], decision.requeue_after) == ("Replace", 0.0)
    assert [event.reason for event in decision.events if event.type == "Warning"] == ["GapExpected"]
    reason = world.rollout["reason"]
    world.room = a_room(1)  # once a gap is announced, a second later there is one
    after = world.step()
    assert (world.revision() != before, world.strategy(), world.rollout["reason"]) == (True, "Replace", reason)
    assert "GapExpected" not in [event.reason for event in after.events]
    assert world.room_reads == 1


@pytest.mark.parametrize("strategy", ["Surge", "Replace", "Recreate"])
def test_a_strategy_of_the_spec_needs_no_nodes(strategy: Strategy) -> None:
    world = serving(1, strategy)
    edited(world, a_room(0))
    world.settle()
    assert (world.strategy(), world.rollout["strategy"], world.room_reads) == (strategy, strategy, 0)


def test_a_steady_service_reads_no_node_and_keeps_what_it_was_rolled_out_with() -> None:
    world = serving(2)
    edited(world, a_room(0))
    world.serve()
    assert "reason" not in world.rollout
    world.room, writes = a_room(2), world.status_writes
    world.settle()
    assert (world.strategy(), world.room_reads, world.status_writes) == ("Replace", 1, writes)
    world.change(scaling={"replicas": 3})
    assert (world.strategy(), world.room_reads) == ("Replace", 1)
    edited(world, batching={"maxNumSeqs": 8})
    assert (world.strategy(), world.room_reads) == ("Surge", 2)


def test_somebody_elses_strategy_is_put_right_under_auto() -> None:
    world = serving(2)
    world.deployment["spec"]["strategy"] = {"type": "Recreate"}
    world.settle()
    assert world.strategy() == "Surge"


@pytest.mark.parametrize("replicas", [1, 8])
def test_where_nothing_answers_nothing_is_kept_and_all_start_at_once(replicas: int) -> None:
    world = serving(replicas)
    world.roll_out(ready=0, available=0)
    world.pods = {f"x-{i}": a_pod(f"x-{i}", world.revision()) for i in range(replicas)}
    edited(world, a_room(0))
    assert (world.strategy(), world.room_reads) == ("Recreate", 0)
    assert world.deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert "No replica answers" in world.rollout["reason"]
    world.roll_out(updated=0, replicas=0, ready=0, available=0)
    world.pods = {}
    world.settle()
    assert world.strategy() == "Recreate", "as it was begun, until it is rolled out"
    world.serve()
    edited(world, a_room(1, has=replicas + 1), batching={"maxNumSeqs": 5})
    assert world.strategy() == "Surge", "the next change chooses anew"


def test_the_place_of_a_failed_rollout_is_the_next_ones() -> None:
    """Replace would take the one that serves; the one that failed goes first with Surge."""
    world = serving(1)
    edited(world, a_room(1))
    world.roll_out(updated=1, replicas=2)
    world.pods["x-new"] = a_pod("x-new", world.revision())
    world.settle()
    edited(world, a_room(0), batching={"maxNumSeqs": 8})
    assert (world.strategy(), world.room_reads) == ("Surge", 1)


def test_a_pod_that_leaves_makes_room() -> None:
    world = serving(1)
    world.pods["x-old"] = a_pod("x-old", "earlier", deleting=True)
    edited(world, a_room(0))
    assert world.strategy() == "Surge"


CLAIMS: list[tuple[str, Json, int, Strategy]] = [
    ("one node", {"size": "1Gi"}, 1, "Surge"),
    ("one node of two", {"size": "1Gi"}, 2, "Replace"),
    ("shared", {"size": "1Gi", "accessModes": ["ReadWriteMany"]}, 2, "Surge"),
    ("one pod", {"size": "1Gi", "accessModes": ["ReadWriteOncePod"]}, 1, "Replace"),
    ("the user's own", {"claimName": "models"}, 2, "Surge"),
]


@pytest.mark.parametrize(("cache", "nodes", "strategy"), [row[1:] for row in CLAIMS], ids=[row[0] for row in CLAIMS])
def test_a_cache_that_two_pods_cannot_mount_lets_one_go_first(cache: Json, nodes: int, strategy: Strategy) -> None:
    model = {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "cache": cache}
    world = serving(2, model=model)
    room = Room(a_room(1).nodes + (a_room(2, name="node-b").nodes if nodes == 2 else ()))
    edited(world, room)
    assert world.strategy() == strategy


GATED = "SchedulingGated"


QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE = "kueue.x-k8s.io/admission"


def surging(
    replicas: int = 1,
    strategy: str | None = None,
    lack: str | None = LACK,
    gates: tuple[str, ...] = (KUEUE,),
    queues: tuple[str, str] = ("team", "team"),
) -> World:
    """A new pod beside the old ones, for which the scheduler finds no node; the queues of the old and of the new."""
    world = serving(replicas, strategy)
    edited(world, a_room(1))
    world.roll_out(updated=1, replicas=replicas + 1)
    pod = a_pod("x-new", world.revision(), unschedulable=lack, scheduled=lack is None)
    pod["metadata"]["creationTimestamp"] = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    if lack == GATED:
        pod["status"]["conditions"][0] |= {"reason": GATED, "message": "Scheduling is blocked"}
        pod["spec"]["schedulingGates"] = [{"name": name} for name in gates]
    world.pods["x-new"] = pod
    for each in world.pods.values():
        queue = queues[each is pod]
        each["metadata"]["labels"] |= {QUEUE: queue} if queue else {}
    world.room = a_room(0)
    world.settle()
    return world


def later(world: World, seconds: float) -> Decision:
    world.now = NOW + timedelta(seconds=seconds)
    return world.step()


def test_a_surge_pod_without_a_gpu_waits_and_stalls_at_the_deadline_of_the_rollout() -> None:
    world = surging(strategy="Surge")
    later(world, 10_000)
    assert (world.condition("Ready")[1], world.condition("Available")[0]) == ("WaitingForGPU", "True")
    assert "waits for 1 x nvidia.com/gpu" in world.message("Ready")
    assert "Reconciling" in world.conditions()
    assert world.strategy() == "Surge"
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment["status"]["conditions"] = [late]
    world.settle()
    assert world.rollout["failedRevision"] == world.revision()
    assert (world.condition("Stalled")[1], world.condition("Available")[0]) == ("WaitingForGPU", "True")
    assert "Reconciling" not in world.conditions()


def test_after_the_deadline_an_old_pod_goes_first_and_that_is_reported_before() -> None:
    world = surging()
    assert world.condition("Ready")[1] == "WaitingForGPU"
    waiting = later(world, 30)
    assert (world.strategy(), waiting.is_steady, waiting.requeue_after) == ("Surge", True, 60.0)
    assert later(world, 119).is_steady
    overdue = later(world, 120)
    assert [event.reason for event in overdue.events if event.type == "Warning"] == ["SurgeFellBack"]
    assert (world.strategy(), world.rollout["strategy"]) == ("Surge", "Replace")
    assert "found no room for 120 s" in world.rollout["reason"]
    assert "nothing answers" in world.rollout["reason"]
    later(world, 120)
    assert world.strategy() == "Replace"
    world.settle()
    assert world.step().is_steady


NOT_SEEN = Room(unknown="the nodes could not be listed just now", may_be_known_soon=True)


def test_a_change_waits_while_the_nodes_cannot_be_seen_and_the_status_says_so() -> None:
    world = serving(1)
    before = world.revision()
    world.room = NOT_SEEN
    edited(world)
    decision = world.step()
    assert decision.requeue_after == 5.0
    assert world.revision() == before
    assert "could not be listed" in world.message("Reconciling")
    assert world.status["observedGeneration"] == world.obj["metadata"]["generation"]
    world.settle()
    assert world.step().is_steady, "nothing is written for each look"
    world.room = a_room(1)
    world.settle()
    assert world.revision() != before


def test_nothing_is_given_up_by_nodes_that_nobody_saw_or_while_paused() -> None:
    world = surging()
    world.room = NOT_SEEN
    assert later(world, 600).requeue_after == 5.0
    assert (world.strategy(), world.rollout["strategy"]) == ("Surge", "Surge")
    world.room = a_room(0)
    world.obj["spec"]["paused"] = True
    later(world, 601)
    assert later(world, 900).is_steady
    assert (world.strategy(), world.rollout["strategy"]) == ("Surge", "Surge")


TAINT = "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}."
OTHER = a_room(0, name="node-b")
NOBODY = Room(unknown="the operator has no right to list nodes")
# id, what the scheduler says, what a look shows, seconds, whether an old pod is given up

CLAIMS_OF_DRA = "0/1 nodes are available: 1 cannot allocate all claims."
FALLS_BACK: list[tuple[str, str | None, Room, float, bool]] = [
    ("a GPU is short", LACK, a_room(0), 120, True),
    ("not yet", LACK, a_room(0), 119, False),
    ("a GPU became free and the scheduler is about to see it", LACK, a_room(1), 120, False),
    ("a GPU is free for long, and yet it finds none", LACK, a_room(1), 240, True),
    ("the old pod is elsewhere: its place is no use", LACK, OTHER, 10_000, False),
    ("a taint, which no old pod holds", TAINT, a_room(0), 10_000, False),
    ("it is placed", None, a_room(0), 10_000, False),
    ("nobody may look, and it is no larger", LACK, NOBODY, 120, True),
    ("a claim of the kind DRA is short", CLAIMS_OF_DRA, a_room(0), 120, True),
    ("a gate: the quota may be the old pod's", GATED, a_room(0), 120, True),
    ("a gate, not yet", GATED, a_room(0), 119, False),
    ("a gate, and the old pod is elsewhere", GATED, OTHER, 10_000, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lack", "room", "seconds", "falls"), [row[1:] for row in FALLS_BACK], ids=[row[0] for row in FALLS_BACK]
)
def test_an_old_pod_is_given_up_only_for_one_that_its_place_is_enough_for(
    lack: str | None, room: Room, seconds: float, falls: bool
) -> None:
    world = surging(2, lack=lack)
    world.room, world.now = room, NOW + timedelta(seconds=seconds)
    world.settle()
    assert world.strategy() == ("Replace" if falls else "Surge")


def test_a_quota_is_a_lack_of_room_too() -> None:
    world = serving(1)
    edited(world, a_room(1))
    world.roll_out(updated=0)
    refusal = 'pods "x-1" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=1, used: 1, limited: 1'
    world.deployment["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": refusal}]
    world.room = a_room(0)
    assert world.step().requeue_after == 120.0, "nobody else wakes it"
    world.settle()
    assert world.status["failure"]["reason"] == "QuotaExceeded"
    world.now = NOW + timedelta(seconds=120)
    world.settle()
    assert (world.strategy(), world.rollout["strategy"]) == ("Replace", "Replace")


def test_a_reason_outlives_the_second_decision_after_the_deployment_was_applied() -> None:
    """The status is written after the children, from a decision that finds the new template in already."""
    world = serving(2)
    world.edit(batching={"maxNumSeqs": 4})
    begun = world.decide()
    for apply in begun.apply:
        world._apply(apply.manifest)
    world.ongoing_rollout = begun.ongoing_rollout
    world.step()
    assert "There is room" not in world.rollout["reason"]
    assert world.rollout["reason"] == (begun.ongoing_rollout or ("", ""))[1]


def test_a_pod_that_lost_its_node_while_nothing_is_rolled_out_changes_no_strategy() -> None:
    world = serving(2)
    world.pods["x-1"] = a_pod("x-1", world.revision(), unschedulable=LACK, scheduled=False)
    world.roll_out(ready=1, available=1)
    world.now = NOW + timedelta(days=1)
    world.settle()
    assert world.strategy() == "Surge"


def test_an_edit_that_is_taken_back_keeps_what_still_serves() -> None:
    """Its pods are all there: nothing is to be reported first, though the new pod took the last GPU."""
    world = serving(1)
    before = world.revision()
    edited(world, a_room(1))
    world.roll_out(updated=1, replicas=2)
    world.pods["x-new"] = a_pod("x-new", world.revision())
    world.settle()
    edited(world, a_room(0), batching={})
    assert (world.revision(), world.strategy()) == (before, "Surge")


def test_a_gap_on_the_return_to_a_revision_that_was_rolled_out_is_reported_first() -> None:
    """It is not new, and what is reported first has to be in the status: else it would be reported for ever."""
    world = serving(1)
    before = world.revision()
    edited(world, a_room(0))
    world.settle()
    world.roll_out(updated=1)
    world.pods = {"x-1": a_pod("x-1", world.revision(), ready=True)}
    edited(world, batching={})
    assert "nothing answers" in world.rollout["reason"]
    assert world.rollout["stableRevision"] == before
    world.settle()
    assert (world.revision(), world.strategy()) == (before, "Replace")
    world.roll_out()
    world.settle()
    assert "reason" not in world.rollout


def test_a_record_of_another_resource_than_the_specs_can_be_returned_to() -> None:
    """An earlier release did not record what a revision was made of: the spec is all there is to go by."""
    world = serving(1, accelerator={"type": "nvidia", "resourceName": "nvidia.com/mig-3g.40gb"})
    before = world.revision()
    edited(world, a_room(1), accelerator={"type": "nvidia"})
    world.settle()
    world.roll_out()
    for record in world.of_kind("ControllerRevision"):
        record["data"]["chosen"].pop("spec")
    edited(world, a_room(1), rollout={"pinnedRevision": before})
    world.settle()
    assert world.revision() == before
