"""Which services are looked at first, where many wait: read off what their status says of their spec."""

from __future__ import annotations

from llmservice_operator.control.kinds import ParentFacts
from llmservice_operator.control.queue import Rank


def rank(parent: ParentFacts | None) -> Rank:
    """The same at a start as later: what was edited while nobody looked is served before the thousands that are well.

    A status that was never written has no observedGeneration, or the CRD's default, -1.
    """
    if parent is None or parent.deleting:
        return Rank.REST
    observed = parent.obj["status"].get("observedGeneration", -1)
    if observed < 0:
        return Rank.NEW
    return Rank.REST if observed == parent.content["generation"] else Rank.EDITED
