"""Projections of metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_api.constants import KIND

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Controller:
    """The ownerReference with `controller: true`."""

    kind: str
    name: str
    uid: str

    def is_earlier(self, name: str, uid: str) -> bool:
        """Whether it is a deleted LLMService: names are unique, and this one has another uid."""
        return (self.kind, self.name) == (KIND, name) and self.uid != uid


def identity_of(metadata: Json) -> dict[str, Any]:
    """Namespace, name, uid and resource_version, for a projection."""
    names = {name: metadata[name] for name in ("namespace", "name", "uid")}
    return names | {"resource_version": metadata.get("resourceVersion", "")}


def is_deleting(metadata: Json) -> bool:
    return metadata.get("deletionTimestamp") is not None


def controller_of(metadata: Json) -> Controller | None:
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return Controller(reference["kind"], reference["name"], reference["uid"])
    return None
