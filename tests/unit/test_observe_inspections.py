"""Where the pod of an inspection stands, and what its last words say."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.watch.cache import Cache
from llmservice_operator.control.watch.kinds import PROJECTIONS
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.projections.children import JobFacts
from llmservice_operator.observe.projections.inspections import InspectionFacts, InspectionState, pod_from_object
from llmservice_operator.observe.projections.pods import PodFacts
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.inspection.inspected import Inspection

Json = dict[str, Any]
S = InspectionState

FOUND = Inspection("abc", {"hidden_size": 64}, {"embedding": 7, "parameters": 7, "dtype": "bfloat16"})
WHY_NOT = Inspection(failure=Failure(FailureReason.MODEL_NOT_FOUND, "It is not there.", "Look elsewhere."))
CREATED, STARTED, FINISHED = "2026-01-02T03:04:05Z", "2026-01-02T03:04:15Z", "2026-01-02T03:04:25Z"


def a_pod(status: Json, name: str = "chat-inspect-1-x", owner: str = "uid-job", **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "5",
            "creationTimestamp": CREATED,
            "labels": {"llmservice.dev/inspects": "chat"},
            "ownerReferences": [{"kind": "Job", "name": "chat-inspect-1", "uid": owner, "controller": True}],
            **metadata,
        },
        "spec": {},
        "status": status,
    }


def container(**state: Any) -> Json:
    return {
        "phase": "Pending" if "waiting" in state else "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {"name": "mesh", "state": {"running": {}}},
            {"name": "inspect", "restartCount": 0, "state": state},
        ],
    }


def ended(message: str, code: int = 0, reason: str = "Completed") -> Json:
    return container(
        terminated={
            "exitCode": code,
            "reason": reason,
            "message": message,
            "finishedAt": FINISHED,
            "startedAt": STARTED,
        }
    )


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/2 nodes are available: 2 node(s) had untolerated taint(s).",
        }
    ],
}
TRACEBACK = "Traceback (most recent call last):\n  File x\nZeroDivisionError: division by zero\n"

STANDS = {
    "just made": (a_pod({}), S.WAITING, CREATED, "no node has been found yet"),
    "no node": (a_pod(UNSCHEDULABLE), S.WAITING, CREATED, "no node takes it: "),
    "its image comes": (a_pod(container(waiting={"reason": "ContainerCreating"})), S.WAITING, CREATED, ""),
    "no image": (
        a_pod(container(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})),
        S.WAITING,
        CREATED,
        "ImagePullBackOff: Back-off pulling image",
    ),
    "no secret": (
        a_pod(container(waiting={"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'})),
        S.WAITING,
        CREATED,
        'CreateContainerConfigError: secret "hf" not found',
    ),
    "runs": (a_pod(container(running={"startedAt": STARTED})), S.RUNNING, STARTED, ""),
    "facts": (a_pod(ended(FOUND.to_json())), S.DONE, FINISHED, ""),
    "a reason": (a_pod(ended(WHY_NOT.to_json())), S.DONE, FINISHED, ""),
    "facts of a pod that goes": (
        a_pod(ended(FOUND.to_json()), deletionTimestamp=FINISHED),
        S.DONE,
        FINISHED,
        "",
    ),
    "a traceback": (
        a_pod(ended(TRACEBACK, 1, "Error")),
        S.FAILED,
        FINISHED,
        "Error, exit code 1: ZeroDivisionError: division by zero",
    ),
    "out of memory": (a_pod(ended("", 137, "OOMKilled")), S.FAILED, FINISHED, "OOMKilled, exit code 137"),
    "a later version's words": (
        a_pod(ended('{"version":9}')),
        S.FAILED,
        FINISHED,
        'Completed, exit code 0: {"version":9}',
    ),
    "evicted": (
        a_pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}),
        S.FAILED,
        CREATED,
        "Evicted: The node was low on memory.",
    ),
    "its time is over": (
        a_pod(container(running={"startedAt": STARTED}), deletionTimestamp=FINISHED),
        S.GONE,
        CREATED,
        "",
    ),
}


@pytest.mark.parametrize("name", STANDS)
def test_where_it_stands(name: str) -> None:
    obj, state, since, message = STANDS[name]
    facts = InspectionFacts.from_object(obj)
    assert (facts.state, facts.since) == (state, since)
    assert facts.message.startswith(message)
    assert bool(facts.message) == bool(message)
    assert (facts.inspection is not None) == (state is S.DONE)
    assert (facts.service, facts.owner_uid) == ("chat", "uid-job")


def test_the_words_are_read() -> None:
    assert InspectionFacts.from_object(a_pod(ended(FOUND.to_json()))).inspection == FOUND
    assert InspectionFacts.from_object(a_pod(ended(WHY_NOT.to_json()))).inspection == WHY_NOT


def test_what_moves_by_itself_changes_nothing() -> None:
    one = InspectionFacts.from_object(a_pod(container(running={"startedAt": STARTED})))
    other = InspectionFacts.from_object(a_pod(container(running={"startedAt": STARTED}), resourceVersion="9"))
    assert one == other


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        pytest.param({"llmservice.dev/inspects": "chat"}, InspectionFacts, id="an inspection's"),
        pytest.param({"llmservice.dev/service": "chat"}, PodFacts, id="a server's"),
        pytest.param({}, PodFacts, id="somebody's"),
        pytest.param(
            {"llmservice.dev/service": "chat", "llmservice.dev/inspects": "chat"}, PodFacts, id="what a Service selects"
        ),
    ],
)
def test_whose_pod_it_is(labels: Json, kind: type) -> None:
    assert isinstance(pod_from_object(a_pod({}, labels=labels)), kind)


def a_job(name: str, created: str = CREATED, *conditions: Json) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "5",
            "creationTimestamp": created,
            "labels": {"llmservice.dev/service": "chat", "app.kubernetes.io/managed-by": "llmservice-operator"},
            "ownerReferences": [{"kind": "LLMService", "name": "chat", "uid": "uid-1", "controller": True}],
        },
        "spec": {},
        "status": {"conditions": list(conditions)},
    }


@pytest.mark.parametrize(
    ("conditions", "complete", "failed"),
    [
        pytest.param((), False, None, id="under way"),
        pytest.param(({"type": "Complete", "status": "True"},), True, None, id="complete"),
        pytest.param(
            ({"type": "Failed", "status": "True", "reason": "DeadlineExceeded"},), False, "DeadlineExceeded", id="late"
        ),
        pytest.param(({"type": "Failed", "status": "True"},), False, "Failed", id="failed, who knows why"),
        pytest.param(({"type": "Failed", "status": "False", "reason": "x"},), False, None, id="not failed"),
    ],
)
def test_jobs(conditions: tuple[Json, ...], complete: bool, failed: str | None) -> None:
    facts = JobFacts.from_object(a_job("j", CREATED, *conditions))
    assert (facts.complete, facts.failed, facts.created_at) == (complete, failed, CREATED)
    assert facts.owner_uid == "uid-1"


def around(*objects: Json) -> Observed:
    cache = Cache(PROJECTIONS)
    for obj in objects:
        cache.update(obj["kind"], obj)
    return Observed.of("chat", cache.of_service(Key("ns", "chat")))


def test_inspections_are_none_of_the_services_pods() -> None:
    server = a_pod({}, "server", labels={"llmservice.dev/service": "chat"})
    found = around(a_job("j"), a_pod(ended(FOUND.to_json()), "looks", "uid-j"), server)
    assert [pod.name for pod in found.pods] == ["server"]
    assert [pod.name for pod in found.inspections] == ["looks"]


def test_a_jobs_own_pod_is_asked_and_nobody_elses() -> None:
    """A label alone makes no pod of the Job."""
    forged = a_pod(ended(FOUND.to_json()), "forged", "uid-of-another")
    found = around(a_job("j"), forged)
    job = found.inspection_job("j")
    assert job is not None
    assert found.inspection(job) is None
    found = around(a_job("j"), forged, a_pod(container(running={"startedAt": STARTED}), "looks", "uid-j"))
    pod = found.inspection(job)
    assert pod is not None
    assert pod.name == "looks"


def test_jobs_of_two_questions_are_kept_apart() -> None:
    found = around(a_job("later", FINISHED), a_job("first", CREATED))
    assert [job.name for job in found.inspection_jobs] == ["first", "later"]
    assert found.child("Job", "first") is found.inspection_job("first")
    assert found.inspection_job("third") is None
