"""What counts as a difference between a manifest and the live object that the API server made of it."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.observe.projections.children import DeploymentFacts
from llmservice_operator.observe.projections.drift import difference
from llmservice_operator.observe.projections.foreign_fields import removal_patch, restoring_patch

from tests.unit.decide_world import World, an_llmservice

Json = dict[str, Any]
METADATA: Json = {"name": "x", "namespace": "n", "uid": "u", "labels": {"a": "b"}}


def first(wanted: Json, live: Json) -> str | None:
    facts = DeploymentFacts.from_object({"metadata": METADATA | {"labels": {"a": "b", "theirs": "c"}}, "spec": live})
    return difference({"metadata": METADATA, "spec": wanted}, facts)


SAME = [
    pytest.param({"a": 1}, {"a": 1, "defaulted": True}, id="a default"),
    pytest.param({"hostNetwork": False, "value": "", "list": []}, {}, id="empty values are dropped"),
    pytest.param({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, id="quantity"),
    pytest.param({"emptyDir": {"sizeLimit": "2048Mi"}}, {"emptyDir": {"sizeLimit": "2Gi"}}, id="quantity leaf"),
    pytest.param(
        {"env": [{"name": "B"}, {"name": "A"}]},
        {"env": [{"name": "A"}, {"name": "X"}, {"name": "B", "extra": 1}]},
        id="merged list in another order",
    ),
]


@pytest.mark.parametrize(("wanted", "live"), SAME)
def test_no_difference(wanted: Json, live: Json) -> None:
    assert first(wanted, live) is None


OTHER = [
    pytest.param({"a": 1}, {"a": 2}, "spec.a", id="value"),
    pytest.param({"a": {"b": 1}}, {}, "spec.a", id="missing"),
    pytest.param({"selector": {"s": "x"}}, {"selector": {"s": "x", "t": "y"}}, "spec.selector", id="atomic map"),
    pytest.param({"nodeSelector": {"s": "x"}}, {"nodeSelector": {"s": "x", "t": "y"}}, "spec.nodeSelector", id="nodes"),
    pytest.param({"args": ["a"]}, {"args": ["a", "b"]}, "spec.args", id="atomic list"),
    pytest.param({"args": ["a", "b"]}, {"args": ["b", "a"]}, "spec.args[0]", id="order of an atomic list"),
    pytest.param({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, "spec.limits.cpu", id="quantity"),
    pytest.param({"limits": {"cpu": "1"}}, {}, "spec.limits", id="quantities gone"),
    pytest.param({"env": [{"name": "A"}]}, {"env": [{"name": "B"}]}, "spec.env[A]", id="item"),
]


@pytest.mark.parametrize(("wanted", "live", "path"), OTHER)
def test_the_first_difference(wanted: Json, live: Json, path: str | None) -> None:
    assert first(wanted, live) == path


def test_later_items_of_one_list_are_removed_first() -> None:
    """The other way round the second removal would hit the item behind the meant one."""
    names = ["OURS", "ONE", "TWO"]
    spec = {"template": {"spec": {"env": [{"name": name} for name in names]}}}
    added: Json = {f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}} for name in names[1:]}
    ours: Json = {"f:env": {'k:{"name":"OURS"}': {".": {}, "f:name": {}}}}

    def entry(manager: str, operation: str, fields: Json) -> Json:
        return {
            "manager": manager,
            "operation": operation,
            "fieldsV1": {"f:spec": {"f:template": {"f:spec": fields}}},
        }

    managers = [entry("llmservice-operator", "Apply", ours), entry("kubectl", "Update", {"f:env": added})]
    operations = removal_patch({"metadata": {"managedFields": managers}, "spec": spec})
    removed = [operation["path"] for operation in operations if operation["op"] == "remove"]
    assert removed == ["/spec/template/spec/env/2", "/spec/template/spec/env/1"]


BESIDE = [
    pytest.param(
        {"f:minAvailable": {}},
        {"f:selector": {}},
        {"minAvailable": 0, "selector": {}},
        {"maxUnavailable": 1, "selector": {}},
        [
            {"op": "add", "path": "/spec/maxUnavailable", "value": 1},
            {"op": "remove", "path": "/spec/minAvailable"},
        ],
        id="a budget the other way round",
    ),
    pytest.param(
        {"f:strategy": {"f:type": {}, "f:rollingUpdate": {".": {}, "f:maxSurge": {}}}},
        {"f:replicas": {}},
        {"replicas": 2, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
        {"replicas": 2, "strategy": {"type": "Recreate"}},
        [{"op": "add", "path": "/spec/strategy", "value": {"type": "Recreate"}}],
        id="another strategy",
    ),
    pytest.param(
        {"f:template": {"f:spec": {"f:hostNetwork": {}}}},
        {"f:template": {"f:spec": {"f:volumes": {}}}},
        {"template": {"spec": {"hostNetwork": True}}},
        {"template": {"spec": {}}},
        [],
        id="the template stays",
    ),
    pytest.param({}, {"f:replicas": {}}, {"replicas": 1}, {"replicas": 2}, [], id="nothing of others"),
]


@pytest.mark.parametrize(("theirs", "ours", "live", "wanted", "operations"), BESIDE)
def test_what_may_not_stand_beside_ours_is_replaced_by_it(
    theirs: Json, ours: Json, live: Json, wanted: Json, operations: list[Json]
) -> None:
    managers = [
        {"manager": "llmservice-operator", "operation": "Apply", "fieldsV1": {"f:spec": ours}},
        {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": theirs}},
    ]
    assert restoring_patch({"metadata": {"managedFields": managers}, "spec": live}, wanted) == operations


def test_the_volume_and_the_class_that_kubernetes_gives_a_claim_are_nobodys_additions() -> None:
    """A claim's spec cannot be changed: the API server would refuse their removal in each pass."""
    world = World(an_llmservice({"model": {"uri": "hf://a/b", "cache": {"size": "1Gi"}}, "fitPolicy": "Ignore"}))
    world.settle()
    claim = world.children["PersistentVolumeClaim", "x-cache"]
    claim["spec"] |= {"volumeName": "pvc-1", "storageClassName": "standard"}
    spec: Json = {"f:volumeName": {}, "f:storageClassName": {}, "f:volumeAttributesClassName": {}}
    claim["metadata"]["managedFields"].append(
        {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:spec": spec}}
    )
    assert world.decide().apply == ()
    assert removal_patch(claim) == []
