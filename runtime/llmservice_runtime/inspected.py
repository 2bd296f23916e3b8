"""What an inspection found out about a model: one value, small enough to be a container's termination message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmservice_runtime.contract import TERMINATION_LIMIT, VERSION, Failure, FailureReason
from llmservice_runtime.inspect_config import shorter

# A failure needs its text more than its ends; this much of the limit is the frame around it.
_FRAME_BYTES = 64


@dataclass(frozen=True)
class Inspection:
    """Facts, or the reason why there are none."""

    revision: str | None = None
    """The commit, or a hash of what a bucket held; None for folders."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json, as far as memory depends on it: the keys of inspect_config.INSPECTED_KEYS, long lists as runs."""
    tensors: Mapping[str, Any] | None = None
    """Bytes by part (embedding, head, attention, feedForward, experts, vision, mtp, other), the number of `parameters`
    and the `dtype` of most bytes; None where there are no safetensors."""
    failure: Failure | None = None

    def to_json(self, limit: int = TERMINATION_LIMIT) -> str:
        """JSON of at most `limit` bytes: what memory depends on least is given up first."""
        found = self
        while len((text := _line(found._document(limit))).encode()) > limit:
            less = shorter(found.config)
            if less is None:
                return Inspection(self.revision, failure=_too_large()).to_json(limit)
            found = replace(found, config=less)
        return text

    def to_document(self) -> dict[str, Any]:
        """As JSON, however long."""
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
        """The reverse; None where the text is something else (a log's tail, or of a later version)."""
        try:
            document = json.loads(text)
        except (RecursionError, ValueError):
            return None
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: object) -> Inspection | None:
        """The reverse of to_document."""
        if not isinstance(document, dict) or document.get("version") != VERSION:
            return None
        revision, config, tensors = document.get("revision"), document.get("config"), document.get("tensors")
        revision = revision if isinstance(revision, str) else None
        if "failure" in document:
            failure = Failure.from_document(document["failure"]) if isinstance(document["failure"], dict) else None
            return None if failure is None else cls(revision, failure=failure)
        if not isinstance(config, dict) or not isinstance(tensors, (dict, type(None))):
            return None
        return cls(revision, config, tensors)


def _too_large() -> Failure:
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        "The model's config.json says more than a termination message can hold.",
        "Give the facts in spec.model.architecture.",
    )


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
