"""The result of an inspection, small enough for a container's termination message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmservice_runtime.bounded_json import Reader, Refused, bounded, parse
from llmservice_runtime.contract import TERMINATION_LIMIT, VERSION, Failure, FailureReason
from llmservice_runtime.documents import to_line
from llmservice_runtime.inspection.config_json import shorter

# Bytes of the JSON around a failure.
_FRAME_BYTES = 64
# Bounds for reading it back.
_LONGEST = 4 * TERMINATION_LIMIT
_LONGEST_REVISION = 256
_LONGEST_TEXT = 4096
_DEEPEST = 12
_MOST_PARTS = 8192


@dataclass(frozen=True)
class Inspection:
    """Facts about a model, or the failure."""

    revision: str | None = None
    """The commit, or a hash of a bucket's listing; None for folders."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json reduced to INSPECTED_KEYS, long lists as runs."""
    tensors: Mapping[str, Any] | None = None
    """Bytes by part (embedding, head, attention, feedForward, experts, vision, mtp, other), the number of `parameters`
    and the `dtype` of most bytes; None where there are no safetensors."""
    failure: Failure | None = None

    def to_json(self, limit: int = TERMINATION_LIMIT) -> str:
        """JSON of at most `limit` bytes: the least important facts are dropped first."""
        found = self
        while len((text := to_line(found._document(limit))).encode()) > limit:
            less = shorter(found.config)
            if less is None:
                return Inspection(self.revision, failure=_too_large()).to_json(limit)
            found = replace(found, config=less)
        return text

    def to_document(self) -> dict[str, Any]:
        """As JSON, without the limit of a termination message."""
        return self._document(1 << 20)

    def _document(self, limit: int) -> dict[str, Any]:
        document: dict[str, Any] = {"version": VERSION}
        if self.revision is not None:
            document["revision"] = self.revision
        if self.failure is not None:
            room = limit - len(self.revision or "") - _FRAME_BYTES
            return document | {"failure": json.loads(self.failure.to_json(room))}
        document["config"] = dict(self.config)
        if self.tensors is not None:
            document["tensors"] = dict(self.tensors)
        return document

    @classmethod
    def from_json(cls, text: str) -> Inspection | None:
        """The inverse of to_json; None for any other text, such as a log's tail, and for another version."""
        try:
            return cls.from_document(parse(text, _LONGEST, _DEEPEST))
        except Refused:
            return None

    @classmethod
    def from_document(cls, document: object) -> Inspection | None:
        """The inverse of to_document; None where it is invalid."""
        try:
            given = Reader(document)
            if given.integer("version") != VERSION:
                return None
            revision = given.word("revision", _LONGEST_REVISION) if given.has("revision") else None
            if given.has("failure"):
                return cls(revision, failure=Failure.from_document(given.within("failure")))
            tensors = given.value("tensors") if given.has("tensors") else None
            return cls(revision, _facts(given.value("config")), None if tensors is None else _facts(tensors))
        except Refused:
            return None


def _facts(value: object) -> Mapping[str, Any]:
    """The object, bounded as a config.json; Refused otherwise."""
    if not isinstance(value, dict):
        raise Refused("it is not an object")
    facts: Mapping[str, Any] = bounded(value, _DEEPEST, _MOST_PARTS, _LONGEST_TEXT)
    return facts


def _too_large() -> Failure:
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        "The facts of the model's config.json exceed the size of a termination message.",
        "Give the facts in spec.model.architecture.",
    )
