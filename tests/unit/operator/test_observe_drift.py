"""Differences between a manifest and the live object that the API server stores for it."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.facts.drift import difference, removal_patch, restoring_patch
from llmservice_operator.workload.deployment import DeploymentFacts

from tests.unit.decide_world import World, an_llmservice

Json = dict[str, Any]
METADATA: Json = {"name": "x", "namespace": "n", "uid": "u", "labels": {"a": "b"}}


def first(desired: Json, live: Json) -> str | None:
    facts = DeploymentFacts.from_object({"metadata": METADATA | {"labels": {"a": "b", "theirs": "c"}}, "spec": live})
    return difference({"metadata": METADATA, "spec": desired}, facts.live(), facts.content)


CASES: dict[str, tuple[Json, Json, str | None]] = {
    "a default": ({"a": 1}, {"a": 1, "defaulted": True}, None),
    "empty values are dropped": ({"hostNetwork": False, "value": "", "list": []}, {}, None),
    "an equal quantity": ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, None),
    "an equal quantity in a leaf": ({"emptyDir": {"sizeLimit": "2048Mi"}}, {"emptyDir": {"sizeLimit": "2Gi"}}, None),
    "a merged list in another order": (
        {"env": [{"name": "B"}, {"name": "A"}]},
        {"env": [{"name": "A"}, {"name": "X"}, {"name": "B", "extra": 1}]},
        None,
    ),
    "value": ({"a": 1}, {"a": 2}, "spec.a"),
    "missing": ({"a": {"b": 1}}, {}, "spec.a"),
    "atomic map": ({"selector": {"s": "x"}}, {"selector": {"s": "x", "t": "y"}}, "spec.selector"),
    "nodes": ({"nodeSelector": {"s": "x"}}, {"nodeSelector": {"s": "x", "t": "y"}}, "spec.nodeSelector"),
    "atomic list": ({"args": ["a"]}, {"args": ["a", "b"]}, "spec.args"),
    "order of an atomic list": ({"args": ["a", "b"]}, {"args": ["b", "a"]}, "spec.args[0]"),
    "quantity": ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, "spec.limits.cpu"),
    "quantities gone": ({"limits": {"cpu": "1"}}, {}, "spec.limits"),
    "item": ({"env": [{"name": "A"}]}, {"env": [{"name": "B"}]}, "spec.env[A]"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_difference(case: str) -> None:
    desired, live, path = CASES[case]
    assert first(desired, live) == path


def live_with(theirs: Json, ours: Json, spec: Json) -> Json:
    """A live object with fields of kubectl's and of ours."""
    entries = (("llmservice-operator", "Apply", ours), ("kubectl", "Update", theirs))
    managers = [
        {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": fields}}
        for manager, operation, fields in entries
    ]
    return {"metadata": {"managedFields": managers}, "spec": spec}


def test_later_items_of_one_list_are_removed_first() -> None:
    """Else the second removal would hit the item after the one that is meant."""
    items: Json = {name: {f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}}} for name in ("OURS", "ONE", "TWO")}

    def env(fields: Json) -> Json:
        return {"f:template": {"f:spec": {"f:env": fields}}}

    spec = {"template": {"spec": {"env": [{"name": name} for name in items]}}}
    operations = removal_patch(live_with(env(items["ONE"] | items["TWO"]), env(items["OURS"]), spec))
    removed = [operation["path"] for operation in operations if operation["op"] == "remove"]
    assert removed == ["/spec/template/spec/env/2", "/spec/template/spec/env/1"]


STRATEGY: Json = {"f:strategy": {"f:type": {}, "f:rollingUpdate": {".": {}, "f:maxSurge": {}}}}
RESTORED: dict[str, tuple[Json, Json, Json, Json, list[tuple[str, str]]]] = {
    "a budget by the other field": (
        {"f:minAvailable": {}},
        {"f:selector": {}},
        {"minAvailable": 0, "selector": {}},
        {"maxUnavailable": 1, "selector": {}},
        [("add", "maxUnavailable"), ("remove", "minAvailable")],
    ),
    "another strategy": (
        STRATEGY,
        {"f:replicas": {}},
        {"replicas": 2, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
        {"replicas": 2, "strategy": {"type": "Recreate"}},
        [("add", "strategy")],
    ),
    "the template stays": (
        {"f:template": {"f:spec": {"f:hostNetwork": {}}}},
        {"f:template": {"f:spec": {"f:volumes": {}}}},
        {"template": {"spec": {"hostNetwork": True}}},
        {"template": {"spec": {}}},
        [],
    ),
    "nothing of others": ({}, {"f:replicas": {}}, {"replicas": 1}, {"replicas": 2}, []),
}


@pytest.mark.parametrize("case", RESTORED)
def test_a_field_that_excludes_ours_is_replaced_by_it(case: str) -> None:
    theirs, ours, live, desired, operations = RESTORED[case]
    found = restoring_patch(live_with(theirs, ours, live), desired)
    assert [(each["op"], each["path"].removeprefix("/spec/")) for each in found] == operations
    assert all(each["value"] == desired[each["path"][6:]] for each in found if each["op"] == "add")


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
