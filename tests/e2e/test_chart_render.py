"""What Helm makes of the chart's values, without a cluster."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path

import pytest
import yaml
from llmservice_api.constants import API_SERVER_LABEL, RANK_LABEL
from llmservice_api.service import LLMService
from llmservice_operator.manifests import router
from llmservice_operator.manifests.settings import CABundle, Settings
from llmservice_operator.options import load
from llmservice_runtime.contract import HTTP_PORT_NAME, LEADER_PORT_NAME, STATE_PORT_NAME

from tests.e2e._chart import (
    AUTOSCALED,
    CHART,
    EVERYTHING,
    GUARDED,
    JSON,
    ChartRefused,
    helm_offline,
    of_kind,
    only,
    render,
)
from tests.support.services import idle, merge

pytestmark = pytest.mark.parallel

BAD_VALUES: dict[str, tuple[JSON, str]] = {
    "unknown key": ({"replica": 2}, "additional properties 'replica' not allowed"),
    "unknown nested key": ({"image": {"name": "x"}}, "at '/image'"),
    "replicas as text": ({"replicas": "2"}, "at '/replicas'"),
    "too many replicas": ({"replicas": 50}, "at '/replicas'"),
    "no shard": ({"operator": {"shards": 0}}, "at '/operator/shards'"),
    "several shards": (
        {"operator": {"shards": 2}},
        "install one release for each set of namespaces (watch.namespaces)",
    ),
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
    "a target that is no bound of vLLM's histogram": (
        {"metrics": {"prometheusRule": {"thresholds": {"ttftSeconds": 3}}}},
        "at '/metrics/prometheusRule/thresholds/ttftSeconds'",
    ),
    "an objective that no error budget burns": (
        {"metrics": {"prometheusRule": {"thresholds": {"sloObjective": 0.93}}}},
        "at '/metrics/prometheusRule/thresholds/sloObjective'",
    ),
    "a threshold that is taken away": (
        {"metrics": {"prometheusRule": {"enabled": True, "thresholds": {"restarts": None}}}},
        "metrics.prometheusRule.thresholds.restarts is missing",
    ),
    "a threshold that no rule has": (
        {"metrics": {"prometheusRule": {"thresholds": {"tooSlow": 3}}}},
        "at '/metrics/prometheusRule/thresholds'",
    ),
    "monitor without its service": (
        {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
        "metrics.serviceMonitor.enabled needs metrics.service.enabled",
    ),
}


@pytest.mark.parametrize("values", [{}, EVERYTHING, EVERYTHING | AUTOSCALED], ids=["defaults", "everything", "scaler"])
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


@pytest.mark.parametrize("version", ["1.31.0", "1.31.4-gke.100", "1.37.2"])
def test_a_supported_kubernetes_is_accepted(version: str) -> None:
    assert render({}, "--kube-version", version)


def test_every_object_names_its_release_and_no_namespace_but_ours() -> None:
    for made in render(EVERYTHING | AUTOSCALED):
        if made["kind"] == "CustomResourceDefinition":
            continue
        assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo", made["metadata"]["name"]
        assert made["metadata"].get("namespace", "llm") in {"llm", "blue", "green"}


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
    "a scaler": (
        AUTOSCALED,
        {
            "scaler_address": "demo-llmservice-operator-activator.llm.svc:9443",
            "scaler_authentication": "llm.demo-llmservice-operator-activator",
        },
    ),
    "no groups": ({}, {"has_groups": False, "has_group_policy": True, "has_node_autoscaler": False}),
    "groups": (
        {"groups": {"enabled": True, "networkPolicy": False, "nodeAutoscaler": True}},
        {"has_groups": True, "has_group_policy": False, "has_node_autoscaler": True},
    ),
    "no claims": ({}, {"has_dynamic_resources": False}),
    "claims": ({"dynamicResources": {"enabled": True}}, {"has_dynamic_resources": True}),
    "no Gateways": ({}, {"has_gateways": False}),
    "Gateways": ({"gateway": {"enabled": True}}, {"has_gateways": True}),
    "no router": ({}, {"router_image": None}),
    "a router": (
        {"routing": {"enabled": True, "cpu": "1"}},
        {"router_image": "llmservice-router:0.1.0", "router_cpu": "1", "router_memory_limit": "1Gi"},
    ),
    "a router of a mirror": ({"routing": {"enabled": True, "image": "m/r@sha256:1"}}, {"router_image": "m/r@sha256:1"}),
    "no scaler": ({}, {"scaler_address": None, "scaler_authentication": None}),
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
    groups = {"enabled": True, "networkPolicy": False, "nodeAutoscaler": True}
    every = AUTOSCALED | {"services": {"helperCpu": "200m", "helperMemory": "128Mi"}, "groups": groups}
    every |= {each: {"enabled": True} for each in ("dynamicResources", "routing", "gateway")}
    text = only(render(every), "ConfigMap")["data"]["settings.yaml"]
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


def test_routers_are_scraped_where_there_are_some() -> None:
    values = {"metrics": {"podMonitor": {"enabled": True}}, "watch": {"namespaces": ["blue"]}}
    assert len(of_kind(render(values), "PodMonitor")) == 1
    rendered = render(values | {"routing": {"enabled": True}})
    services, routers = (only(rendered, "PodMonitor", f"-{kind}s")["spec"] for kind in ("service", "router"))
    assert routers["namespaceSelector"] == services["namespaceSelector"] == {"matchNames": ["blue"]}
    settings = Settings(operator_image="operator:1", default_gpu_image="vllm:1", router_image="router:1")
    service = LLMService.from_object(merge(idle("routed"), {"metadata": {"namespace": "blue", "uid": "1"}}))
    template = router.deployment(service, settings)["spec"]["template"]
    for monitor, is_found in ((services, False), (routers, True)):
        (selected,) = monitor["selector"]["matchExpressions"]
        assert (selected["key"] in template["metadata"]["labels"]) is is_found
    (scraped,) = routers["podMetricsEndpoints"]
    assert scraped["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}


SCRAPED = {
    "the leader": ({RANK_LABEL: "0"}, True),
    "a worker": ({RANK_LABEL: "1"}, False),
    "a tenth worker": ({RANK_LABEL: "10"}, False),
    "the leader with hybrid balancing": ({RANK_LABEL: "0", API_SERVER_LABEL: "true"}, True),
    "a worker with hybrid balancing": ({RANK_LABEL: "1", API_SERVER_LABEL: "true"}, True),
}


@pytest.mark.parametrize(("labels", "is_scraped"), SCRAPED.values(), ids=SCRAPED.keys())
def test_of_a_replica_over_several_nodes_the_pods_that_listen_are_scraped(
    labels: dict[str, str], is_scraped: bool
) -> None:
    rendered = render({"groups": {"enabled": True}, "metrics": {"podMonitor": {"enabled": True}}})
    (endpoint,) = (
        each for each in only(rendered, "PodMonitor")["spec"]["podMetricsEndpoints"] if each["port"] == LEADER_PORT_NAME
    )
    (kept,) = (each for each in endpoint["relabelings"] if each.get("action") == "keep")
    by_source = {f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": v for name, v in labels.items()}
    joined = ";".join(by_source.get(source, "") for source in kept["sourceLabels"])
    assert bool(re.fullmatch(kept["regex"], joined)) is is_scraped


def test_metrics_are_open_to_whoever_reaches_them_unless_the_values_say_otherwise() -> None:
    objects = render({"metrics": {"serviceMonitor": {"enabled": True}}})
    assert not of_kind(objects, "ClusterRole", ":metrics-auth")
    assert not of_kind(objects, "ClusterRole", ":metrics-reader")
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s", "honorLabels": True}


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
    assert let_out == {53, 5353, 443, 6443, 8081}
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
