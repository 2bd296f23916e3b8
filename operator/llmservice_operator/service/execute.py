"""Executes a decision: changes children, and records the API server's answers; writes the status, and Events at its
transitions, both limited per service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import filterfalse
from typing import Any

from kubeloop.client import InvolvedObject, manifest
from kubeloop.errors import (
    ApiError,
    Conflict,
    Forbidden,
    ForeignObject,
    Invalid,
    KubeError,
    NotFound,
    Refused,
    ServerError,
    TooManyRequests,
    Unreachable,
    lacks_right,
)
from kubeloop.log import ObjectLogger
from kubeloop.queue import EDIT_WRITES
from kubeloop.resources import POD, Key, rfc3339
from llmservice_api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_api.constants import (
    BY_KIND,
    DELETION_COST_ANNOTATION,
    DRY_RUN_MANAGER,
    HAS_OWN_CONDITION,
    HTTP_ROUTE,
    LLMSERVICE,
    MANAGER,
    OPERATOR,
    STATUS_MANAGER,
    resource_of,
)
from llmservice_api.reasons import Reason

from llmservice_operator.children import RETRY_SECONDS, why_apply, with_hash
from llmservice_operator.decision import Adopt, Apply, Decision, DeletionCost, Event, Prune, Release, is_route
from llmservice_operator.facts.children import ChildFacts, is_marked
from llmservice_operator.facts.drift import removal_patch, restoring_patch
from llmservice_operator.facts.normalize import Controller, controller_of
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_operator.facts.routes import claims_of, left_out, taken
from llmservice_operator.manifests.gateway import without
from llmservice_operator.observe.observed import AppliedRecord, Refusal
from llmservice_operator.service.containment import Part
from llmservice_operator.service.context import Context, ServiceMemory
from llmservice_operator.service.watch import (
    PARENT,
    PROJECTIONS,
    ParentFacts,
    key_of,
    rivals_of,
)
from llmservice_operator.workload.kinds import is_workload

FOREIGN_CHILD = Refusal(409, "this operator did not make it")
_NO_ANSWER = (ServerError, TooManyRequests, Unreachable)


class ChildChanged(KubeError):
    """A child is not as the decision assumed; the cache now has its actual state."""


async def execute(
    decision: Decision, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> bool:
    """Write routes of requests first, then let pods look for nodes, then adoptions, applies in their order, and prunes.
    Deletion costs precede the workload's apply, since no pod ends if an earlier apply is refused.

    Returns False where an apply was refused, which ends the round and is recorded. A refused adoption or prune is
    recorded and ends nothing; their unanswered requests are raised at the end.
    """
    failed: list[KubeError] = []
    for apply in filter(is_route, decision.apply):
        await _execute_apply(apply, parent, ctx, memory, log)
    for prune in filter(is_route, decision.prune):
        failed += await _unanswered(_prune(prune, parent, ctx, memory, log), prune, ctx, memory)
    for release in decision.release:
        await _release(release, parent, ctx, memory, log)
    for adopt in decision.adopt:
        failed += await _unanswered(_adopt(adopt, parent, ctx, memory, log), adopt, ctx, memory)
    for apply in filterfalse(is_route, decision.apply):
        if is_workload(apply.kind):
            await _write_deletion_costs(decision.deletion_costs, parent, ctx, log)
        if not await _execute_apply(apply, parent, ctx, memory, log):
            return False
    for prune in filterfalse(is_route, decision.prune):
        failed += await _unanswered(_prune(prune, parent, ctx, memory, log), prune, ctx, memory)
    if failed:
        raise failed[0]
    return True


async def _write_deletion_costs(
    costs: Iterable[DeletionCost], parent: ParentFacts, ctx: Context, log: ObjectLogger
) -> None:
    """Mark the pods that a scale-down is to end, with one patch of this annotation each. The first failure ends it, and
    the scale-down continues: Kubernetes then chooses among unmarked pods."""
    for each in costs:
        metadata = {"uid": each.uid, "annotations": {DELETION_COST_ANNOTATION: str(each.cost)}}
        try:
            pod = await ctx.kube.merge_patch(POD, parent.namespace, each.pod, {"metadata": metadata}, manager=MANAGER)
        except (ApiError, Unreachable) as error:
            ctx.metrics.deletion_costs.labels("failed").inc()
            log.warning("pod %s cannot be marked for the scale-down: %s", each.pod, error)
            return
        ctx.metrics.deletion_costs.labels("written").inc()
        ctx.cache.update(POD.kind, pod)


async def _release(
    release: Release, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> None:
    """Let a pod look for a node. A refusal is in the status until it is tried again."""
    # Gates only go: where this one was the last, no other has come.
    spec: dict[str, Any] = {"schedulingGates": None}
    if release.node_selector:
        spec["nodeSelector"] = dict(release.node_selector)
    patch = {"metadata": {"uid": release.uid}, "spec": spec}
    try:
        pod = await ctx.kube.merge_patch(POD, parent.namespace, release.pod, patch, manager=MANAGER)
    except (Conflict, Invalid, NotFound) as error:
        raise ChildChanged(f"Pod {release.pod} changed under our hands: {error.message}") from error
    except Forbidden as error:
        log.warning("pod %s may not look for a node: %s", release.pod, error)
        memory.skip((POD.kind, release.pod), _refusal_of(error), ctx.clock() + RETRY_SECONDS)
        return
    ctx.metrics.writes.labels(POD.kind, "patch").inc()
    log.info("pod %s may look for a node", release.pod)
    ctx.cache.update(POD.kind, pod)


async def _unanswered(
    request: Awaitable[None], what: Adopt | Prune, ctx: Context, memory: ServiceMemory
) -> list[KubeError]:
    """Errors of an unanswered request, which are recorded and raised later."""
    try:
        await request
    except _NO_ANSWER as error:
        memory.record_unanswered((what.kind, what.name), error.message, ctx.clock())
        return [error]
    memory.unanswered.pop((what.kind, what.name), None)
    return []


async def _execute_apply(
    apply: Apply, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> bool:
    """Execute an apply; False where it was refused and others need it. An unanswered request is recorded and raised."""
    try:
        return await (_apply_unread if apply.is_unreadable else _apply)(apply, parent, ctx, memory, log)
    except _NO_ANSWER as error:
        memory.record_unanswered((apply.kind, apply.name), error.message, ctx.clock())
        raise


async def _adopt(adopt: Adopt, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger) -> None:
    """Adopt a child in its live state, whatever the cache has."""
    resource = BY_KIND[adopt.kind]
    live = await ctx.kube.get(resource, parent.namespace, adopt.name)
    if live is None:
        ctx.cache.remove(adopt.kind, parent.namespace, adopt.name, adopt.uid)
        return
    operations = adoption_patch(live, adopt, parent.uid)
    if operations is not None:
        try:
            live = await ctx.kube.json_patch(resource, parent.namespace, adopt.name, operations, manager=MANAGER)
        except (Invalid, Forbidden) as error:
            refusal = _refusal_of(error)
            log.warning("%s %s could not be taken over: %s", adopt.kind, adopt.name, refusal.message)
            memory.postpone((adopt.kind, adopt.name), refusal, ctx.clock() + RETRY_SECONDS)
            return
        ctx.metrics.writes.labels(adopt.kind, "patch").inc()
        log.info("took %s %s over from an earlier LLMService of this name", adopt.kind, adopt.name)
    ctx.cache.update(adopt.kind, live)


async def _apply(apply: Apply, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger) -> bool:
    if apply.is_shared_name:
        # Its manager is this operator, too: the API server would let one service take it from the other.
        there = await _read_live(apply, parent, ctx)
        if there is not None and there.owner_uid not in (None, parent.uid):
            return _refused(apply, _owned_by_another(there), ctx, memory, log)
    if apply.kind == HTTP_ROUTE.kind:
        return await _apply_route(apply, parent, ctx, memory, log)
    return await _apply_as_it_is(apply, parent, ctx, memory, log)


async def _apply_route(
    apply: Apply, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> bool:
    """Without what another service's route takes: a Gateway would give these requests to one of both, and say of both
    that it takes them. What is left is applied, and what the route has besides goes; where nothing is left, the route
    does. What is taken is recorded as a refusal."""
    key, live = key_of(parent), ctx.cache.get(apply.kind, parent.namespace, apply.name)
    asked, has = claims_of(apply.manifest), live.claims if live is not None else frozenset()
    rivals = rivals_of(ctx.cache, asked, has, key, ctx.claimed)
    if not rivals:
        return await _apply_claimed(apply, parent, ctx, memory, log)
    # Of other namespaces only the log has names.
    by = {pair: f"LLMService {rival.namespace}/{rival.name}" for pair, rival in rivals.items()}
    log.warning("HTTPRoute %s: %s", apply.name, taken(asked, by))
    hosts, models = (live.hosts, live.models) if live is not None else ((), ())
    left = without(dict(apply.manifest), rivals, hosts, models)
    if left is not None:
        await _apply_rest(apply, left, live, parent, ctx, memory, log)
        if (apply.kind, apply.name) in memory.skipped:
            return True
    elif live is not None and apply.known_uid == live.uid:
        gone = Prune(apply.kind, apply.name, live.uid, "all that it is to take is another service's")
        await _prune(gone, parent, ctx, memory, log)
    holders = {pair: _holder(rival, parent) for pair, rival in rivals.items()}
    said = f"{taken(asked, holders)}. {left_out(asked, claims_of(left) if left is not None else ())}"
    return _refused(apply, Refusal(409, said), ctx, memory, log)


def _holder(rival: Key, parent: ParentFacts) -> str:
    """For the service's own namespace; others are not named there."""
    return f"LLMService {rival.name}" if rival.namespace == parent.namespace else "an LLMService of another namespace"


