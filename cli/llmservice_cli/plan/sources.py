"""Where the facts of an LLMService's models come from: the spec first, then options, then the hub or the bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.planner.model import spec_facts
from llmservice_operator.planner.model.architecture import Architecture
from llmservice_operator.planner.model.tensors import Tensors

from . import models
from .models import Model, NotReached
from .values import shown

GIVE_CONFIG = "Give its config.json with --config."


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one service's model."""

    architecture: Architecture | None
    tensors: Tensors | None
    missing: tuple[str, ...] = ()
    why_missing: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Sources:
    """Models that were read: ten services of one model ask the hub once."""

    is_offline: bool = False
    _seen: dict[str, Model | NotReached] = field(default_factory=dict)

    def model_of(self, service: LLMService, named: Model | None) -> Found:
        """Facts for the plan. What cannot be had leaves the plan Unknown, with the reason."""
        stated = spec_facts.from_spec(service.spec.model.architecture)
        if named is not None:
            document = spec_facts.merge(named.document or {}, stated)
            model = models.from_document(document, "the model", named.tensors)
            return Found(
                model.architecture, model.tensors, model.missing, model.why_missing, _disagreements(stated, named)
            )
        alone = models.from_document(stated, "spec.model.architecture")
        if alone.architecture is not None:
            return Found(alone.architecture, None)
        uri = service.spec.model.uri
        inspected, why = self._inspected(uri)
        if inspected is None:
            return Found(None, None, alone.missing, f"{uri} {why}")
        document = spec_facts.merge(inspected.document or {}, stated)
        model = models.from_document(document, "spec.model.uri", inspected.tensors)
        return Found(model.architecture, model.tensors, model.missing, model.why_missing)

    def architecture_of(self, uri: str) -> Architecture | None:
        """Of a draft model; None where it cannot be had."""
        found, _ = self._inspected(uri, is_draft=True)
        return None if found is None else found.architecture

    def _inspected(self, uri: str, *, is_draft: bool = False) -> tuple[Model | None, str]:
        """A model by its uri, or why it cannot be read from here."""
        if not uri.startswith(models.REMOTE):
            return None, f"is in the cluster and cannot be read from here. {GIVE_CONFIG}"
        if self.is_offline:
            return None, f"is not read with --offline. {GIVE_CONFIG}"
        try:
            return self._read(uri, is_draft=is_draft), ""
        except NotReached as unreached:
            failure = unreached.failure
            return None, f"cannot be read: {failure.message} {failure.remedy}"

    def _read(self, place: str, *, is_draft: bool = False) -> Model:
        if place not in self._seen:
            try:
                self._seen[place] = models.draft_from_uri(place) if is_draft else models.from_uri(place)
            except NotReached as unreached:
                self._seen[place] = unreached
        seen = self._seen[place]
        if isinstance(seen, NotReached):
            raise seen
        return seen


def _disagreements(stated: Mapping[str, Any], named: Model) -> tuple[str, ...]:
    """Facts of the spec that are not the model's."""
    document = named.document or {}
    return tuple(
        f"spec.model.architecture says {key} {shown(value)}, the model's configuration {shown(document[key])}: "
        "the spec's is planned, as the operator does"
        for key, value in stated.items()
        if isinstance(value, int | str) and document.get(key) not in (None, value)
    )
