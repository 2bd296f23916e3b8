"""Nothing that belongs to somebody else is taken over; what is ours goes with the LLMService, whoever is awake."""

from __future__ import annotations

import json

import pytest

from tests.support.cluster import JSON, Cluster, eventually
from tests.support.foreign import THEIRS, theirs
from tests.support.measured import Record
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.reported import before, reported_everywhere
from tests.support.services import idle, stand_in

pytestmark = pytest.mark.parallel


@pytest.mark.parametrize("plural", ["services", "deployments"])
def test_a_foreign_child_is_left_alone_and_reported(
    cluster: Cluster, namespace: str, plural: str, record: Record
) -> None:
    kind = THEIRS[plural]["kind"]
    cluster.apply(theirs(plural, "taken"), namespace)
    spec = cluster.must_get(plural, namespace, "taken")["spec"]
    since = before(cluster)
    cluster.apply(stand_in("taken"), namespace)
    reported = reported_everywhere(cluster, namespace, "taken", "NameConflict", since)
    record(reason="NameConflict", seconds=round(reported.at - since.at, 1), engine="stand-in")
    assert f"{kind} taken exists already" in reported.failure["message"]
    assert [line.partition(":")[0] for line in reported.failure["evidence"]] == [f"{kind} taken"]
    assert "kubectl" in reported.failure["evidence"][0], "who has it"
    cluster.wait_condition(namespace, "taken", "Accepted", "False", reason="NameConflict", timeout=0)
    assert cluster.must_get(plural, namespace, "taken")["spec"] == spec
    cluster.kubectl("delete", kind, "taken", "-n", namespace)
    cluster.wait_condition(namespace, "taken", "Ready", "True", timeout=90)
    assert cluster.failure(namespace, "taken") == {}


def test_a_child_that_a_quota_refuses_is_reported(cluster: Cluster, namespace: str, record: Record) -> None:
    """The pods have room; it is the Service that may not be made."""
    none = {"hard": {"services": "0"}}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": none}, namespace)
    # Until its controller has counted, the API server refuses for another reason.
    eventually("the quota counts", lambda: cluster.must_get("resourcequotas", namespace, "none").get("status"), 15)
    since = before(cluster)
    cluster.apply(idle("refused"), namespace)
    reported = reported_everywhere(cluster, namespace, "refused", "QuotaExceeded", since)
    record(reason="QuotaExceeded", seconds=round(reported.at - since.at, 1), engine="stand-in")
    assert "Service refused cannot be applied: quota none is used up" in reported.failure["message"]
    cluster.kubectl("delete", "resourcequota", "none", "-n", namespace)
    cluster.wait_condition(namespace, "refused", "Ready", "True", timeout=90)
    assert cluster.failure(namespace, "refused") == {}


def test_orphans_are_adopted_by_the_service_that_comes_again(cluster: Cluster, namespace: str) -> None:
    """The list of adapters too, which the operator may not read, and which is another one now."""
    cluster.apply(idle("again", adapters=[{"name": "then", "uri": "file:///adapters/then"}]), namespace)
    cluster.wait_condition(namespace, "again", "Accepted", "True", timeout=20)
    first = eventually("the Deployment", lambda: cluster.get("deployments", namespace, "again"), 10)
    cluster.kubectl("delete", "llms", "again", "-n", namespace, "--cascade=orphan")
    cluster.apply(idle("again", adapters=[{"name": "now", "uri": "file:///adapters/now"}]), namespace)
    uid = cluster.must_get("llmservices", namespace, "again")["metadata"]["uid"]

    def owned(plural: str, name: str) -> JSON | None:
        seen = cluster.must_get(plural, namespace, name)
        owners = [owner["uid"] for owner in seen["metadata"].get("ownerReferences", [])]
        return seen if owners == [uid] else None

    adopted = eventually("the Deployment's new owner", lambda: owned("deployments", "again"), 10)
    assert adopted["metadata"]["uid"] == first["metadata"]["uid"]
    listed = eventually("the list's new owner", lambda: owned("configmaps", "again-adapters"), 10)
    assert [each["name"] for each in json.loads(listed["data"]["adapters.json"])] == ["now"]
    cluster.wait_condition(namespace, "again", "Accepted", "True", timeout=10)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_the_cache_goes_or_stays_as_its_policy_says(cluster: Cluster, namespace: str, policy: str) -> None:
    cached = {"uri": "hf://example/model", "cache": {"size": "1Gi", "retentionPolicy": policy}}
    cluster.apply(idle("cached", fitPolicy="Ignore", model=cached), namespace)
    eventually("the claim", lambda: cluster.get("persistentvolumeclaims", namespace, "cached-cache"), 15)
    eventually("the Deployment", lambda: cluster.get("deployments", namespace, "cached"), 15)
    cluster.kubectl("delete", "llms", "cached", "-n", namespace, KUBECTL_TIMEOUT)
    eventually("no Deployment", lambda: not cluster.list("deployments", namespace), 30)
    if policy == "Retain":
        assert cluster.get("persistentvolumeclaims", namespace, "cached-cache") is not None
    else:
        eventually("no claim", lambda: not cluster.list("persistentvolumeclaims", namespace), 30)


def test_the_object_carries_nothing_of_ours(cluster: Cluster, namespace: str) -> None:
    """GitOps tools see no change that nobody made: applied twice, no difference, no annotation, no finalizer."""
    manifest = json.dumps(idle("clean"))
    apply = ("apply", "--server-side", "--field-manager=argocd", "-n", namespace, "-f", "-")
    cluster.kubectl(*apply, stdin=manifest)
    cluster.wait_condition(namespace, "clean", "Accepted", "True", timeout=20)
    cluster.kubectl(*apply, stdin=manifest)
    assert cluster.kubectl("diff", *apply[1:], stdin=manifest) == ""
    metadata = cluster.must_get("llmservices", namespace, "clean")["metadata"]
    assert metadata.get("annotations", {}) == {}
    assert "finalizers" not in metadata
    assert metadata["generation"] == 1
