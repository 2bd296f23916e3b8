"""Asks what a decision needs while no replica is to serve: a port at the activators, and what they report."""

from __future__ import annotations

import asyncio
import logging

from llmservice_operator.api.holding import HoldingReport, PortClaim, stored_port
from llmservice_operator.api.service import Key
from llmservice_operator.control.context import Context
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.questions import About, Questions, Reports, turn
from llmservice_operator.decide.zero import SELDOM_AFTER
from llmservice_operator.kube.errors import KubeError, NotLeader
from llmservice_operator.kube.pod_port import Unreadable

logger = logging.getLogger(__name__)

VERIFY_SECONDS = 3600.0
"""For which a Lease that names a service is taken to stay: one read for each service that goes to zero, or rests."""


async def claim(key: Key, inputs: Inputs, ctx: Context) -> PortClaim:
    """The service's port, allotted now or found again: what the status has may be another's, once Leases were deleted.

    That is looked at each VERIFY_SECONDS, and each SELDOM_AFTER seconds while it failed or an activator cannot hold. A
    service without any port keeps a replica meanwhile.
    """
    assert inputs.stored is not None
    memory, now, uid, stored = ctx.memories[key], ctx.clock(), inputs.stored.uid, stored_port(inputs.stored.status)
    if memory.claimed is None and stored is not None and inputs.zero.is_held:
        # After a start of the operator, services at rest take their turns.
        memory.claimed = turn(uid, now) - VERIFY_SECONDS, PortClaim(stored)
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


async def reports(addresses: tuple[str, ...], key: Key, inputs: Inputs, ctx: Context) -> Reports:
    """What these activators report, asked at once, and only when that is due."""
    memory, now, about = ctx.memories[key], ctx.clock(), _about(addresses, inputs)
    asked = Questions.first(about, now) if memory.holding is None else memory.holding.follow(about, now)
    if asked.is_due(now):
        said = await asyncio.gather(*(_report(address, key, inputs, ctx) for address in addresses))
        asked = asked.answered(dict(zip(addresses, said, strict=True)), now)
    memory.holding = asked
    return asked.known(now)


def _about(addresses: tuple[str, ...], inputs: Inputs) -> About:
    service, zero = inputs.stored, inputs.zero
    assert service is not None
    return About(
        service.uid,
        service.generation,
        zero.port,
        addresses,
        tuple((each.uid, each.resource_version) for each in inputs.observed.slices),
        is_at_rest=zero.is_held,
        is_written=service.status.get("observedGeneration") == service.generation,
    )


async def _report(address: str, key: Key, inputs: Inputs, ctx: Context) -> HoldingReport:
    assert inputs.stored is not None
    assert inputs.zero.port is not None, "activators are asked about a port"
    try:
        return await ctx.ask_activator(address, key, inputs.stored.uid, inputs.zero.port)
    except Unreadable as unreadable:
        logger.info("activator %s says nothing of %s: %s", address, key, unreadable)
        return HoldingReport(unread=str(unreadable))
