"""The pods that the Service sends requests to, by its EndpointSlices, and the slices by which we send them elsewhere.

A ready pod may get no request. Two kinds of slices carry our label: those that the cluster's own controller makes of
our Service, since it copies the Service's labels, and ours, which name no pods of the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from llmservice_operator.api.constants import GROUP, SERVICE_LABEL
from llmservice_operator.api.holding import ACTIVATOR_SLICES, SERVICE_NAME_LABEL, SLICE_MANAGER_LABEL
from llmservice_operator.observe.projections.children import ChildFacts, identity_of

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """One EndpointSlice of a service."""

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    service: str | None
    """None where it was made for another Service: the label was copied."""
    ready: frozenset[str]
    """Uids of the pods that requests are sent to."""

    @classmethod
    def from_object(cls, obj: Json, known: object = None) -> Self:
        """Project one slice as the API server sent it; it is small, whatever is known of it."""
        metadata = obj["metadata"]
        labels = metadata.get("labels") or {}
        service = labels.get(SERVICE_LABEL)
        return cls(
            **identity_of(metadata),
            service=service if service == labels.get(SERVICE_NAME_LABEL) else None,
            # Pods without the port that the Service names are listed too, in a slice without ports.
            ready=frozenset(_ready(obj.get("endpoints") or ())) if obj.get("ports") else frozenset(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingSliceFacts(ChildFacts):
    """A slice that points at the activators, or one of its name. Whoever made it, its endpoints are no pods of ours."""

    kind: ClassVar[str] = "EndpointSlice"
    content: ClassVar[tuple[str, ...]] = ("addressType", "endpoints", "ports")


def slice_from_object(obj: Json, known: object = None) -> SliceFacts | HoldingSliceFacts:
    """The projection of any EndpointSlice with our label."""
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    if metadata["name"].endswith(ACTIVATOR_SLICES) or labels.get(SLICE_MANAGER_LABEL) == GROUP:
        return HoldingSliceFacts.from_object(obj, known if isinstance(known, HoldingSliceFacts) else None)
    return SliceFacts.from_object(obj, known)


def _ready(endpoints: Iterable[Json]) -> Iterable[str]:
    for endpoint in endpoints:
        target = endpoint.get("targetRef") or {}
        # By the API, absent means ready.
        if target.get("kind") == "Pod" and (endpoint.get("conditions") or {}).get("ready") is not False:
            yield str(target.get("uid", ""))
