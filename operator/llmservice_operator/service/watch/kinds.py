"""The watched kinds: their resources, projections, and selectors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kubeloop import resources
from kubeloop.cache import Cache, Index, Project
from kubeloop.queue import Priority
from kubeloop.resources import Key, Resource
from llmservice_api import untrusted
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import MANAGED_BY_LABEL, OPERATOR, SERVICE_LABEL, UPDATE_REQUESTED_ANNOTATION
from llmservice_api.errors import checked_reader
from llmservice_api.kinds import BY_KIND, CHILD_KINDS, LLMSERVICE
from llmservice_api.replicas_owner import STATED_BY, stated_by
from llmservice_api.service import spec_text
from llmservice_planner.room import PlacedPod

from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe import observed

JSON = Mapping[str, Any]

_IDENTITY = ("name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")
"""Metadata of an LLMService that are kept."""


@dataclass(frozen=True, slots=True)
class ParentFacts:
    """An LLMService from the watch, without what no decision reads."""

    namespace: str
    name: str
    uid: str
    resource_version: str = field(compare=False)
    deleting: bool
    content: JSON
    obj: JSON = field(compare=False, repr=False)

    @property
    def service(self) -> str:
        """Its own name."""
        return self.name

    @classmethod
    def from_object(cls, obj: JSON, known: ParentFacts | None = None) -> ParentFacts:
        """Project one LLMService. A status that `known` has, from an earlier version or of the operator's own, is not
        validated again: that is most of the time this takes."""
        metadata = obj["metadata"]
        annotations = metadata.get("annotations") or {}
        spec = spec_text(obj.get("spec"))
        kept = {name: metadata[name] for name in _IDENTITY if name in metadata}
        requested = untrusted.annotation(annotations.get(UPDATE_REQUESTED_ANNOTATION))
        status = obj.get("status")
        status = known.obj["status"] if known and status == known.obj["status"] else untrusted.stored_status(status)
        # Only needed for an autoscaled service: managedFields are as large as the spec.
        stated = stated_by(metadata) if b'"autoscaling"' in spec else None
        if requested is not None:
            kept["annotations"] = {UPDATE_REQUESTED_ANNOTATION: requested}
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            deleting="deletionTimestamp" in metadata,
            content={
                "generation": metadata.get("generation"),
                "requested": requested,
                "spec": spec,
                "stated": stated,
                "status": status,
            },
            obj={
                "apiVersion": LLMSERVICE.api_version,
                "kind": LLMSERVICE.kind,
                "metadata": kept,
                "spec": spec,
                STATED_BY: stated,
                "status": status,
            },
        )

    def with_status(self, status: JSON) -> ParentFacts:
        return replace(self, content={**self.content, "status": status}, obj={**self.obj, "status": status})


PARENT = LLMSERVICE.kind


def key_of(parent: ParentFacts) -> Key:
    return Key(parent.namespace, parent.name)


def may_hold(parent: ParentFacts) -> bool:
    """Whether its requests may be held; also True for some others, whose next decision changes nothing."""
    spec: bytes = parent.obj["spec"]
    return b'"rollouts":true' in spec or (b'"autoscaling"' in spec and b'"minReplicas":0' in spec)


PROJECTIONS: Mapping[str, Project] = {PARENT: checked_reader(PARENT, ParentFacts.from_object), **observed.PROJECTIONS}
"""Each raises UnreadableObject for an object without its kind's shape; the cache then keeps the earlier state."""

WATCHED: tuple[Resource, ...] = tuple(BY_KIND[kind] for kind in PROJECTIONS)
CHILD_RESOURCES: tuple[Resource, ...] = tuple(resource for resource in WATCHED if resource is not LLMSERVICE)


def watched_children(settings: Settings) -> tuple[Resource, ...]:
    """Kinds of children that services have with these settings."""
    unused = {child.kind for child in CHILD_KINDS if child.setting and getattr(settings, child.setting) is None}
    return tuple(resource for resource in CHILD_RESOURCES if resource.kind not in unused)


def selector(resource: Resource) -> str:
    """Label selector of the watch; none for LLMServices.

    Inspection pods are not replicas and lack the service label, so pods are selected by the managed-by label.
    """
    if resource is resources.POD:
        return f"{MANAGED_BY_LABEL}={OPERATOR}"
    return "" if resource is LLMSERVICE else SERVICE_LABEL


def _inspected(parent: Any) -> Hashable | None:
    """The model whose facts a service's status has, for reuse by other services of the namespace."""
    model = parent.obj["status"].get("model") or {}
    found = model.get("inspection")
    return (parent.namespace, found) if found and model.get("config") else None


INDICES: Mapping[str, Index] = {PARENT: _inspected}


def identity_of(cache: Cache, key: Key) -> str:
    """uid and generation of an LLMService; empty if there is none."""
    parent: ParentFacts | None = cache.get(PARENT, *key)
    return "" if parent is None else f"{parent.uid}/{parent.content['generation'] or 0}"


def placed(cache: Cache) -> Iterator[PlacedPod]:
    """Scheduled pods of all watched services."""
    for facts in cache.all_of(resources.POD.kind):
        if isinstance(facts, PodFacts) and facts.node and facts.phase not in ("Succeeded", "Failed"):
            yield PlacedPod(facts.node, facts.asked, facts.namespace, facts.service or facts.name)


def priority_of_service(parent: ParentFacts | None) -> Priority:
    """Priority of an LLMService that changed, or that is found at a start.

    The same for both: edits made while no operator ran come before thousands of steady services.
    """
    if parent is None or parent.deleting:
        return Priority.REST
    if has_no_status(parent):
        return Priority.NEW
    return (
        Priority.REST if parent.obj["status"]["observedGeneration"] == parent.content["generation"] else Priority.EDITED
    )


def priority_after_child(parent: ParentFacts | None) -> Priority:
    if parent is None or parent.deleting:
        return Priority.REST
    conditions = parent.obj["status"].get("conditions") or ()
    serves = any((c.get("type"), c.get("status")) == (ConditionType.AVAILABLE, "True") for c in conditions)
    return Priority.SERVES if serves else Priority.REST


def has_no_status(parent: ParentFacts) -> bool:
    """Whether no status was ever written: observedGeneration is absent, or the CRD's default, -1."""
    return bool(parent.obj["status"].get("observedGeneration", -1) < 0)
