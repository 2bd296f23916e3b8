"""The kinds that are watched: where they are, how they are projected, and which of them are ours by label."""

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
from llmservice_planner.room import Placed

from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe import observed

JSON = Mapping[str, Any]

_IDENTITY = ("name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")
"""What is kept of an LLMService's metadata."""


@dataclass(frozen=True, slots=True)
class ParentFacts:
    """An LLMService as the watch showed it, without what no decision reads."""

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
        # Only an autoscaled service's is read: managedFields are as large as the spec.
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
        """What it is once this status is written, and nothing else happens to it."""
        return replace(self, content={**self.content, "status": status}, obj={**self.obj, "status": status})


PARENT = LLMSERVICE.kind


def key_of(parent: ParentFacts) -> Key:
    """What an LLMService is called in queues and caches."""
    return Key(parent.namespace, parent.name)


def may_hold(parent: ParentFacts) -> bool:
    """Whether its requests may be held; true of a few others, whose next decision changes nothing."""
    spec: bytes = parent.obj["spec"]
    return b'"rollouts":true' in spec or (b'"autoscaling"' in spec and b'"minReplicas":0' in spec)


PROJECTIONS: Mapping[str, Project] = {PARENT: checked_reader(PARENT, ParentFacts.from_object), **observed.PROJECTIONS}
"""What is no object of its kind is UnreadableObject: what was known of it stays."""

WATCHED: tuple[Resource, ...] = tuple(BY_KIND[kind] for kind in PROJECTIONS)
OF_CHILDREN: tuple[Resource, ...] = tuple(resource for resource in WATCHED if resource is not LLMSERVICE)


def watched_children(settings: Settings) -> tuple[Resource, ...]:
    """Those that services have with these settings."""
    unused = {child.kind for child in CHILD_KINDS if child.setting and getattr(settings, child.setting) is None}
    return tuple(resource for resource in OF_CHILDREN if resource.kind not in unused)


def selector(resource: Resource) -> str:
    """The server sends only what carries our label; LLMServices are ours without.

    Pods that look at models are none of a service's and do not carry its label, and a selector knows no `or`.
    """
    if resource is resources.POD:
        return f"{MANAGED_BY_LABEL}={OPERATOR}"
    return "" if resource is LLMSERVICE else SERVICE_LABEL


def _inspected(parent: Any) -> Hashable | None:
    """The model that a service's status has the facts of: who has them may lend them to others of its namespace."""
    model = parent.obj["status"].get("model") or {}
    found = model.get("inspection")
    return (parent.namespace, found) if found and model.get("config") else None


INDICES: Mapping[str, Index] = {PARENT: _inspected}


def identity_of(cache: Cache, key: Key) -> str:
    """uid and generation of an LLMService; empty where there is none."""
    parent: ParentFacts | None = cache.get(PARENT, *key)
    return "" if parent is None else f"{parent.uid}/{parent.content['generation'] or 0}"


def placed(cache: Cache) -> Iterator[Placed]:
    """The pods of all services that are watched, where they take room."""
    for facts in cache.all_of(resources.POD.kind):
        if isinstance(facts, PodFacts) and facts.node and facts.phase not in ("Succeeded", "Failed"):
            yield Placed(facts.node, facts.asked, facts.namespace, facts.service or facts.name)


def of_itself(parent: ParentFacts | None) -> Priority:
    """Of an LLMService that changed, or that is found at a start.

    The same for both: what was edited while nobody looked is served before the thousands that are well.
    """
    if parent is None or parent.deleting:
        return Priority.REST
    if has_no_status(parent):
        return Priority.NEW
    return (
        Priority.REST if parent.obj["status"]["observedGeneration"] == parent.content["generation"] else Priority.EDITED
    )


def of_children(parent: ParentFacts | None) -> Priority:
    """Of a service to whose children something happened."""
    if parent is None or parent.deleting:
        return Priority.REST
    conditions = parent.obj["status"].get("conditions") or ()
    serves = any((c.get("type"), c.get("status")) == (ConditionType.AVAILABLE, "True") for c in conditions)
    return Priority.SERVES if serves else Priority.REST


def has_no_status(parent: ParentFacts) -> bool:
    """Whether no status was ever written: it has no observedGeneration then, or the CRD's default, -1."""
    return bool(parent.obj["status"].get("observedGeneration", -1) < 0)
