"""A storm of status writes is impossible: what does not change is not written, whatever happens around it."""

from __future__ import annotations

import json
import time
from collections import Counter

from tests.support.audit import writes_since
from tests.support.cluster import Cluster, eventually
from tests.support.services import idle, llmservice

UNSCHEDULABLE = 100
# Deployment, Service, ControllerRevision, at most two status writes; Events are counted apart. None of these services
# has a server that could be asked how far it is: a start adds its phases (test_adapters.py counts them).
WRITES_PER_SERVICE = 5


def test_writes_to_a_settled_service(cluster: Cluster, namespace: str) -> None:
    moment = time.time()
    cluster.apply(idle("counted"), namespace)
    cluster.wait_condition(namespace, "counted", "Accepted", "True", timeout=20)
    eventually("the Service", lambda: cluster.get("services", namespace, "counted"), 10)
    cluster.apply(idle("witness"), namespace)
    cluster.wait_condition(namespace, "witness", "Accepted", "True", timeout=20)
    mine = [request for request in writes_since(cluster, moment) if request.namespace == namespace]
    counted = Counter(request.resource for request in mine if request.name.startswith("counted"))
    del counted["events"]
    assert sum(counted.values()) <= WRITES_PER_SERVICE, counted


def test_many_unschedulable_services_under_pod_churn(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("delete", "resourcequota", "team", "-n", namespace)
    spec = {"accelerator": {"type": "nvidia"}, "podTemplate": {"spec": {"nodeSelector": {"no": "such-node"}}}}
    manifests = [llmservice(f"waiting-{number:03}", **spec) for number in range(UNSCHEDULABLE)]
    moment = time.time()
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    cluster.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(listed))

    def all_reported() -> bool:
        services = cluster.list("llmservices", namespace)
        reasons = [
            condition["reason"]
            for service in services
            for condition in service.get("status", {}).get("conditions", [])
            if condition["type"] == "Ready"
        ]
        return reasons.count("NoMatchingNode") == UNSCHEDULABLE

    eventually("every service without a matching node", all_reported, 180)
    made = [request for request in writes_since(cluster, moment) if request.namespace == namespace]
    per_service = Counter(request.resource for request in made if request.resource != "events")
    # One more status write than a service that starts at once: it first waits for its pod, then learns of no node.
    assert sum(per_service.values()) <= (WRITES_PER_SERVICE + 1) * UNSCHEDULABLE, per_service

    churned = time.time()
    before = {pod["metadata"]["uid"] for pod in cluster.list("pods", namespace)}
    cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--wait=false", "--grace-period=0", "--force")

    def replaced() -> bool:
        pods = cluster.list("pods", namespace)
        waiting = [
            pod
            for pod in pods
            if pod["metadata"]["uid"] not in before
            and any(c.get("reason") == "Unschedulable" for c in pod.get("status", {}).get("conditions", []))
        ]
        return len(waiting) == UNSCHEDULABLE

    eventually("every pod made again and refused by the scheduler", replaced, 180)
    eventually("every service without a matching node", all_reported, 60)
    written = Counter(
        request.resource
        for request in writes_since(cluster, churned)
        if request.namespace == namespace and request.resource != "events"
    )
    # A service may say once that its pod went and once that the new one waits again; nothing else.
    assert sum(written.values()) <= 2 * UNSCHEDULABLE, written
    quiet = time.time()
    cluster.apply(idle("witness"), namespace)
    cluster.wait_condition(namespace, "witness", "Accepted", "True", timeout=20)
    idle_writes = [r for r in writes_since(cluster, quiet) if r.namespace == namespace and "witness" not in r.name]
    assert idle_writes == []
