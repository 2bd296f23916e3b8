"""One pass over one LLMService: gather, decide, execute, report. A steady state sends no requests."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from kubeloop.errors import KubeError
from kubeloop.log import ObjectLogger, object_logger
from kubeloop.queue import Priority
from kubeloop.resources import POD, Key
from llmservice_api.conditions import ConditionType
from llmservice_api.kinds import LLMSERVICE

from llmservice_operator.decision import Decision, soonest
from llmservice_operator.facts.pods import replicas
from llmservice_operator.facts.scheduling import accelerator_request
from llmservice_operator.service.containment import Part
from llmservice_operator.service.context import Context, ServiceMemory
from llmservice_operator.service.execute import execute, rate_limited, report_drains, report_status
from llmservice_operator.service.gather import decided
from llmservice_operator.service.watch import (
    PARENT,
    ParentFacts,
    has_no_status,
    key_of,
)

logger = logging.getLogger(__name__)

MOST_PASSES = 4
"""Passes in a row that write children and find them different again: a webhook may revert what is applied."""
FIRST_STATUS_AFTER = 5.0
"""Seconds until a new service without a status is reconciled again."""


class Next(NamedTuple):
    """When to reconcile the key again."""

    after: float | None = None
    """Seconds until the next reconcile."""
    failure: str | None = None
    """Why it has to be retried, with back-off."""


NOTHING_TO_DO = Next()
AGAIN = Next(after=0.0)


async def reconcile(key: Key, ctx: Context) -> Next:
    """Bring the cluster to the desired state, or report in the status why not."""
    parent = known(key, ctx)
    if parent is None:
        return NOTHING_TO_DO
    memory, log = ctx.memory(key, parent.uid), object_logger(logger, key)
    memory.expire(parent.content["generation"], ctx.clock())
    if stored := parent.obj.get("status"):
        # After a restart the metrics come from the stored status, also where the pass fails or writes nothing.
        with ctx.errors.contained(Part.BOOKKEEPING, key, "metrics"):
            ctx.metrics.set_status(key, stored)
    with ctx.errors.contained(Part.DRAINS, key):
        await report_drains(parent, ctx, log)
    decision = await evaluate(parent, ctx)
    if decision.is_steady:
        return finish(decision, parent, ctx, memory)
    live = await (read(parent, ctx) if recreates_child(decision, parent, ctx) else fresh(parent, ctx))
    if live is None:
        return NOTHING_TO_DO
    if live is not parent:
        decision = await evaluate(live, ctx)
    if decision.has_work:
        decision = await write_children(decision, live, ctx, memory, log)
        if 0 < memory.passes < MOST_PASSES:
            return AGAIN
    return await write_status(decision, live, ctx, memory, log)


async def evaluate(parent: ParentFacts, ctx: Context) -> Decision:
    """The decision by all that is known; only routes while a refused apply waits for its retry."""
    key = key_of(parent)
    memory = ctx.memory(key, parent.uid)
    decision = await decided(parent, ctx)
    while decision.claims_update and not ctx.updates.claim(
        key
    ):  # another service claimed it while the nodes were listed
        decision = await decided(parent, ctx)
    decision = replace(decision, requeue_after=soonest(decision.requeue_after, ctx.errors.recheck_after(key)))
    memory.record_settled(decision.is_unsettled, ctx.clock())
    memory.ongoing_rollout = decision.ongoing_rollout or memory.ongoing_rollout
    if memory.refused:
        decision = decision.routes
    if not decision.has_work:
        memory.passes = 0
        if memory.unanswered:  # unanswered writes are no longer desired
            memory.unanswered.clear()
            decision = await decided(parent, ctx)
    return rate_limited(decision, parent, ctx, memory)


async def write_children(
    decision: Decision, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> Decision:
    """Execute, and decide again with the API server's answers."""
    try:
        await execute(decision, parent, ctx, memory, log)
    except KubeError:
        # Requests may need the write. A single failure may pass; the status reports two in a row.
        memory.failures += 1
        if memory.failures > 1:
            await report_status(await evaluate(parent, ctx), parent, ctx, memory, log)
        raise
    memory.failures, memory.passes = 0, memory.passes + 1
    return await evaluate(parent, ctx)


