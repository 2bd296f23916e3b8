"""Ownership of existing children. Children of other owners are left alone."""

from __future__ import annotations

from enum import Enum

from llmservice_api.constants import MANAGED_BY_LABEL
from llmservice_api.errors import Problem
from llmservice_api.kinds import HAS_OWN_CONDITION
from llmservice_api.reasons import Reason

from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import ChildFacts, ClaimFacts
from llmservice_operator.manifests.meta import Owner
from llmservice_operator.observe.observed import Observed


class Ownership(Enum):
    """The relation of an existing object to the service."""

    OURS = "ours"
    """It has the service's controller reference (or is a retained claim): apply with force."""
    ORPHAN = "orphan"
    """Created by this operator, without an owner: adopt without force."""
    LEAVING = "leaving"
    """Being deleted, by itself or with an earlier LLMService of this name: wait."""
    FOREIGN = "foreign"


def ownership(child: ChildFacts, service: Owner) -> Ownership:
    if child.deleting:
        return Ownership.LEAVING
    if child.controller is None:
        if not child.has_operator_labels or child.service != service.name:
            return Ownership.FOREIGN
        # A retained claim has no owner: only its labels identify it.
        return Ownership.OURS if isinstance(child, ClaimFacts) else Ownership.ORPHAN
    if child.controller.uid == service.uid:
        return Ownership.OURS
    return Ownership.LEAVING if child.controller.is_earlier(service.name, service.uid) else Ownership.FOREIGN


def name_conflicts(service: Owner, observed: Observed, ids: set[tuple[str, str]]) -> tuple[Problem, ...]:
    """One problem for each child of another owner, as far as known; none for kinds with a condition of their own."""
    ids = {(kind, name) for kind, name in ids if kind not in HAS_OWN_CONDITION}
    found = [
        _conflict(child.kind, child.name, *_owner(child))
        for child in observed.children()
        if (child.kind, child.name) in ids and ownership(child, service) is Ownership.FOREIGN
    ]
    # An own child that answers 409 changed meanwhile. An unknown one is not the service's, and in an orphan the fields
    # of other managers are left alone.
    ours = {(c.kind, c.name) for c in observed.children() if ownership(c, service) is not Ownership.ORPHAN}
    found += [
        _conflict(kind, name, (said := normalize.conflict(refusal.message)), said)
        for (kind, name), refusal in sorted(observed.refused.items())
        if refusal.code == 409 and (kind, name) in ids - ours
    ]
    return tuple(found)


def _owner(child: ChildFacts) -> tuple[str, str]:
    """The owner, and what shows it."""
    if child.controller is not None:
        owner = f"{child.controller.kind} {child.controller.name}"
        return f"it belongs to {owner}", f"ownerReferences: {owner} (uid {child.controller.uid})"
    if child.managed_by is not None:
        return f"it is managed by {child.managed_by}", f"label {MANAGED_BY_LABEL}: {child.managed_by}"
    return "this operator did not make it", f"no ownerReferences, no label {MANAGED_BY_LABEL}"


def _conflict(kind: str, name: str, owner: str, seen: str) -> Problem:
    return Problem(
        "metadata.name",
        f"{kind} {name} exists already and is not this service's: {owner.rstrip('.')}.",
        Reason.NAME_CONFLICT.remedy,
        Reason.NAME_CONFLICT,
        evidence=f"{kind} {name}: {seen}",
    )
