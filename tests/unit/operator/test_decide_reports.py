"""What is reported beside the children: Events at transitions, and specs that cannot be parsed at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.decision import Decision
from llmservice_operator.observe.observed import Observed, Refusal

from tests.unit.decide_world import World, a_pod, an_llmservice, serving

DIED = json.dumps({"version": 1, "reason": "EngineDied", "message": "It died.", "remedy": "Look at its log."})


def events(decision: Decision) -> list[tuple[str, str]]:
    return [(event.type, str(event.reason)) for event in decision.events]


def test_events_of_a_life() -> None:
    world = World()
    assert events(world.step()) == []
    world.settle()
    world.roll_out()
    assert events(world.step()) == [("Normal", "RolledOut")]
    assert events(world.step()) == []
    world.edit(batching={"maxNumSeqs": 8})
    assert events(world.step()) == [("Normal", "Progressing")]
    world.settle()
    end = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-01-02T03:01:00Z"}}
    world.roll_out(replicas=2, updated=1, ready=1, available=1)
    world.pods["new"] = a_pod("new", world.revision(), state=end)
    assert events(world.step()) == [("Warning", "MemoryLimitExceeded")]
    world.pods["new"] = a_pod("new", world.revision(), last=end["terminated"], restarts=1)
    assert events(world.step()) == []


ENDS = {"finishedAt": "2026-01-02T03:01:00Z"}
DIES = {"reason": "Error", "exitCode": 1, "message": DIED} | ENDS
UNPLACED = {"unschedulable": "0/1 nodes are available: 1 Insufficient cpu."}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([UNPLACED], ["InsufficientResources"], id="what may pass"),
        pytest.param([{"last": DIES, "restarts": n} for n in range(6)], ["EngineDied"], id="what becomes final"),
        pytest.param(
            [
                {"last": {"reason": why, "exitCode": code} | ENDS, "restarts": 1}
                for why, code in (("Error", 1), ("Error", 1), ("OOMKilled", 137), ("OOMKilled", 137))
            ],
            ["Unknown", "MemoryLimitExceeded"],
            id="what becomes another failure",
        ),
    ],
)
def test_a_failure_is_an_event_once(pods: list[Any], expected: list[str]) -> None:
    world = World()
    world.settle()
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    found = []
    for pod in pods:
        world.pods = {"x-0": a_pod("x-0", world.revision(), **pod)}
        found += events(world.step())
    assert found == [("Warning", reason) for reason in expected]
    assert len(pods) < 6 or "Stalled" in world.conditions()


def test_a_spec_that_is_not_accepted_is_an_event_each_time_it_changes() -> None:
    world = World()
    world.settle()
    for flag, expected in (("--nope", 1), ("--nope", 0), ("--never", 1)):
        world.edit(runtime={"extraArgs": [flag]})
        assert events(world.step()) == [("Warning", "UnknownFlag")] * expected


def test_a_spec_that_cannot_be_parsed_leaves_what_serves_alone() -> None:
    world = serving()
    endpoint = world.status["endpoint"]
    world.edit(ofAnotherVersion={"a": 1})
    assert world.inputs().stored is None
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert "ofAnotherVersion" in world.message("Accepted")
    assert (world.condition("Available")[0], world.condition("Ready")[0]) == ("True", "False")
    assert world.status["endpoint"] == endpoint
    assert world.step().is_steady


def test_a_spec_that_never_worked_has_a_status_too() -> None:
    world = World(an_llmservice({"model": {}}))
    world.step()
    assert world.status["observedGeneration"] == 1
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert world.step().is_steady


def test_a_refusal_of_what_is_not_desired_is_not_reported() -> None:
    world = World(refused={("PodDisruptionBudget", "x"): Refusal(422, "no")})
    world.serve()
    assert world.condition("Ready")[0] == "True"


def test_nothing_known_is_enough_to_decide() -> None:
    assert Observed().child("Service", "x") is None
    assert len(World().decide().apply) == 3
