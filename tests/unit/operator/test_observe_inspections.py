"""The state of an inspection's pod, and what its termination message holds."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.informer import Cache
from kubeloop.resources import Key
from llmservice_operator.facts.children import JobFacts
from llmservice_operator.facts.inspections import InspectionFacts, InspectionState, pod_from_object
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.observed import Observed
from llmservice_operator.service.watch import PROJECTIONS
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.inspection.inspected import Inspection

from tests.unit.decide_world import of_the_deployment

Json = dict[str, Any]
S = InspectionState

FOUND = Inspection("abc", {"hidden_size": 64}, {"embedding": 7, "parameters": 7, "dtype": "bfloat16"})
WHY_NOT = Inspection(failure=Failure(FailureReason.MODEL_NOT_FOUND, "It is not there.", "Look elsewhere."))
CREATED, STARTED, FINISHED = "2026-01-02T03:04:05Z", "2026-01-02T03:04:15Z", "2026-01-02T03:04:25Z"


def meta(name: str, owner_kind: str, owner: str, labels: Json, **more: Any) -> Json:
    reference = {"kind": owner_kind, "name": "chat-inspect-1", "uid": owner, "controller": True}
    base = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": "5", "creationTimestamp": CREATED}
    return base | {"labels": labels, "ownerReferences": [reference]} | more


def a_pod(
    status: Json, name: str = "chat-inspect-1-x", owner: str = "uid-job", spec: Json | None = None, **more: Any
) -> Json:
    metadata = meta(name, "Job", owner, **{"labels": {"llmservice.dev/inspects": "chat"}} | more)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec or {}, "status": status}


def container(**state: Any) -> Json:
    return {
        "phase": "Pending" if "waiting" in state else "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {"name": "mesh", "state": {"running": {}}},
            {"name": "inspect", "restartCount": 0, "state": state},
        ],
    }


def waits(reason: str, message: str = "") -> Json:
    return a_pod(container(waiting={"reason": reason, "message": message}))


def ended(message: str, code: int = 0, reason: str = "Completed", **more: Any) -> Json:
    end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": FINISHED, "startedAt": STARTED}
    return a_pod(container(terminated=end), **more)


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes: 2 taints.",
}
GATED = UNSCHEDULABLE | {"reason": "SchedulingGated", "message": "Scheduling is blocked"}
GATES = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
TRACEBACK = "Traceback (most recent call last):\n  File x\nZeroDivisionError: division by zero\n"
RUNNING = container(running={"startedAt": STARTED})
NO_SECRET = 'secret "hf" not found'
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "Low on memory."}

STATES = {
    "just made": (a_pod({}), S.WAITING, CREATED, "no node has been found yet"),
    "no node": (a_pod({"phase": "Pending", "conditions": [UNSCHEDULABLE]}), S.WAITING, CREATED, "no node takes it: "),
    "a gate": (
        a_pod({"phase": "Pending", "conditions": [GATED]}, spec=GATES),
        S.WAITING,
        CREATED,
        "it waits for sched",
    ),
    "its image is pulled": (waits("ContainerCreating"), S.WAITING, CREATED, ""),
    "no image": (waits("ImagePullBackOff", "Back-off"), S.WAITING, CREATED, "ImagePullBackOff: Back-off"),
    "no secret": (waits("CreateContainerConfigError", NO_SECRET), S.WAITING, CREATED, "CreateContainerConfigError: se"),
    "runs": (a_pod(RUNNING), S.RUNNING, STARTED, ""),
    "facts": (ended(FOUND.to_json()), S.DONE, FINISHED, ""),
    "a reason": (ended(WHY_NOT.to_json()), S.DONE, FINISHED, ""),
    "facts of a pod that goes": (ended(FOUND.to_json(), deletionTimestamp=FINISHED), S.DONE, FINISHED, ""),
    "a traceback": (ended(TRACEBACK, 1, "Error"), S.FAILED, FINISHED, "Error, exit code 1: ZeroDivisionError: div"),
    "out of memory": (ended("", 137, "OOMKilled"), S.FAILED, FINISHED, "OOMKilled, exit code 137"),
    "a later version": (ended('{"version":9}'), S.FAILED, FINISHED, 'Completed, exit code 0: {"version":9}'),
    "evicted": (a_pod(EVICTED), S.FAILED, CREATED, "Evicted: Low on memory."),
    "its deadline is over": (a_pod(RUNNING, deletionTimestamp=FINISHED), S.GONE, CREATED, ""),
}


@pytest.mark.parametrize("name", STATES)
def test_the_state_since_when_and_why(name: str) -> None:
    obj, state, since, message = STATES[name]
    facts = InspectionFacts.from_object(obj)
    assert (facts.state, facts.since) == (state, since)
    assert facts.message.startswith(message)
    assert bool(facts.message) == bool(message)
    assert facts.inspection == {"a reason": WHY_NOT}.get(name, FOUND if state is S.DONE else None)
    assert (facts.service, facts.owner_uid) == ("chat", "uid-job")


def test_a_new_resource_version_alone_is_no_change() -> None:
    one, other = (InspectionFacts.from_object(a_pod(RUNNING, resourceVersion=version)) for version in ("5", "9"))
    assert one == other


@pytest.mark.parametrize(
    ("labels", "kind"),
    [(("inspects",), InspectionFacts), (("service",), PodFacts), ((), PodFacts), (("service", "inspects"), PodFacts)],
)
def test_a_pod_that_a_service_selects_is_no_inspection(labels: tuple[str, ...], kind: type) -> None:
    pod = a_pod({}, labels={f"llmservice.dev/{label}": "chat" for label in labels})
    assert isinstance(pod_from_object(pod), kind)


def a_job(name: str, created: str = CREATED, *conditions: Json) -> Json:
    labels = {"llmservice.dev/service": "chat", "app.kubernetes.io/managed-by": "llmservice-operator"}
    metadata = meta(name, "LLMService", "uid-1", labels, creationTimestamp=created)
    status = {"conditions": list(conditions)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}, "status": status}


COMPLETE, FAILED = {"type": "Complete", "status": "True"}, {"type": "Failed", "status": "True"}


@pytest.mark.parametrize(
    ("conditions", "complete", "failed"),
    [
        ((), False, None),
        ((COMPLETE,), True, None),
        ((FAILED | {"reason": "DeadlineExceeded"},), False, "DeadlineExceeded"),
        ((FAILED,), False, "Failed"),
        ((FAILED | {"status": "False", "reason": "x"},), False, None),
    ],
)
def test_jobs(conditions: tuple[Json, ...], complete: bool, failed: str | None) -> None:
    facts = JobFacts.from_object(a_job("j", CREATED, *conditions))
    assert (facts.complete, facts.failed, facts.created_at) == (complete, failed, CREATED)
    assert facts.owner_uid == "uid-1"


def observed(*objects: Json) -> Observed:
    cache = Cache(PROJECTIONS)
    for obj in objects:
        cache.update(obj["kind"], obj)
    return Observed.of("chat", cache.of_service(Key("ns", "chat")))


def test_inspections_are_not_pods_of_the_service_and_belong_to_their_job_by_owner() -> None:
    """A label alone makes no pod of the Job."""
    server = of_the_deployment(a_pod({}, "server", labels={"llmservice.dev/service": "chat"}))
    forged = ended(FOUND.to_json(), name="forged", owner="uid-of-another")
    found = observed(a_job("j"), forged, server)
    assert [pod.name for pod in found.pods] == ["server"]
    job = found.inspection_job("j")
    assert job is not None
    assert found.inspection(job) is None
    pod = observed(a_job("j"), forged, a_pod(RUNNING, "own", "uid-j")).inspection(job)
    assert pod is not None
    assert pod.name == "own"


def test_jobs_are_in_order_of_their_creation() -> None:
    found = observed(a_job("later", FINISHED), a_job("first", CREATED))
    assert [job.name for job in found.inspection_jobs] == ["first", "later"]
    assert found.child("Job", "first") is found.inspection_job("first")
    assert found.inspection_job("third") is None
