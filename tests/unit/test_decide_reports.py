"""What is reported beside the children: Events at transitions, and specs that cannot be parsed at all."""

from __future__ import annotations

import json
from typing import Any

from llmservice_operator.decide.decision import Decision
from llmservice_operator.observe.observed import Observed, Refusal

from tests.unit.decide_world import World, a_pod, an_llmservice

DIED = json.dumps({"version": 1, "reason": "EngineDied", "message": "It died.", "remedy": "Look at its log."})


def told(decision: Decision) -> list[tuple[str, str]]:
    return [(event.type, str(event.reason)) for event in decision.events]


def test_events_of_a_life() -> None:
    world = World()
    assert told(world.step()) == []
    world.settle()
    world.roll_out()
    assert told(world.step()) == [("Normal", "RolledOut")]
    assert told(world.step()) == []
    world.edit(batching={"maxNumSeqs": 8})
    assert told(world.step()) == [("Normal", "Progressing")]
    world.settle()
    end = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-01-02T03:01:00Z"}}
    world.roll_out(replicas=2, updated=1, ready=1, available=1)
    world.pods["new"] = a_pod("new", world.revision(), state=end)
    assert told(world.step()) == [("Warning", "MemoryLimitExceeded")]
    world.pods["new"] = a_pod("new", world.revision(), last=end["terminated"], restarts=1)
    assert told(world.step()) == []


def test_what_may_pass_is_an_event_too() -> None:
    world = World()
    world.settle()
    message = "0/1 nodes are available: 1 Insufficient cpu."
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    world.pods = {"x-0": a_pod("x-0", world.revision(), unschedulable=message)}
    assert told(world.step()) == [("Warning", "InsufficientResources")]


def test_a_failure_that_becomes_final_was_told_already() -> None:
    world = World()
    world.settle()
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    events = []
    for restarts in range(6):
        end = {"reason": "Error", "exitCode": 1, "message": DIED, "finishedAt": "2026-01-02T03:01:00Z"}
        world.pods = {"x-0": a_pod("x-0", world.revision(), last=end, restarts=restarts)}
        events += told(world.step())
    assert "Stalled" in world.conditions()
    assert events == [("Warning", "EngineDied")]


def test_a_failure_that_becomes_another_is_told_again() -> None:
    world = World()
    world.settle()
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    events = []
    for code in (1, 1, 137, 137):
        end = {
            "reason": "OOMKilled" if code == 137 else "Error",
            "exitCode": code,
            "finishedAt": "2026-01-02T03:01:00Z",
        }
        world.pods = {"x-0": a_pod("x-0", world.revision(), last=end, restarts=1)}
        events += told(world.step())
    assert events == [("Warning", "Unknown"), ("Warning", "MemoryLimitExceeded")]


def test_a_spec_that_is_not_accepted_is_told_each_time_it_changes() -> None:
    world = World()
    world.settle()
    for flag, expected in (("--nope", 1), ("--nope", 0), ("--never", 1)):
        world.edit(runtime={"extraArgs": [flag]})
        assert told(world.step()) == [("Warning", "UnknownFlag")] * expected


def invalid(world: World) -> Decision:
    assert world.inputs().service is None
    return world.decide()


def test_a_spec_of_another_time_leaves_what_serves_alone() -> None:
    world = World()
    world.settle()
    world.roll_out()
    world.settle()
    endpoint: Any = world.obj["status"]["endpoint"]
    world.edit(ofAnotherVersion={"a": 1})
    decision = invalid(world)
    assert (decision.apply, decision.prune) == ((), ())
    assert decision.status is not None
    conditions = {c["type"]: c for c in decision.status["conditions"]}
    assert (conditions["Accepted"]["status"], conditions["Accepted"]["reason"]) == ("False", "InvalidSpec")
    assert "ofAnotherVersion" in conditions["Accepted"]["message"]
    assert conditions["Available"]["status"] == "True"
    assert conditions["Ready"]["status"] == "False"
    assert decision.status["endpoint"] == endpoint
    world.obj["status"] = decision.status
    assert invalid(world).is_steady


def test_a_spec_that_never_worked_has_a_status_too() -> None:
    world = World(an_llmservice({"model": {}}))
    decision = invalid(world)
    assert decision.status is not None
    assert decision.status["observedGeneration"] == 1
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert invalid(world).is_steady


def test_a_refusal_of_what_is_no_longer_wanted_is_not_told() -> None:
    world = World(refused={("PodDisruptionBudget", "x"): Refusal(422, "no")})
    world.settle()
    world.roll_out()
    world.settle()
    assert world.conditions()["Ready"]["status"] == "True"


def test_nothing_known_is_enough_to_decide() -> None:
    assert Observed().child("Service", "x") is None
    assert len(World().decide().apply) == 3
