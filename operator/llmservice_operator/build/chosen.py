"""What was chosen when a revision was made, beside its template: frozen with it, whatever the cluster does later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """`data.chosen` of a ControllerRevision. An earlier release's says little or nothing."""

    gpu: str | None = None
    """The GPU product that the pods must get, as its node label says."""
    max_model_len: int | None = None
    """What `auto` was found to be."""
    plan: Json | None = None
    """As status.plan shows it; None: nothing was planned."""
    start: Json | None = None
    """Budget and usual length of a start, as build/start.py reckons them; None: an earlier release, the defaults."""
    update_requested: str | None = None
    spec: Json | None = None
    """The part of the spec that it was made of, as users write it; None: an earlier release did not say."""
    recorded: Json | None = field(default=None, compare=False, repr=False)
    """The record that this was read from: it can never be changed, not even by a release that writes it otherwise."""

    @classmethod
    def from_document(cls, document: Json) -> Self:
        """Read a record; what is not there was not chosen."""
        return cls(
            gpu=document.get("gpu"),
            max_model_len=document.get("maxModelLen"),
            plan=document.get("plan"),
            start=document.get("start"),
            update_requested=document.get("updateRequested"),
            spec=document.get("spec"),
            recorded=document,
        )

    def to_document(self) -> dict[str, Any]:
        """The record; what was not chosen is left out."""
        if self.recorded is not None:
            return dict(self.recorded)
        record = {
            "gpu": self.gpu,
            "maxModelLen": self.max_model_len,
            "plan": self.plan,
            "start": self.start,
            "updateRequested": self.update_requested,
            "spec": self.spec,
        }
        return {key: value for key, value in record.items() if value is not None}


NOTHING = Chosen()
