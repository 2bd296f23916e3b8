"""The API server's audit log: who asked what of which object."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.cluster import Cluster

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