async def _apply_rest(
    apply: Apply,
    left: dict[str, Any],
    live: ChildFacts | None,
    parent: ParentFacts,
    ctx: Context,
    memory: ServiceMemory,
    log: ObjectLogger,
) -> None:
    """What is left of an HTTPRoute, unless it is there; its own hash shows later that the whole is not applied."""
    rest = with_hash(left)
    memory.skipped.pop(rest.id, None)
    if live is None or why_apply(rest, live, memory.applied.get(rest.id)) is not None:
        made = replace(apply, manifest=rest.manifest, input_hash=rest.input_hash)
        await _apply_claimed(made, parent, ctx, memory, log)


async def _apply_claimed(
    apply: Apply, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> bool:
    """Another worker may look for rivals while this one waits for the API server."""
    key = key_of(parent)
    ctx.claimed[key] = claims_of(apply.manifest)
    try:
        return await _apply_as_it_is(apply, parent, ctx, memory, log)
    finally:
        del ctx.claimed[key]


async def _apply_as_it_is(
    apply: Apply, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> bool:
    try:
        raw = await _send_or_restore(apply, parent, ctx)
    except Conflict as conflict:
        live = await _read_live(apply, parent, ctx)
        if apply.known_uid is not None:
            memory.applied.pop((apply.kind, apply.name), None)
            raise ChildChanged(f"{apply.kind} {apply.name} changed under our hands: {conflict.message}") from conflict
        if live is None or live.owner_uid != parent.uid:
            return _refused(apply, _owned_by(live, conflict), ctx, memory, log)
        raw = await _send(apply, live.uid, ctx)
    except (Invalid, Forbidden) as error:
        return _refused(apply, _refusal_of(error), ctx, memory, log)
    except (NotFound, ServerError) as error:  # a CRD that was just removed, a webhook that does not answer
        if apply.retry_after is None:
            raise
        return _refused(apply, _refusal_of(error), ctx, memory, log)
    _applied(apply, ctx, log)
    await _store_response(apply, raw, parent, ctx, memory)
    return True


async def _apply_unread(
    apply: Apply, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> bool:
    """Apply with force if the child has the service's controller reference; an orphan is adopted without; others are
    refused."""
    try:
        there = await ctx.kube.metadata_of(BY_KIND[apply.kind], parent.namespace, apply.name, manager=DRY_RUN_MANAGER)
        owner = controller_of(there) if there is not None else None
        if there is not None and not _may_adopt(there, parent):
            return _refused(apply, _unread_owner(apply, owner, parent), ctx, memory, log)
        await _send(apply, None if there is None or owner is None else there["uid"], ctx)
    except (Conflict, Invalid, Forbidden) as error:
        return _refused(apply, _refusal_of(error), ctx, memory, log)
    _applied(apply, ctx, log)
    memory.record_applied((apply.kind, apply.name), AppliedRecord(apply.input_hash, ""))
    return True


def _refusal_of(error: ApiError) -> Refusal:
    """A missing permission is named here; a refusal by admission is passed on, and the decision adds the remedy."""
    if isinstance(error, ForeignObject):
        return FOREIGN_CHILD
    return Refusal(error.code, str(error) if lacks_right(error) else error.message)


def _applied(apply: Apply, ctx: Context, log: ObjectLogger) -> None:
    ctx.metrics.writes.labels(apply.kind, "apply").inc()
    log.info("applied %s %s: %s", apply.kind, apply.name, apply.reason)


def _may_adopt(there: Mapping[str, Any], parent: ParentFacts) -> bool:
    """Whether an uncached object is the service's own, or an orphan of an earlier service of this name."""
    owner = controller_of(there)
    return is_marked(there, parent.name) if owner is None else owner.uid == parent.uid


def _unread_owner(apply: Apply, owner: Controller | None, parent: ParentFacts) -> Refusal:
    """The refusal for a foreign child, or for one of an earlier LLMService of this name, which will be deleted."""
    if owner is None:
        return FOREIGN_CHILD
    if owner.is_earlier(parent.name, parent.uid):
        raise ChildChanged(f"{apply.kind} {apply.name} still belongs to an earlier {owner.kind} of this name")
    return Refusal(409, f"it belongs to {owner.kind} {owner.name}")


async def _send(apply: Apply, uid: str | None, ctx: Context) -> dict[str, Any]:
    """Apply with force only with a known uid, so that a vanished object answers 409."""
    manifest: Mapping[str, Any] = apply.manifest
    if uid is not None:
        manifest = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
    return await ctx.kube.apply(resource_of(manifest), manifest, manager=MANAGER, force=uid is not None)


async def _send_or_restore(apply: Apply, parent: ParentFacts, ctx: Context) -> dict[str, Any]:
    """Apply; where foreign fields conflict, remove them first, without which nothing can be applied."""
    try:
        return await _send(apply, apply.known_uid, ctx)
    except (Invalid, Refused) as refused:
        if apply.known_uid is None or not apply.remove_foreign_fields or isinstance(refused, ForeignObject):
            raise
        resource = BY_KIND[apply.kind]
        live = await ctx.kube.get(resource, parent.namespace, apply.name)
        operations = restoring_patch(live, apply.manifest.get("spec") or {}) if live is not None else []
        if not operations:
            raise
        uid = {"op": "test", "path": "/metadata/uid", "value": apply.known_uid}
        try:
            await ctx.kube.json_patch(resource, parent.namespace, apply.name, [uid, *operations], manager=MANAGER)
        except (Invalid, Refused):
            # The first error is about the child; this one would be about the patch.
            raise refused from None
        ctx.metrics.writes.labels(apply.kind, "patch").inc()
        return await _send(apply, apply.known_uid, ctx)


async def _store_response(
    apply: Apply, raw: dict[str, Any], parent: ParentFacts, ctx: Context, memory: ServiceMemory
) -> None:
    """Store the response in the cache, so that its watch event queues nothing."""
    operations = removal_patch(raw) if apply.remove_foreign_fields else []
    if operations:
        try:
            raw = await ctx.kube.json_patch(
                BY_KIND[apply.kind], parent.namespace, apply.name, operations, manager=MANAGER
            )
        except (Conflict, Invalid, NotFound) as error:
            # The apply succeeded; the watch shows the rest.
            ctx.cache.update(apply.kind, raw)
            raise ChildChanged(f"{apply.kind} {apply.name} changed while a foreign field was taken out") from error
        ctx.metrics.writes.labels(apply.kind, "patch").inc()
    facts = _cached(apply, raw, parent, ctx)
    record = AppliedRecord(apply.input_hash, facts.managed_hash, facts.resource_version)
    memory.record_applied((apply.kind, apply.name), record)


def _cached(apply: Apply, raw: dict[str, Any], parent: ParentFacts, ctx: Context) -> ChildFacts:
    """Store the live child's projection in the cache, and return it."""
    facts = PROJECTIONS[apply.kind](raw, ctx.cache.get(apply.kind, parent.namespace, apply.name))
    assert isinstance(facts, ChildFacts)
    ctx.cache.put(apply.kind, facts)
    return facts


def _refused(apply: Apply, refusal: Refusal, ctx: Context, memory: ServiceMemory, log: ObjectLogger) -> bool:
    log.warning("%s %s was refused: %s", apply.kind, apply.name, refusal.message)
    if apply.is_optional:
        until = None if apply.retry_after is None else ctx.clock() + apply.retry_after
        memory.skip((apply.kind, apply.name), refusal, until)
        return True
    memory.record_refusal((apply.kind, apply.name), refusal, ctx.clock())
    return False


async def _read_live(apply: Apply, parent: ParentFacts, ctx: Context) -> ChildFacts | None:
    """The live child: the watch may lag, or the object lost the watch's label."""
    live = await ctx.kube.get(BY_KIND[apply.kind], parent.namespace, apply.name)
    if live is None:
        cached = ctx.cache.get(apply.kind, parent.namespace, apply.name)
        if cached is not None:
            ctx.cache.remove(apply.kind, parent.namespace, apply.name, cached.uid)
        return None
    return _cached(apply, live, parent, ctx)


def _owned_by_another(live: ChildFacts) -> Refusal:
    owner = live.controller
    return Refusal(409, f"it belongs to {owner.kind} {owner.name}" if owner is not None else "it is another one's")


def _owned_by(live: ChildFacts | None, conflict: Conflict) -> Refusal:
    """The refusal with the owner, if there is one; the API server names only the field managers."""
    if live is not None and live.controller is not None:
        return Refusal(409, f"it is controlled by {live.controller.kind} {live.controller.name}: {conflict.message}")
    return Refusal(409, conflict.message)


async def _prune(prune: Prune, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger) -> None:
    resource, uid = BY_KIND[prune.kind], prune.uid
    try:
        if uid is None and (uid := await _own_uid(prune, parent, ctx)) is None:
            return
        remains = await ctx.kube.delete(resource, parent.namespace, prune.name, uid=uid)
    except Conflict:
        remains = None  # another object has the name now; the watch will show it
    except (Invalid, Forbidden, ServerError) as error:
        if isinstance(error, ServerError) and prune.kind not in HAS_OWN_CONDITION:
            raise
        refusal = _refusal_of(error)
        log.warning("%s %s could not be deleted: %s", prune.kind, prune.name, refusal.message)
        memory.postpone((prune.kind, prune.name), refusal, ctx.clock() + RETRY_SECONDS)
        return
    ctx.metrics.writes.labels(prune.kind, "delete").inc()
    log.info("deleted %s %s: %s", prune.kind, prune.name, prune.reason)
    memory.applied.pop((prune.kind, prune.name), None)
    memory.made.discard((prune.kind, prune.name))
    if prune.uid is None:
        return
    if remains is None:
        ctx.cache.remove(prune.kind, parent.namespace, prune.name, prune.uid)
    else:
        ctx.cache.update(prune.kind, remains)


async def _own_uid(prune: Prune, parent: ParentFacts, ctx: Context) -> str | None:
    """The uid of an uncached child, if it exists and may be deleted."""
    try:
        there = await ctx.kube.metadata_of(BY_KIND[prune.kind], parent.namespace, prune.name, manager=DRY_RUN_MANAGER)
    except ForeignObject:
        return None
    return str(there["uid"]) if there is not None and _may_adopt(there, parent) else None


def adoption_patch(live: Mapping[str, Any], adopt: Adopt, uid: str) -> list[dict[str, Any]] | None:
    """The JSON patch that makes a live object this service's; None for another object, or one of another owner."""
    references = live["metadata"].get("ownerReferences") or ()
    places = [index for index, reference in enumerate(references) if reference["uid"] == adopt.of]
    if live["metadata"]["uid"] != adopt.uid or "deletionTimestamp" in live["metadata"] or not places:
        return None
    path = f"/metadata/ownerReferences/{places[0]}/uid"
    return [
        {"op": "test", "path": "/metadata/uid", "value": adopt.uid},
        {"op": "test", "path": path, "value": adopt.of},
        {"op": "replace", "path": path, "value": uid},
    ]


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


async def report_status(
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
