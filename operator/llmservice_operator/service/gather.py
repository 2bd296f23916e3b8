"""Reads what a decision needs: from the cache, the nodes, the Events of pods, the reader of configurations, and, while
no replica is to serve, from the activators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kubeloop.errors import Gone, KubeError, NotLeader, ServerError, TooManyRequests, Unreachable
from kubeloop.resources import Key
from llmservice_api.holding import HoldingReport, PortClaim, stored_port
from llmservice_planner.model.reading import ConfigReading
from llmservice_planner.room import Quotas, Room

from llmservice_operator.behaviours.holding import SELDOM_AFTER
from llmservice_operator.decision import (
    QUOTAS_SECONDS,
    Decision,
    HoldingQuery,
    Inputs,
    Part,
    Requirements,
    RoomQuery,
)
from llmservice_operator.observe.activators import ActivatorQuestions, QuestionSubject, Reports, next_question_at
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import ChildId, Observed, Unanswered
from llmservice_operator.readers.pod_port import Unreadable
from llmservice_operator.service.context import Context, ServiceMemory
from llmservice_operator.service.watch import PARENT, ParentFacts, key_of

logger = logging.getLogger(__name__)
VERIFY_SECONDS = 3600.0
"""Seconds for which a Lease that names a service is assumed to stay: one read for each service that goes to or is at
zero."""


TRANSIENT_ERRORS = (Gone, ServerError, TooManyRequests, Unreachable)
"""Errors of an overloaded API server; the next request may succeed."""
MOST_ROUNDS = 32
"""Of reading what one decision asks for: more than there are parts. One that asks for two things in turn for ever would
stop the whole operator."""
READERS = 64
"""Pods of one service that are read at once."""
READING_SECONDS = 4.0
"""Longest delay of a scale-down by reading its pods' requests."""
NOT_READ = Room(unknown="the nodes could not be listed just now", may_be_known_soon=True)


async def decided(parent: ParentFacts, ctx: Context) -> Decision:
    """The decision about an LLMService, with everything that it needs at one time. A steady one causes no requests."""
    key = key_of(parent)
    memory, activators = ctx.memory(key, parent.uid), ctx.activators()
    inputs = Inputs.of(
        parent.obj,
        _observed(key, memory, ctx),
        ctx.settings,
        ctx.now(),
        internal_errors=ctx.errors.degraded(key),
        activators=activators,
        unknown_for=memory.unknown_for(activators, ctx.clock()),
    )
    for _ in range(MOST_ROUNDS):
        if not isinstance(found := ctx.decide(inputs), Requirements):
            break
        inputs = await _with(found, inputs, key, ctx)
    else:
        raise RuntimeError(f"the decision asks for more after {MOST_ROUNDS} rounds: {found}")
    if inputs.room is None:
        memory.room = None  # all nodes of a cluster take much memory
    if inputs.holding is None and inputs.activators is not None:
        memory.holding = None
    if inputs.quotas is None:
        memory.quotas = None
    return found


def _observed(key: Key, memory: ServiceMemory, ctx: Context) -> Observed:
    found = Observed.of(
        key.name,
        ctx.cache.of_service(key),
        ctx.hidden(key.namespace),
        applied=_frozen(memory.applied),
        refused=_frozen(memory.skipped | memory.refused),
        unanswered=_unanswered(memory, ctx.clock()),
        kept=_frozen({child: refusal for child, (_, refusal) in memory.kept.items()}),
        reports=ctx.state_poller.reports(key),
        unsettled_for=memory.unsettled_for(ctx.clock()),
        ongoing_rollout=memory.ongoing_rollout,
    )
    memory.made.update((c.kind, c.name) for c in found.children() if c.owner_uid == memory.uid and not c.deleting)
    return found


def _unanswered(memory: ServiceMemory, now: float) -> Mapping[ChildId, Unanswered]:
    """Failures that occurred at least twice in a row."""
    if memory.failures < 2:
        return _frozen({})
    return _frozen({child: Unanswered(said, now - since) for child, (said, since) in memory.unanswered.items()})


