"""Asks what a decision needs while no replica is to serve: a port at the activators, and what they report."""

from __future__ import annotations

import asyncio
import logging

from llmservice_operator.api.holding import HoldingReport, PortClaim
from llmservice_operator.api.service import Key
from llmservice_operator.control.context import Context
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.questions import About, Questions, Reports
from llmservice_operator.decide.zero import SELDOM_AFTER
from llmservice_operator.kube.errors import KubeError, NotLeader
from llmservice_operator.kube.pod_port import Unreadable

logger = logging.getLogger(__name__)


async def claim(key: Key, inputs: Inputs, ctx: Context) -> PortClaim:
    """The service's port, allotted now or found again. Where that fails it is tried again after SELDOM_AFTER seconds,
    and the service keeps a replica meanwhile."""
    assert inputs.stored is not None
    memory, now = ctx.memories[key], ctx.clock()
    if memory.claimed is not None and (memory.claimed[1].port is not None or now - memory.claimed[0] < SELDOM_AFTER):
        return memory.claimed[1]
    try:
        found = PortClaim(await ctx.claim_port(key, inputs.stored.uid))
    except NotLeader:
        raise
    except KubeError as error:
        logger.warning("no port could be allotted to %s: %s", key, error)
        found = PortClaim(None, str(error))
    memory.claimed = now, found
    return found


async def reports(addresses: tuple[str, ...], key: Key, inputs: Inputs, ctx: Context) -> Reports:
    """What these activators say, asked at once, and only when that is due."""
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
        return HoldingReport()
