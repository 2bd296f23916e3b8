"""What tenants may ask for where the chart's policy for them is on: each sentence, tried on the API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.policies import RELEASE, assert_types_checked, deployment, paused_owner, release
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.services import idle, merge
from tests.support.token import Answer, Token

pytestmark = pytest.mark.parallel

NAMESPACE = "policy-tenants"
POLICY: JSON = {
    "enabled": True,
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
    "exemptGroups": ["platform"],
    "allowedRegistries": ["registry.example.com", "ghcr.io/team/"],
    "allowedServiceAccounts": ["llm"],
    "deniedEnv": ["LD_*", "PYTHONSTARTUP"],
    "maxGPUs": 8,
}
GPUS = {"accelerator": {"type": "nvidia"}}


@pytest.fixture(scope="module")
def before(cluster: Cluster) -> Iterator[JSON]:
    """Services that were there before the policy, one of them with what it forbids: their owner reference."""
    with release(cluster, NAMESPACE, {"admissionPolicies": {"tenants": POLICY}}):
        # It is made with the policy's own way out: until a policy is in force nobody can say whether it is.
        cluster.kubectl(
            *("apply", "--server-side", "-n", NAMESPACE, "-f", "-", "--as=somebody", "--as-group=platform"),
            "--as-group=system:masters",
            stdin=json.dumps(idle("old", paused=True, model={"trustRemoteCode": True})),
        )
        owner = paused_owner(cluster, NAMESPACE, idle("own", paused=True))
        eventually(
            "the policy is in force",
            lambda: tried(cluster, idle("probe", model={"trustRemoteCode": True})).code == 403,
            60,
        )
        yield owner


def tried(cluster: Cluster, body: JSON) -> Answer:
    """A dry run, so that no operator meets it."""
    path = f"/apis/llmservice.dev/v1alpha1/namespaces/{NAMESPACE}/llmservices"
    return Answer.of(cluster.api.post(path, json=body, params={"dryRun": "All"}))


def guest(**container: Any) -> JSON:
    allowed = {"name": "guest", "image": "registry.example.com/guest:1"}
    return {"podTemplate": {"spec": {"initContainers": [{**allowed, **container}]}}}


def guests(**security: Any) -> JSON:
    return guest(securityContext=security)


def pod(**spec: Any) -> JSON:
    return {"podTemplate": {"spec": spec}}


def volume(**source: Any) -> JSON:
    return pod(volumes=[{"name": "v", **source}])


def env(name: str) -> JSON:
    return {"runtime": {"env": [{"name": name, "value": "x"}]}}


def image_model(reference: str) -> JSON:
    return {"model": {"uri": f"image://{reference}"}}


ALLOWED: dict[str, JSON] = {
    "the operator's image": {},
    "a registry": {"runtime": {"image": "registry.example.com/vllm:v0.32.0"}},
    "a folder of a registry": {"runtime": {"image": "ghcr.io/team/vllm:v0.32.0"}},
    "a model's image": image_model("registry.example.com/model:1"),
    "a claim": volume(persistentVolumeClaim={"claimName": "c"}),
    "an init container": guests(),
    "a service account": pod(serviceAccountName="llm"),
    "a variable": env("VLLM_LOGGING_LEVEL"),
    "eight GPUs": GPUS | {"scaling": {"replicas": 2}, "parallelism": {"tensorParallelSize": 4}},
    "many replicas on CPUs": {"scaling": {"replicas": 9}},
}
REGISTRIES = "must come from registry.example.com, ghcr.io/team/"
GUESTS = "spec.podTemplate.spec.initContainers: privileged or root"
REFUSED: dict[str, tuple[JSON, str]] = {
    "another registry": ({"runtime": {"image": "docker.io/vllm/vllm-openai:v0.32.0"}}, REGISTRIES),
    "one that begins alike": ({"runtime": {"image": "registry.example.com.evil.io/v:v0.32.0"}}, REGISTRIES),
    "another port": ({"runtime": {"image": "registry.example.com:5000/v:v0.32.0"}}, REGISTRIES),
    "another folder": ({"runtime": {"image": "ghcr.io/teams/vllm:v0.32.0"}}, REGISTRIES),
    "another model's image": (image_model("evil.io/model:1"), REGISTRIES),
    "an adapter's image": ({"adapters": [{"name": "a", "uri": "image://evil.io/a:1"}]}, REGISTRIES),
    "an image volume": (volume(image={"reference": "evil.io/v:1"}), REGISTRIES),
    "a guest's image": (guest(image="evil.io/g:1"), REGISTRIES),
    "hostPath": (volume(hostPath={"path": "/"}), "spec.podTemplate.spec.volumes: only configMap"),
    "nfs": (volume(nfs={"server": "s", "path": "/"}), "spec.podTemplate.spec.volumes: only configMap"),
    "csi": (volume(csi={"driver": "d"}), "spec.podTemplate.spec.volumes: only configMap"),
    "privileged": (guests(privileged=True), GUESTS),
    "escalation": (guests(allowPrivilegeEscalation=True), GUESTS),
    "a capability": (guests(capabilities={"add": ["SYS_ADMIN"]}), GUESTS),
    "root in a container": (guests(runAsUser=0), GUESTS),
    "root allowed in a container": (guests(runAsNonRoot=False), GUESTS),
    "root": (pod(securityContext={"runAsUser": 0}), "spec.podTemplate.spec.securityContext: root"),
    "root allowed": (pod(securityContext={"runAsNonRoot": False}), "spec.podTemplate.spec.securityContext: root"),
    "the node's network": (
        {"parallelism": {"nodes": 2, "tensorParallelSize": 2, "network": {"hostNetwork": True}}},
        "spec.parallelism.network.hostNetwork: pods on their nodes' network",
    ),
    "code of a repository": ({"model": {"trustRemoteCode": True}}, "spec.model.trustRemoteCode"),
    "a service account": (pod(serviceAccountName="admin"), "spec.podTemplate.spec.serviceAccountName: only llm"),
    "a variable": (env("PYTHONSTARTUP"), "spec.runtime.env: LD_*, PYTHONSTARTUP may not"),
    "a variable by its prefix": (env("LD_PRELOAD"), "spec.runtime.env: LD_*, PYTHONSTARTUP may not"),
    "a guest's variable": (
        guest(env=[{"name": "LD_PRELOAD", "value": "x"}]),
        "spec.runtime.env: LD_*, PYTHONSTARTUP may not",
    ),
    "GPUs of an init container": (
        guest(restartPolicy="Always", resources={"limits": {"nvidia.com/gpu": "8"}}),
        "spec.podTemplate.spec.initContainers: only the server has GPUs",
    ),
    "devices that nobody counts": (
        {"accelerator": {"type": "nvidia", "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "b"}]}},
        "spec.accelerator: claims of devices are not counted as GPUs",
    ),
    "nine GPUs": (GPUS | {"scaling": {"replicas": 9}}, "spec: 9 GPUs"),
    "sixteen GPUs": (GPUS | {"scaling": {"replicas": 2}, "parallelism": {"tensorParallelSize": 8}}, "spec: 16 GPUs"),
}


@pytest.mark.parametrize("spec", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed_passes(cluster: Cluster, before: JSON, spec: JSON) -> None:
    answer = tried(cluster, idle("new", **spec))
    assert answer.code == 201, answer


@pytest.mark.parametrize(("spec", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_is_refused_with_the_field_and_the_remedy(
    cluster: Cluster, before: JSON, spec: JSON, message: str
) -> None:
    answer = tried(cluster, idle("new", **spec))
    assert (answer.code, message in answer.message) == (403, True), answer
    assert "ask who runs the cluster (admissionPolicies.tenants of the operator's chart)" in answer.message


def test_what_was_there_before_stays_until_its_spec_changes(cluster: Cluster, before: JSON) -> None:
    cluster.patch("llmservices", NAMESPACE, "old", {"metadata": {"labels": {"team": "a"}}})
    patch = ("patch", "llms", "old", "-n", NAMESPACE, "--type=merge", "--dry-run=server", "--patch")
    changed = cluster.kubectl(*patch, '{"spec": {"drain": {"timeoutSeconds": 5}}}', expect=1)
    assert "spec.model.trustRemoteCode" in changed
    cluster.kubectl(*patch, '{"spec": {"model": {"trustRemoteCode": false}}}')


def test_other_namespaces_are_not_bound(cluster: Cluster, before: JSON) -> None:
    path = "/apis/llmservice.dev/v1alpha1/namespaces/default/llmservices"
    body = idle("new", model={"trustRemoteCode": True})
    assert cluster.api.post(path, json=body, params={"dryRun": "All"}).status_code == 201


def test_an_autoscaler_gets_no_more_gpus_either(cluster: Cluster, before: JSON) -> None:
    """The scale subresource does not say how many GPUs a replica has; the Deployment that the operator writes does."""
    made = deployment(before)
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
    token = Token.of(cluster, NAMESPACE, RELEASE)
    with token.api:
        for replicas in (0, 2):
            answer = token.apply("deployments", merge(made, {"spec": {"replicas": replicas}}))
            assert answer.code < 300, answer
        refused = token.apply("deployments", merge(made, {"spec": {"replicas": 3}}))
        assert (refused.code, "12 GPUs are more than the 8" in refused.message) == (403, True), refused
        assert token.apply("deployments", merge(made, {"spec": {"replicas": 1}})).code < 300, "fewer always"


def test_a_recorded_revision_with_claims_of_devices_is_refused_too(cluster: Cluster, before: JSON) -> None:
    made = deployment(before)
    made["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "any"}]
    token = Token.of(cluster, NAMESPACE, RELEASE)
    with token.api:
        refused = token.apply("deployments", made)
    assert (refused.code, "claims of devices are not counted as GPUs" in refused.message) == (403, True), refused


@pytest.mark.parametrize("name", ["tenants", "tenants.gpus"])
def test_the_api_server_has_no_warning_about_the_policies(cluster: Cluster, before: JSON, name: str) -> None:
    assert_types_checked(cluster, NAMESPACE, name)