async def _with(needed: Requirements, inputs: Inputs, key: Key, ctx: Context) -> Inputs:
    read: dict[str, Any] = {}
    if needed.update_permission:
        read["update_permission"] = Part(ctx.updates.check(key, ctx.cache), "updates of other services")
    if needed.group_turn:
        read["group_turn"] = Part(ctx.group_turns.take(key, ctx.clock()), "turns of other services")
        ctx.nodes.forget(ctx.group_turns.placed_at)
    if needed.sibling_model is not None:
        read["sibling_model"] = Part(sibling_model(needed.sibling_model, key, ctx), "status of another LLMService")
    if needed.reading is not None:
        answer = await ctx.configs.read(key, needed.reading)
        read["reading"] = Part(ConfigReading(needed.reading, answer), "the model's config.json")
    if needed.gpus is not None:
        found = await ctx.nodes.gpus(needed.gpus.resource, dict(needed.gpus.node_selector))
        read["gpus"] = Part(found, "nodes of the cluster")
    if needed.devices is not None:
        found_devices = await ctx.nodes.devices(
            needed.devices.driver, needed.devices.device_class, dict(needed.devices.node_selector)
        )
        read["devices"] = Part(found_devices, "nodes and ResourceSlices of the cluster")
    if needed.room is not None:
        read["room"] = await room(needed.room, key, ctx)
    if needed.pod_events:
        read["pod_events"] = Part(await pod_events(needed.pod_events, key, ctx), "Events of pods")
    if needed.in_flight:
        read["in_flight"] = Part(await in_flight(needed.in_flight, key, ctx), "metrics of pods")
    if needed.port:
        read["port_claim"] = Part(await claim(needed.port, key, inputs, ctx), "Leases of the operator's namespace")
    if needed.holding:
        read["holding"] = Part(await reports(needed.holding, key, inputs, ctx), "activators")
    if needed.quotas:
        read["quotas"] = await quotas(inputs, key, ctx)
    return inputs.with_parts(read)


async def in_flight(pods: tuple[tuple[str, str], ...], key: Key, ctx: Context) -> Mapping[str, int]:
    """Requests in flight by pod name, READERS at once and READING_SECONDS in all; pods that do not answer in time are
    absent."""
    found: dict[str, int] = {}
    slots = asyncio.Semaphore(READERS)

    async def read(name: str, address: str) -> None:
        async with slots:
            try:
                found[name] = (await ctx.read_requests(address)).in_flight
            except Unreadable as unreadable:
                logger.info("requests of pod %s of %s are not known: %s", name, key, unreadable)

    try:
        async with asyncio.timeout(READING_SECONDS), asyncio.TaskGroup() as group:
            for pod in pods:
                group.create_task(read(*pod))
    except TimeoutError:
        logger.info("the requests of %d of %d pods of %s were read in time", len(found), len(pods), key)
    return found


async def room(needed: RoomQuery, key: Key, ctx: Context) -> Part[Room]:
    """Free resources, read now or recently enough for this service."""
    memory, now, source = ctx.memories[key], ctx.clock(), "nodes and pods of the cluster"
    kept = memory.room if memory.room is not None and memory.room[1] == needed.resource else None
    if kept is not None and now - kept[0] < needed.max_age_seconds:
        return Part(kept[2], source, now - kept[0], needed)
    try:
        found = await ctx.nodes.room(needed.resource)
    except TRANSIENT_ERRORS as error:
        logger.warning("the nodes could not be listed for %s: %s", key, error)
        if kept is None or not needed.is_only_shown:
            return Part(NOT_READ, source, asked=needed)
        return Part(kept[2], source, now - kept[0], needed)
    memory.room = (now, needed.resource, found)
    return Part(found, source, asked=needed)


