"""What the chart grants, and which policies it sets, without a cluster."""

from __future__ import annotations

import pytest
import yaml
from kubeloop.errors import FOREIGN_OBJECT

from tests.e2e._chart import AUTOSCALED, EVERYTHING, GUARDED, JSON, of_kind, only, render

pytestmark = pytest.mark.parallel


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


@pytest.mark.parametrize(
    "values",
    [{}, EVERYTHING, GUARDED, AUTOSCALED, EVERYTHING | AUTOSCALED],
    ids=["cluster-wide", "namespaces", "metrics", "scaler", "scaler of namespaces"],
)
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
    ("discovery.k8s.io", "endpointslices/restricted"): "OpenShift's word for a slice with addresses of pods",
}


def policies(values: JSON) -> list[str]:
    made = of_kind(render(values), "ValidatingAdmissionPolicy")
    return [policy["metadata"]["name"].removeprefix("llm.demo-llmservice-operator.") for policy in made]


ONLY_CHANGED = {("", "pods")}
"""Neither made nor deleted by the operator."""


@pytest.mark.parametrize("values", [{}, AUTOSCALED], ids=["defaults", "scaler"])
def test_every_kind_that_the_operator_may_write_is_in_its_policy(values: JSON) -> None:
    objects = render(values)
    roles = of_kind(objects, "ClusterRole", "demo-llmservice-operator") + [
        role for role in of_kind(objects, "Role") if not role["metadata"]["name"].endswith("-activator")
    ]
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
    bound = {
        (group, resource): set(rule["operations"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert bound.keys() == writes - NOT_BOUND.keys()
    for kind, operations in bound.items():
        assert operations == ({"UPDATE"} if kind in ONLY_CHANGED else {"CREATE", "UPDATE", "DELETE"}), kind
    (own,) = policy["spec"]["matchConditions"]
    assert own["expression"] == "request.userInfo.username == 'system:serviceaccount:llm:demo-llmservice-operator'"
    text = yaml.safe_dump(policy, width=10_000)
    assert "request.name == 'demo-llmservice-operator'" in text
    assert FOREIGN_OBJECT in text, "the operator knows its policy's refusals by these words"


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
