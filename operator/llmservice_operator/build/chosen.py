"""What was chosen when a revision was made, recorded with its template and never changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from pydantic.alias_generators import to_camel

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """`data.chosen` of a ControllerRevision; earlier releases wrote fewer fields or none."""

    gpu: str | None = None
    """The GPU product that was planned, as its node label says: required where the spec lists products, else
    preferred."""
    max_model_len: int | None = None
    """Tokens: the value of `auto`."""
    plan: Json | None = None
    """As status.plan shows it; None: nothing was planned."""
    start: Json | None = None
    """Budget and usual length of a start, from build/start.py; None: written by an earlier release, the defaults."""
    update_requested: str | None = None
    spec: Json | None = None
    """The part of the spec that it was made of, as users write it; None: written by an earlier release."""
    excluded_gpus: Sequence[str] | None = None
    """Products on which the model does not fit, where the spec lists none."""
    excluded_architectures: Sequence[str] | None = None
    """Of nodes that the images are not built for."""
    recorded: Json | None = field(default=None, compare=False, repr=False)
    """The record that this was read from, written back as it is: `data` of a ControllerRevision is immutable."""

    @classmethod
    def from_document(cls, document: Json) -> Self:
        """Read a record; absent fields are None."""
        return cls(**{name: document.get(key) for name, key in _RECORDED.items()}, recorded=document)

    @property
    def host_memory_gib(self) -> int:
        """GiB of the node's memory that the plan says vLLM pins, rounded up."""
        return math.ceil((self.plan or {}).get("hostMemoryGiB") or 0)

    def to_document(self) -> dict[str, Any]:
        """The record without the fields that are None."""
        if self.recorded is not None:
            return dict(self.recorded)
        record = {key: getattr(self, name) for name, key in _RECORDED.items()}
        return {key: value for key, value in record.items() if value is not None}


_RECORDED = {field.name: to_camel(field.name) for field in fields(Chosen) if field.name != "recorded"}
NOTHING = Chosen()
