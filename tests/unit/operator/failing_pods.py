"""Failing pods as API server 1.36 returned them, with the fields that the projection reads; and their failure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.failures.failure import FailureContext, failure_of
from llmservice_operator.observe.failures.pod_failure import StatusFailure
from llmservice_operator.observe.observed import Report
from llmservice_runtime.contract import State

Json = dict[str, Any]

REVISION = "0a1b2c3d4e"
NOW = "2026-01-02T03:04:05Z"
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"}
NOT_READY = SCHEDULED | {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}


def pod(name: str = "x-0", *, status: Mapping[str, Any], node: str = "node-a", **metadata: Any) -> Json:
    """A pod of the wanted revision."""
    meta = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-01-02T03:00:00Z",
        "labels": {"llmservice.dev/service": "x", "llmservice.dev/revision": REVISION},
    }
    spec = {"nodeName": node} if node else {}
    return {"metadata": meta | metadata, "spec": spec, "status": copy.deepcopy(dict(status))}


def facts(*pods: Json) -> tuple[PodFacts, ...]:
    return tuple(PodFacts.from_object(each) for each in pods)


def reports(state: State | None, restarts: int = 0) -> dict[str, Report]:
    """Of the pod x-0."""
    return {"x-0": Report("uid-x-0", restarts, state)}


def failure(
    *shown: Json, before: StatusFailure | None = None, now: str = NOW, context: FailureContext | None = None
) -> StatusFailure | None:
    """The failure of these pods; `before` is the one in the stored status."""
    previous = before.to_object() if before else None
    return failure_of(None, facts(*shown), REVISION, previous, now, context or FailureContext({}))


def must_fail(
    *shown: Json, before: StatusFailure | None = None, now: str = NOW, context: FailureContext | None = None
) -> StatusFailure:
    found = failure(*shown, before=before, now=now, context=context)
    assert found is not None
    return found


def unplaced(message: str) -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(status={"phase": "Pending", "conditions": [condition]}, node="")


def server(state: Json, *, restarts: int = 0, last: Json | None = None, **more: Any) -> Json:
    """The status of a pod whose init container is done."""
    container = {"name": "server", "state": state, "restartCount": restarts, "ready": False, "started": False} | more
    if last is not None:
        container["lastState"] = {"terminated": last}
    done = {"name": "runtime", "ready": True, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    return {
        "phase": "Running",
        "podIP": "10.244.0.9",
        "conditions": [dict(SCHEDULED), dict(NOT_READY)],
        "initContainerStatuses": [done],
        "containerStatuses": [container],
    }


def fetching(state: Json, *, restarts: int = 0, last: Json | None = None, ready: bool = False) -> Json:
    """The status of a pod whose server waits for the container that fetches, which is in this state."""
    status = server({"running": {"startedAt": "2026-01-02T03:00:05Z"}})
    container: Json = {"name": "fetch", "state": state, "restartCount": restarts, "ready": ready, "started": ready}
    if last is not None:
        container["lastState"] = {"terminated": last}
    return status | {"initContainerStatuses": [*status["initContainerStatuses"], container]}


def setting_up() -> Json:
    """Volumes are mounted, or images pulled: none of its containers has started."""
    waiting = {"waiting": {"reason": "PodInitializing"}}
    return {
        "phase": "Pending",
        "conditions": [dict(SCHEDULED), dict(NOT_READY)],
        "initContainerStatuses": [{"name": "runtime", "ready": False, "state": waiting}],
        "containerStatuses": [{"name": "server", "ready": False, "started": False, "state": waiting}],
    }


def running(*, started: bool, unready_since: str = "2026-01-02T03:00:00Z", since: str = "2026-01-02T03:00:05Z") -> Json:
    """The server's process runs and the pod is not ready."""
    status = server({"running": {"startedAt": since}}, started=started)
    status["conditions"][1]["lastTransitionTime"] = unready_since
    return status


def lost() -> Json:
    """As the node controller leaves it: only the condition Ready was changed, without a reason."""
    status = server({"running": {"startedAt": "2026-01-02T02:00:05Z"}}, ready=True, started=True)
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T03:03:00Z"}
    healthy = {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-01-02T02:00:30Z"}
    return status | {"conditions": [SCHEDULED, ready, healthy]}


EVICTION = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: {limit}, available: {left}. "
    "Container server was using {used}, request is 0, has larger consumption of ephemeral-storage. "
)


def evicted(left: str = "2097148Ki", at: str = "2026-01-02T03:00:00Z") -> Json:
    target = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at}
    message = EVICTION.format(limit="3221225472", left=left, used="1936Ki")
    return {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": [SCHEDULED, target]}
