"""Adoption of children of an earlier LLMService of the same name that the cluster's garbage collector missed.

It may miss them when the API server ends in the middle of a deletion; the service would wait for its own name for ever.
A name is unique, so an owner of this name with another uid is gone. Its children become this service's as they are:
what serves goes on serving, and what is not desired is pruned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from llmservice_operator.api.service import is_paused
from llmservice_operator.decide.decision import Adopt, Decision
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.timing import soonest
from llmservice_operator.observe.observed import Observed

Json = Mapping[str, Any]

PATIENCE = 30.0
"""Seconds from the creation of the later service in which the garbage collector may delete them."""


def with_adoption(decision: Decision, inputs: Inputs) -> Decision:
    """The decision about this LLMService, and what it adopts first."""
    metadata = inputs.parent["metadata"]
    left, created = list(_left(metadata, inputs.observed)), metadata.get("creationTimestamp")
    if not left or created is None or is_paused(inputs.parent["spec"]):
        return decision
    age = (inputs.now - datetime.fromisoformat(created)).total_seconds()
    if age < PATIENCE:
        return replace(decision, requeue_after=soonest(decision.requeue_after, PATIENCE - age))
    kept = inputs.observed.kept
    return replace(decision, adopt=tuple(each for each in left if (each.kind, each.name) not in kept))


def _left(metadata: Json, observed: Observed) -> Iterator[Adopt]:
    for child in observed.children():
        owner = child.controller
        if owner is not None and not child.deleting and owner.is_earlier(metadata["name"], metadata["uid"]):
            yield Adopt(child.kind, child.name, child.uid, owner.uid)


def handed_over(live: Json, adopt: Adopt, uid: str) -> list[dict[str, Any]] | None:
    """The JSON patch that makes a live object this service's; None: it is somebody else's by now, or another one."""
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
