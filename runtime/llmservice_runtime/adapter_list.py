"""The list of LoRA adapters: written by the operator into a ConfigMap, read by the supervisor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from llmservice_runtime.bounded_json import Refused, parse
from llmservice_runtime.contract import MAX_ADAPTERS
from llmservice_runtime.documents import Document, Field

MOST_BYTES = 1 << 20
"""Of a ConfigMap's value."""

_DEPTH = 3


@dataclass(frozen=True)
class Adapter(Document):
    """One adapter: its model name, its source, and its path if it is mounted (None: it is fetched)."""

    name: Annotated[str, Field(longest=253)]
    uri: Annotated[str, Field(longest=4096)]
    path: Annotated[str | None, Field(longest=4096)] = None


def to_json(adapters: Sequence[Adapter]) -> str:
    """The ConfigMap's value; deterministic for the same adapters in the same order."""
    return json.dumps([adapter.to_document() for adapter in adapters], separators=(",", ":"))


def from_json(text: str) -> tuple[Adapter, ...]:
    """The inverse. Refused (a ValueError) for invalid text."""
    documents = parse(text, MOST_BYTES, _DEPTH)
    if not isinstance(documents, list) or len(documents) > MAX_ADAPTERS:
        raise Refused(f"it is not a list of at most {MAX_ADAPTERS} adapters")
    adapters = tuple(Adapter.from_document(document, "an adapter") for document in documents)
    if len({adapter.name for adapter in adapters}) < len(adapters):
        raise Refused("two adapters have one name")
    return adapters


def digest(text: str) -> str:
    """Hash of a list, with which operator and supervisor compare versions."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def artifact(uri: str) -> str:
    """The artifact name of an adapter, derived from its URI and independent of its model name."""
    return digest(uri)
