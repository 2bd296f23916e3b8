"""What keeps children back is a failure as well: told with reason, remedy and evidence, once, while it lasts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import World, a_pod
from tests.unit.status_states import CASES, ENDED, Case, edited, served, service, with_pods

Json = dict[str, Any]

SERVICE = ("Service", "x")
CONFLICT = 'Apply failed with 1 conflict: conflict with "kubectl" using v1 at 2026-01-02T03:04:05Z: .spec.selector'
QUOTA = 'services "x" is forbidden: exceeded quota: q, requested: services=1, used: services=3, limited: services=3'
POLICY = "Service is invalid: a policy says no"
FORBIDDEN_POD = 'pods "x-1" is forbidden: a policy says no'
REFUSED = [
    pytest.param(409, CONFLICT, "NameConflict", 'Service x: Apply failed with 1 conflict: conflict with "kubectl"'),
    pytest.param(422, POLICY, "AdmissionRefused", POLICY),
    pytest.param(403, QUOTA, "QuotaExceeded", "quota q is used up: services=1 requested"),
]


def failure(world: World) -> Json:
    told: Json = world.obj["status"].get("failure") or {}
    return told


def warnings(world: World) -> list[str]:
    """Of one look."""
    return [str(event.reason) for event in world.step().events if event.type == "Warning"]


@pytest.mark.parametrize(("code", "message", "reason", "evidence"), REFUSED)
def test_a_child_that_is_refused_is_a_failure(code: int, message: str, reason: str, evidence: str) -> None:
    world = World(refused={SERVICE: Refusal(code, message)})
    assert warnings(world) == [reason]
    told = failure(world)
    assert told["reason"] == world.conditions()["Ready"]["reason"] == world.conditions()["Stalled"]["reason"] == reason
    assert "Service x" in told["message"]
    assert told["remedy"]
    assert told["remedy"] not in told["message"]
    assert told["remedy"] in world.conditions()["Ready"]["message"]
    assert told["evidence"][0].startswith(evidence)


@pytest.mark.parametrize(("code", "message", "reason", "evidence"), REFUSED)
def test_it_is_reported_once_since_when_it_began_and_over_with_its_cause(
    code: int, message: str, reason: str, evidence: str
) -> None:
    world = World(refused={SERVICE: Refusal(code, message)})
    world.step()
    world.step()  # the other children are there by now, which is told too
    since, writes = failure(world)["since"], world.status_writes
    for minute in range(3):
        world.now += timedelta(minutes=1)
        moved = message.replace("03:04:05", f"03:0{minute}:07").replace("used: services=3", f"used: services={minute}")
        world.refused = {SERVICE: Refusal(code, moved)}
        assert warnings(world) == []
    assert (failure(world)["since"], world.status_writes) == (since, writes)
    world.edit(batching={"maxNumSeqs": 8})
    assert warnings(world) == []
    assert failure(world)["since"] == since, "the edit is not why"
    world.refused = {}
    world.settle()
    assert "failure" not in world.obj["status"]


def test_each_name_that_is_taken_has_its_owner_in_the_evidence() -> None:
    world = served()
    owner = {"apiVersion": "v1", "kind": "Gadget", "name": "g", "uid": "other", "controller": True}
    world.children["Deployment", "x"]["metadata"]["ownerReferences"] = [owner]
    world.children[SERVICE]["metadata"] |= {"ownerReferences": []}
    world.children[SERVICE]["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    assert warnings(world) == ["NameConflict"]
    assert sorted(failure(world)["evidence"]) == [
        "Deployment x: ownerReferences: Gadget g (uid other)",
        "Service x: label app.kubernetes.io/managed-by: Helm",
    ]
    assert "Gadget g" in failure(world)["message"]
    assert "Helm" in failure(world)["message"]


@pytest.mark.parametrize("edit", [{"runtime": {"extraArgs": ["--no-such-flag"]}}, {"scaling": {"replicas": 2}}])
def test_what_the_spec_says_is_no_failure(edit: Json) -> None:
    world = served()
    world.edit(**edit)
    world.step()
    assert "failure" not in world.obj["status"]


def test_what_pods_showed_is_reported_again_when_nothing_is_refused_any_more() -> None:
    world = edited(served())
    with_pods(world, a_pod("x-1", world.revision(), state={"terminated": ENDED}))
    shown = failure(world)
    assert shown["reason"] == "KVCacheTooSmall"
    failed = dict(world.obj["status"]["rollout"])
    del world.children[SERVICE]
    world.refused = {SERVICE: Refusal(422, POLICY)}
    assert warnings(world) == ["AdmissionRefused"]
    assert world.obj["status"]["rollout"] == failed, "the revision failed as it did before"
    world.refused = {}
    world.settle()
    assert failure(world) == shown


def test_a_refused_child_is_no_failure_of_the_revision() -> None:
    world = service()
    world.edit(rollout={"autoRollback": True})
    del world.children[SERVICE]
    world.refused = {SERVICE: Refusal(422, POLICY)}
    world.step()
    assert failure(world)["reason"] == "AdmissionRefused"
    assert "failedRevision" not in world.obj["status"]["rollout"]


def test_pods_that_are_refused_next_are_another_failure_of_the_same_reason() -> None:
    """The words of the one do not stand for the other."""
    world = service()
    no_pod = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": FORBIDDEN_POD}
    world.deployment["status"]["conditions"] = [no_pod]
    world.step()
    pods = failure(world)
    assert pods["message"].startswith("No pod can be made")
    kept = world.children.pop(SERVICE)
    world.refused = {SERVICE: Refusal(422, POLICY)}
    world.step()
    assert failure(world)["message"].startswith("Service x cannot be applied")
    world.refused, world.children[SERVICE] = {}, kept
    world.step()
    assert failure(world)["message"] == pods["message"]


def test_a_paused_service_reports_no_refusal() -> None:
    world = served()
    world.edit(paused=True)
    world.refused = {SERVICE: Refusal(422, POLICY)}
    world.step()
    assert "failure" not in world.obj["status"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_failure_says_what_the_column_says_with_evidence_and_remedy(case: Case) -> None:
    status = case.make().obj["status"]
    told = status.get("failure")
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    if told is not None:
        assert (ready["status"], ready["reason"]) == ("False", told["reason"])
        assert all(told[field] for field in ("message", "remedy", "since", "evidence")), told
