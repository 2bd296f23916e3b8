"""Which pod template a service runs with: the recorded one until a change needs a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import orjson
from llmservice_api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_api.memoize import cached_by_text
from llmservice_api.service import LLMService

from llmservice_operator.facts.children import RevisionFacts
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.meta import Manifest
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.revision import (
    NO_CHOICES,
    RevisionChoices,
    labelled,
    recorded_spec,
    revision_key,
    revision_label,
    start_plan,
)
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed


@dataclass(frozen=True, slots=True)
class RevisionMatch:
    """The recorded revisions that match a spec."""

    key: str
    newest: int
    """The highest revision number; 0: there is none."""
    latest: RevisionFacts | None
    """The latest revision with the spec's key, or the one that is to run instead."""
    template: Manifest | None = None
    """Its template, if no change needs another one."""
    chosen: RevisionChoices | None = None
    """Its recorded choices, likewise."""
    of_key: tuple[RevisionFacts, ...] = ()
    """All revisions with the spec's key, if another template is needed: it may be one of theirs."""
    is_rerendered: bool = False
    """The recorded template never ran, and is rendered again."""

    @property
    def label(self) -> str | None:
        """Label of the revision that is to run; None: it depends on the template that is yet to be rendered."""
        if self.latest is None:
            return self.key
        return None if self.template is None else self.latest.label

    @property
    def is_update(self) -> bool:
        """Whether the user requested an update though a template for the spec is recorded."""
        return self.latest is not None and self.template is None

    def on(self, record: RevisionFacts) -> RevisionMatch:
        """The match with the template of this record."""
        return _with_record(self.key, self.newest, record)


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    """A revision: its label, its template, and its choices."""

    label: str
    number: int
    key: str
    template: Manifest
    """With the revision label, as in the workload."""
    chosen: RevisionChoices
    update_pending: bool
    """The current rendering differs, and waits for the next rollout."""


def match_revision(
    service: LLMService, revisions: Sequence[RevisionFacts], returned: RevisionFacts | None = None
) -> RevisionMatch:
    """The record with the spec's key, unless an update is requested.

    `returned` is a record that is to run instead, with its own key.
    """
    newest = max((facts.revision for facts in revisions), default=0)
    if returned is not None:
        return _with_record(returned.key, newest, returned)
    key, requested = revision_key(service.spec), _requested(service)
    of_key = _of_key(key, revisions)
    if of_key and requested in (None, of_key[-1].update_requested):
        return _with_record(key, newest, of_key[-1])
    return RevisionMatch(key, newest, of_key[-1] if of_key else None, of_key=of_key)


def match_protected(service: LLMService, revisions: Sequence[RevisionFacts], returned: RevisionFacts) -> RevisionMatch:
    """The revision of a record with the current spec's protection: a recorded one, or one to render with the record's
    choices."""
    newest = max((facts.revision for facts in revisions), default=0)
    key = revision_key(service.spec)
    if of_key := _of_key(key, revisions):
        return _with_record(key, newest, of_key[-1])
    chosen = replace(_recorded(returned.body)[1], recorded=None)
    return RevisionMatch(key, newest, None, chosen=chosen)


def rerendered(
    service: LLMService,
    match: RevisionMatch,
    observed: Observed,
    revisions: Sequence[RevisionFacts],
    settings: Settings,
) -> RevisionMatch:
    """The match, without the recorded template if that never ran and the current rendering differs.

    Unchanged while a pod of another revision runs: another template would be another rollout, which may stop that pod.
    """
    if match.latest is None or match.template is None or not _never_ran(service, match.latest, observed):
        return match
    if any(_runs(pod) and pod.revision != match.latest.label for pod in observed.pods):
        return match
    if _rendered(service, settings, match.chosen or NO_CHOICES, match.latest.label) == match.template:
        return match
    of_key = _of_key(match.key, revisions)
    return RevisionMatch(match.key, match.newest, match.latest, of_key=of_key, is_rerendered=True)


def _runs(pod: PodFacts) -> bool:
    """On a node, and not being deleted."""
    return pod.scheduled and not pod.deleting and pod.phase not in ("Failed", "Succeeded")


def _never_ran(service: LLMService, record: RevisionFacts, observed: Observed) -> bool:
    """Whether certainly no pod of a revision has been on a node.

    All of its pods are its first ones, so that none replaced another, and the scheduler has found no node for any. In
    other cases a pod may have run: a deleted one leaves no trace.
    """
    live, rollout = observed.workload, service.status.get("rollout") or {}
    pods = [pod for pod in observed.pods if pod.revision == record.label]
    if live is None or live.revision != record.label or not pods or rollout.get("stableRevision") == record.label:
        return False
    if rollout.get("revision") == record.label and "measured" in service.status:
        return False
    return all(
        pod.unschedulable and not pod.scheduled and pod.phase == "Pending" and _is_first(pod, record) for pod in pods
    )


_MADE_WITHIN = timedelta(seconds=120)
"""Time after the revision's creation in which its first pods are created."""


def _is_first(pod: PodFacts, record: RevisionFacts) -> bool:
    if not (pod.created_at and record.created_at):
        return False
    age = datetime.fromisoformat(pod.created_at) - datetime.fromisoformat(record.created_at)
    return abs(age) <= _MADE_WITHIN


def _rendered(service: LLMService, settings: Settings, chosen: RevisionChoices, label: str) -> Manifest:
    return labelled(pod_template(service, settings, chosen), label)


def _of_key(key: str, revisions: Sequence[RevisionFacts]) -> tuple[RevisionFacts, ...]:
    """The latest last."""
    return tuple(sorted((facts for facts in revisions if facts.key == key), key=lambda f: (f.revision, f.label)))


def _with_record(key: str, newest: int, record: RevisionFacts) -> RevisionMatch:
    return RevisionMatch(key, newest, record, *_recorded(record.body))


@cached_by_text
def _recorded(text: bytes) -> tuple[Manifest, RevisionChoices]:
    """Template and choices of a record, by its stored body: records are immutable, and each evaluation reads them."""
    data = orjson.loads(text)["data"]
    return data["template"], RevisionChoices.from_document(data.get("chosen") or {})


def desired_revision(
    service: LLMService, match: RevisionMatch, chosen: RevisionChoices, settings: Settings
) -> DesiredRevision:
    """The recorded template, or a new one with these choices."""
    if match.template is not None and match.latest is not None:
        label = match.latest.label
        return DesiredRevision(
            label=label,
            number=match.newest if match.latest.revision == match.newest else match.newest + 1,
            key=match.key,
            template=match.template,
            chosen=chosen,
            update_pending=match.template != _rendered(service, settings, chosen, label),
        )
    requested = _requested(service)
    start, spec = start_plan(service, chosen.plan), recorded_spec(service.spec)
    chosen = replace(chosen, start=start, update_requested=requested, spec=spec, recorded=None)
    rendered = pod_template(service, settings, chosen)
    is_first = match.latest is None or (requested is None and not match.is_rerendered)
    label = match.key if is_first else revision_label(match.key, rendered, requested)
    known = next((record for record in match.of_key if record.label == label), None)
    if known is not None:  # recorded content is immutable
        return desired_revision(service, match.on(known), _recorded(known.body)[1], settings)
    return DesiredRevision(label, match.newest + 1, match.key, labelled(rendered, label), chosen, update_pending=False)


def _requested(service: LLMService) -> str | None:
    return service.annotations.get(UPDATE_REQUESTED_ANNOTATION)
