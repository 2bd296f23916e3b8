"""What Helm makes of the chart's values, without a cluster."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_operator.build.settings import CABundle, Settings
from llmservice_operator.kube.errors import NOT_OURS
from llmservice_operator.kube.shards import lease_name
from llmservice_operator.options import load
from llmservice_runtime.contract import HTTP_PORT_NAME, STATE_PORT_NAME

from tests.e2e._chart import CHART, ChartRefused, helm_offline, of_kind, only, render

pytestmark = pytest.mark.parallel

JSON = dict[str, Any]

EVERYTHING: JSON = {
    "replicas": 2,
    "image": {"repository": "example.org/operator", "digest": "sha256:" + "a" * 64, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "watch": {"namespaces": ["blue", "green"]},
    "serviceAccount": {"name": "runner", "annotations": {"a": "b"}},
    "logging": {"format": "console", "level": "debug"},
    "podAnnotations": {"note": "x"},
    "podLabels": {"team": "ml"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "priorityClassName": "system-cluster-critical",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "p"}}, "podMonitor": {"enabled": True}},
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}], "extraEgress": [{}]},
}

GUARDED: JSON = {
    "metrics": {"authentication": "tokenReview", "tls": {"secretName": "tls"}, "serviceMonitor": {"enabled": True}}
}

BAD_VALUES: dict[str, tuple[JSON, str]] = {
    "unknown key": ({"replica": 2}, "additional properties 'replica' not allowed"),
    "unknown nested key": ({"image": {"name": "x"}}, "at '/image'"),
    "replicas as text": ({"replicas": "2"}, "at '/replicas'"),
    "too many replicas": ({"replicas": 50}, "at '/replicas'"),
    "no shard": ({"operator": {"shards": 0}}, "at '/operator/shards'"),
    "too many shards": ({"operator": {"shards": 65}}, "at '/operator/shards'"),
    "tag with a space": ({"image": {"tag": "a b"}}, "at '/image/tag'"),
    "digest that is none": ({"image": {"digest": "latest"}}, "at '/image/digest'"),
    "repository with a digest": ({"image": {"repository": "a@sha256:b"}}, "at '/image/repository'"),
    "pull policy": ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy'"),
    "namespaces as text": ({"watch": {"namespaces": "a,b"}}, "at '/watch/namespaces'"),
    "the same namespace twice": ({"watch": {"namespaces": ["a", "a"]}}, "at '/watch/namespaces'"),
    "namespace with capitals": ({"watch": {"namespaces": ["Prod"]}}, "at '/watch/namespaces/0'"),
    "log level": ({"logging": {"level": "loud"}}, "at '/logging/level'"),
    "privileged port": ({"ports": {"health": 80}}, "at '/ports/health'"),
    "label that is a number": ({"podLabels": {"a": 1}}, "at '/podLabels/a'"),
    "interval": ({"metrics": {"podMonitor": {"interval": "often"}}}, "at '/metrics/podMonitor/interval'"),
    "no API server port": ({"networkPolicy": {"apiServerPorts": []}}, "at '/networkPolicy/apiServerPorts'"),
    "registry with a quote": (
        {"admissionPolicies": {"tenants": {"allowedRegistries": ["a') || ('"]}}},
        "at '/admissionPolicies/tenants/allowedRegistries/0'",
    ),
    "variable with a quote": (
        {"admissionPolicies": {"tenants": {"deniedEnv": ["A'"]}}},
        "at '/admissionPolicies/tenants/deniedEnv/0'",
    ),
    "unknown volume type": (
        {"admissionPolicies": {"tenants": {"allowedVolumeTypes": ["gcePersistentDisk"]}}},
        "at '/admissionPolicies/tenants/allowedVolumeTypes/0'",
    ),
    "no service account": ({"serviceAccount": {"create": False}}, "serviceAccount.name: name the service account"),
    "an authentication that is none of both": (
        {"metrics": {"authentication": "basic"}},
        "at '/metrics/authentication'",
    ),
    "monitor without its service": (
        {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
        "metrics.serviceMonitor.enabled needs metrics.service.enabled",
    ),
}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_lint(values: JSON) -> None:
    assert "0 chart(s) failed" in helm_offline("lint", "--strict", str(CHART), values=values)


@pytest.mark.parametrize(("values", "message"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_bad_values_are_refused_by_name(values: JSON, message: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render(values)
    assert message in str(refused.value)


@pytest.mark.parametrize("version", ["1.30.9", "1.29.0-eks-1"])
def test_an_old_kubernetes_is_refused(version: str) -> None:
    with pytest.raises(ChartRefused, match=r"requires kubeVersion: >=1\.31\.0-0"):
        render({}, "--kube-version", version)


@pytest.mark.parametrize("version", ["1.31.0", "1.31.4-gke.100", "1.36.3"])
def test_a_supported_kubernetes_is_accepted(version: str) -> None:
    assert render({}, "--kube-version", version)


def test_every_object_names_its_release_and_no_namespace_but_ours() -> None:
    for made in render(EVERYTHING):
        if made["kind"] == "CustomResourceDefinition":
            continue
        assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo", made["metadata"]["name"]
        assert made["metadata"].get("namespace", "llm") in {"llm", "blue", "green"}


def test_cluster_wide_by_default() -> None:
    objects = render()
    role = only(objects, "ClusterRole", "demo-llmservice-operator")
    binding = only(objects, "ClusterRoleBinding", "demo-llmservice-operator")
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "llm:demo-llmservice-operator"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "demo-llmservice-operator", "namespace": "llm"}]
    assert [each["metadata"]["name"] for each in of_kind(objects, "Role")] == ["demo-llmservice-operator-leader"]


def test_a_list_of_namespaces_grants_nothing_elsewhere() -> None:
    objects = render({"watch": {"namespaces": ["blue", "green"]}})
    granting = of_kind(objects, "RoleBinding", ":demo-llmservice-operator")
    assert [each["metadata"]["namespace"] for each in granting] == ["blue", "green"]
    aggregated = {"rbac.authorization.k8s.io/aggregate-to-" + role for role in ("view", "edit", "admin")}
    own = [role for role in of_kind(objects, "ClusterRole") if not aggregated & set(role["metadata"]["labels"])]
    (wide,) = own
    assert wide["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}], "nodes are in none"
    (binding,) = of_kind(objects, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == wide["metadata"]["name"] == "llm:demo-llmservice-operator:nodes"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "demo-llmservice-operator", "namespace": "llm"}]


@pytest.mark.parametrize("namespaces", [[], ["blue"]], ids=["cluster-wide", "namespaces"])
def test_the_right_on_nodes_can_be_left_out(namespaces: list[str]) -> None:
    objects = render({"watch": {"namespaces": namespaces}, "rbac": {"nodes": False}})
    assert not of_kind(objects, "ClusterRole", ":nodes")
    assert not of_kind(objects, "ClusterRoleBinding", ":nodes")


@pytest.mark.parametrize("values", [{}, EVERYTHING, GUARDED], ids=["cluster-wide", "namespaces", "metrics"])
def test_no_role_reaches_secrets_or_everything_or_reads_configmaps(values: JSON) -> None:
    objects = render(values)
    for role in of_kind(objects, "ClusterRole") + of_kind(objects, "Role"):
        for rule in role["rules"]:
            reached = {word for words in rule.values() for word in words}
            assert not reached & {"secrets", "*", "escalate", "bind", "impersonate"}, role
            if "configmaps" in rule.get("resources", ()):
                assert set(rule["verbs"]) <= {"create", "patch", "delete"}, role


PERSISTENT = {"create", "patch", "update", "delete"}
NOT_BOUND = {
    ("llmservice.dev", "llmservices/status"): "its status is all that it may write of an LLMService",
}


def policies(values: JSON) -> list[str]:
    made = of_kind(render(values), "ValidatingAdmissionPolicy")
    return [policy["metadata"]["name"].removeprefix("llm.demo-llmservice-operator.") for policy in made]


def test_every_kind_that_the_operator_may_write_is_in_its_policy() -> None:
    objects = render({"operator": {"shards": 3}})
    roles = of_kind(objects, "ClusterRole", "demo-llmservice-operator") + of_kind(objects, "Role")
    writes = {
        (group, resource)
        for role in roles
        for rule in role["rules"]
        if PERSISTENT & set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    policy = only(objects, "ValidatingAdmissionPolicy", ".operator")
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    bound = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    assert bound == writes - NOT_BOUND.keys()
    assert all(set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"} for rule in rules)
    (own,) = policy["spec"]["matchConditions"]
    assert own["expression"] == "request.userInfo.username == 'system:serviceaccount:llm:demo-llmservice-operator'"
    text = yaml.safe_dump(policy, width=10_000)
    assert all(f"{lease_name('demo-llmservice-operator', shard)!r}" in text for shard in range(3))
    assert NOT_OURS in text, "the operator knows its policy's refusals by these words"


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ["operator"]),
        ({"operator": {"enabled": False}}, []),
        ({"tenants": {"enabled": True}}, ["operator", "tenants"]),
        ({"tenants": {"enabled": True, "maxGPUs": 4}}, ["operator", "tenants", "tenants.gpus"]),
    ],
    ids=["defaults", "none", "tenants", "tenants with a ceiling"],
)
def test_policies_can_be_turned_on_and_off(values: JSON, names: list[str]) -> None:
    assert sorted(policies({"admissionPolicies": values})) == names


def test_pods_beyond_restricted_are_allowed_by_a_value() -> None:
    def sentences(**values: bool) -> list[str]:
        policy = only(render({"admissionPolicies": {"operator": values}}), "ValidatingAdmissionPolicy", ".operator")
        return [one["message"] for one in policy["spec"]["validations"]]

    dropped = set(sentences()) - set(sentences(allowBeyondRestricted=True))
    assert len(dropped) == 7
    assert all("beyond `restricted`" in sentence for sentence in dropped)


def test_the_lease_is_granted_by_name() -> None:
    role = only(render(), "Role", "-leader")
    beyond_create = [rule for rule in role["rules"] if rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in beyond_create] == [["demo-llmservice-operator"]]


@pytest.mark.parametrize("shards", [1, 2, 64])
def test_every_shard_has_its_lease_granted_and_the_operator_knows_how_many_there_are(
    shards: int, tmp_path: Path
) -> None:
    objects = render({"operator": {"shards": shards}})
    settings = tmp_path / "settings.yaml"
    settings.write_text(only(objects, "ConfigMap")["data"]["settings.yaml"])
    options = load(["--settings", str(settings)], {})
    (rule,) = [rule for rule in only(objects, "Role", "-leader")["rules"] if "resourceNames" in rule]
    assert rule["resourceNames"] == [lease_name(options.lease_name, shard) for shard in range(shards)]
    assert options.shards == shards


def test_editors_may_scale_and_viewers_may_not() -> None:
    objects = render()
    verbs: dict[str, set[str]] = {}
    for role in ("view", "edit", "admin"):
        rules = only(objects, "ClusterRole", f":{role}")["rules"]
        verbs[role] = {v for rule in rules if "llmservices/scale" in rule["resources"] for v in rule["verbs"]}
    assert verbs["view"] == {"get", "list", "watch"}
    assert {"update", "patch"} <= verbs["edit"] == verbs["admin"]


def test_rbac_can_be_somebody_elses() -> None:
    objects = render({"rbac": {"create": False, "aggregate": False}, "serviceAccount": {"create": False, "name": "x"}})
    kinds = {each["kind"] for each in objects}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount"}
    assert only(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "x"


def test_the_operator_meets_the_restricted_standard() -> None:
    pod = only(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert all(set(volume) & {"configMap", "emptyDir"} for volume in pod["volumes"])
    folder = container["args"][container["args"].index("--state-dir") + 1]
    mounted = next(mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder)
    assert "emptyDir" in next(volume for volume in pod["volumes"] if volume["name"] == mounted), (
        "it outlives containers"
    )


def test_a_platform_may_assign_the_uid() -> None:
    values = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    context = only(render(values), "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_everything_reaches_the_operator_pod() -> None:
    deployment = only(render(EVERYTHING), "Deployment")
    template = deployment["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert container["image"] == "example.org/operator@sha256:" + "a" * 64
    assert container["imagePullPolicy"] == "Always"
    assert pod["serviceAccountName"] == "runner"
    assert template["metadata"]["labels"]["team"] == "ml"
    assert template["metadata"]["annotations"]["note"] == "x"
    for key in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"):
        assert pod[key] == EVERYTHING[key]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert EVERYTHING["extraEnv"][0] in container["env"]


def test_another_setting_means_another_pod() -> None:
    def checksum(values: JSON) -> tuple[str, str]:
        objects = render(values)
        text = only(objects, "ConfigMap")["data"]["settings.yaml"]
        annotations = only(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]
        return annotations["checksum/settings"], hashlib.sha256(text.rstrip("\n").encode()).hexdigest()

    before, of_text = checksum({})
    after, _ = checksum({"services": {"defaultGpuImage": "example.org/vllm:1"}})
    assert before == of_text
    assert before != after


SETTINGS: dict[str, tuple[JSON, JSON]] = {
    "defaults": ({}, {"operator_image": "llmservice-operator:0.1.0", "run_as_user": 2000, "default_cpu_image": None}),
    "own image": (
        {"image": {"repository": "a/b", "tag": "c", "pullPolicy": "Never"}},
        {"operator_image": "a/b:c", "image_pull_policy": "Never"},
    ),
    "the platform's UIDs": ({"services": {"runAsUser": None}}, {"run_as_user": None}),
    "a very large UID": ({"services": {"runAsUser": 1000680000}}, {"run_as_user": 1000680000}),
    "images": ({"services": {"defaultCpuImage": "a/cpu:1"}}, {"default_cpu_image": "a/cpu:1"}),
    "pull secrets": ({"services": {"imagePullSecrets": ["a", "b"]}}, {"image_pull_secrets": ("a", "b")}),
    "mirror and proxy": (
        {"services": {"hfEndpoint": "https://hub.example", "noProxy": "10.0.0.0/8"}},
        {"hf_endpoint": "https://hub.example", "no_proxy": "10.0.0.0/8"},
    ),
    "certificates": ({"services": {"caBundle": {"configMap": "ca"}}}, {"ca_bundle": CABundle("ca", "ca.crt")}),
    "sizes": (
        {"services": {"cpuOnlyMemoryGib": 7, "cpuOnlyCpu": "2"}},
        {"cpu_only_memory_gib": 7, "cpu_only_cpu": "2"},
    ),
}


@pytest.mark.parametrize(("values", "expected"), SETTINGS.values(), ids=SETTINGS.keys())
def test_the_operator_understands_its_settings(values: JSON, expected: JSON) -> None:
    text = only(render(values), "ConfigMap")["data"]["settings.yaml"]
    settings = Settings.from_mapping(yaml.safe_load(text)["services"])
    assert {name: getattr(settings, name) for name in expected} == expected


def test_every_setting_has_a_value_in_the_chart() -> None:
    text = only(render(), "ConfigMap")["data"]["settings.yaml"]
    known = {re.sub(r"_(.)", lambda found: found[1].upper(), field.name) for field in dataclasses.fields(Settings)}
    assert set(yaml.safe_load(text)["services"]) == known


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1), (3, 1)])
def test_a_budget_only_where_it_can_be_kept(replicas: int, budgets: int) -> None:
    assert len(of_kind(render({"replicas": replicas}), "PodDisruptionBudget")) == budgets


def test_monitors_find_what_they_scrape() -> None:
    objects = render(EVERYTHING)
    service = only(objects, "Service", "-metrics")
    monitor = only(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    pods = only(objects, "PodMonitor")["spec"]
    assert pods["namespaceSelector"] == {"matchNames": ["blue", "green"]}
    assert [scraped["port"] for scraped in pods["podMetricsEndpoints"]] == [HTTP_PORT_NAME, STATE_PORT_NAME]
    everywhere = only(render({"metrics": {"podMonitor": {"enabled": True}}}), "PodMonitor")["spec"]
    assert everywhere["namespaceSelector"] == {"any": True}


def test_metrics_are_open_to_whoever_reaches_them_unless_the_values_say_otherwise() -> None:
    objects = render({"metrics": {"serviceMonitor": {"enabled": True}}})
    assert not of_kind(objects, "ClusterRole", ":metrics-auth")
    assert not of_kind(objects, "ClusterRole", ":metrics-reader")
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s"}


def test_guarded_metrics_have_their_rights_and_the_monitor_its_token(tmp_path: Path) -> None:
    objects = render(GUARDED)
    asks = only(objects, "ClusterRole", ":metrics-auth")
    assert {(rule["resources"][0], *rule["verbs"]) for rule in asks["rules"]} == {
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
    }
    binding = only(objects, "ClusterRoleBinding", ":metrics-auth")
    assert binding["roleRef"]["name"] == asks["metadata"]["name"] == "llm:demo-llmservice-operator:metrics-auth"
    reader = only(objects, "ClusterRole", ":metrics-reader")
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    assert reader["metadata"]["name"] not in {b["roleRef"]["name"] for b in of_kind(objects, "ClusterRoleBinding")}
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    settings = tmp_path / "settings.yaml"
    settings.write_text(only(objects, "ConfigMap")["data"]["settings.yaml"])
    options = load(["--settings", str(settings)], {})
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert (options.metrics_authentication, options.metrics_tls) == ("tokenReview", mounted["metrics-tls"])


def test_a_monitor_may_have_a_token_and_a_ca_of_its_own() -> None:
    own = {"authorization": {"credentials": {"name": "scraper", "key": "token"}}, "tlsConfig": {"serverName": "m"}}
    values = {"metrics": {**GUARDED["metrics"], "serviceMonitor": {"enabled": True, **own}}}
    (endpoint,) = only(render(values), "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["authorization"], endpoint["tlsConfig"]) == (own["authorization"], own["tlsConfig"])
    assert "bearerTokenFile" not in endpoint


def test_the_network_policy_selects_the_operator_and_lets_it_work() -> None:
    objects = render(EVERYTHING)
    spec = only(objects, "NetworkPolicy")["spec"]
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    let_out = {port["port"] for rule in spec["egress"] for port in rule.get("ports", [])}
    assert let_out == {53, 443, 6443, 8081}
    assert spec["ingress"][1]["from"] == [{"namespaceSelector": {}}]


def test_without_a_cluster_the_crd_is_an_ordinary_object_that_is_kept() -> None:
    crd = only(render(), "CustomResourceDefinition")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert crd["metadata"]["annotations"]["llmservice.dev/crd-version"] == version
    # GitOps tools run hooks by their own rules, and some delete a hook's object before they make it again.
    assert "helm.sh/hook" not in crd["metadata"]["annotations"]
    assert crd["spec"] == yaml.safe_load((CHART / "files" / "crd.yaml").read_text())["spec"]


def test_the_crd_can_be_somebody_elses() -> None:
    assert not of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition")
