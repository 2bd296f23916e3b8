"""The API server's audit log: who asked what of which object."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.support.cluster import JSON, Cluster
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE

OPERATOR_USER = "system:serviceaccount:llmservice-system:llmservice-operator"
POD = "authentication.kubernetes.io/pod-name"
DEPRECATED = "k8s.io/deprecated"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Request:
    """One request that the API server answered."""

    at: float
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int
    until: float
    """When it was answered."""
    pod: str
    """That asked; empty where the token is no pod's."""
    is_deprecated: bool
    """Whether a later version of Kubernetes does not serve it."""


def requests_since(cluster: Cluster, moment: float, user: str = OPERATOR_USER) -> Iterator[Request]:
    """What `user` asked after `moment` (seconds of the epoch), in the order in which it was answered."""
    with cluster.paths.audit_log.open() as lines:
        for line in lines:
            if user not in line or not line.endswith("\n"):
                continue
            entry = json.loads(line)
            at = dt.datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
            target = entry.get("objectRef", {})
            if entry["user"]["username"] != user or entry["stage"] != "ResponseComplete" or at < moment:
                continue
            resource = target.get("resource", "") + (f"/{target['subresource']}" if "subresource" in target else "")
            yield Request(
                at,
                entry["verb"],
                target.get("apiGroup", ""),
                resource,
                target.get("namespace", ""),
                target.get("name", ""),
                entry["responseStatus"]["code"],
                dt.datetime.fromisoformat(entry["stageTimestamp"]).timestamp(),
                (entry["user"].get("extra", {}).get(POD) or [""])[0],
                entry.get("annotations", {}).get(DEPRECATED) == "true",
            )


def writes_since(cluster: Cluster, moment: float, user: str = OPERATOR_USER) -> list[Request]:
    """Every write but the Lease's."""
    asked = requests_since(cluster, moment, user)
    return [request for request in asked if request.verb in WRITES and request.resource != "leases"]


class Right(NamedTuple):
    group: str
    resource: str
    verb: str


def granted(cluster: Cluster) -> set[Right]:
    wide = f"{OPERATOR_NAMESPACE}:{OPERATOR}"
    roles = [
        cluster.kubectl("get", "clusterrole", wide, "-o", "json"),
        cluster.kubectl("get", "clusterrole", f"{wide}:nodes", "-o", "json"),
        cluster.kubectl("get", "role", f"{OPERATOR}-leader", "-n", OPERATOR_NAMESPACE, "-o", "json"),
    ]
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in json.loads(role)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def audited(cluster: Cluster) -> Iterator[JSON]:
    """Requests of the operator for resources; a watch is in the log as soon as it starts."""
    log = cluster.paths.audit_log
    for path in sorted(log.parent.glob(f"{log.stem}*{log.suffix}")):
        with path.open() as lines:
            for line in lines:
                if OPERATOR_USER not in line or not line.endswith("\n"):
                    continue
                entry: JSON = json.loads(line)
                if entry["user"]["username"] == OPERATOR_USER and "resource" in entry.get("objectRef", {}):
                    yield entry


def rights_of(entry: JSON) -> Iterator[Right]:
    target = entry["objectRef"]
    resource = target["resource"] + (f"/{target['subresource']}" if "subresource" in target else "")
    yield Right(target.get("apiGroup", ""), resource, entry["verb"])
    if entry["verb"] == "patch" and entry.get("responseStatus", {}).get("code") == 201:
        # Server-side apply of an object that does not exist is authorised as a create too.
        yield Right(target.get("apiGroup", ""), resource, "create")


def is_forbidden(entry: JSON) -> bool:
    annotations: JSON = entry.get("annotations", {})
    return bool(annotations.get("authorization.k8s.io/decision") == "forbid")


def installed_at(cluster: Cluster) -> dt.datetime:
    history = json.loads(cluster.helm("history", OPERATOR, "-n", OPERATOR_NAMESPACE, "-o", "json"))
    return dt.datetime.fromisoformat(history[-1]["updated"])


def since_installed(cluster: Cluster) -> tuple[set[Right], set[Right]]:
    """The rights that the operator used, and those that it was refused, with the chart's values of now."""
    since, used, refused = installed_at(cluster), set[Right](), set[Right]()
    for entry in audited(cluster):
        if dt.datetime.fromisoformat(entry["requestReceivedTimestamp"]) > since:
            (refused if is_forbidden(entry) else used).update(rights_of(entry))
    return used, refused


def assert_rights_are_used(cluster: Cluster, *groups: str) -> None:
    """Of these API groups each right that the roles grant was used with the chart's values of now, and no other; of any
    group none was refused."""
    used, refused = since_installed(cluster)
    assert {right for right in granted(cluster) if right.group in groups} == {r for r in used if r.group in groups}
    assert refused == set(), "asked for, but not granted"
