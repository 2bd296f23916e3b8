"""The list of LoRA adapters: written by the operator into a ConfigMap, read by the supervisor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from llmservice_runtime.bounded_json import Reader, Refused, parse
from llmservice_runtime.contract import MAX_ADAPTERS

MOST_BYTES = 1 << 20
"""Of a ConfigMap's value."""

_LONGEST_NAME = 253
_LONGEST_PLACE = 4096
_DEPTH = 3


@dataclass(frozen=True)
class Adapter:
    """One adapter: its model name, its source, and its path if it is mounted (None: it is fetched)."""

    name: str
    uri: str
    path: str | None = None


def to_json(adapters: Sequence[Adapter]) -> str:
    """The ConfigMap's value; deterministic for the same adapters in the same order."""
    documents = [
        {"name": adapter.name, "uri": adapter.uri} | ({"path": adapter.path} if adapter.path is not None else {})
        for adapter in adapters
    ]
    return json.dumps(documents, separators=(",", ":"))


def from_json(text: str) -> tuple[Adapter, ...]:
    """The inverse. Refused (a ValueError) where the text is invalid."""
    documents = parse(text, MOST_BYTES, _DEPTH)
    if not isinstance(documents, list) or len(documents) > MAX_ADAPTERS:
        raise Refused(f"it is not a list of at most {MAX_ADAPTERS} adapters")
    adapters = tuple(_adapter(Reader(document, "an adapter")) for document in documents)
    if len({adapter.name for adapter in adapters}) < len(adapters):
        raise Refused("two adapters have one name")
    return adapters


def _adapter(given: Reader) -> Adapter:
    path = given.word("path", _LONGEST_PLACE) if given.has("path") else None
    return Adapter(given.word("name", _LONGEST_NAME), given.word("uri", _LONGEST_PLACE), path)


def digest(text: str) -> str:
    """Identifies a list to both sides."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def artifact(uri: str) -> str:
    """The artifact name of an adapter, derived from its URI and independent of its model name."""
    return digest(uri)
