"""Sums over the headers of a model's safetensors files, from an inspection (llmservice_runtime.inspection)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Tensors:
    """Bytes of the checkpoint's tensors by purpose. The sum is the whole checkpoint."""

    embedding: int = 0
    head: int = 0
    """lm_head; 0 if tied."""
    attention: int = 0
    """Attention, norms and other tensors of decoder layers except MLPs and experts."""
    feed_forward: int = 0
    """Dense MLPs and shared experts."""
    experts: int = 0
    vision: int = 0
    mtp: int = 0
    other: int = 0
    parameters: int = 0
    """Number of values, packed ones as stored."""

    @property
    def total(self) -> int:
        parts = (self.embedding, self.head, self.attention, self.feed_forward, self.experts, self.vision, self.mtp)
        return sum(parts) + self.other

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Tensors:
        """From the inspection's JSON: the same names in camelCase; absent ones are 0."""
        named = {"feed_forward": "feedForward"}
        return cls(**{one.name: int(document.get(named.get(one.name, one.name), 0)) for one in fields(cls)})
