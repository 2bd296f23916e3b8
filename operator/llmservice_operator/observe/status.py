"""The whole status of an LLMService. The same facts make the same status, so it is written at transitions only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from llmservice_operator.observe.conditions import conditions
from llmservice_operator.observe.failure import Trouble, trouble_of
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.reports import adapters_of, measured_of, progress_of, starting_phase
from llmservice_operator.observe.rollout import Progress, progress
from llmservice_operator.observe.verdict import Subject, Verdict

Json = Mapping[str, Any]

_OURS = (
    "observedGeneration",
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "selector",
    "ready",
    "gpus",
    "endpoint",
    "effective",
    "rollout",
    "failure",
    "progress",
    "model",
    "plan",
    "measured",
    "adapters",
)


def status_of(subject: Subject, observed: Observed, verdict: Verdict, now: datetime) -> dict[str, Any]:
    """The value of `.status`."""
    stamp = timestamp(now)
    deployment = observed.deployment
    if deployment is not None and deployment.owner_uid != subject.uid:
        deployment = None
    pods = observed.pods if deployment is not None else ()
    reports, previous = observed.reports, subject.previous
    starting = progress_of(pods, reports, verdict.revision, previous)
    moment = progress(deployment, pods, verdict.revision, verdict.replicas, starting_phase(starting))
    adapters = adapters_of(verdict.adapters, verdict.adapters_digest or "", pods, reports, verdict.revision, previous)
    trouble = None
    if not moment.is_rolled_out and verdict.revision:
        trouble = trouble_of(deployment, pods, verdict.revision, _told_failure(subject, verdict), stamp)
    status: dict[str, Any] = {
        "observedGeneration": subject.generation,
        "conditions": conditions(subject, verdict, moment, trouble, adapters, stamp),
        "replicas": moment.replicas,
        "updatedReplicas": moment.updated,
        "readyReplicas": moment.ready,
        "availableReplicas": moment.available,
        "selector": verdict.selector,
        "ready": f"{moment.ready}/{verdict.replicas}",
        "gpus": verdict.gpus,
    }
    if verdict.endpoint:
        status["endpoint"] = _endpoint(verdict, adapters)
    if verdict.effective:
        status["effective"] = dict(verdict.effective)
    if verdict.revision:
        status["rollout"] = _rollout(verdict, moment, trouble)
    if trouble is not None:
        status["failure"] = trouble.to_object()
    if starting is not None:
        status["progress"] = starting
    if verdict.model:
        status["model"] = dict(verdict.model)
    if verdict.plan:
        status["plan"] = dict(verdict.plan)
    if measured := measured_of(pods, reports, verdict.revision, previous):
        status["measured"] = measured
    if adapters:
        status["adapters"] = adapters
    return status


def is_told(status: Json, previous: Json) -> bool:
    """Whether the stored status says this already; what others added to it is theirs."""
    if any(status.get(key) != previous.get(key) for key in _OURS):
        return False
    told = {c.get("type"): c for c in previous.get("conditions") or ()}
    types = {c["type"] for c in status["conditions"]}
    passing = {"Fits", "Reconciling", "Stalled"} - types
    return not passing & set(told) and all(told.get(c["type"]) == c for c in status["conditions"])


def timestamp(now: datetime) -> str:
    """As metav1.Time is written."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _told_failure(subject: Subject, verdict: Verdict) -> Json | None:
    """What was told about this revision; another one starts afresh."""
    rollout = subject.previous.get("rollout") or {}
    return subject.previous.get("failure") if rollout.get("revision") == verdict.revision else None


def _endpoint(verdict: Verdict, adapters: list[dict[str, Any]]) -> dict[str, Any]:
    """With the names that adapters answer to."""
    names = [*verdict.endpoint.get("modelNames", ()), *(item["name"] for item in adapters if item["loaded"])]
    return {**verdict.endpoint, "modelNames": list(dict.fromkeys(names))}


def _rollout(verdict: Verdict, moment: Progress, trouble: Trouble | None) -> dict[str, Any]:
    rollout: dict[str, Any] = {"strategy": verdict.strategy, "revision": verdict.revision}
    if not moment.is_rolled_out and (moment.is_overdue or (trouble is not None and trouble.is_final)):
        rollout["failedRevision"] = verdict.revision
    if verdict.update_pending:
        rollout["updatePending"] = True
    return rollout
