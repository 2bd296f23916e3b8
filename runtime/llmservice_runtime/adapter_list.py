"""The list of LoRA adapters as it crosses from the operator to the supervisor, in a ConfigMap."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass


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
    """The reverse. ValueError where the text is something else."""
    documents = json.loads(text)
    try:
        return tuple(Adapter(item["name"], item["uri"], item.get("path")) for item in documents)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a list of adapters: {error!r}") from error


def digest(text: str) -> str:
    """By what both sides know which list they speak of."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def artifact(uri: str) -> str:
    """The name under which an adapter is fetched: its own, whatever it is served as."""
    return digest(uri)
