"""Two replicas share the work: each service is one's, and what one of them leaves the other has within seconds."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice, pairwise

import pytest
from llmservice_operator.kube.partition import shard_of
from llmservice_operator.kube.shards import lease_name

from tests.e2e.conftest import make_namespace
from tests.support.audit import Request, requests_since, writes_since
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.measured import Record
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, holder_of, host_process, leader, operator_pods
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle

SHARDS, EACH = 2, 2
SPLIT = "llmservice.dev/shards"
SHARED_WITHIN = 60.0
TAKEOVER_WITHIN, NOTICED = 15.0, 1.0
EDITED = 9

Owners = Mapping[int, str]
"""The pod of each shard."""


def first_namespaces(shard: int) -> Sequence[str]:
    """That are in a shard."""
    names = (f"e2e-shards-{number}" for number in count())
    return list(islice((name for name in names if shard_of(name, SHARDS) == shard), EACH))


NAMESPACES = {name: shard for shard in range(SHARDS) for name in first_namespaces(shard)}


@contextmanager
def upgraded(cluster: Cluster, *values: str) -> Iterator[None]:
    """The operator's release with other values; as it was afterwards, and at work."""
    release = (OPERATOR, "-n", OPERATOR_NAMESPACE)
    before = json.loads(cluster.helm("status", *release, "-o", "json"))["version"]
    chart = str(cluster.paths.root / "charts" / "llmservice-operator")
    try:
        cluster.helm("upgrade", *release, chart, "--reuse-values", *values, "--wait", KUBECTL_TIMEOUT)
        yield
    finally:
        cluster.helm("rollback", *release, str(before), "--wait", KUBECTL_TIMEOUT)
        eventually("one that acts for all again", lambda: acts_for_all(cluster), SHARED_WITHIN)
        # Those of the old split were refused the second Lease as soon as the Role had lost it. test_rbac counts what
        # was refused since the release's last revision: this one.
        cluster.helm("rollback", *release, str(before), "--wait", KUBECTL_TIMEOUT)
        for shard in range(1, SHARDS):
            name = lease_name(OPERATOR, shard)
            cluster.kubectl("delete", "lease", name, "-n", OPERATOR_NAMESPACE, "--ignore-not-found")


def acts_for_all(cluster: Cluster) -> bool:
    """The split is over, and who holds the first Lease is there."""
    pods = [pod["metadata"]["name"] for pod in operator_pods(cluster)]
    return split(cluster) == "1" and any(leader(cluster).startswith(f"{pod}_") for pod in pods)


def split(cluster: Cluster) -> str:
    """As the first Lease says it."""
    lease: JSON = cluster.get("leases", OPERATOR_NAMESPACE, OPERATOR) or {}
    return str((lease.get("metadata", {}).get("annotations") or {}).get(SPLIT, "1"))


def owners(cluster: Cluster) -> Owners:
    """By the Leases, as far as there are such pods."""
    held = {shard: holder_of(cluster, shard).partition("_")[0] for shard in range(SHARDS)}
    running = {pod["metadata"]["name"] for pod in operator_pods(cluster)}
    return {shard: pod for shard, pod in held.items() if pod in running}


def shared(cluster: Cluster) -> Owners | None:
    """One shard for each of two pods, and the split in force."""
    found = owners(cluster)
    return found if split(cluster) == str(SHARDS) and len(set(found.values())) == SHARDS else None


@pytest.fixture(scope="module")
def shares(cluster: Cluster) -> Iterator[Owners]:
    """Two replicas with a shard each, and namespaces in both."""
    for name in NAMESPACES:
        make_namespace(cluster, name)
    with upgraded(cluster, "--set", f"replicas={SHARDS}", "--set", f"operator.shards={SHARDS}"):
        yield eventually("a shard for each of two pods", lambda: shared(cluster), SHARED_WITHIN)
    for name in NAMESPACES:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


def has(cluster: Cluster, namespace: str, most: int) -> bool:
    """Whether the Deployment of its service has this field of the spec."""
    deployment = cluster.get("deployments", namespace, "shared")
    if deployment is None:
        return False
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [*server.get("command", ()), *server.get("args", ())]
    return ("--max-num-seqs", str(most)) in pairwise(words)


def of_operator(cluster: Cluster, moment: float) -> dict[str, list[Request]]:
    """Its writes into each of the namespaces, in the order in which they were sent."""
    written = sorted(writes_since(cluster, moment), key=lambda request: request.at)
    return {name: [request for request in written if request.namespace == name] for name in NAMESPACES}


def nobody_wrote_while_another_did(written: Mapping[str, Sequence[Request]]) -> None:
    """In no namespace was a write of one pod still unanswered when another's began."""
    for namespace, requests in written.items():
        for one, next_one in pairwise(requests):
            assert one.pod == next_one.pod or one.until <= next_one.at, f"{namespace}: {one} and {next_one}"


def test_each_service_is_one_replicas(cluster: Cluster, shares: Owners) -> None:
    moment = time.time()
    for namespace in NAMESPACES:
        cluster.apply(idle("shared", batching={"maxNumSeqs": 8}), namespace)
    for namespace in NAMESPACES:
        cluster.wait_condition(namespace, "shared", "Accepted", "True", timeout=30)
        eventually("its Deployment", lambda at=namespace: has(cluster, at, 8), 15)  # type: ignore[misc]
    assert owners(cluster) == shares
    written = of_operator(cluster, moment)
    for namespace, shard in NAMESPACES.items():
        assert {request.pod for request in written[namespace]} == {shares[shard]}, f"{namespace} is in shard {shard}"


def test_another_takes_over_the_shard_of_one_that_was_killed(cluster: Cluster, shares: Owners, record: Record) -> None:
    struck_pod = shares[1]
    of_struck = [name for name, shard in NAMESPACES.items() if shard == 1]
    (pod,) = [pod for pod in operator_pods(cluster) if pod["metadata"]["name"] == struck_pod]
    moment = time.time()
    os.kill(host_process(cluster, pod), signal.SIGKILL)
    struck = time.monotonic()
    for namespace in NAMESPACES:
        cluster.patch("llmservices", namespace, "shared", {"spec": {"batching": {"maxNumSeqs": EDITED}}})
    took = {}
    for namespace in sorted(NAMESPACES, key=NAMESPACES.__getitem__):  # those that nobody struck come first
        eventually("the edit", lambda at=namespace: has(cluster, at, EDITED), TAKEOVER_WITHIN + 5)  # type: ignore[misc]
        took[namespace] = round(time.monotonic() - struck, 1)
    record(seconds_from_the_kill_to_the_child=took)
    assert max(took[name] for name in of_struck) <= TAKEOVER_WITHIN + NOTICED
    assert max(took[name] for name in NAMESPACES if name not in of_struck) <= 3, "the other shard's work went on"
    nobody_wrote_while_another_did(of_operator(cluster, moment))


def test_the_one_that_came_back_gets_its_share(cluster: Cluster, shares: Owners) -> None:
    moment = time.time()
    eventually("a shard for each of two pods", lambda: shared(cluster), SHARED_WITHIN)
    for namespace in NAMESPACES:
        cluster.patch("llmservices", namespace, "shared", {"spec": {"batching": {"maxNumSeqs": EDITED + 1}}})
    for namespace in NAMESPACES:
        eventually("the edit", lambda at=namespace: has(cluster, at, EDITED + 1), 15)  # type: ignore[misc]
    nobody_wrote_while_another_did(of_operator(cluster, moment))
    refused = [each for each in requests_since(cluster, moment) if each.resource == "leases" and each.code == 403]
    assert refused == []
