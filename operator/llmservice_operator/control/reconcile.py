"""One look at one LLMService: decide, carry it out, tell the status. A steady state sends nothing at all."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from llmservice_operator.api.conditions import ConditionType
from llmservice_operator.api.errors import InvalidSpec
from llmservice_operator.api.service import Key, LLMService
from llmservice_operator.control.containment.internal_errors import Part
from llmservice_operator.control.containment.unhandled import with_degraded
from llmservice_operator.control.context import Context, Memory
from llmservice_operator.control.drain_events import tell_drains
from llmservice_operator.control.execute import carry_out
from llmservice_operator.control.log import ObjectLogger, object_logger
from llmservice_operator.control.queue.priorities import is_untold
from llmservice_operator.control.queue.work_queue import Rank
from llmservice_operator.control.status_writer import paced, report
from llmservice_operator.control.watch.kinds import PARENT, ParentFacts, observed
from llmservice_operator.decide.adoption import with_inherited
from llmservice_operator.decide.decision import (
    Decision,
    EventsOf,
    FactsOf,
    GpusOf,
    Lack,
    ReadingOf,
    RoomFor,
    TurnOf,
    soonest,
)
from llmservice_operator.kube.errors import Gone, KubeError, ServerError, TooMany, Unreachable
from llmservice_operator.kube.resources import LLMSERVICE, POD
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import Observed
from llmservice_operator.planner.model.reading import Reading
from llmservice_operator.planner.room import Room

logger = logging.getLogger(__name__)

MAX_ROUNDS = 4
"""What the API server answered may call for another look; a fourth round would be a builder and a webhook at war."""


PASSING = (Gone, ServerError, TooMany, Unreachable)
"""What an API server says that has enough to do; the next time it may answer."""


FIRST_STATUS_AFTER = 5.0
"""Seconds until a new service is looked at again that was not told of yet."""


NOT_SEEN = Room(unknown="the nodes could not be listed just now", may_be_known_soon=True)


class Next(NamedTuple):
    """What is to become of the key."""

    after: float | None = None
    """Look again after so many seconds, whatever happens."""
    failure: str | None = None
    """Why it must be tried again, with back-off."""


NOTHING = Next()
AGAIN = Next(after=0.0)


async def reconcile(key: Key, ctx: Context) -> Next:
    """Bring the cluster to what the LLMService says, or say in its status why not."""
    parent = known(key, ctx)
    if parent is None:
        return NOTHING
    memory = ctx.memory(key, parent.uid)
    memory.forgive(parent.content["generation"], ctx.clock())
    with ctx.errors.contained(Part.DRAINS, key):
        await tell_drains(parent, ctx, object_logger(logger, key))
    decision = await consider(parent, ctx)
    if is_quiet(decision, memory):
        with ctx.errors.contained(Part.BOOKKEEPING, key):
            tell_steady(parent, ctx)
            ctx.told(key, decision.update)
            ctx.starts.want(key, decision.asks, pods(key, ctx))
        return Next(soonest(decision.requeue_after, memory.wait(ctx.clock())))
    live = await (read(parent, ctx) if remakes(decision, parent, ctx) else fresh(parent, ctx))
    if live is None:
        return NOTHING
    if live is not parent:
        decision = await consider(live, ctx)
    return await act(decision, live, ctx, object_logger(logger, key))


async def act(decision: Decision, parent: ParentFacts, ctx: Context, log: ObjectLogger) -> Next:
    """Children first, then the status of what became of them: one status write at most."""
    memory = ctx.memory(key_of(parent), parent.uid)
    for number in range(MAX_ROUNDS):
        if memory.refused or not decision.has_work:
            break
        if number and remakes(decision, parent, ctx) and await read(parent, ctx) is not parent:
            return AGAIN
        try:
            await carry_out(decision, parent, ctx, memory, log)
        except KubeError:
            await tell_what_stands(parent, ctx, memory, log)
            raise
        memory.failures = 0
        decision = await consider(parent, ctx)
    failure = None
    if not memory.refused and decision.has_work:
        failure = "the children do not become what was applied: " + "; ".join(a.reason for a in decision.apply)
    may_wait = failure is None and may_be_told_later(decision, parent, ctx)
    if not may_wait:
        await report(decision, parent, ctx, memory, log)
    with ctx.errors.contained(Part.BOOKKEEPING, key_of(parent)):
        ctx.told(key_of(parent), decision.update)
        ctx.starts.want(key_of(parent), decision.asks, pods(key_of(parent), ctx))
    told_after = FIRST_STATUS_AFTER if may_wait else None
    return Next(soonest(decision.requeue_after, memory.wait(ctx.clock()), told_after), failure)


def may_be_told_later(decision: Decision, parent: ParentFacts, ctx: Context) -> bool:
    """That a new service is on its way, while others wait for their children.

    Its next look finds more to tell, in the one write that this saves. That it is there, or what went wrong, is told.
    """
    status = decision.status or {}
    is_final = "failure" in status or any(
        (c["type"], c["status"]) in ((ConditionType.READY, "True"), (ConditionType.STALLED, "True"))
        for c in status.get("conditions") or ()
    )
    return is_untold(parent) and ctx.queue.waits(Rank.NEW) and not is_final


async def tell_what_stands(parent: ParentFacts, ctx: Context, memory: Memory, log: ObjectLogger) -> None:
    """What cannot be written may be what requests need. One failure may pass; after two in a row the status says so."""
    memory.failures += 1
    if memory.failures > 1:
        await report(await consider(parent, ctx), parent, ctx, memory, log)


def is_quiet(decision: Decision, memory: Memory) -> bool:
    """Nothing to be written now; what was refused waits for its time."""
    return decision.status is None and (bool(memory.refused) or decision.is_steady)


def known(key: Key, ctx: Context) -> ParentFacts | None:
    """The LLMService as the watch shows it; None when there is nothing to do for it."""
    parent: ParentFacts | None = ctx.cache.get(PARENT, *key)
    if parent is None or parent.deleting:
        ctx.forget(key)
        return None
    return parent


async def fresh(parent: ParentFacts, ctx: Context) -> ParentFacts | None:
    """The LLMService as it is now: a watch may lag, but not behind our own last write."""
    memory = ctx.memory(key_of(parent), parent.uid)
    if parent.resource_version == memory.parent_version or ctx.is_current(parent.namespace):
        return parent
    return await read(parent, ctx)


def remakes(decision: Decision, parent: ParentFacts, ctx: Context) -> bool:
    """Whether a child would be made again that existed before.

    The garbage collector deletes the children of a deleted LLMService, and their watch may show that first. So their
    absence says that the LLMService may be gone, whatever was written or seen of it before. A process that has not
    written anything about a service yet takes each missing child of one that has a status for such a child.
    """
    memory = ctx.memory(key_of(parent), parent.uid)
    is_new_here = not memory.parent_version and not is_untold(parent)
    return any(
        ctx.cache.get(apply.kind, parent.namespace, apply.name) is None
        and (is_new_here or (apply.kind, apply.name) in memory.made)
        for apply in decision.apply
        if not apply.is_unread
    )


async def read(parent: ParentFacts, ctx: Context) -> ParentFacts | None:
    """The LLMService from the API server: `parent` itself where it is unchanged, None where there is none."""
    key = key_of(parent)
    live = await ctx.kube.get(LLMSERVICE, *key)
    if live is None:
        ctx.cache.remove(PARENT, *key, parent.uid)
        return known(key, ctx)
    ctx.cache.update(PARENT, live)
    ctx.memory(key, live["metadata"]["uid"]).parent_version = live["metadata"]["resourceVersion"]
    return known(key, ctx)


async def consider(parent: ParentFacts, ctx: Context) -> Decision:
    """The pure part: from what is known to what is to be done; what it lacks is found out, and it is asked again."""
    key = key_of(parent)
    memory = ctx.memory(key, parent.uid)
    around = observed(
        ctx.cache,
        key,
        view(memory.applied),
        view(memory.declined | memory.refused),
        ctx.starts.reports(key),
        ctx.hidden(key.namespace),
    )
    memory.made.update((c.kind, c.name) for c in around.children() if c.owner_uid == parent.uid and not c.deleting)
    around = replace(around, unsettled_for=memory.unsettled_for(ctx.clock()), begun=memory.begun)
    decision = with_inherited(await decided(parent, around, ctx), parent.obj, around, ctx.now())
    decision = with_degraded(decision, parent.obj, ctx.errors.degraded(key), ctx.now())
    decision = replace(decision, requeue_after=soonest(decision.requeue_after, ctx.errors.look_again(key)))
    memory.note(decision.is_unsettled, ctx.clock())
    memory.begun = decision.begun or memory.begun
    return paced(decision, parent, ctx, memory)


async def decided(parent: ParentFacts, around: Observed, ctx: Context) -> Decision:
    """With what the decision lacked at first."""
    key = key_of(parent)
    try:
        service = LLMService.from_object(parent.obj)
    except InvalidSpec as invalid:
        return ctx.decide_invalid(parent.obj, invalid.problems, around, ctx.now())
    now = ctx.now()
    decision = ctx.decide(service, around, ctx.settings, now)
    while decision.lack is not None:
        around = await supplied(decision.lack, key, around, ctx)
        decision = ctx.decide(service, around, ctx.settings, now)
    if around.room is None:
        ctx.memory(key, parent.uid).room = None  # all nodes of a cluster are a lot to keep for nothing
    return decision


async def supplied(lack: Lack, key: Key, around: Observed, ctx: Context) -> Observed:
    """With what a decision lacked; each lack is asked for once."""
    if isinstance(lack, FactsOf) and around.lent is None:
        return replace(around, lent=lent(lack.inspection, key, ctx))
    if isinstance(lack, ReadingOf) and (around.reading is None or around.reading.document != lack.document):
        return replace(around, reading=Reading(lack.document, await ctx.configs.read(key, lack.document)))
    if isinstance(lack, GpusOf) and around.gpus is None:
        return replace(around, gpus=await ctx.nodes.gpus(lack.resource, dict(lack.node_selector)))
    if isinstance(lack, RoomFor) and around.room is None:
        return replace(around, room=await room(lack, key, ctx))
    if isinstance(lack, EventsOf) and around.pod_events is None:
        return replace(around, pod_events=PodEvents.of(await events(lack, key, ctx)))
    if isinstance(lack, TurnOf) and around.turn is None:
        return replace(around, turn=ctx.updates.turn(key, ctx.cache))
    raise RuntimeError(f"a decision lacks what it was given: {lack}")


async def room(lack: RoomFor, key: Key, ctx: Context) -> Room:
    """What is free: now, or as this service was told a while ago."""
    memory, now = ctx.memories[key], ctx.clock()
    kept = memory.room if memory.room is not None and memory.room[1] == lack.resource else None
    if kept is not None and now - kept[0] < lack.may_be_old:
        return kept[2]
    try:
        found = await ctx.nodes.room(lack.resource)
    except PASSING as error:
        logger.warning("the nodes could not be looked at for %s: %s", key, error)
        return kept[2] if kept is not None and lack.is_only_told else NOT_SEEN
    memory.room = (now, lack.resource, found)
    return found


async def events(lack: EventsOf, key: Key, ctx: Context) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
    """None: nobody could look, and the status is told without."""
    try:
        return await ctx.pod_events.of(key.namespace, lack.pods)
    except PASSING as error:
        logger.warning("the Events of %s could not be looked at: %s", key, error)
        return None


def lent(inspection: str, key: Key, ctx: Context) -> Mapping[str, Any]:
    """What another service of the namespace knows of the same model; empty where none does."""
    for parent in ctx.cache.indexed(PARENT, (key.namespace, inspection)):
        if parent.name != key.name:
            return dict(parent.obj["status"]["model"])
    return {}


def tell_steady(parent: ParentFacts, ctx: Context) -> None:
    """After a restart the metrics learn from the stored status."""
    ctx.metrics.set_status(key_of(parent), parent.obj["status"])


def pods(key: Key, ctx: Context) -> Collection[str]:
    """Names of the service's pods."""
    return ctx.cache.around(key).get(POD.kind, {}).keys()


def view(of: dict[Any, Any]) -> Mapping[Any, Any]:
    """What a decision may look at, but not change."""
    return MappingProxyType(dict(of))


def key_of(parent: ParentFacts) -> Key:
    """Its name in queues and caches."""
    return Key(parent.namespace, parent.name)
