"""What the operator's token can do beyond what RBAC says: the chart's policy, tried with such a token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.policies import (
    CONTAINER,
    LABELS,
    POD,
    RELEASE,
    assert_types_checked,
    deployment,
    metadata,
    operators_token,
    paused_owner,
    release,
    without,
)
from tests.support.cluster import Cluster
from tests.support.foreign import THEIRS, theirs
from tests.support.services import idle, merge
from tests.support.token import Token

pytestmark = pytest.mark.parallel

JSON = dict[str, Any]

NAMESPACE = "policy-operator"
FOREIGN_OBJECT = "is not one of the operator's own objects"
RESTRICTED = "beyond `restricted`"
PORTS = [{"port": 80}]


@pytest.fixture(scope="module")
def owner(cluster: Cluster) -> Iterator[JSON]:
    with release(cluster, NAMESPACE, {}):
        yield paused_owner(cluster, NAMESPACE, idle("own", paused=True))


@pytest.fixture(scope="module")
def token(cluster: Cluster, owner: JSON) -> Iterator[Token]:
    with operators_token(cluster, NAMESPACE) as token:
        yield token


def job(owner: JSON, **pod: Any) -> JSON:
    spec = {"suspend": True, "template": {"spec": merge(POD, {"restartPolicy": "Never"} | pod)}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata("own-inspect", owner), "spec": spec}


@pytest.mark.parametrize("plural", THEIRS)
def test_somebody_elses_object_is_neither_changed_nor_deleted(cluster: Cluster, token: Token, plural: str) -> None:
    cluster.apply(theirs(plural, "theirs"), NAMESPACE)
    before = cluster.must_get(plural, NAMESPACE, "theirs")
    refused = token.merge(plural, "theirs", {"metadata": {"labels": LABELS}})
    assert (refused.code, FOREIGN_OBJECT in refused.message) == (403, True), refused
    deleted = token.delete(plural, "theirs")
    assert deleted.code == 403
    assert FOREIGN_OBJECT in deleted.message or "cannot delete resource" in deleted.message, deleted
    assert cluster.must_get(plural, NAMESPACE, "theirs")["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_config_map_of_somebody_else_is_not_read_by_a_dry_run_either(cluster: Cluster, token: Token) -> None:
    """RBAC answers a patch with the object: this is the only way to its contents."""
    cluster.apply(theirs("configmaps", "theirs"), NAMESPACE)
    nothing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": NAMESPACE}}
    looked = token.apply("configmaps", nothing, dryRun="All", force="false")
    assert (looked.code, FOREIGN_OBJECT in looked.message) == (403, True), looked


def test_what_is_its_own_is_made_changed_and_deleted(token: Token, owner: JSON) -> None:
    name = "own-adapters"
    nothing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}
    assert token.apply("configmaps", nothing, dryRun="All", force="false").code < 300, "whose it is may be asked"
    made = nothing | {"metadata": metadata(name, owner), "data": {"adapters.json": "[]"}}
    assert token.apply("configmaps", made).code < 300
    assert token.merge("configmaps", name, {"data": {"adapters.json": "[1]"}}).code < 300
    assert token.delete("configmaps", name).code < 300


def test_its_pods_are_made_scaled_and_changed(token: Token, owner: JSON) -> None:
    made = deployment(owner)
    for body in (made, merge(made, {"spec": {"replicas": 1}}), deployment(owner, runtimeClassName="nvidia")):
        answer = token.apply("deployments", body)
        assert answer.code < 300, answer
    assert token.create("jobs", job(owner)).code < 300


def test_labels_that_somebody_took_away_are_put_back(cluster: Cluster, token: Token, owner: JSON) -> None:
    made = deployment(owner, "unlabelled")
    assert token.apply("deployments", made).code < 300
    cluster.patch("deployments", NAMESPACE, "unlabelled", {"metadata": {"labels": None}})
    assert token.apply("deployments", made).code < 300


def service(owner: JSON, **spec: Any) -> JSON:
    meta = metadata("own", owner)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": PORTS} | spec}


def claim(owner: JSON) -> JSON:
    return THEIRS["persistentvolumeclaims"] | {"metadata": metadata("own-cache", owner)}


def event(kind: str, version: str) -> JSON:
    about = {"kind": kind, "apiVersion": version, "name": "own", "namespace": NAMESPACE}
    return {"metadata": {"name": "e"}, "involvedObject": about, "type": "Normal", "reason": "R", "message": "m"}


def lease(name: str) -> JSON:
    return {"metadata": {"name": name}, "spec": {}}


OTHER = {"name": "other"}
REFUSED: dict[str, tuple[str, Any, str]] = {
    "without labels": ("deployments", lambda o: without("labels", deployment(o)), "must have the labels"),
    "without an owner": ("deployments", lambda o: without("ownerReferences", deployment(o)), "as its controller"),
    "of another owner": ("deployments", lambda o: deployment(o | OTHER), "as its controller"),
    "of another kind of owner": ("deployments", lambda o: deployment(o | {"kind": "Pod"}), "as its controller"),
    "a load balancer": ("services", lambda o: service(o, type="LoadBalancer"), "ClusterIP"),
    "a port of the nodes": ("services", lambda o: service(o, type="NodePort"), "ClusterIP"),
    "external addresses": ("services", lambda o: service(o, externalIPs=["10.0.0.9"]), "ClusterIP"),
    "another ConfigMap": (
        "configmaps",
        lambda o: {"metadata": metadata("kube-root-ca.crt-x", o)},
        "no ConfigMap but NAME-adapters",
    ),
    "an Event of a pod": ("events", lambda o: event("Pod", "v1"), "Events of LLMServices only"),
    "another lease": ("leases", lambda o: lease("kube-scheduler"), "Leases of its own names only"),
}


@pytest.mark.parametrize(("plural", "make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_the_operators_is_not_made(token: Token, owner: JSON, plural: str, make: Any, message: str) -> None:
    answer = token.create(plural, make(owner))
    assert (answer.code, message in answer.message) == (403, True), answer


def test_a_kept_claim_has_no_owner_and_an_event_of_a_service_is_written(token: Token, owner: JSON) -> None:
    assert token.create("persistentvolumeclaims", without("ownerReferences", claim(owner))).code < 300
    assert token.create("events", event("LLMService", "llmservice.dev/v1alpha1")).code < 300
    assert token.create("leases", lease(RELEASE)).code < 300


def guest(**security: Any) -> JSON:
    return {"initContainers": [merge(CONTAINER, {"name": "guest", "securityContext": security})]}


def pod_security(**security: Any) -> JSON:
    return {"securityContext": merge(POD["securityContext"], security)}


HOST_PATH = [{"name": "v", "hostPath": {"path": "/"}}]
NFS = [{"name": "v", "nfs": {"server": "127.0.0.1", "path": "/"}}]
BEYOND: dict[str, JSON] = {
    "host network": {"hostNetwork": True},
    "host PIDs": {"hostPID": True},
    "host IPC": {"hostIPC": True},
    "host port": {"containers": [CONTAINER | {"ports": [{"containerPort": 80, "hostPort": 80}]}]},
    "hostPath": {"volumes": HOST_PATH},
    "nfs": {"volumes": NFS},
    "privileged": guest(privileged=True, allowPrivilegeEscalation=None),
    "escalation": guest(allowPrivilegeEscalation=True),
    "escalation left out": {"containers": [CONTAINER | {"securityContext": {"capabilities": {"drop": ["ALL"]}}}]},
    "capabilities kept": guest(capabilities={"drop": ["KILL"]}),
    "capabilities added": guest(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
    "root in a container": guest(runAsUser=0),
    "root allowed in a container": guest(runAsNonRoot=False),
    "root": pod_security(runAsUser=0),
    "root allowed": pod_security(runAsNonRoot=False),
    "no seccomp": pod_security(seccompProfile={"type": "Unconfined"}),
    "no seccomp in a container": guest(seccompProfile={"type": "Unconfined"}),
    "SELinux": pod_security(seLinuxOptions={"type": "spc_t"}),
    "AppArmor": pod_security(appArmorProfile={"type": "Unconfined"}),
    "sysctl": pod_security(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
}


@pytest.mark.parametrize("pod", BEYOND.values(), ids=BEYOND.keys())
def test_no_pod_beyond_restricted_is_made(token: Token, owner: JSON, pod: JSON) -> None:
    for plural, body in (("deployments", deployment(owner, "beyond", **pod)), ("jobs", job(owner, **pod))):
        answer = token.create(plural, body)
        assert (answer.code, RESTRICTED in answer.message) == (403, True), answer
        assert "admissionPolicies.operator.allowBeyondRestricted=true" in answer.message, "the remedy"


PROJECTED = [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]


UNCONFINED = {"container.apparmor.security.beta.kubernetes.io/server": "unconfined"}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"spec": {"automountServiceAccountToken": True}}, "no pod with a service account's token"),
        ({"spec": {"volumes": PROJECTED}}, "admissionPolicies.operator.allowServiceAccountTokens=true"),
        ({"metadata": {"annotations": UNCONFINED}}, RESTRICTED),
    ],
    ids=["token mounted", "token projected", "no AppArmor by an annotation"],
)
def test_no_pod_like_this_is_made(token: Token, owner: JSON, template: JSON, message: str) -> None:
    answer = token.create("deployments", merge(deployment(owner, "beyond"), {"spec": {"template": template}}))
    assert (answer.code, message in answer.message) == (403, True), answer


def test_what_is_there_beyond_restricted_can_be_scaled_but_not_made_anew(
    cluster: Cluster, token: Token, owner: JSON
) -> None:
    """A service from before the policy goes on, until its template changes."""
    old = deployment(owner, "old", volumes=HOST_PATH)
    cluster.apply(old, NAMESPACE)
    assert token.merge("deployments", "old", {"spec": {"replicas": 1}}).code < 300
    changed = {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}
    assert RESTRICTED in token.merge("deployments", "old", changed).message


def test_the_api_server_has_no_warning_about_the_policies(cluster: Cluster, token: Token) -> None:
    assert_types_checked(cluster, NAMESPACE, "operator")
