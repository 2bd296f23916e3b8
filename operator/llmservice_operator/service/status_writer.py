"""Writes the status, and Events at its transitions, both limited per service by `token_bucket`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from kubeloop.errors import KubeError
from kubeloop.events import InvolvedObject, manifest
from kubeloop.log import ObjectLogger
from kubeloop.resources import POD, Key
from kubeloop.timestamps import rfc3339
from kubeloop.token_bucket import EDIT_WRITES
from llmservice_api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_api.constants import OPERATOR, STATUS_MANAGER
from llmservice_api.kinds import LLMSERVICE
from llmservice_api.reasons import Reason

from llmservice_operator.decision import Decision, Event
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_operator.service.containment import Part
from llmservice_operator.service.context import Context, ServiceMemory
from llmservice_operator.service.watch.kinds import PARENT, ParentFacts, key_of


def rate_limited(decision: Decision, parent: ParentFacts, ctx: Context, memory: ServiceMemory) -> Decision:
    """The decision without status and Events if this service's status is written too often; retried later.

    The first status about an edit is always written.
    """
    if decision.status is None or _is_of_edit(decision.status, parent):
        return decision
    wait = memory.writes.wait(ctx.clock())
    if wait <= 0:
        return decision
    ctx.metrics.rate_limited.labels("status").inc()
    return replace(decision, status=None, events=(), requeue_after=wait)


def _is_of_edit(status: Mapping[str, Any], parent: ParentFacts) -> bool:
    written = (parent.obj.get("status") or {}).get("observedGeneration")
    return bool(status.get("observedGeneration") != written)


async def report(
    decision: Decision, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> None:
    """Write a changed status, then the Events of the change."""
    if decision.status is not None:
        if _is_of_edit(decision.status, parent):
            memory.writes.give(EDIT_WRITES)
        await write_status(decision.status, parent, ctx, memory)
    for event in decision.events:
        with ctx.errors.contained(Part.EVENT, key_of(parent)):
            await write_event(event, parent, ctx, log)


async def write_status(status: Mapping[str, Any], parent: ParentFacts, ctx: Context, memory: ServiceMemory) -> None:
    """Write the status. Its watch event queues nothing; an edit in the response queues the service."""
    manifest = {
        "apiVersion": LLMSERVICE.api_version,
        "kind": LLMSERVICE.kind,
        "metadata": {"name": parent.name, "namespace": parent.namespace, "uid": parent.uid},
        "status": status,
    }
    with ctx.cache.expecting(PARENT, parent.with_status(status)):
        answer = await ctx.kube.apply_status(LLMSERVICE, manifest, manager=STATUS_MANAGER)
        ctx.enqueue(ctx.cache.update(PARENT, answer))
    memory.writes.take(ctx.clock())
    memory.parent_version = answer["metadata"]["resourceVersion"]
    ctx.metrics.status_writes.inc()
    # An exception after the write must not cause another write.
    key = key_of(parent)
    with ctx.errors.contained(Part.BOOKKEEPING, key, "metrics"):
        ctx.metrics.set_status(key, status, parent.obj.get("status") or {})


async def write_event(event: Event, parent: ParentFacts, ctx: Context, log: ObjectLogger) -> None:
    """Write an Event, unless there were too many about this service: the status has the same information."""
    if not ctx.memory(key_of(parent), parent.uid).events.take(ctx.clock()):
        ctx.metrics.rate_limited.labels("event").inc()
        return
    log.info("%s: %s", event.reason, event.message)
    about = InvolvedObject(LLMSERVICE, parent.namespace, parent.name, parent.uid, parent.resource_version)
    body = manifest(
        about,
        # As client-go names them: unique unless two are reported in one nanosecond.
        f"{parent.name}.{ctx.unique():x}",
        event.type,
        event.reason,
        event.message,
        now=ctx.now(),
        component=OPERATOR,
        instance=ctx.identity,
    )
    try:
        await ctx.kube.create_event(body)
    except KubeError as error:
        log.warning("could not create an Event: %s", error)


async def report_drains(parent: ParentFacts, ctx: Context, log: ObjectLogger) -> None:
    """One Event for each pod whose end cut streams: once its server ended, or when it is already deleted."""
    key = key_of(parent)
    memory = ctx.memory(key, parent.uid)
    found = [*ctx.cache.of_service(key).get(POD.kind, {}).values(), *memory.gone]
    memory.gone.clear()
    pods = [pod for pod in replicas(found) if pod.cut]
    before, memory.drained = memory.drained, frozenset(pod.uid for pod in pods)
    for pod in (pod for pod in pods if pod.uid not in before):
        ctx.metrics.add_streams_ended(key, pod.cut)
        await write_event(Event("Warning", Reason.STREAMS_ENDED, _streams_ended(pod)), parent, ctx, log)


def _streams_ended(pod: PodFacts) -> str:
    streams = "1 stream" if pod.cut == 1 else f"{pod.cut} streams"
    return f"Pod {pod.name} ended {streams} that outlived the drain timeout. {Reason.STREAMS_ENDED.remedy}"


async def report_unhandled(reason: Reason, evidence: str, key: Key, ctx: Context, log: ObjectLogger) -> None:
    """Write the status of a service on which the operator failed, and one Event; nothing is recomputed.

    If the stored status reports it already, it is not written again: the metrics are set from it.
    """
    parent = ctx.cache.get(PARENT, *key)
    if parent is None or parent.deleting:
        return
    message = f"{reason.summary} {evidence} {reason.remedy}"
    status = _stalled_status(parent.obj["status"], parent.content["generation"] or 0, reason, message, ctx.now())
    if status is None:
        with ctx.errors.contained(Part.BOOKKEEPING, key, "metrics"):
            ctx.metrics.set_status(key, parent.obj["status"])
    else:
        await write_status(status, parent, ctx, ctx.memory(key, parent.uid))
        await write_event(Event("Warning", reason, message), parent, ctx, log)


def _stalled_status(
    stored: Mapping[str, Any], generation: int, reason: Reason, message: str, now: datetime
) -> dict[str, Any] | None:
    """The stored status with Ready Unknown and Stalled True; None if it reports that for this generation already.

    The message is not compared: two alternating errors would replace each other for ever.
    """
    before = {c.get("type"): c for c in stored.get("conditions") or ()}
    if all(
        (found.get("status"), found.get("reason"), found.get("observedGeneration")) == (status, reason, generation)
        for found, status in ((before.get("Ready") or {}, "Unknown"), (before.get("Stalled") or {}, "True"))
    ):
        return None

    def made(type_: ConditionType, status: ConditionStatus) -> dict[str, Any]:
        since = before.get(type_)
        made = Condition.after(since, type_, status, reason, message, generation=generation, now=rfc3339(now))
        return made.to_object()

    kept = [c for type_, c in before.items() if type_ in frozenset(ConditionType) - {"Ready", "Reconciling", "Stalled"}]
    conditions = [
        *kept,
        made(ConditionType.READY, ConditionStatus.UNKNOWN),
        made(ConditionType.STALLED, ConditionStatus.TRUE),
    ]
    return {**stored, "observedGeneration": generation, "conditions": conditions}