async def quotas(inputs: Inputs, key: Key, ctx: Context) -> Part[Quotas | None]:
    """Quotas as they were first needed in this generation, or QUOTAS_SECONDS later, with the pods of that time: quotas
    count no others."""
    assert inputs.stored is not None, "without a spec nothing is required"
    memory, now, generation = ctx.memories[key], ctx.clock(), inputs.stored.generation
    kept, source = memory.quotas, "ResourceQuotas of the namespace"
    if kept is not None and kept[1] == generation and now - kept[0] < QUOTAS_SECONDS:
        return Part(kept[2], source, now - kept[0])
    try:
        found = await ctx.quotas.of(key.namespace)
    except TRANSIENT_ERRORS as error:
        logger.warning("the ResourceQuotas of %s could not be listed: %s", key.namespace, error)
        return Part(None, source)
    counted = (pod.asked for pod in inputs.observed.pods if pod.phase not in ("Failed", "Succeeded"))
    memory.quotas = (now, generation, Quotas(found, tuple(counted)))
    return Part(memory.quotas[2], source)


async def pod_events(pods: tuple[str, ...], key: Key, ctx: Context) -> PodEvents:
    """Events of pods; empty where they could not be listed: the status is then written without."""
    try:
        return PodEvents.of(await ctx.pod_events.of(key.namespace, pods))
    except TRANSIENT_ERRORS as error:
        logger.warning("the Events of %s could not be listed: %s", key, error)
        return PodEvents()


def sibling_model(inspection: str, key: Key, ctx: Context) -> Mapping[str, Any]:
    """status.model of another service in the namespace with the same model; empty if there is none."""
    for parent in ctx.cache.indexed(PARENT, (key.namespace, inspection)):
        if parent.name != key.name:
            return dict(parent.obj["status"]["model"])
    return {}


def _frozen(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(mapping))


async def claim(query: HoldingQuery, key: Key, inputs: Inputs, ctx: Context) -> PortClaim:
    """The service's port, allocated now or confirmed: the stored one may be another's after Leases were deleted.

    It is confirmed every VERIFY_SECONDS, and every SELDOM_AFTER seconds after a failure or while an activator cannot
    hold. A service without a port keeps a replica.
    """
    assert inputs.stored is not None
    memory, now, uid, stored = ctx.memories[key], ctx.clock(), inputs.stored.uid, stored_port(inputs.stored.status)
    if memory.claimed is None and stored is not None and query.is_at_zero:
        # After a start of the operator, services at zero are spread over time.
        memory.claimed = next_question_at(uid, now) - VERIFY_SECONDS, PortClaim(stored)
    if memory.claimed is not None:
        read_at, known = memory.claimed
        is_in_doubt = bool(known.problem) or (memory.holding is not None and memory.holding.unable_since is not None)
        if now - read_at < (SELDOM_AFTER if is_in_doubt else VERIFY_SECONDS):
            return known
    try:
        found = PortClaim(await ctx.claim_port(key, uid, stored))
    except NotLeader:
        raise
    except KubeError as error:
        logger.warning("no port could be allotted to %s: %s", key, error)
        found = PortClaim(stored, str(error))
    memory.claimed = now, found
    return found


async def reports(query: HoldingQuery, key: Key, inputs: Inputs, ctx: Context) -> Reports:
    """Reports of these activators, read concurrently and only when due."""
    memory, now, about, addresses = ctx.memories[key], ctx.clock(), _about(query, inputs), query.addresses
    asked = ActivatorQuestions.first(about, now) if memory.holding is None else memory.holding.follow(about, now)
    if asked.is_due(now):
        said = await asyncio.gather(*(_report(address, key, about, ctx) for address in addresses))
        asked = asked.answered(dict(zip(addresses, said, strict=True)), now)
    memory.holding = asked
    return asked.known(now)


def _about(query: HoldingQuery, inputs: Inputs) -> QuestionSubject:
    service = inputs.stored
    assert service is not None
    return QuestionSubject(
        service.uid,
        service.generation,
        query.port,
        query.addresses,
        tuple((each.uid, each.resource_version) for each in inputs.observed.slices),
        is_at_zero=query.is_at_zero,
        is_written=service.status.get("observedGeneration") == service.generation,
    )


async def _report(address: str, key: Key, about: QuestionSubject, ctx: Context) -> HoldingReport:
    assert about.port is not None, "activators are asked about a port"
    try:
        return await ctx.ask_activator(address, key, about.uid, about.port)
    except Unreadable as unreadable:
        logger.info("activator %s says nothing of %s: %s", address, key, unreadable)
        return HoldingReport(unread=str(unreadable))
