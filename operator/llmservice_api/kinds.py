"""The kinds that the operator touches, and those of children that need no code beside a builder.

From its row in `CHILD_KINDS` a kind is watched, projected, applied, corrected, adopted, deleted when no longer
desired, checked for other owners, and shown by `llmservice diff`. `templates/_rules.tpl` of the chart grants `VERBS`
on it. Kinds of which a decision reads more (Deployment, Service, ControllerRevision, PersistentVolumeClaim, Job) have
code instead.
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
    """A service has one object of the kind, named like the service, or none."""

    resource: Resource
    needless: str
    """Why one that is no longer desired is deleted, for the log."""
    is_optional: bool = False
    """The kind's CRD, or the right to list it, may be absent: services without such a child are not affected, and the
    status of one that is to have it names what is missing."""
    setting: str | None = None
    """A setting without which no service has such a child; the kind is not watched then, nor a right on it needed."""
    has_own_condition: bool = False
    """A condition of its own reports what is wrong with it: nothing else waits for it, and Ready does not change."""

    @property
    def kind(self) -> str:
        """As manifests write it."""
        return self.resource.kind


CHILD_KINDS: tuple[ChildKind, ...] = (
    ChildKind(
        Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
        needless="one replica needs no budget",
    ),
    ChildKind(
        Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
        needless="KEDA is not to scale this service",
        is_optional=True,
        setting="scaler_address",
        has_own_condition=True,
    ),
)

REPORTED_APART = frozenset(child.kind for child in CHILD_KINDS if child.has_own_condition) | {"EndpointSlice"}
"""Kinds that have a condition of their own."""

LLMSERVICE = Resource(GROUP, VERSION, PLURAL, KIND)
BY_KIND: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in (LLMSERVICE, *resources.STANDARD, *(child.resource for child in CHILD_KINDS))
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """The resource of a manifest; a kind that we do not know is a bug of ours."""
    resource = BY_KIND[manifest["kind"]]
    if resource.api_version != manifest["apiVersion"]:
        raise KeyError(f"{manifest['apiVersion']}/{manifest['kind']}")
    return resource
