"""The installed operator, as an administrator handles it: scale it, kill it, read what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.host import processes_of, resident_bytes_of

OPERATOR_NAMESPACE = "llmservice-system"
OPERATOR = "llmservice-operator"


def operator_pods(cluster: Cluster) -> list[JSON]:
    pods = cluster.list("pods", OPERATOR_NAMESPACE, f"app.kubernetes.io/name={OPERATOR}")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


@contextmanager
def scale_operator(cluster: Cluster, replicas: int) -> Iterator[None]:
    """The operator with another number of replicas for a while; as it was afterwards, and ready."""
    before = cluster.must_get("deployments", OPERATOR_NAMESPACE, OPERATOR)["spec"]["replicas"]
    set_replicas(cluster, replicas)
    try:
        yield
    finally:
        set_replicas(cluster, before)


def set_replicas(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("scale", f"deployment/{OPERATOR}", f"--replicas={replicas}", "-n", OPERATOR_NAMESPACE)
    selector = f"app.kubernetes.io/name={OPERATOR}"

    def settled() -> bool:
        pods = cluster.list("pods", OPERATOR_NAMESPACE, selector)
        return len(pods) == replicas == sum(map(is_ready, pods))

    eventually(f"{replicas} ready operator pods", settled, 90)


def leader(cluster: Cluster) -> str:
    """Who holds the Lease, its pod's name first; empty when nobody does."""
    lease: JSON = cluster.get("leases", OPERATOR_NAMESPACE, OPERATOR) or {}
    holder: str = lease.get("spec", {}).get("holderIdentity") or ""
    return holder


def operator_metric(cluster: Cluster, name: str) -> Mapping[str, float]:
    """A metric of the acting operator by its label `reason`; a counter without its `_total`."""
    families = {family.name: family for family in text_string_to_metric_families(operator_metrics(cluster))}
    return {sample.labels["reason"]: sample.value for sample in families[name].samples}


def operator_metrics(cluster: Cluster) -> str:
    """What the acting operator counts, as Prometheus reads it.

    A process that lost its Lease ends, and its container starts again under the same pod's name: what refuses
    connections meanwhile does not act.
    """

    def answered() -> str | None:
        holder = leader(cluster)
        pod = next((pod for pod in operator_pods(cluster) if pod["metadata"]["name"] in holder), None)
        if pod is None:
            return None
        port = next(p["containerPort"] for p in pod["spec"]["containers"][0]["ports"] if p["name"] == "metrics")
        with suppress(httpx.ConnectError):
            url = f"http://{pod['status']['podIP']}:{port}/metrics"
            return httpx.get(url, trust_env=False).raise_for_status().text
        return None

    return eventually("an operator that acts and shows its metrics", answered, 60)


def restarts(cluster: Cluster) -> Mapping[str, str]:
    """How the process before this one ended, by the pod of the installed operator whose container started again."""
    found = {}
    for pod in operator_pods(cluster):
        for container in pod["status"].get("containerStatuses", ()):
            if container["restartCount"]:
                last = container["lastState"].get("terminated", {})
                ended = f"{container['restartCount']} times; last {last.get('reason')}, code {last.get('exitCode')}"
                name = pod["metadata"]["name"]
                log = cluster.kubectl("logs", "-n", OPERATOR_NAMESPACE, name, "--previous", "--tail=15")
                found[name] = f"{ended}\n{log}"
    return found


def host_process(cluster: Cluster, pod: JSON) -> int:
    """The process id, on this machine, of the only container of a pod on the local node."""
    found = (pid for pid, line in processes_of(pod).items() if "llmservice_operator" in line)
    pid = next(found, None)
    assert pid is not None, f"no process of pod {pod['metadata']['name']} on this machine"
    return pid


def resident_bytes(pod: JSON) -> int:
    """Resident memory of all processes of a pod on the local node, the readers of models' configs among them."""
    total = 0
    for pid in processes_of(pod):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            total += resident_bytes_of(pid)
    return total


def wait_for_spec(cluster: Cluster, namespace: str, name: str) -> None:
    """Until the operator has seen the current generation."""

    def seen() -> bool:
        service = cluster.must_get("llmservices", namespace, name)
        observed: int = service["status"]["observedGeneration"]
        generation: int = service["metadata"]["generation"]
        return observed == generation

    eventually(f"the operator sees {name}", seen, 30)
