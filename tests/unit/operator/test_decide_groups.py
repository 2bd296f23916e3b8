"""Pods of a replica over several nodes look for nodes together, once all of them have room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_api.constants import GROUP_GATE, GROUP_INDEX_LABEL, SERVICE_LABEL
from llmservice_operator.decision import GroupTurn
from llmservice_operator.observe.observed import Refusal
from llmservice_operator.service.context import GIVEN_UP_AFTER, PLACED_WITHIN, GroupTurns
from llmservice_planner.room import Room

from tests.unit.decide_world import H100, World, a_world
from tests.unit.operator.test_decide_nodes import TWO, pods_of, room

OTHERS, OWN = GroupTurn(is_own=False), GroupTurn(is_own=True)
ASKED_FOR = GroupTurn(is_own=True, are_others_placing=True)
LACKING = "Insufficient nvidia.com/gpu for 2 pods of a replica at once"


def world_of(replicas: int = 1, free: tuple[int, ...] = (8, 8), **parallelism: Any) -> World:
    """Pods of as many replicas, made and held, with a GPU each."""
    world = a_world(H100, parallelism={**TWO, **parallelism}, scaling={"replicas": replicas})
    world.settle()
    world.pods = pods_of(world, "LeaderWorkerSet", ready=False)
    for pod in world.pods.values():
        hold(pod)
    world.room = room(*free)
    return world


def hold(pod: dict[str, Any], *others: str) -> None:
    pod["spec"] = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    pod["spec"]["schedulingGates"] = [{"name": name} for name in (*others, GROUP_GATE)]
    waits = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    pod["status"] = {"phase": "Pending", "conditions": [waits]}


def let_go(pod: dict[str, Any], node: str = "") -> None:
    pod["spec"].pop("schedulingGates")
    scheduled = {"type": "PodScheduled", "status": "True"}
    pod["status"]["conditions"] = [scheduled] if node else []
    pod["spec"] |= {"nodeName": node} if node else {}


def released(world: World) -> set[str]:
    return {each.pod for each in world.decide().release}


def test_each_pod_is_made_held_and_the_recorded_template_is_not() -> None:
    world = world_of()
    made = world.children["LeaderWorkerSet", "x"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert made["spec"]["schedulingGates"] == [{"name": GROUP_GATE}]
    (record,) = (child for (kind, _), child in world.children.items() if kind == "ControllerRevision")
    assert "schedulingGates" not in record["data"]["template"]["spec"]


UNKNOWN = Room(unknown="the operator has no right to list nodes")
NO_NODE = Room()
ROWS: dict[str, tuple[Room, GroupTurn, bool, bool]] = {
    # room, turn, with a node autoscaler: released
    "room for all": (room(1, 1), OWN, False, True),
    "room for all, while others look for nodes in vain": (room(1, 1), ASKED_FOR, False, True),
    "room for one of two": (room(1, 0), OWN, False, False),
    "room for none": (room(0, 0), OWN, False, False),
    "room for all, in another's turn": (room(1, 1), OTHERS, False, False),
    "no node is eligible: the scheduler says why": (NO_NODE, OWN, False, True),
    "nodes cannot be listed": (UNKNOWN, OWN, False, True),
    "nodes cannot be listed for now": (Room(unknown="timeout", may_be_known_soon=True), OWN, False, False),
    "room for one, nodes come": (room(1, 0), OWN, True, True),
    "room for one, nodes come, but others wait for them": (room(1, 0), ASKED_FOR, True, False),
}


@pytest.mark.parametrize(("there", "turn", "autoscaler", "expected"), ROWS.values(), ids=ROWS.keys())
def test_all_pods_of_a_replica_look_for_nodes_or_none(
    there: Room, turn: GroupTurn, autoscaler: bool, expected: bool
) -> None:
    world = world_of()
    world.room, world.group_turn = there, turn
    world.settings = replace(world.settings, has_node_autoscaler=autoscaler)
    decision = world.decide()
    assert {each.pod for each in decision.release} == ({"g-0", "g-0-1"} if expected else set())
    assert decision.is_placing is expected
    assert expected or decision.requeue_after is not None, "room comes without an event"


RACK = "example.com/rack"
RACKS: dict[str, tuple[tuple[tuple[int, str | None], ...], str | None]] = {
    # free GPUs and rack of each node: the rack of the replica
    "room for all in one rack": (((1, "a"), (1, "b"), (1, "b")), "b"),
    "room for one in each": (((1, "a"), (1, "b")), None),
    "nodes without the label": (((1, None), (1, None), (1, "a")), None),
    "the smaller of two that are large enough": (((1, "a"), (1, "a"), (1, "a"), (1, "b"), (1, "b")), "b"),
    "the first by name of two alike": (((1, "b"), (1, "b"), (1, "a"), (1, "a")), "a"),
}


@pytest.mark.parametrize(("nodes", "rack"), RACKS.values(), ids=RACKS.keys())
def test_with_a_topology_key_all_pods_go_to_one_domain(
    nodes: tuple[tuple[int, str | None], ...], rack: str | None
) -> None:
    world = world_of(topologyKey=RACK)
    there = room(*(free for free, _ in nodes))
    labelled = zip(there.nodes, nodes, strict=True)
    named = (replace(node, labels={**node.labels, **({RACK: name} if name else {})}) for node, (_, name) in labelled)
    world.room, world.group_turn = replace(there, nodes=tuple(named)), OWN
    expected = set() if rack is None else {("g-0", ((RACK, rack),)), ("g-0-1", ((RACK, rack),))}
    assert {(each.pod, each.node_selector) for each in world.decide().release} == expected
    if rack is None:
        world.settle()
        of_rack = next(number for number, (_, name) in enumerate(nodes) if name == "a")
        found = f"{LACKING} within one {RACK}: 1 now in a (node-{of_rack})"
        assert world.status["failure"]["evidence"] == [found]


def test_pods_of_a_replica_are_kept_in_one_domain_by_its_recorded_template() -> None:
    world = world_of(topologyKey=RACK)
    (record,) = (child for (kind, _), child in world.children.items() if kind == "ControllerRevision")
    rules = record["data"]["template"]["spec"]["affinity"]["podAffinity"]
    (together,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (together["topologyKey"], together["matchLabelKeys"]) == (RACK, [GROUP_INDEX_LABEL])
    assert together["labelSelector"] == {"matchLabels": {SERVICE_LABEL: "x"}}


def test_without_room_the_status_says_what_all_of_them_lack_and_keeps_to_it_in_anothers_turn() -> None:
    world = world_of(free=(1, 0))
    for turn in (OWN, OTHERS):
        world.group_turn = turn
        world.settle()
        assert world.condition("Ready") == ("False", "InsufficientGPUs")
        assert world.status["failure"]["evidence"] == [f"{LACKING}: 1 now (node-0)"]
    assert world.decide().status is None, "nothing to write"


def test_one_replica_after_another() -> None:
    world = world_of(replicas=2, free=(1, 1))
    assert released(world) == {"g-0", "g-0-1"}
    for name in ("g-0", "g-0-1"):
        let_go(world.pods[name])
    assert (released(world), world.decide().is_placing) == (set(), True)
    for name, node in (("g-0", "node-0"), ("g-0-1", "node-1")):
        world.pods[name]["spec"]["nodeName"] = node
    world.room = room(0, 0)
    assert (released(world), world.decide().is_placing) == (set(), False)


def test_a_replaced_pod_of_a_replica_that_has_its_nodes_does_not_wait() -> None:
    world = world_of(free=(0, 0))
    let_go(world.pods["g-0"], "node-0")
    world.group_turn = OTHERS
    assert released(world) == {"g-0-1"}


def test_pods_wait_for_their_others_and_for_other_gates() -> None:
    world = world_of()
    hold(world.pods["g-0-1"], "kueue.x-k8s.io/admission")
    assert released(world) == set()
    del world.pods["g-0-1"]
    assert released(world) == set()


def test_a_spec_that_is_not_accepted_keeps_no_pod_from_its_node() -> None:
    world = world_of(free=(0, 0))
    let_go(world.pods["g-0"], "node-0")
    world.edit(model={"uri": "ftp://nothing"})
    assert released(world) == {"g-0-1"}


def test_a_gate_that_may_not_be_taken_away_is_told_and_tried_again_later() -> None:
    world = world_of()
    world.refused = {("Pod", name): Refusal(403, "it has no right to patch pods") for name in ("g-0", "g-0-1")}
    world.settle()
    assert (released(world), world.decide().is_placing) == (set(), False)
    assert world.condition("Ready") == ("False", "SchedulingGated")
    assert "llmservice.dev/group, which may not be taken away (it has no right to patch pods)" in str(world.status)
    world.refused = {}
    assert released(world) == {"g-0", "g-0-1"}


A, B, C = (Key("n", name) for name in "abc")


def test_one_service_at_a_time_has_the_turn_and_gives_it_back() -> None:
    turns = GroupTurns()
    assert turns.take(A, 0) == OWN
    assert turns.take(B, 1) == OTHERS == turns.take(C, 1)
    assert turns.report(B, 1, is_placing=False) == ()
    assert turns.report(A, 2, is_placing=True) == ()
    assert turns.take(B, 3) == OTHERS
    assert turns.report(A, 4, is_placing=False) == (B, C)
    assert turns.placed_at == 4
    assert turns.take(C, 5) == OWN


def test_a_turn_goes_on_while_pods_look_for_nodes_in_vain() -> None:
    turns = GroupTurns()
    turns.take(A, 0)
    turns.report(A, 0, is_placing=True)
    assert turns.take(B, PLACED_WITHIN - 1) == OTHERS
    assert turns.take(B, PLACED_WITHIN) == ASKED_FOR
    turns.report(B, PLACED_WITHIN, is_placing=False)
    assert turns.take(B, GIVEN_UP_AFTER) == OWN
