"""Volumes and paths of the model, the draft model and the adapters in the pod."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmservice_api.model import ClaimSource, FileSource, ImageSource, Source, is_fetched
from llmservice_api.runtime import OWN_VOLUME_PREFIX
from llmservice_api.spec import Adapter, LLMServiceSpec
from llmservice_runtime import contract


@dataclass(frozen=True, slots=True)
class Store:
    """A claim or an image to mount."""

    kind: str
    """claim or image"""
    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """The volume of a store, and its mount path."""

    volume: str
    path: str


def store(source: Source) -> Store | None:
    """The claim or image to mount for a source; None if it is fetched or in the runtime's image."""
    match source:
        case ClaimSource(claim, _):
            return Store("claim", claim)
        case ImageSource(reference, _):
            return Store("image", reference)
        case _:
            return None


def places(spec: LLMServiceSpec) -> Mapping[Store, Place]:
    """Every store once, in the order model, draft model, adapters: sources in one claim share a volume."""
    by_store: dict[Store, Place] = {}
    for at, place in _each_place(spec):
        by_store.setdefault(at, place)
    return by_store


def _each_place(spec: LLMServiceSpec) -> Iterator[tuple[Store, Place]]:
    draft = spec.draft_model
    if at := store(spec.model.source):
        yield at, Place("source", contract.SOURCE_DIR)
    if draft is not None and (at := store(draft.source)):
        yield at, Place("draft", contract.DRAFT_DIR)
    # Named by content: an index would change with other adapters.
    named = {at: f"{at.kind}:{at.name}" for adapter in spec.adapters if (at := store(adapter.source))}
    for at, text in sorted(named.items(), key=lambda item: item[1]):
        name = hashlib.sha256(text.encode()).hexdigest()[:10]
        yield at, Place(f"{OWN_VOLUME_PREFIX}{name}", f"{contract.ADAPTER_SOURCES_DIR}/{name}")


def model_path(spec: LLMServiceSpec) -> str:
    return _path(spec, spec.model.source) or f"{contract.ARTIFACTS_DIR}/{contract.MODEL_ARTIFACT}"


def draft_path(spec: LLMServiceSpec) -> str | None:
    if spec.draft_model is None:
        return None
    return _path(spec, spec.draft_model.source) or f"{contract.ARTIFACTS_DIR}/{contract.DRAFT_ARTIFACT}"


def adapter_path(spec: LLMServiceSpec, adapter: Adapter) -> str | None:
    """An adapter's path; None if the supervisor fetches it."""
    return _path(spec, adapter.source)


def _path(spec: LLMServiceSpec, source: Source) -> str | None:
    if isinstance(source, FileSource):
        return source.path
    if not isinstance(source, ClaimSource | ImageSource):
        return None
    at = store(source)
    assert at is not None
    folder = places(spec)[at].path
    return f"{folder}/{source.path}" if source.path else folder


def fetched(spec: LLMServiceSpec) -> Mapping[str, str]:
    """URIs to fetch before vLLM starts, by artifact name."""
    artifacts = {contract.MODEL_ARTIFACT: (spec.model.uri, spec.model.source)}
    if spec.draft_model is not None:
        artifacts[contract.DRAFT_ARTIFACT] = (spec.draft_model.uri, spec.draft_model.source)
    return {name: uri for name, (uri, source) in artifacts.items() if is_fetched(source)}


def needs_models_volume(spec: LLMServiceSpec) -> bool:
    """Whether something may be fetched: with LoRA, adapters may come at any time."""
    return bool(fetched(spec)) or spec.is_lora_on


def adapter_stores(spec: LLMServiceSpec) -> list[str]:
    """Stores that only adapters need, as KIND:NAME, sorted; part of the revision key."""
    return sorted(
        f"{at.kind}:{at.name}" for at, place in places(spec).items() if place.volume.startswith(OWN_VOLUME_PREFIX)
    )
