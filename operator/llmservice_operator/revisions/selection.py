"""Which revision is to run: the spec's own, a pinned one, the one before a failed one, or what runs until its turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_api.errors import Problem
from llmservice_api.memoize import cached_by_service
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_planner.checks import check

from llmservice_operator.facts.children import RevisionFacts
from llmservice_operator.inputs import Turn
from llmservice_operator.manifests.engine import image, vllm_arguments, vllm_version
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.ownership import Ownership, ownership
from llmservice_operator.revisions.match import (
    RevisionMatch,
    match_protected,
    match_revision,
    renewed,
)
from llmservice_operator.revisions.rollback import Rollback, digest_of, rollback_for
from llmservice_operator.workload.port import WorkloadFacts

Json = Mapping[str, Any]


def waits_on(
    service: LLMService, observed: Observed, match: RevisionMatch, revisions: Sequence[RevisionFacts]
) -> RevisionFacts | None:
    """The revision that runs on until it is this service's turn; None: the next template was not only asked for."""
    live = observed.workload
    if live is None or live.spec_replicas == 0 or service.spec.paused:
        return None
    running = next((r for r in revisions if (r.label, r.key) == (live.revision, match.key)), None)
    if running is None or match.latest is None:
        return None
    is_begun = not match.is_update and (match.latest.label == running.label or not is_by_request(match.latest))
    return None if is_begun else running


def is_by_request(record: RevisionFacts) -> bool:
    """Whether the revision was made because an update was asked for: the first one of a key is called by the key."""
    return record.label != record.key and record.update_requested is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """What a decision is about."""

    service: LLMService
    """As it is to run: with what needs a restart as it was recorded, where a recorded revision is to run."""
    asked: LLMServiceSpec
    """The spec as it is, whatever runs: its claims stay."""
    revisions: Sequence[RevisionFacts]
    """The service's own, the oldest first."""
    match: RevisionMatch
    rollback: Rollback | None
    problems: tuple[Problem, ...] = ()
    """For which this release would not start the service; of a recorded revision they stop nothing."""
    is_update_refused: bool = False
    """An update was asked for, and the problems keep it from being made."""
    spec_hash: str | None = None
    """Of the spec as it is, for an automatic rollback."""
    needs_turn: bool = False
    """An update that was asked for would begin, and others may be on their way."""
    waits_for: Turn | None = None
    """The turn that was not granted."""

    @property
    def may_choose_strategy(self) -> bool:
        """False where nothing is carried out anyway, or where what runs is to be gone back on."""
        return not self.service.spec.paused and (self.rollback is None or self.rollback.failed is None)


def select(
    service: LLMService, observed: Observed, settings: Settings, turn: Turn | None
) -> Selection | tuple[Problem, ...]:
    """The selection, or why nothing may run as it is asked for. Without a turn, an update is taken to be granted."""
    revisions = own_revisions(service, observed)
    live = own_workload(service, observed)
    rollback = rollback_for(service, revisions, live.revision if live is not None else None)
    if isinstance(rollback, Problem):
        return (rollback,)
    asked, spec_hash = service.spec, digest_of(service) if service.spec.rollout.auto_rollback else None
    service = service if rollback is None else rollback.service
    if rollback is not None and rollback.is_protected:
        match = match_protected(service, revisions, rollback.record)
    else:
        match = match_revision(service, revisions, rollback.record if rollback is not None else None)
    problems = _checked(service, settings)
    if problems and match.latest is None:
        return problems
    is_refused = bool(problems) and match.is_update
    if is_refused and match.latest is not None:  # what is recorded of the spec runs on
        match = match.on(match.latest)
    if rollback is None and not problems:
        match = renewed(service, match, observed, revisions, settings)
    is_requested = rollback is None and not match.is_renewed
    running = waits_on(service, observed, match, revisions) if is_requested else None
    waits_for = None
    if running is not None and turn is not None and not turn.is_granted:
        waits_for, match = turn, match.on(running)
    return Selection(
        service, asked, revisions, match, rollback, problems, is_refused, spec_hash, running is not None, waits_for
    )


def own_revisions(service: LLMService, observed: Observed) -> list[RevisionFacts]:
    """Those of an orphaned service count: the model that they describe may still be running."""
    ours = (Ownership.OURS, Ownership.ORPHAN)
    return [r for r in observed.revisions if r.is_whole and ownership(r, service) in ours]


def own_workload(service: LLMService, observed: Observed) -> WorkloadFacts | None:
    """The workload, where it is this service's or an orphan of its name."""
    live = observed.workload
    return live if live is not None and ownership(live, service) in (Ownership.OURS, Ownership.ORPHAN) else None


@cached_by_service
def _checked(service: LLMService, settings: Settings) -> tuple[Problem, ...]:
    version = vllm_version(service, settings)
    arguments = vllm_arguments(service, version)
    return check(service.spec, image=image(service, settings), vllm_version=version, arguments=arguments)
