"""Which revision is to run: the spec's own, a pinned one, the one before a failed one, or the running one while an
update waits."""

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
from llmservice_operator.inputs import UpdatePermission
from llmservice_operator.manifests.engine import image, vllm_arguments, vllm_version
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.ownership import Ownership, ownership
from llmservice_operator.revisions.match import (
    RevisionMatch,
    match_protected,
    match_revision,
    rerendered,
)
from llmservice_operator.revisions.rollback import Rollback, digest_of, rollback_for
from llmservice_operator.workload.port import WorkloadFacts

Json = Mapping[str, Any]


def running_until_update(
    service: LLMService, observed: Observed, match: RevisionMatch, revisions: Sequence[RevisionFacts]
) -> RevisionFacts | None:
    """The revision that keeps running until the update may start; None: the next template is not just an update."""
    live = observed.workload
    if live is None or live.spec_replicas == 0 or service.spec.paused:
        return None
    running = next((r for r in revisions if (r.label, r.key) == (live.revision, match.key)), None)
    if running is None or match.latest is None:
        return None
    is_begun = not match.is_update and (match.latest.label == running.label or not is_by_request(match.latest))
    return None if is_begun else running


def is_by_request(record: RevisionFacts) -> bool:
    """Whether the revision was created by a requested update: the first one of a key has the key as its label."""
    return record.label != record.key and record.update_requested is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """The revision that a decision is about."""

    service: LLMService
    """The service as it is to run: with recorded values of fields that need a restart, if a recorded revision runs."""
    asked: LLMServiceSpec
    """The current spec, whatever runs: its claims stay."""
    revisions: Sequence[RevisionFacts]
    """The service's own, the oldest first."""
    match: RevisionMatch
    rollback: Rollback | None
    problems: tuple[Problem, ...] = ()
    """Why this release would not start the service; a recorded revision runs nevertheless."""
    is_update_refused: bool = False
    """The problems prevent a requested update."""
    spec_hash: str | None = None
    """Hash of the current spec, for an automatic rollback."""
    needs_update_permission: bool = False
    """A requested update would start, and others may be running."""
    waiting_update: UpdatePermission | None = None
    """Why the requested update may not start."""

    @property
    def may_choose_strategy(self) -> bool:
        """False where nothing is applied, or the running revision is to be replaced by a rollback."""
        return not self.service.spec.paused and (self.rollback is None or self.rollback.failed is None)


def select(
    service: LLMService, observed: Observed, settings: Settings, update_permission: UpdatePermission | None
) -> Selection | tuple[Problem, ...]:
    """The selection, or problems for which nothing may run. Without `update_permission`, an update may start."""
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
    if is_refused and match.latest is not None:  # the recorded revision of the spec keeps running
        match = match.on(match.latest)
    if rollback is None and not problems:
        match = rerendered(service, match, observed, revisions, settings)
    is_requested = rollback is None and not match.is_rerendered
    running = running_until_update(service, observed, match, revisions) if is_requested else None
    waiting_update = None
    if running is not None and update_permission is not None and not update_permission.is_granted:
        waiting_update, match = update_permission, match.on(running)
    return Selection(
        service, asked, revisions, match, rollback, problems, is_refused, spec_hash, running is not None, waiting_update
    )


def own_revisions(service: LLMService, observed: Observed) -> list[RevisionFacts]:
    """Includes those of an orphaned service: its model may still be running."""
    ours = (Ownership.OURS, Ownership.ORPHAN)
    return [r for r in observed.revisions if r.is_valid_record and ownership(r, service) in ours]


def own_workload(service: LLMService, observed: Observed) -> WorkloadFacts | None:
    """The workload, if it is this service's or an orphan of its name."""
    live = observed.workload
    return live if live is not None and ownership(live, service) in (Ownership.OURS, Ownership.ORPHAN) else None


@cached_by_service
def _checked(service: LLMService, settings: Settings) -> tuple[Problem, ...]:
    version = vllm_version(service, settings)
    arguments = vllm_arguments(service, version)
    return check(service.spec, image=image(service, settings), vllm_version=version, arguments=arguments)
