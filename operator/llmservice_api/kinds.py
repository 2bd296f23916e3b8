"""The kinds that the operator handles, and a table of child kinds that need no code except a builder.

A kind in `CHILD_KINDS` is watched, projected, applied, corrected, adopted, pruned, checked for other owners, and shown
by `llmservice diff`. `templates/_rules.tpl` of the chart grants `VERBS` on it. Kinds whose state decisions depend on
(Deployment, Service, ControllerRevision, PersistentVolumeClaim, Job) have code instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubeloop import resources
from kubeloop.resources import Resource

from llmservice_api.constants import GROUP, KIND, PLURAL, VERSION

VERBS = ("get", "list", "watch", "create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ChildKind:
    """A kind of which a service has one object with its own name, or none."""

    resource: Resource
    prune_reason: str
    """Why one that is no longer desired is deleted, for the log."""
    is_optional: bool = False
    """The CRD, or the permission to list it, may be missing. Services without such a child are not affected; the status
    of others names what is missing."""
    setting: str | None = None
    """A setting without which no service has such a child. The kind is then not watched and needs no permission."""
    has_own_condition: bool = False
    """A condition of its own reports problems with it: nothing else waits for it, and Ready does not change."""

    @property
    def kind(self) -> str:
        return self.resource.kind


CHILD_KINDS: tuple[ChildKind, ...] = (
    ChildKind(
        Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
        prune_reason="one replica needs no budget",
    ),
    ChildKind(
        Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
        prune_reason="KEDA is not to scale this service",
        is_optional=True,
        setting="scaler_address",
        has_own_condition=True,
    ),
)

HAS_OWN_CONDITION = frozenset(child.kind for child in CHILD_KINDS if child.has_own_condition) | {"EndpointSlice"}
"""Kinds with a condition of their own."""

LLMSERVICE = Resource(GROUP, VERSION, PLURAL, KIND)
BY_KIND: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in (LLMSERVICE, *resources.STANDARD, *(child.resource for child in CHILD_KINDS))
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """The resource of a manifest; KeyError for an unknown kind."""
    resource = BY_KIND[manifest["kind"]]
    if resource.api_version != manifest["apiVersion"]:
        raise KeyError(f"{manifest['apiVersion']}/{manifest['kind']}")
    return resource