async def write_status(
    decision: Decision, parent: ParentFacts, ctx: Context, memory: ServiceMemory, log: ObjectLogger
) -> Next:
    """Write the status once per pass, if it changed. Children that are still missing become a failure."""
    failure, wait = None, None
    if decision.has_work:
        failure = "the children do not become what was applied: " + "; ".join(a.reason for a in decision.apply)
    if failure is None and may_be_written_later(decision, parent, ctx):
        wait = FIRST_STATUS_AFTER
    else:
        await report_status(decision, parent, ctx, memory, log)
    then = finish(decision, parent, ctx, memory)
    return Next(soonest(then.after, wait), failure)


def finish(decision: Decision, parent: ParentFacts, ctx: Context, memory: ServiceMemory) -> Next:
    """Apply other consequences of the decision after the writes; returns when the next pass is due."""
    key = key_of(parent)
    pods = ctx.cache.of_service(key).get(POD.kind, {})
    with ctx.errors.contained(Part.BOOKKEEPING, key):
        ctx.report_update(key, decision.update)
        ctx.state_poller.poll(key, decision.asks, pods.keys())
    with ctx.errors.contained(Part.BOOKKEEPING, key, "metrics"):
        gpus = accelerator_request((parent.obj.get("status") or {}).get("effective") or {})
        ctx.metrics.set_pods(key, replicas(pods.values()), gpus.resource if gpus is not None else "")
    return Next(soonest(decision.requeue_after, memory.wait(ctx.clock())))


def may_be_written_later(decision: Decision, parent: ParentFacts, ctx: Context) -> bool:
    """Whether a progress report of a new service may wait, while others wait for their children.

    Its next pass has more to report, in one write. Ready and failed are written at once.
    """
    status = decision.status or {}
    is_final = "failure" in status or any(
        (c["type"], c["status"]) in ((ConditionType.READY, "True"), (ConditionType.STALLED, "True"))
        for c in status.get("conditions") or ()
    )
    return has_no_status(parent) and ctx.queue.waits(Priority.NEW) and not is_final


def known(key: Key, ctx: Context) -> ParentFacts | None:
    """The LLMService as the watch shows it; None if there is nothing to do."""
    parent: ParentFacts | None = ctx.cache.get(PARENT, *key)
    if parent is None or parent.deleting:
        ctx.forget(key)
        return None
    return parent


async def fresh(parent: ParentFacts, ctx: Context) -> ParentFacts | None:
    """The current LLMService: a watch may lag, but not behind the own last write."""
    memory = ctx.memory(key_of(parent), parent.uid)
    if parent.resource_version == memory.parent_version or ctx.is_current(parent):
        return parent
    return await read(parent, ctx)


def recreates_child(decision: Decision, parent: ParentFacts, ctx: Context) -> bool:
    """Whether the decision creates a child that existed before.

    The garbage collector deletes the children of a deleted LLMService, and their watch may be first. So a missing child
    means that the LLMService may be gone, whatever was written or seen before. For a service that this process has not
    written yet, each missing child counts if the service has a status.
    """
    memory = ctx.memory(key_of(parent), parent.uid)
    is_new_here = not memory.parent_version and not has_no_status(parent)
    return any(
        ctx.cache.get(apply.kind, parent.namespace, apply.name) is None
        and (is_new_here or (apply.kind, apply.name) in memory.made)
        for apply in decision.apply
        if not apply.is_unreadable
    )


async def read(parent: ParentFacts, ctx: Context) -> ParentFacts | None:
    """The LLMService from the API server: `parent` itself if unchanged, None if it does not exist."""
    key = key_of(parent)
    live = await ctx.kube.get(LLMSERVICE, *key)
    if live is None:
        ctx.cache.remove(PARENT, *key, parent.uid)
        return known(key, ctx)
    ctx.cache.update(PARENT, live)
    ctx.memory(key, live["metadata"]["uid"]).parent_version = live["metadata"]["resourceVersion"]
    return known(key, ctx)
