"""Where each pod of a service is between its making and its end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from llmservice_operator.observe.projections.pods import PodFacts

from llmservice_cli.api import Json


class Phase(StrEnum):
    """In the order in which a pod goes through them; FAILING may come at any time."""

    PENDING = "pending"
    """It has no node, or none of its containers runs the server yet."""
    FETCHING = "fetching"
    LOADING = "loading"
    STARTING = "starting"
    """The server's process runs and does not answer yet: its checks, its first request, or a phase not reported."""
    READY = "ready"
    DRAINING = "draining"
    FAILING = "failing"


_REPORTED = {"Fetching": Phase.FETCHING, "Loading": Phase.LOADING}
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})
"""What a container waits for that is no failure."""


def phase_of(facts: PodFacts, status: Json) -> Phase:
    """`status` is the service's: its progress and its failure are about one pod each."""
    progress, failure = status.get("progress") or {}, status.get("failure") or {}
    if facts.deleting:
        return Phase.DRAINING
    if facts.ready:
        return Phase.READY
    if facts.phase == "Failed" or facts.is_lost or _is_failing(facts) or failure.get("pod") == facts.name:
        return Phase.FAILING  # the pod of a failure may be at its next attempt
    if not facts.running:
        return Phase.PENDING
    if facts.was_ready:
        return Phase.FAILING
    reported = str(progress.get("phase")) if progress.get("pod") == facts.name else ""
    return _REPORTED.get(reported, Phase.STARTING)


def _is_failing(facts: PodFacts) -> bool:
    if facts.waiting is not None and facts.waiting.reason not in _ON_ITS_WAY:
        return True
    return facts.terminated is not None and not facts.running


def counts(phases: Iterable[Phase]) -> Mapping[Phase, int]:
    """How many pods are in each phase that any is in, in their order."""
    found = Counter(phases)
    return {phase: found[phase] for phase in Phase if found[phase]}
