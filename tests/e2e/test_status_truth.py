"""The status never says that something answers which does not, nor the other way round, whatever happens to a service.

The engine is the stand-in. A client asks through the Service all the time, over fresh connections: an account of what
was true, made by nobody who writes the status.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.e2e.conftest import own_namespace
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster, CommandFailed, condition, eventually
from tests.support.health import judged
from tests.support.measured import Record
from tests.support.patience import at_latest
from tests.support.reported import REPORTED_WITHIN, Reported, before, reported_everywhere
from tests.support.services import stand_in
from tests.support.status_history import History, Version, contradictions, recorded

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-truth"
# The kubelet's: two probes, two seconds apart, that may take three seconds each; then a moment for the operator.
DETECTED_WITHIN = 2 * 2 + 3 + 2.0
REPORTED_LATE_WITHIN = 5.0
BROKEN = {"fails": "kv-cache-too-small"}
NEVER_DONE = {"start_seconds": 3600}

SLICES = {
    "apiGroups": ["discovery.k8s.io"],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["endpointslices"],
}
# As if the controller that fills endpoint slices did not work, for one Service of one namespace.
NO_SLICES = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "e2e-truth-no-slices"},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [SLICES]},
        "validations": [{"expression": "object.metadata.labels['kubernetes.io/service-name'] != 'unreached'"}],
    },
}
BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "e2e-truth-no-slices"},
    "spec": {
        "policyName": "e2e-truth-no-slices",
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}},
    },
}


def env_of(behaviour: JSON) -> JSON:
    """The change of a spec that gives the stand-in another behaviour: another revision."""
    return {"runtime": {"env": [{"name": "STAND_IN", "value": json.dumps(behaviour)}]}}


@pytest.fixture(scope="module")
def no_slices(cluster: Cluster) -> Iterator[None]:
    with own_namespace(cluster, NAMESPACE):
        cluster.apply_all([NO_SLICES, BINDING], NAMESPACE)
        yield
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        cluster.kubectl("delete", kind, "e2e-truth-no-slices", "--ignore-not-found")


@pytest.fixture(scope="module")
def reported(cluster: Cluster, no_slices: None) -> Iterator[Mapping[str, Future[Reported]]]:
    """Two services beside the one that the story is about, each looked at until its failure is reported."""
    since = before(cluster)
    cluster.apply_all([stand_in("unreached"), stand_in("late", rollout={"progressDeadlineSeconds": 60})], NAMESPACE)

    def late() -> Reported:
        """An edit that gets nowhere; the shortest deadline is a minute."""
        cluster.wait_condition(NAMESPACE, "late", "Ready", "True", timeout=60)
        edit(cluster, "late", env_of(NEVER_DONE))
        return reported_everywhere(cluster, NAMESPACE, "late", "ProgressDeadlineExceeded", since, timeout=120)

    with ThreadPoolExecutor() as pool:
        unreached = pool.submit(reported_everywhere, cluster, NAMESPACE, "unreached", "NoEndpoints", since, timeout=120)
        yield {"unreached": unreached, "late": pool.submit(late)}


@pytest.fixture(scope="module")
def client_pod(cluster: Cluster, reported: object) -> ClientPod:
    return ClientPod.start(cluster, NAMESPACE)


@pytest.fixture(scope="module")
def life(cluster: Cluster, client_pod: ClientPod) -> History:
    """All that the status said of one service, and all that was true, in the life that `lead` leads."""
    with recorded(cluster, NAMESPACE, "truth") as record:
        lead(cluster, client_pod)
    return record


def lead(cluster: Cluster, client_pod: ClientPod) -> None:
    def ready() -> JSON:
        return cluster.wait_condition(NAMESPACE, "truth", "Ready", "True", reason="RolledOut", timeout=60)

    cluster.apply(stand_in("truth"), NAMESPACE)
    ready()
    edit(cluster, "truth", {"batching": {"maxNumSeqs": 8}})
    ready()
    edit(cluster, "truth", env_of(BROKEN))
    cluster.wait_condition(NAMESPACE, "truth", "Stalled", "True", timeout=60)
    edit(cluster, "truth", {"runtime": {"env": None}})
    ready()
    edit(cluster, "truth", {"scaling": {"replicas": 0}})
    cluster.wait_condition(NAMESPACE, "truth", "Ready", "True", reason="ScaledToZero", timeout=60)
    eventually("no pod", lambda: not cluster.list("pods", NAMESPACE, "llmservice.dev/service=truth"), 60)
    edit(cluster, "truth", {"scaling": {"replicas": 1}})
    ready()
    kill(cluster, client_pod)
    ready()


def edit(cluster: Cluster, name: str, spec: JSON) -> None:
    cluster.patch("llmservices", NAMESPACE, name, {"spec": spec})


def kill(cluster: Cluster, client_pod: ClientPod) -> None:
    """The engine of the only pod dies under a request; the container is started again."""
    url = f"http://truth.{NAMESPACE}.svc/v1"
    # A node's kube-proxy may learn of an endpoint some time after the status said that there is one.
    eventually("an answer", lambda: is_reached(client_pod, f"{url}/models"), 30)
    body = {"model": "truth", "prompt": "@die", "max_tokens": 2}
    assert client_pod.request(f"{url}/completions", body).status >= 500
    cluster.wait_condition(NAMESPACE, "truth", "Ready", "False", timeout=30)


def is_reached(client_pod: ClientPod, url: str) -> bool:
    try:
        return client_pod.request(url).status == 200
    except CommandFailed as refused:
        if "ConnectionRefusedError" not in str(refused):
            raise
        return False


def since_of(obj: JSON, kind: str) -> tuple[str, float]:
    """Status of an object's condition, and since when: whole seconds of the epoch."""
    found = condition(obj, kind)
    assert found is not None
    return found["status"], dt.datetime.fromisoformat(found["lastTransitionTime"]).timestamp()


