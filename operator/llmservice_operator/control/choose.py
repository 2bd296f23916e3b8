"""Which pod template a service runs with: the recorded one for as long as nothing calls for a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmservice_operator.api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest
from llmservice_operator.build.revision import labelled, revision_key, revision_label
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.template import pod_template
from llmservice_operator.observe.facts import RevisionFacts


@dataclass(frozen=True, slots=True)
class Choice:
    """A revision: its name, its template, and what it was made for."""

    label: str
    number: int
    key: str
    template: Manifest
    """With the revision label, as the Deployment has it."""
    update_requested: str | None
    update_pending: bool
    """What would be rendered today differs, and waits for the next rollout."""


def choose(service: LLMService, revisions: Sequence[RevisionFacts], settings: Settings) -> Choice:
    """The recorded template of the spec's key, unless there is none or the user asks for an update."""
    key = revision_key(service.spec)
    rendered = pod_template(service, settings)
    requested = service.annotations.get(UPDATE_REQUESTED_ANNOTATION)
    newest = max((facts.revision for facts in revisions), default=0)
    recorded = max((f for f in revisions if f.key == key), key=lambda f: (f.revision, f.label), default=None)
    if recorded is not None and requested in (None, recorded.update_requested):
        template = recorded.template()
        return Choice(
            label=recorded.label,
            number=recorded.revision if recorded.revision == newest else newest + 1,
            key=key,
            template=template,
            update_requested=recorded.update_requested,
            update_pending=template != labelled(rendered, recorded.label),
        )
    label = key if recorded is None else revision_label(key, rendered, requested)
    return Choice(label, newest + 1, key, labelled(rendered, label), requested, update_pending=False)
