"""Marks the pods that a scale-down is to end, before the Deployment is made smaller."""

from __future__ import annotations

from collections.abc import Iterable

from llmservice_operator.api.constants import DELETION_COST_ANNOTATION, MANAGER
from llmservice_operator.control.context import Context
from llmservice_operator.control.watch.kinds import ParentFacts
from llmservice_operator.decide.decision import DeletionCost
from llmservice_operator.kube.errors import ApiError, Unreachable
from llmservice_operator.kube.resources import POD
from llmservice_operator.process.log import ObjectLogger


async def write_deletion_costs(
    costs: Iterable[DeletionCost], parent: ParentFacts, ctx: Context, log: ObjectLogger
) -> None:
    """One patch a pod, each of this annotation alone. The first failure ends it, and the scale-down goes on:
    Kubernetes then chooses among the pods that are not marked."""
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
