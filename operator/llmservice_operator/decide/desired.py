"""The children that a service is to have, as manifests, in the order in which they are applied."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import orjson

from llmservice_operator.api.constants import ADAPTERS_ANNOTATION, APPLIED_HASH_ANNOTATION
from llmservice_operator.api.holding import is_idle
from llmservice_operator.api.remembered import of_service
from llmservice_operator.api.service import LLMService
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.build import adapters, children, pvc
from llmservice_operator.build.chosen import Chosen
from llmservice_operator.build.controller_revision import controller_revision
from llmservice_operator.build.deployment import Strategy, deployment
from llmservice_operator.build.meta import Manifest
from llmservice_operator.build.service import service as service_manifest
from llmservice_operator.build.settings import Settings
from llmservice_operator.decide.rollout.revision import DesiredRevision
from llmservice_operator.observe.projections.children import RevisionFacts


@dataclass(frozen=True, slots=True)
class DesiredChild:
    """One manifest, and the hash of what it asks for."""

    manifest: Manifest
    input_hash: str

    @property
    def id(self) -> tuple[str, str]:
        """(kind, name)"""
        return self.manifest["kind"], self.manifest["metadata"]["name"]


def desired_children(
    service: LLMService, asked: LLMServiceSpec, revision: DesiredRevision, strategy: Strategy, settings: Settings
) -> list[DesiredChild]:
    """What pods need comes before the pods. `asked` is the spec as it is, whatever revision runs."""
    made = revision.label, revision.number, revision.key, revision.template, revision.chosen
    return [
        *_made(service, *made, strategy, None if asked is service.spec else asked),
        *_declared(service, settings, service.replicas_stated_by, is_idle(service.spec.scaling, service.status)),
    ]


@of_service
def _made(
    service: LLMService,
    label: str,
    number: int,
    key: str,
    template: Manifest,
    chosen: Chosen,
    strategy: Strategy,
    asked: LLMServiceSpec | None,
) -> tuple[DesiredChild, ...]:
    revision = DesiredRevision(label, number, key, template, chosen, update_pending=False)
    return tuple(with_hash(manifest) for manifest in _manifests(service, asked or service.spec, revision, strategy))


@of_service
def _declared(service: LLMService, settings: Settings, stated_by: str | None, idle: bool) -> tuple[DesiredChild, ...]:
    """Of the kinds in `api/child_kinds.py`. `stated_by` and `idle` are the service's: they are no part of the spec."""
    assert (service.replicas_stated_by, is_idle(service.spec.scaling, service.status)) == (stated_by, idle)
    return tuple(with_hash(manifest) for manifest in children.manifests(service, settings))


def adopted_records(service: LLMService, orphans: Iterable[RevisionFacts]) -> list[DesiredChild]:
    """Records that nobody owns any more, as they are: one that is not adopted would outlive every service."""
    manifests = []
    for record in orphans:
        data = record.data()
        chosen = Chosen.from_document(data.get("chosen") or {})
        made = {"number": record.revision, "key": record.key, "template": data["template"], "chosen": chosen}
        manifests.append(controller_revision(service, label=record.label, **made))
    return [with_hash(manifest) for manifest in manifests]


def maintained(
    service: LLMService, template: Manifest | None, strategy: Strategy, listed: str | None, settings: Settings
) -> list[DesiredChild]:
    """While an edit is held: what serves, with all that needs no restart.

    The Deployment has the template that it was made with; None: that is not known, and it stays as it is. The list of
    adapters waits with the edit, for pods may lack what it asks for: `listed` is the digest of what was applied.
    """
    manifests = [_listing(service_manifest(service), listed)]
    if template is not None:
        manifests.append(deployment(service, template, strategy))
    manifests += children.manifests(service, settings)
    return [with_hash(manifest) for manifest in manifests]


def _listing(manifest: Manifest, listed: str | None) -> Manifest:
    """The Service naming this list of adapters, since that is the one that there is."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "annotations"}
    if listed is not None:
        metadata["annotations"] = {ADAPTERS_ANNOTATION: listed}
    return manifest | {"metadata": metadata}


def _manifests(
    service: LLMService, asked: LLMServiceSpec, revision: DesiredRevision, strategy: Strategy
) -> Iterator[Manifest]:
    if adapters.is_wanted(service):
        # Before the Service, which says then that it was.
        yield adapters.adapters_config(service)
    yield service_manifest(service)
    yield from (pvc.manifest(service, claim) for claim in pvc.claims(service, asked))
    yield controller_revision(
        service,
        label=revision.label,
        number=revision.number,
        key=revision.key,
        template=revision.template,
        chosen=revision.chosen,
    )
    yield deployment(service, revision.template, strategy)


def with_hash(manifest: Manifest) -> DesiredChild:
    """The manifest with its hash as an annotation: it shows fields that are no longer desired, after a restart too."""
    digest = hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    annotations = manifest["metadata"].get("annotations", {}) | {APPLIED_HASH_ANNOTATION: digest}
    metadata = manifest["metadata"] | {"annotations": annotations}
    return DesiredChild(manifest | {"metadata": metadata}, digest)
