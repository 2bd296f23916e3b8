"""What was read of a cluster, as a value: the only input of the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from llmservice_cli.api import Json
from llmservice_cli.installation import NAMESPACE

Objects = tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Unread:
    """Why something could not be read, and what to do about that."""

    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Right:
    """A right that somebody needs; `namespace` None: over the whole cluster."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str | None = None

    def __str__(self) -> str:
        name = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {name}{f'.{self.group}' if self.group else ''}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Objects as the API server sent them. A field that could not be read is empty, and named in `unread`."""

    program: str
    """This program's version."""
    now: datetime
    """By the API server's clock, where it tells it."""
    namespace: str
    """Whose limits and services are checked."""
    kubernetes: str = ""
    user: str = ""
    rights: Mapping[Right, bool] = field(default_factory=dict)
    crd: Objects = ()
    keda_crd: Objects = ()
    operators: Objects = ()
    operator_pods: Objects = ()
    activators: Objects = ()
    activator_pods: Objects = ()
    keda: Objects = ()
    settings: Objects = ()
    leases: Objects = ()
    nodes: Objects = ()
    storage_classes: Objects = ()
    validating: Objects = ()
    mutating: Objects = ()
    ready_hooks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Ready endpoints, by namespace and name, of Services of webhooks that may refuse pods; of those that are known."""
    namespaces: Objects = ()
    """The one namespace, or nothing where there is none."""
    operator_namespaces: Objects = ()
    """Those of the operators, or where one is usually installed; those that exist."""
    quotas: Objects = ()
    limits: Objects = ()
    pods: Objects = ()
    """Of the namespace's LLMServices."""
    services: Objects = ()
    """Of all namespaces, or where these may not be listed of the namespace."""
    unread: Mapping[str, Unread] = field(default_factory=dict)
    """By field."""
    cut: frozenset[str] = frozenset()
    """Fields of which only the first objects were read."""

    @property
    def operator_places(self) -> tuple[str, ...]:
        """Namespaces of the operators, or that where one is usually installed."""
        return places_of(self.operators)

    @property
    def is_installed(self) -> bool:
        """Whether anything of an installation is there; True where that is not known."""
        return bool(self.crd or self.operators) or "crd" in self.unread or "operators" in self.unread


def places_of(operators: Objects) -> tuple[str, ...]:
    """Their namespaces; without any that where one is usually installed."""
    return tuple(sorted({str(each["metadata"]["namespace"]) for each in operators} or {NAMESPACE}))


def status_of(found: Json) -> Json:
    """The status of an object, empty where there is none yet."""
    status: Json = found.get("status") or {}
    return status


def labels_of(found: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = found["metadata"].get("labels") or {}
    return labels


def name_of(found: Json) -> str:
    """With its namespace, where it has one."""
    metadata = found["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def images_of(found: Json) -> tuple[str, ...]:
    """Of the containers of a Deployment's pods."""
    return tuple(str(each.get("image") or "") for each in found["spec"]["template"]["spec"]["containers"])
