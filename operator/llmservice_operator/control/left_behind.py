"""What an earlier LLMService of the same name left behind and the cluster's garbage collector missed.

It may, when the API server ends in the middle of a deletion; and then what stands under a name that the service needs
would keep it waiting for ever. A name is unique, so whoever owned it under another uid is gone. Deployments, Services
and claims, which serve and hold data, are left to the garbage collector all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from llmservice_operator.api.constants import KIND
from llmservice_operator.control.decision import Decision, Prune, soonest
from llmservice_operator.observe.facts import BudgetFacts, ChildFacts, JobFacts, RevisionFacts
from llmservice_operator.observe.observed import Observed

Json = Mapping[str, Any]

PATIENCE = 30.0
"""Seconds from the making of the later service in which the garbage collector may do it."""
KINDS = frozenset({BudgetFacts.kind, JobFacts.kind, RevisionFacts.kind})


def without_left_behind(decision: Decision, metadata: Json, observed: Observed, now: datetime) -> Decision:
    """The decision about the service with this metadata, and what is to go beside."""
    left = [child for child in observed.children() if child.kind in KINDS and _is_left(child, metadata)]
    if not left:
        return decision
    age = (now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds()
    if age < PATIENCE:
        return replace(decision, requeue_after=soonest(decision.requeue_after, PATIENCE - age))
    gone = (Prune(c.kind, c.name, c.uid, "its LLMService is gone", version=c.resource_version) for c in left)
    return replace(decision, prune=(*decision.prune, *gone))


def _is_left(child: ChildFacts, metadata: Json) -> bool:
    owner = child.controller
    return (
        owner is not None
        and not child.deleting
        and (owner.kind, owner.name) == (KIND, metadata["name"])
        and owner.uid != metadata["uid"]
    )
