"""A refused child is a failure with reason, remedy and evidence, reported once while it lasts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import World, a_pod
from tests.unit.status_states import ENDED, NO_SUCH_FLAG, edited, served, service, with_pods

Json = dict[str, Any]

SERVICE = ("Service", "x")
CONFLICT = 'Apply failed with 1 conflict: conflict with "kubectl" using v1 at 2026-01-02T03:04:05Z: .spec.selector'
QUOTA = 'services "x" is forbidden: exceeded quota: q, requested: services=1, used: services=3, limited: services=3'
POLICY = "Service is invalid: a policy says no"
FORBIDDEN_POD = 'pods "x-1" is forbidden: a policy says no'
REFUSED = {
    "NameConflict": (409, CONFLICT, 'Service x: Apply failed with 1 conflict: conflict with "kubectl"'),
    "AdmissionRefused": (422, POLICY, POLICY),
    "QuotaExceeded": (403, QUOTA, "quota q is used up: services=1 requested"),
}


BY_POLICY = {SERVICE: Refusal(422, POLICY)}


def failure(world: World) -> Json:
    found: Json = world.obj["status"].get("failure") or {}
    return found


def warnings(world: World) -> list[str]:
    """Of one pass."""
    return [str(event.reason) for event in world.step().events if event.type == "Warning"]


def without_service(world: World) -> World:
    """Its Service is gone, and a policy refuses another."""
    del world.children[SERVICE]
    world.refused = BY_POLICY
    return world


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refused_child_is_a_failure_reported_once_until_it_is_applied(reason: str) -> None:
    code, message, evidence = REFUSED[reason]
    world = World(refused={SERVICE: Refusal(code, message)})
    assert warnings(world) == [reason]
    found, conditions = failure(world), world.conditions()
    assert found["reason"] == conditions["Ready"]["reason"] == conditions["Stalled"]["reason"] == reason
    assert "Service x" in found["message"]
    assert found["remedy"]
    assert found["remedy"] not in found["message"]
    assert found["remedy"] in conditions["Ready"]["message"]
    assert found["evidence"][0].startswith(evidence)
    world.step()  # the other children exist by now, which is written too
    writes = world.status_writes
    for minute in range(3):
        world.now += timedelta(minutes=1)
        moved = message.replace("03:04:05", f"03:0{minute}:07").replace("used: services=3", f"used: services={minute}")
        world.refused = {SERVICE: Refusal(code, moved)}
        assert warnings(world) == []
    assert (failure(world)["since"], world.status_writes) == (found["since"], writes)
    world.edit(batching={"maxNumSeqs": 8})
    assert warnings(world) == []
    assert failure(world)["since"] == found["since"], "the edit is not the cause"
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
    assert all(name in failure(world)["message"] for name in ("Gadget g", "Helm"))


@pytest.mark.parametrize(
    ("edit", "refused"),
    [({"runtime": NO_SUCH_FLAG}, {}), ({"scaling": {"replicas": 2}}, {}), ({"paused": True}, BY_POLICY)],
)
def test_an_edit_is_no_failure_and_a_paused_service_reports_no_refusal(edit: Json, refused: Any) -> None:
    world = served()
    world.edit(**edit)
    world.refused = refused
    world.step()
    assert "failure" not in world.obj["status"]


def test_the_pods_failure_is_reported_again_when_nothing_is_refused_any_more() -> None:
    world = edited(served())
    with_pods(world, a_pod("x-1", world.revision(), state={"terminated": ENDED}))
    shown = failure(world)
    assert shown["reason"] == "KVCacheTooSmall"
    failed = dict(world.obj["status"]["rollout"])
    assert warnings(without_service(world)) == ["AdmissionRefused"]
    assert world.obj["status"]["rollout"] == failed, "the revision failed as it did before"
    world.refused = {}
    world.settle()
    assert failure(world) == shown


def test_a_refused_child_is_no_failure_of_the_revision() -> None:
    world = service()
    world.edit(rollout={"autoRollback": True})
    without_service(world).step()
    assert failure(world)["reason"] == "AdmissionRefused"
    assert "failedRevision" not in world.obj["status"]["rollout"]


def test_refused_pods_and_a_refused_service_are_two_failures_of_one_reason() -> None:
    world = service()
    no_pod = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": FORBIDDEN_POD}
    world.deployment["status"]["conditions"] = [no_pod]
    world.step()
    pods, kept = failure(world)["message"], world.children[SERVICE]
    assert pods.startswith("No pod can be made")
    without_service(world).step()
    assert failure(world)["message"].startswith("Service x cannot be applied")
    world.refused, world.children[SERVICE] = {}, kept
    world.step()
    assert failure(world)["message"] == pods


# plugin/pkg/admission/limitranger/admission.go; the API server aggregates them in brackets. The last two are of
# pkg/apis/core/validation: a default limit below a request. [what refuses, who is refused]
LIMIT_RANGES = {
    "a minimum": "minimum cpu usage per Container is 100m, but request is 50m",
    "a minimum without a request": "minimum memory usage per Pod is 1Gi.  No request is specified",
    "a maximum": "maximum memory usage per Container is 4Gi, but limit is 8Gi",
    "a maximum without a limit": "maximum nvidia.com/gpu usage per Container is 1.  No limit is specified",
    "a ratio": "cpu max limit to request ratio per Container is 10, but provided ratio is 20.000000",
    "a maximum of claims": "maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 20Gi",
}
BELOW = (
    'Pod "x-{}" is invalid: spec.containers[0].resources.requests: Invalid value: "8Gi": must be less than or equal to '
    "memory limit of 512Mi"
)


def with_replica_failure(message: str) -> World:
    world = service()
    world.roll_out(updated=0, ready=0, available=0, replicas=0)
    world.pods = {}
    world.deployment["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": message}]
    world.settle()
    return world


@pytest.mark.parametrize("case", LIMIT_RANGES)
def test_a_limit_range_is_named_with_its_bound(case: str) -> None:
    said = LIMIT_RANGES[case]
    found = failure(with_replica_failure(f'pods "x-1" is forbidden: [{said}, and more]'))
    assert found["reason"] == "LimitRangeExceeded"
    assert said in found["message"]
    assert "spec.runtime.resources" in found["remedy"]


def test_a_limit_range_s_default_below_a_request_is_named_and_reported_once() -> None:
    """The API server names the pod, which is another one at each try."""
    world = with_replica_failure(BELOW.format("5d-abcde"))
    assert failure(world)["reason"] == "LimitRangeExceeded"
    assert "memory limit of 512Mi" in failure(world)["message"]
    writes = world.status_writes
    world.deployment["status"]["conditions"][0]["message"] = BELOW.format("5d-fghij")
    world.settle()
    assert world.status_writes == writes


def test_a_claim_that_a_limit_range_refuses_is_a_failure_of_that() -> None:
    message = f'persistentvolumeclaims "x-cache" is forbidden: {LIMIT_RANGES["a maximum of claims"]}'
    world = World(refused={SERVICE: Refusal(403, message)})
    world.step()
    assert failure(world)["reason"] == world.conditions()["Stalled"]["reason"] == "LimitRangeExceeded"


@pytest.mark.parametrize(
    ("message", "reason"),
    [(QUOTA, "QuotaExceeded"), ("quota of this minute", "AdmissionRefused"), ("quota ", "AdmissionRefused")],
)
def test_a_quota_is_what_kubernetes_says_of_one(message: str, reason: str) -> None:
    world = World(refused={SERVICE: Refusal(403, message)})
    world.step()
    assert failure(world)["reason"] == reason