def test_ready_pods_that_get_no_request_are_not_ready(
    cluster: Cluster, reported: Mapping[str, Future[Reported]], record: Record
) -> None:
    found = reported["unreached"].result()
    pod = cluster.pod(NAMESPACE, "unreached")
    is_ready, since = since_of(pod, "Ready")
    assert is_ready == "True"
    record(reason="NoEndpoints", seconds=round(found.at - since, 1), engine="stand-in")
    assert found.at - since <= at_latest(REPORTED_WITHIN)
    assert f"no request reaches them: {pod['metadata']['name']}." in found.failure["message"]
    assert pod["metadata"]["name"] in found.failure["evidence"][0]
    cluster.wait_condition(NAMESPACE, "unreached", "Ready", "False", reason="NoEndpoints", timeout=0)
    cluster.wait_condition(NAMESPACE, "unreached", "Available", "False", reason="NoEndpoints", timeout=0)
    assert cluster.status(NAMESPACE, "unreached")["ready"] == "0/1"
    cluster.kubectl("delete", "validatingadmissionpolicybinding", "e2e-truth-no-slices")
    cluster.wait_condition(NAMESPACE, "unreached", "Ready", "True", timeout=60)
    assert cluster.failure(NAMESPACE, "unreached") == {}


def test_what_is_reported_to_answer_answers(life: History, record: Record) -> None:
    answered = sum(asked.is_answered for asked in life.asked)
    late = contradictions(life, DETECTED_WITHIN)
    record(versions=len(life.versions), asked=len(life.asked), answered=answered, beyond_the_bar=late)
    assert contradictions(life, at_latest(DETECTED_WITHIN)) == []


def test_what_answers_is_reported_soon(life: History) -> None:
    for version, end in life.spans():
        if version.status.get("conditions") and not version.says("Available"):
            answered = [asked.at for asked in life.asked if asked.is_answered and version.at <= asked.at < end]
            late = answered[-1] - answered[0] if answered else 0.0
            assert late < at_latest(REPORTED_LATE_WITHIN), version.condition("Ready")


