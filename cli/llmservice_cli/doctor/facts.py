"""What was read of a cluster, as a value, and what a check finds in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from llmservice_cli.api import Json
from llmservice_cli.installation import NAMESPACE
from llmservice_cli.text import listed

MOST_NAMES = 5
LONGEST = 400
"""Characters of what is quoted of an object."""
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\D|$)")

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
    lws_crd: Objects = ()
    device_classes: Objects = ()
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
    pickers: Objects = ()
    """Of the namespace's services with a pool: `service`, `name` and `port` of the picker's Service, `address` (that
    Service, or None), its `pods`, the `configs` (ConfigMaps) that the first of these mounts, and `unread`, of these."""
    dns: Objects = ()
    """ConfigMaps of the cluster's DNS, where a service of the namespace has a router."""
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


def images_of(found: Json) -> tuple[str, ...]:
    """Of the containers of a Deployment's pods."""
    return tuple(str(each.get("image") or "") for each in found["spec"]["template"]["spec"]["containers"])


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it; nothing is to be done about what is ok."""

    level: Level
    evidence: str
    remedy: str = ""


def ok(evidence: str, remedy: str = "") -> Finding:
    return Finding(Level.OK, evidence, remedy)


def warning(evidence: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, evidence, remedy)


def problem(evidence: str, remedy: str) -> Finding:
    return Finding(Level.PROBLEM, evidence, remedy)


def not_known(evidence: str, remedy: str) -> Finding:
    return Finding(Level.NOT_KNOWN, evidence, remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table: `of` gives at least one finding, from facts of which all that it `needs` were read."""

    name: str
    about: str
    """What is checked, for the documentation."""
    needs: tuple[str, ...]
    """Fields of Facts."""
    of: Callable[[Facts], Iterable[Finding]]
    is_of_installed: bool = False
    """Whether only a cluster with the operator has what it checks."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finding of a check."""

    check: str
    finding: Finding


def results(checks: Iterable[Check], facts: Facts, *, is_installed: bool) -> Iterator[Result]:
    """The findings of all checks that apply, in the order of the table."""
    for check in checks:
        if check.is_of_installed and not is_installed:
            continue
        unread = [facts.unread[need] for need in check.needs if need in facts.unread]
        if unread:
            yield Result(check.name, not_known("; ".join(dict.fromkeys(each.why for each in unread)), unread[0].remedy))
            continue
        yield from (Result(check.name, finding) for finding in check.of(facts))
        if cut := [need for need in check.needs if need in facts.cut]:
            missing = not_known(f"there are more {', '.join(cut)} than were read", "see the others with kubectl")
            yield Result(check.name, missing)


def version_of(text: str) -> tuple[int, int] | None:
    """Major and minor number of `v1.35.2` and the like; None where it has none."""
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]))


def names(found: Iterable[str]) -> str:
    """The first of them, and how many more there are."""
    return listed(found, MOST_NAMES)
