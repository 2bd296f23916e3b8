"""The pods that the Service sends requests to, by its EndpointSlices. A ready pod may get no request.

Only slices that the cluster's own controller made of our Service carry our label: it copies the Service's labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from llmservice_operator.api.constants import SERVICE_LABEL
from llmservice_operator.observe.projections.children import identity_of

Json = Mapping[str, Any]

_SERVICE_NAME = "kubernetes.io/service-name"


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
            service=service if service == labels.get(_SERVICE_NAME) else None,
            # Pods without the port that the Service names are listed too, in a slice without ports.
            ready=frozenset(_ready(obj.get("endpoints") or ())) if obj.get("ports") else frozenset(),
        )


def _ready(endpoints: Iterable[Json]) -> Iterable[str]:
    for endpoint in endpoints:
        target = endpoint.get("targetRef") or {}
        # By the API, absent means ready.
        if target.get("kind") == "Pod" and (endpoint.get("conditions") or {}).get("ready") is not False:
            yield str(target.get("uid", ""))
