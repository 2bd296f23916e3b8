"""Kinds of children that need no code of their own beside a builder: one row declares one.

From its row a kind is watched, projected, applied, corrected, adopted, deleted when no longer desired, checked for
other owners, and shown by `llmservice diff`. `templates/_rules.tpl` of the chart grants `VERBS` on it. Kinds of which
a decision reads more (Deployment, Service, ControllerRevision, PersistentVolumeClaim, Job) have code instead.
"""

from __future__ import annotations

from dataclasses import dataclass

VERBS = ("get", "list", "watch", "create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ChildKind:
    """A service has one object of the kind, named like the service, or none."""

    group: str
    version: str
    plural: str
    kind: str
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
    def full_name(self) -> str:
        """As its CRD and RBAC messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


CHILD_KINDS: tuple[ChildKind, ...] = (
    ChildKind(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        needless="one replica needs no budget",
    ),
    ChildKind(
        "keda.sh",
        "v1alpha1",
        "scaledobjects",
        "ScaledObject",
        needless="KEDA is not to scale this service",
        is_optional=True,
        setting="scaler_address",
        has_own_condition=True,
    ),
)

REPORTED_APART = frozenset(child.kind for child in CHILD_KINDS if child.has_own_condition) | {"EndpointSlice"}
"""Kinds that have a condition of their own."""
