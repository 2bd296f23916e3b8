"""One pass over one LLMService: gather, decide, execute, report; and the tasks that take keys from the queue for it.

A steady state sends no requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from kubeloop.errors import KubeError, NotLeader
from kubeloop.log import ObjectLogger, object_logger
from kubeloop.queue import Priority
from kubeloop.resources import POD, Key
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import LLMSERVICE
from llmservice_api.reasons import Reason

from llmservice_operator.decision import Decision, soonest
from llmservice_operator.facts.pods import replicas
from llmservice_operator.facts.scheduling import accelerator_request
from llmservice_operator.service.containment import Attempt, Part
from llmservice_operator.service.context import Context, ServiceMemory
from llmservice_operator.service.execute import execute, rate_limited, report_drains, report_status, report_unhandled
from llmservice_operator.service.gather import decided
from llmservice_operator.service.watch import (
    PARENT,
    ParentFacts,
    has_no_status,
    key_of,
    priority_of_service,
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
        ctx.report_group(key, is_placing=decision.is_placing)
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


WORKERS = 8
ASK_AGAIN = 0.2
"""Seconds until work that a death interrupted is asked for again while others wait."""

Reconcile = Callable[[Key, Context], Awaitable[Next]]


class Workers:
    """A few tasks that share one queue, until they are asked to stop."""

    def __init__(self, ctx: Context, *, count: int = WORKERS, reconcile: Reconcile = reconcile) -> None:
        self._ctx = ctx
        self._count = count
        self._reconcile = reconcile
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop`; what is in work then is finished first."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._work(), name=f"worker {number}")

    def stop(self) -> None:
        """Take no further key."""
        self._stopping.set()

    async def _work(self) -> None:
        while (key := await self._next()) is not None:
            try:
                with self._ctx.errors.contained(Part.BOOKKEEPING, key, "of what is in work") as attempt:
                    await self._work_on(key)
                if attempt.failed:
                    await self._fail(key, attempt)
            finally:
                self._ctx.queue.done(key)

    async def _work_on(self, key: Key) -> None:
        in_work = self._ctx.in_work
        if self._ctx.is_acting():
            if in_work.quarantined(key):
                await self._quarantine(key)
            elif not in_work.may_begin("reconcile", key):
                self._ctx.queue.add_after(key, ASK_AGAIN)
            else:
                async with in_work.during("reconcile", key):
                    await self._handle(key)
        if not self._ctx.is_acting():  # before, or meanwhile
            self._ctx.forget(key)
            self._ctx.queue.succeeded(key)

    async def _next(self) -> Key | None:
        """A key, or None when it is time to stop."""
        getting = asyncio.ensure_future(self._ctx.queue.get())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({getting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                return getting.result()
            if getting.done():  # too late for this one: the next leader looks at every key anyway
                self._ctx.queue.done(getting.result())
                self._ctx.queue.add(getting.result())
            return None
        finally:
            stopping.cancel()
            if not getting.done():
                getting.cancel()

    async def _handle(self, key: Key) -> None:
        started = time.perf_counter()
        then: Next | None = None
        with self._ctx.errors.contained(Part.RECONCILE, key) as attempt:
            then = await self._attempt(key)
        result = "error" if then is None else "refused" if then.failure else "ok"
        self._ctx.metrics.reconcile_seconds.labels(result).observe(time.perf_counter() - started)
        if attempt.failed:
            await self._fail(key, attempt)
        elif then is not None:
            self._plan(key, then)

    async def _fail(self, key: Key, attempt: Attempt) -> None:
        await self._report(Reason.INTERNAL_ERROR, f"Evidence: {attempt.place}.", key)
        self._retry(key, "internal error")

    async def _attempt(self, key: Key) -> Next | None:
        """None where the API server is why there is no answer: the key is tried again, or is another process's."""
        try:
            return await self._reconcile(key, self._ctx)
        except NotLeader as error:
            object_logger(logger, key).warning("%s", error)
        except KubeError as error:
            self._retry(key, str(error))
        return None

    async def _quarantine(self, key: Key) -> None:
        """Nothing of it is evaluated, and none of its pods is asked."""
        self._ctx.state_poller.forget(key)
        if await self._report(Reason.QUARANTINED, "", key):
            self._ctx.queue.succeeded(key)
        else:
            self._retry(key, "the status could not be written")

    async def _report(self, reason: Reason, evidence: str, key: Key) -> bool:
        """Whether the status has it. Others no longer wait for an update of this service: it may never end."""
        with self._ctx.errors.contained(Part.BOOKKEEPING, key, "of updates"):
            self._ctx.report_update(key, None)
        is_written = False
        with self._ctx.errors.contained(Part.BOOKKEEPING, key, "of the status"):
            log = object_logger(logger, key)
            try:
                await report_unhandled(reason, evidence, key, self._ctx, log)
                is_written = True
            except KubeError as error:
                log.warning("cannot write the status: %s", error)
        return is_written

    def _plan(self, key: Key, then: Next) -> None:
        if then.failure is not None:
            self._retry(key, then.failure)
            return
        if not self._ctx.errors.has_failed_lately(key):
            self._ctx.queue.succeeded(key)
        if then.after == 0:  # its status is not written yet, so it goes on before those that are well
            self._ctx.queue.add_after(key, 0, priority_of_service(self._ctx.cache.get(PARENT, *key)))
        elif then.after is not None:
            self._ctx.queue.add_after(key, then.after)

    def _retry(self, key: Key, why: str) -> None:
        self._ctx.metrics.retries.inc()
        delay = self._ctx.queue.failed(key)
        object_logger(logger, key).info("trying again in %.1f s: %s", delay, why)
