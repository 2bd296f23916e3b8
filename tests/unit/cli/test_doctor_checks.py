"""The checks of `llmservice doctor`: functions of facts, each with cases in which it finds something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.doctor.access import INSTALLING, TEAM, is_match
from llmservice_cli.doctor.command import CHECKS
from llmservice_cli.doctor.facts import Facts, Finding, Level, Unread, results
from llmservice_cli.doctor.operator import fields
from llmservice_cli.settings import lease_names

from tests.unit.cli.doctor_world import (
    AUTOSCALED,
    AVX,
    BOTH_LIMITS,
    BROKEN_GPU,
    CLAIMING,
    CPU_DEFAULT,
    CPU_LIMITS,
    DEVICES,
    FLOOR,
    FULL,
    GROUPS,
    HEALTHY,
    IMAGES,
    LARGER,
    MESH,
    NONE,
    ODD,
    OLD_KEDA,
    SCALING,
    SYSTEM,
    T4,
    VERSION_LABEL,
    WIDE,
    ZONES,
    config_map,
    crd_with,
    crd_without,
    deployment,
    hook,
    installed_crd,
    keda_crd,
    lease,
    limit_range,
    namespace,
    node,
    quota,
    service,
    storage_class,
    tainted,
    waiting,
)
from tests.unit.cli_world import Json

OK, WARNING, PROBLEM, NOT_KNOWN = Level.OK, Level.WARNING, Level.PROBLEM, Level.NOT_KNOWN

LATE = (
    {
        "metadata": {"name": "coredns"},
        "data": {"Corefile": ".:53 {\n kubernetes cluster.local {\n ttl 30\n }\n cache\n}"},
    },
)

NO_PICKER: Json = {
    "service": service(),
    "name": "chat-epp",
    "port": 9002,
    "address": None,
    "pods": (),
    "configs": (),
    "unread": None,
}
WITH_CLAIMS = {"settings": (DEVICES,), "kubernetes": "v1.34.0"}
FOUND: Mapping[str, tuple[str, Mapping[str, Any], Level, str]] = {
    "an old Kubernetes": ("kubernetes", {"kubernetes": "v1.30.9"}, PROBLEM, "v1.30.9"),
    "the oldest one": ("kubernetes", {"kubernetes": "v1.31.0-gke.1"}, OK, "v1.31.0"),
    "one with image volumes behind a gate": ("kubernetes", {"kubernetes": "v1.34.4"}, OK, "feature gate ImageVolume"),
    "no version": ("kubernetes", {"kubernetes": "master"}, NOT_KNOWN, "master"),
    "a webhook": ("webhooks", {"mutating": (MESH,)}, OK, "mesh (inject)"),
    "one that cannot answer": (
        "webhooks",
        {"mutating": (MESH,), "ready_hooks": {("mesh", "injector"): 0}},
        PROBLEM,
        "nothing is ready behind",
    ),
    "one that can": ("webhooks", {"mutating": (MESH,), "ready_hooks": {("mesh", "injector"): 1}}, OK, "mesh (inject)"),
    "one that is ignored": ("webhooks", {"mutating": (hook("Ignore"),)}, OK, "no webhook"),
    "one of others": ("webhooks", {"validating": (hook("Fail", "nodes"),)}, OK, "no webhook"),
    "no rights": ("rights", {"rights": NONE}, WARNING, "me may not get llmservices.llmservice.dev"),
    "no rights to upgrade": ("rights to install", {"rights": NONE}, OK, "upgrading"),
    "no rights to install": (
        "rights to install",
        {"rights": NONE, "crd": (), "operators": ()},
        PROBLEM,
        "clusterroles",
    ),
    "no CRD": ("CRD", {"crd": ()}, PROBLEM, "not installed"),
    "another CRD": ("CRD", {"crd": (crd_without("drain"),)}, PROBLEM, "lacks fields of version"),
    "a newer CRD": ("CRD", {"crd": (crd_with("more"),)}, WARNING, "spec.more"),
    "not established": ("CRD", {"crd": (installed_crd(status={}),)}, PROBLEM, "not established"),
    "stored versions": (
        "CRD",
        {"crd": (installed_crd(status={**installed_crd()["status"], "storedVersions": ["v1alpha1", "v0"]}),)},
        WARNING,
        "v0",
    ),
    "no operator": ("operator", {"operators": ()}, PROBLEM, "no Deployment"),
    "one that is not ready": ("operator", {"operators": (deployment(0),)}, PROBLEM, "0/1"),
    "why it is not": (
        "operator",
        {"operators": (deployment(0),), "operator_pods": (waiting("CrashLoopBackOff"),)},
        PROBLEM,
        "CrashLoopBackOff",
    ),
    "one of two": ("operator", {"operators": (deployment(1, 2),)}, WARNING, "1/2"),
    "scaled to zero": ("operator", {"operators": (deployment(0, 0),)}, PROBLEM, "scaled to 0"),
    "another version": ("operator version", {"program": "9.9.9"}, WARNING, "9.9.9"),
    "nobody leads": ("lease", {"leases": (lease(""),)}, PROBLEM, "nobody"),
    "a dead leader": ("lease", {"leases": (lease(renewed="2026-01-01T11:50:00Z"),)}, PROBLEM, "10m ago"),
    "a Lease without a time": ("lease", {"leases": (lease(renewed="soon"),)}, NOT_KNOWN, "no time"),
    "no Lease": ("lease", {"leases": ()}, PROBLEM, "never led"),
    "invalid settings": ("settings", {"settings": (config_map("services: {nope: 1}"),)}, PROBLEM, "nope"),
    "settings that are no YAML": (
        "settings",
        {"settings": (config_map("x: !!bool foo"),)},
        PROBLEM,
        "the value is no bool",
    ),
    "no settings": ("settings", {"settings": ()}, WARNING, "no settings"),
    "no scaler for a service": ("activator", {"services": (AUTOSCALED,)}, PROBLEM, "team/chat"),
    "no activator": ("activator", {"settings": (SCALING,)}, PROBLEM, "no Deployment of the activator"),
    "another image": (
        "activator",
        {"settings": (SCALING,), "activators": (deployment(image="op:0"),)},
        WARNING,
        "op:0",
    ),
    "no groups for a service": ("LeaderWorkerSet", {"services": (WIDE,)}, PROBLEM, "team/chat"),
    "groups without their CRD": ("LeaderWorkerSet", {"settings": (GROUPS,)}, PROBLEM, "leaderworkersets."),
    "LeaderWorkerSet of another API": (
        "LeaderWorkerSet",
        {"settings": (GROUPS,), "lws_crd": (keda_crd("v2"),)},
        PROBLEM,
        "v2",
    ),
    "groups": ("LeaderWorkerSet", {"settings": (GROUPS,), "lws_crd": (keda_crd("v1"),)}, OK, "serves"),
    "no claims for a service": ("dynamic resources", {"services": (CLAIMING,)}, PROBLEM, "team/chat"),
    "claims before 1.34": (
        "dynamic resources",
        {"settings": (DEVICES,), "kubernetes": "v1.33.2"},
        PROBLEM,
        "resource.k8s.io/v1",
    ),
    "another DeviceClass": (
        "dynamic resources",
        {**WITH_CLAIMS, "services": (CLAIMING,), "device_classes": (storage_class("other"),)},
        PROBLEM,
        "gpu.nvidia.com",
    ),
    "no driver of devices": ("dynamic resources", WITH_CLAIMS, WARNING, "no DeviceClass"),
    "claims": (
        "dynamic resources",
        {**WITH_CLAIMS, "services": (CLAIMING,), "device_classes": (storage_class("gpu.nvidia.com"),)},
        OK,
        "gpu.nvidia.com",
    ),
    "no KEDA": ("KEDA", {"settings": (SCALING,)}, PROBLEM, "scaledobjects.keda.sh"),
    "KEDA of another API": ("KEDA", {"settings": (SCALING,), "keda_crd": (keda_crd("v2"),)}, PROBLEM, "v2"),
    "an old KEDA": (
        "KEDA",
        {"settings": (SCALING,), "keda_crd": (keda_crd("v1alpha1"),), "keda": (OLD_KEDA,)},
        WARNING,
        "2.17",
    ),
    "no node": ("nodes", {"nodes": ()}, PROBLEM, "no node"),
    "a node that is not ready": ("nodes", {"nodes": (node(), node("b", ready="Unknown"))}, WARNING, "b"),
    "none that is": ("nodes", {"nodes": (node(ready="False"),)}, PROBLEM, "1 of 1"),
    "a cordoned node": ("nodes", {"nodes": (node(), {**node("b"), "spec": {"unschedulable": True}})}, WARNING, "b"),
    "no device plugin": ("GPUs", {"nodes": (node(labels=T4),)}, PROBLEM, "offer no nvidia.com/gpu"),
    "a plugin without GPUs": ("GPUs", {"nodes": (node(labels=T4, gpus="0"),)}, PROBLEM, "offer no"),
    "a broken GPU": ("GPUs", {"nodes": (BROKEN_GPU,)}, WARNING, "3 of 4"),
    "no GPUs": ("GPUs", {"nodes": (node(),)}, OK, "no node offers GPUs"),
    "no label": ("GPU labels", {"nodes": (node(gpus="1"),)}, WARNING, "without a label"),
    "an unknown GPU": ("GPU labels", {"nodes": (node(labels=ODD, gpus="1"),)}, WARNING, "NVIDIA-X9000"),
    "one with its memory": (
        "GPU labels",
        {"nodes": (node(labels={**ODD, "nvidia.com/gpu.memory": "81559"}, gpus="1"),)},
        OK,
        "by its labels",
    ),
    "a taint": ("GPU taints", {"nodes": (tainted("team-b"),)}, WARNING, "team-b:NoSchedule"),
    "the GPUs' own": ("GPU taints", {"nodes": (tainted("nvidia.com/gpu"),)}, OK, "no taint"),
    "its other effect": ("GPU taints", {"nodes": (tainted("nvidia.com/gpu", "NoExecute"),)}, WARNING, "NoExecute"),
    "slices with a taint": (
        "GPU taints",
        {"nodes": (tainted("team-b", resource="nvidia.com/mig-1g.5gb"),)},
        WARNING,
        "team-b:NoSchedule",
    ),
    "slices with the GPUs' own": (
        "GPU taints",
        {"nodes": (tainted("nvidia.com/gpu", resource="nvidia.com/mig-1g.5gb"),)},
        OK,
        "no taint",
    ),
    "shares of a card": (
        "GPUs",
        {"nodes": (node(labels={**T4, "nvidia.com/gpu.replicas": "4"}, gpus="4"),)},
        OK,
        "pods share GPUs on: a",
    ),
    "shares with another name": (
        "GPUs",
        {"nodes": (node(labels=T4, gpus="4", resource="nvidia.com/gpu.shared"),)},
        OK,
        "nvidia.com/gpu.shared: 4",
    ),
    "shares without a label": (
        "GPU labels",
        {"nodes": (node(gpus="4", resource="nvidia.com/gpu.shared"),)},
        WARNING,
        "without a label",
    ),
    "a passing one": ("GPU taints", {"nodes": (tainted("node.kubernetes.io/not-ready"),)}, OK, "no taint"),
    "slices": ("MIG", {"nodes": (node(gpus="7", resource="nvidia.com/mig-1g.5gb"),)}, OK, "nvidia.com/mig-1g.5gb"),
    "an old CPU": ("CPUs", {"nodes": (node(labels={f"{AVX}AVX": "true"}),)}, WARNING, "without AVX2"),
    "a new CPU": (
        "CPUs",
        {"nodes": (node(labels={f"{AVX}AVX2": "true", f"{AVX}AVX512F": "true"}),)},
        OK,
        "with AVX-512 too: 1",
    ),
    "unlabelled CPUs": ("CPUs", {"nodes": (node(),)}, OK, "no label says"),
    "no CPU image": ("default images", {"nodes": (node(),)}, WARNING, "defaultCpuImage"),
    "no AMD image": (
        "default images",
        {"nodes": (node(gpus="8", resource="amd.com/gpu"),)},
        WARNING,
        "defaultAmdImage",
    ),
    "images": ("default images", {"settings": (IMAGES,)}, OK, "cpu:1"),
    "an old CRD": ("operator version", {"operators": (deployment(labels={VERSION_LABEL: "9.0.0"}),)}, PROBLEM, "older"),
    "no StorageClass": ("storage", {"storage_classes": (storage_class(default=False),)}, WARNING, "standard"),
    "two defaults": ("storage", {"storage_classes": (storage_class(), storage_class("b"))}, WARNING, "standard, b"),
    "volumes in any zone": ("storage", {"nodes": ZONES}, WARNING, "2 zones"),
    "volumes of one node": (
        "storage",
        {"storage_classes": (storage_class(provisioner="ebs.csi.aws.com"),)},
        OK,
        "one node",
    ),
    "a full quota": ("quota", {"quotas": (FULL,)}, WARNING, "used up: pods"),
    "a quota of limits": ("quota", {"quotas": (CPU_LIMITS,)}, WARNING, "limits.cpu"),
    "a quota of the other": (
        "quota",
        {"quotas": (BOTH_LIMITS,), "limits": CPU_DEFAULT},
        WARNING,
        "wants limits.memory of",
    ),
    "and a default for it": (
        "quota",
        {"quotas": (CPU_LIMITS,), "limits": CPU_DEFAULT},
        OK,
        "has room",
    ),
    "a large least request": ("limit range", {"limits": (limit_range(min={"cpu": "1"}),)}, PROBLEM, "at least 1 cpu"),
    "which container requests less": (
        "limit range",
        {"limits": (FLOOR,)},
        PROBLEM,
        "100m cpu of every container; runtime",
    ),
    "a ratio": (
        "limit range",
        {"limits": (limit_range(maxLimitRequestRatio={"cpu": "10"}),)},
        PROBLEM,
        "the limit is 1 and the request 50m",
    ),
    "bounds on claims": (
        "limit range",
        {"limits": (limit_range(type="PersistentVolumeClaim", max={"storage": "10Gi"}, min={"storage": "1Gi"}),)},
        WARNING,
        "at least 1Gi and at most 10Gi of storage of every claim",
    ),
    "requests that fit": (
        "limit range",
        {"limits": (FLOOR,), "settings": (LARGER,)},
        WARNING,
        "wants a limit of cpu, and servers have none",
    ),
    "a small most": (
        "limit range",
        {"limits": (limit_range(max={"memory": "1Gi"}),)},
        PROBLEM,
        "the limit of fetch is 2Gi",
    ),
    "a default that is too small": (
        "limit range",
        {"limits": (limit_range(default={"memory": "512Mi"}),)},
        WARNING,
        "512Mi memory: a server requests 8Gi per GPU by default, and its pod is refused",
    ),
    "a default of memory": (
        "limit range",
        {"limits": (limit_range(default={"memory": "64Gi"}),)},
        WARNING,
        "ends the server where it needs more",
    ),
    "a most alone is a default": (
        "limit range",
        {"limits": (limit_range(max={"memory": "64Gi"}),)},
        WARNING,
        "64Gi memory: it ends the server",
    ),
    "a bound of pods": (
        "limit range",
        {"limits": (limit_range(type="Pod", max={"cpu": "64"}),)},
        WARNING,
        "bounds whole pods (max cpu)",
    ),
    "a limit of CPU": ("limit range", {"limits": (limit_range(default={"cpu": "1"}),)}, WARNING, "1 CPU"),
    "no namespace": ("pod security", {"namespaces": ()}, WARNING, "no namespace team"),
    "a host path": (
        "pod security",
        {"services": (service(podTemplate={"spec": {"volumes": [{"name": "v", "hostPath": {}}]}}),)},
        WARNING,
        "team/chat",
    ),
    "an image": ("images", {"pods": (waiting("ImagePullBackOff", "401 Unauthorized"),)}, PROBLEM, "401 Unauthorized"),
    "a broken service": (
        "services",
        {"services": (service("False", "DoesNotFit"),)},
        WARNING,
        "DoesNotFit (1): team/chat",
    ),
    "no endpoint picker": (  # more: test_doctor_pickers.py
        "endpoint pickers",
        {"pickers": (NO_PICKER,)},
        PROBLEM,
        "chat-epp of team/chat is not there",
    ),
    "a DNS that answers late": (  # more: test_doctor_dns.py
        "dns",
        {"services": (service(routing={"mode": "router"}),), "dns": LATE},
        WARNING,
        "for up to 30 s",
    ),
    "one without a status": (
        "services",
        {"services": ({**service(), "status": {}},)},
        WARNING,
        "no status yet",
    ),
}


def findings(facts: Facts, check: str) -> list[Finding]:
    return [each.finding for each in results(CHECKS, facts, is_installed=True) if each.check == check]


@pytest.mark.parametrize(("check", "changed", "level", "evidence"), FOUND.values(), ids=FOUND)
def test_what_a_check_finds(check: str, changed: Mapping[str, Any], level: Level, evidence: str) -> None:
    found = findings(replace(HEALTHY, **changed), check)
    of_level = [each for each in found if each.level is level and evidence in each.evidence]
    assert of_level, found
    assert all(each.remedy for each in found if each.level is not OK)


def test_a_healthy_cluster_has_nothing_to_do_and_every_check_says_something() -> None:
    found = list(results(CHECKS, HEALTHY, is_installed=True))
    assert {each.finding.level for each in found} == {OK}
    assert [check.name for check in CHECKS] == list(dict.fromkeys(each.check for each in found))


def test_each_check_has_a_case_that_is_not_ok() -> None:
    covered = {check for check, _, level, _ in FOUND.values() if level is not OK}
    assert {check.name for check in CHECKS} - covered == {"MIG"}, "it only informs"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_what_could_not_be_read_is_not_known_and_says_the_right(check: Any) -> None:
    for need in check.needs:
        facts = replace(HEALTHY, unread={need: Unread("you have no right to list nodes", "have it granted")})
        (found,) = findings(facts, check.name)
        assert (found.level, found.evidence) == (NOT_KNOWN, "you have no right to list nodes")


def test_what_was_cut_is_not_all_known() -> None:
    assert findings(replace(HEALTHY, cut=frozenset({"nodes"})), "nodes")[-1].level is NOT_KNOWN


@pytest.mark.parametrize(
    ("state", "is_asked"), [({"running": {}}, True), ({"waiting": {"reason": "CrashLoopBackOff"}}, False)]
)
def test_a_pod_that_runs_and_is_not_ready_is_asked_why(state: Json, is_asked: bool) -> None:
    pod = waiting("")
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [{"name": "operator", "ready": False, "state": state}],
        "conditions": [{"type": "Ready", "status": "False"}],
    }
    (found,) = findings(replace(HEALTHY, operators=(deployment(0),), operator_pods=(pod,)), "operator")
    assert (f"kubectl get --raw /api/v1/namespaces/{SYSTEM}/pods/chat-1:8080/proxy/readyz" in found.remedy) == is_asked


def test_before_installing_only_what_it_needs_is_checked() -> None:
    empty = replace(HEALTHY, crd=(), operators=(), settings=(), leases=(), services=())
    found = {each.check for each in results(CHECKS, empty, is_installed=empty.is_installed)}
    assert not found & {"CRD", "operator", "lease", "services"}
    assert {"kubernetes", "rights to install", "nodes", "storage"} <= found


INJECTED: Json = {"matchLabels": {"istio-injection": "enabled"}}
SELECTED: Mapping[str, tuple[Json, Mapping[str, Any], Level, str]] = {
    "of other namespaces": ({"namespaceSelector": INJECTED}, {}, OK, "no webhook"),
    "of this one": (
        {"namespaceSelector": INJECTED},
        {"namespaces": (namespace(**{"istio-injection": "enabled"}),)},
        PROBLEM,
        "no pod can be created in team:",
    ),
    "of the operator's": (
        {"namespaceSelector": INJECTED},
        {"operator_namespaces": (namespace(name=SYSTEM, **{"istio-injection": "enabled"}),)},
        PROBLEM,
        f"no pod can be created in {SYSTEM}:",
    ),
    "of all": ({"namespaceSelector": {}}, {}, PROBLEM, f"in team, {SYSTEM}:"),
    "of a name": (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}},
        {"namespaces": ()},
        PROBLEM,
        "in team:",
    ),
    "of none that may be read": (
        {"namespaceSelector": INJECTED},
        {"namespaces": (), "unread": {"namespaces": Unread("no", "ask")}},
        WARNING,
        "namespaceSelector istio-injection=enabled",
    ),
    "of the operator's that may not be read": (
        {"namespaceSelector": INJECTED},
        {"unread": {"operator_namespaces": Unread("no", "ask")}},
        WARNING,
        SYSTEM,
    ),
    "of some pods": (
        {"objectSelector": {"matchExpressions": [{"key": "inject", "operator": "In", "values": ["true", "yes"]}]}},
        {},
        WARNING,
        "objectSelector inject In (true, yes)",
    ),
    "of conditions": ({"matchConditions": [{"name": "own", "expression": "true"}]}, {}, WARNING, "matchConditions own"),
    "of others on conditions": (
        {"namespaceSelector": INJECTED, "matchConditions": [{"name": "own", "expression": "true"}]},
        {},
        OK,
        "no webhook",
    ),
}


@pytest.mark.parametrize(("selects", "changed", "level", "evidence"), SELECTED.values(), ids=SELECTED)
def test_a_webhook_counts_where_it_is_asked(
    selects: Json, changed: Mapping[str, Any], level: Level, evidence: str
) -> None:
    silent = replace(HEALTHY, mutating=(hook("Fail", **selects),), ready_hooks={("mesh", "injector"): 0})
    (found,) = findings(replace(silent, **changed), "webhooks")
    assert (found.level, evidence in found.evidence) == (level, True), found


@pytest.mark.parametrize(
    ("operator", "values", "is_selected"),
    [
        ("In", ["a"], True),
        ("In", ["b"], False),
        ("NotIn", ["a"], False),
        ("NotIn", ["b"], True),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ],
)
def test_expressions_of_a_selector(operator: str, values: list[str], is_selected: bool) -> None:
    selector = {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}
    assert is_match(selector, {"k": "a"}) is is_selected
    assert is_match(selector, {}) is (operator in {"NotIn", "DoesNotExist"})


def test_rights_to_install_are_none_of_a_team() -> None:
    here = replace(HEALTHY, namespace=SYSTEM)
    rights = {replace(right, namespace=SYSTEM): True for right in TEAM} | dict.fromkeys(INSTALLING, False)
    (found,) = findings(replace(here, rights=rights), "rights")
    assert found.level is OK


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("DoesNotFit", "llmservice status chat -n team; llmservice explain DoesNotFit"),
        ("x; rm -rf ~", "llmservice status chat -n team"),
    ],
)
def test_only_known_reasons_are_put_into_commands(reason: str, remedy: str) -> None:
    (found, _) = findings(replace(HEALTHY, services=(service("False", reason), service())), "services")
    assert found.remedy == remedy
    assert (reason if reason == "DoesNotFit" else repr(reason)) in found.evidence


def test_fields_of_a_schema() -> None:
    assert list(fields({"properties": {"a": {"items": {"properties": {"b": {}}}}}})) == ["a", "a[].b"]


def test_the_leases_are_those_of_the_settings() -> None:
    named = config_map("{leaderElection: {leaseName: lead}}")
    assert lease_names((named,), (deployment(),)) == ((SYSTEM, "lead"),)
    assert lease_names((config_map("x: !!bool foo"),), (deployment(),)) == ((SYSTEM, "llmservice-operator"),)
    assert lease_names((), (deployment(),)) == ((SYSTEM, "llmservice-operator"),)


TEXTS = st.text(max_size=30)
QUANTITIES = TEXTS | st.sampled_from(["1", "-1", "1e99", "9" * 200, "0.5", "1Ki"])
LABELS = st.dictionaries(TEXTS | st.sampled_from([*T4, f"{AVX}AVX2", "kubernetes.io/arch"]), TEXTS, max_size=5)
AMOUNTS = st.dictionaries(st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"]), QUANTITIES)


@given(LABELS, AMOUNTS, AMOUNTS, TEXTS)
def test_nothing_that_a_node_says_breaks_a_check(labels: Any, allocatable: Any, capacity: Any, taint: str) -> None:
    status = {"allocatable": allocatable, "capacity": capacity}
    spec = {"taints": [{"key": taint, "value": taint, "effect": "NoSchedule"}]}
    odd = {"metadata": {"name": "a", "labels": labels}, "spec": spec, "status": status}
    assert list(results(CHECKS, replace(HEALTHY, nodes=(odd,)), is_installed=True))


@given(TEXTS, QUANTITIES, QUANTITIES)
def test_nothing_that_objects_of_a_namespace_say_breaks_a_check(text: str, one: str, other: str) -> None:
    facts = replace(
        HEALTHY,
        kubernetes=text,
        settings=(config_map(text),),
        leases=(lease(text, text),),
        quotas=(quota({"pods": one}, {"pods": other}),),
        limits=(limit_range(min={"cpu": one}, default={"cpu": other}),),
        pods=(waiting(text, text), waiting("ErrImagePull", text)),
        services=(service("False", text),),
    )
    assert list(results(CHECKS, facts, is_installed=True))


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ((FLOOR,), "services.helperCpu in the chart's values to 200m, which meets all"),
        ((limit_range(min={"cpu": "100m"}), limit_range(maxLimitRequestRatio={"cpu": "10"})), "to 200m, which"),
        ((limit_range(maxLimitRequestRatio={"memory": "4"}),), "services.helperMemory in the chart's values to 512Mi"),
        ((limit_range(min={"cpu": "600m"}, max={"cpu": "500m"}),), "needs 600m, and the max is 500m"),
    ],
)
def test_one_value_meets_all_bounds_of_limit_ranges(limits: tuple[Json, ...], told: str) -> None:
    found = {one.remedy.partition(", or ")[0] for one in findings(replace(HEALTHY, limits=limits), "limit range")}
    assert len([remedy for remedy in found if "services.helperCpu" in remedy]) <= 1
    assert [remedy for remedy in found if told in remedy]