def test_the_life_was_reported_as_it_was(life: History) -> None:
    """What the record must hold for the other tests to mean anything."""
    story = [(v.says("Available"), v.says("Ready"), v.says("Stalled")) for v in life.versions]
    serves_on, failed, rolled_out, as_asked, gone = (
        (True, False, False),
        (True, False, True),
        (True, True, False),
        (False, True, False),
        (False, False, False),
    )
    wanted = [gone, rolled_out, serves_on, rolled_out, failed, rolled_out, as_asked, gone, rolled_out, gone, rolled_out]
    rest = iter(story)
    assert all(step in rest for step in wanted), story


def test_each_version_is_reported_by_the_conventions(life: History) -> None:
    before: dict[str, JSON] = {}
    for version in life.versions:
        status, generation = version.status, version.obj["metadata"]["generation"]
        assert not (version.says("Reconciling") and version.says("Stalled"))
        if "conditions" not in status:
            assert status["observedGeneration"] == -1
            continue
        assert status["observedGeneration"] <= generation
        conditions = {each["type"]: each for each in status["conditions"]}
        assert {each["observedGeneration"] for each in conditions.values()} == {status["observedGeneration"]}
        for kind in conditions.keys() & before.keys():
            is_as_before = conditions[kind]["status"] == before[kind]["status"]
            has_moved = conditions[kind]["lastTransitionTime"] != before[kind]["lastTransitionTime"]
            assert not (is_as_before and has_moved), (before[kind], conditions[kind])
        before = conditions


def test_deployment_tools_read_every_version_right(life: History) -> None:
    answers = judged(version.obj for version in life.versions)
    for version, answer in zip(life.versions, answers, strict=True):
        assert (answer.kstatus.status, answer.argo.status) == expected(version), version.status.get("conditions")
    in_mid_rollout = [a for v, a in zip(life.versions, answers, strict=True) if v.says("Available")]
    assert {answer.kstatus.status for answer in in_mid_rollout} == {"Current", "InProgress", "Failed"}


def expected(version: Version) -> tuple[str, str]:
    """By what the conditions are for, not by how the tools read them."""
    if version.status["observedGeneration"] != version.obj["metadata"]["generation"]:
        return "InProgress", "Progressing"
    if version.says("Stalled"):
        return "Failed", "Degraded"
    return ("Current", "Healthy") if version.says("Ready") else ("InProgress", "Progressing")


def test_git_sees_no_difference(life: History) -> None:
    """The operator owns nothing but the status, and wrote nothing else."""
    for version in life.versions:
        metadata = version.obj["metadata"]
        ours = [entry for entry in metadata["managedFields"] if entry["manager"].startswith("llmservice-operator")]
        assert {entry.get("subresource") for entry in ours} <= {"status"}
        assert metadata.keys().isdisjoint({"finalizers", "annotations", "labels"})


def test_a_rollout_past_its_deadline_is_stalled_while_the_old_replica_serves(
    cluster: Cluster, client_pod: ClientPod, reported: Mapping[str, Future[Reported]], record: Record
) -> None:
    found = reported["late"].result()
    _, since = since_of(cluster.must_get("deployments", NAMESPACE, "late"), "Progressing")
    record(reason="ProgressDeadlineExceeded", seconds=round(found.at - since, 1), engine="stand-in")
    assert found.at - since <= at_latest(REPORTED_WITHIN)
    assert "timed out progressing" in found.failure["evidence"][0], "what the Deployment's controller says"
    stalled = cluster.wait_condition(NAMESPACE, "late", "Stalled", "True", reason="ProgressDeadlineExceeded", timeout=0)
    assert "vLLM is loading the model." in stalled["message"]
    assert "What served before goes on." in stalled["message"]
    cluster.must_have(NAMESPACE, "late", Available="True", Ready="False")
    body = {"model": "late", "prompt": "hello", "max_tokens": 2}
    assert client_pod.request(f"http://late.{NAMESPACE}.svc/v1/completions", body).status == 200
