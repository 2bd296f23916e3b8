"""The list of LoRA adapters as it crosses from the operator to the supervisor, in a ConfigMap."""

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
    """One adapter: the model name that it answers to, where it comes from, and where it lies if it is mounted."""

    name: str
    uri: str
    path: str | None = None
    """None: it is fetched."""


def to_json(adapters: Sequence[Adapter]) -> str:
    """The list as the ConfigMap holds it; the same adapters in the same order make the same text."""
    documents = [
        {"name": adapter.name, "uri": adapter.uri} | ({"path": adapter.path} if adapter.path is not None else {})
        for adapter in adapters
    ]
    return json.dumps(documents, separators=(",", ":"))


def from_json(text: str) -> tuple[Adapter, ...]:
    """The reverse. Refused (a ValueError) where the text is something else."""
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
    """By what both sides know which list they speak of."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def artifact(uri: str) -> str:
    """The name under which an adapter is fetched: its own, whatever it is served as."""
    return digest(uri)
