"""Devices of ResourceSlices: what is read of what a driver writes, and what of it a claim may get."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from llmservice_api.errors import UnreadableObject
from llmservice_operator.readers.nodes import device_slice
from llmservice_planner.devices import ClusterDevices, DeviceGroup, DeviceModel, DeviceSlice
from llmservice_planner.room import NodeRoom

from tests.unit.hostile import json_value, seeds

Json = dict[str, Any]
DRIVER = "gpu.nvidia.com"
H100 = DeviceModel(81559 * 2**20, "NVIDIA H100 80GB HBM3", "gpu", capability=(9, 0))
SLICE = DeviceModel(40320 * 2**20, "NVIDIA H100 80GB HBM3", "mig", "3g.40gb", (9, 0))


def device(model: DeviceModel = H100, name: str = "gpu-0", **more: Any) -> Json:
    texts = {"productName": model.product, "type": model.kind, "profile": model.profile}
    attributes: Json = {name: {"string": text} for name, text in texts.items() if text}
    attributes |= {"cudaComputeCapability": {"version": "9.0.0"}, "uuid": {"string": "GPU-1"}, "index": {"int": 0}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "81559Mi"}}, **more}


def a_slice(*devices: Json, node: str | None = "n", generation: int = 1, pool: str = "n") -> Json:
    spec: Json = {"driver": DRIVER, "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1}}
    spec |= {"devices": list(devices)} | ({"nodeName": node} if node else {"allNodes": True})
    return {"metadata": {"name": "s"}, "spec": spec}


def models(*devices: Json) -> dict[DeviceModel, int]:
    found = device_slice(a_slice(*devices))
    assert found is not None
    return dict(found.models)


def test_equal_devices_are_counted_by_what_their_driver_publishes() -> None:
    qualified = device()
    qualified["capacity"] = {f"{DRIVER}/memory": {"value": "81559Mi"}}
    assert models(device(), qualified, device(name="gpu-2")) == {H100: 3}
    assert models() == {}
    assert device_slice(a_slice(device(), node=None)) is None, "of no node"


def test_names_of_amds_driver_are_read_too() -> None:
    """Its class selects partitions beside whole GPUs."""

    def amd(name: str, kind: str, gib: int, profile: str) -> Json:
        texts = {"type": kind, "productName": "AMD_Instinct_MI300X_OAM", "partitionProfile": profile}
        attributes = {key: {"string": text} for key, text in texts.items()}
        return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": str(gib * 2**30)}}}

    published = a_slice(
        amd("gpu-0-128", "amdgpu", 192, "spx_nps1"),
        amd("gpu-1-129", "amdgpu-partition", 24, "cpx_nps4"),
        amd("gpu-2-130", "vfio", 192, ""),
    )
    published["spec"]["driver"] = "gpu.amd.com"
    found = device_slice(published)
    assert found is not None
    there = ClusterDevices.of([found], [NodeRoom("n", None, {}, {})], "gpu.amd.com", "gpu.amd.com")
    devices = [group.model.device(is_amd=True) for group in there.groups]
    assert [(each.name, round(each.memory_gib), each.is_amd) for each in devices] == [
        ("AMD_Instinct_MI300X_OAM", 191, True),
        ("AMD_Instinct_MI300X_OAM", 23, True),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"capacity": {}},
        {"capacity": {"memory": {"value": "many"}}},
        {"capacity": {"memory": {"value": "-1Gi"}}},
        {"capacity": {"memory": {"value": "9" * 60}}},
        {"capacity": {"memory": "80Gi"}},
        {"capacity": {"memory": {"value": "0"}}},
        {"taints": [{"key": "sick", "effect": "NoExecute"}]},
        {"attributes": {"type": {"string": "vfio"}}},
    ],
    ids=str,
)
def test_a_device_of_another_shape_is_left_out(odd: Json) -> None:
    assert models(device() | odd, device()) == {H100: 1}


def test_what_a_driver_does_not_publish_is_not_known() -> None:
    assert models(device(attributes=None)) == {DeviceModel(H100.memory_bytes): 1}
    odd = {
        "productName": {"string": "x" * 65},
        "type": {"string": "\x1b[2J"},
        "cudaComputeCapability": {"version": "9"},
    }
    assert models(device(attributes=odd)) == {DeviceModel(H100.memory_bytes): 1}


def test_a_known_product_is_planned_with_what_its_driver_reports() -> None:
    found = H100.device(is_amd=False)
    assert (found.name, found.memory_gib, found.capability) == ("NVIDIA-H100-80GB-HBM3", 79.11, (9, 0))
    assert SLICE.device(is_amd=False).name == "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"
    unknown = DeviceModel(64 * 2**30, "Some GPU", capability=(9, 5)).device(is_amd=True)
    assert unknown.memory_gib == pytest.approx(63.28)
    assert (unknown.capability, unknown.is_amd) == ((9, 5), True)


def seen(*slices: Json, device_class: str = DRIVER, nodes: tuple[NodeRoom, ...] = (NodeRoom("n"),)) -> ClusterDevices:
    read = [found for each in slices if (found := device_slice(each)) is not None]
    return ClusterDevices.of(read, nodes, DRIVER, device_class)


def test_devices_are_of_nodes_that_take_pods() -> None:
    tainted = NodeRoom("n", taints=(("a", "", "NoSchedule"),), labels={"kubernetes.io/arch": "arm64"})
    assert seen(a_slice(device())).groups == (DeviceGroup(H100, 1),)
    assert seen(a_slice(device()), nodes=(tainted,)).groups == (DeviceGroup(H100, 1, tainted.taints, "arm64"),)
    assert seen(a_slice(device()), nodes=()).groups == ()
    two = (a_slice(device(), pool="a"), a_slice(device(), pool="b"))
    assert seen(*two).groups == (DeviceGroup(H100, 2),)


def test_of_a_pool_that_changes_the_newest_generation_counts() -> None:
    assert seen(a_slice(device()), a_slice(device(), device(), generation=2)).groups == (DeviceGroup(H100, 2),)


@pytest.mark.parametrize(
    ("device_class", "counted"),
    [("gpu.nvidia.com", {H100}), ("mig.nvidia.com", {SLICE}), ("whatever", {H100, SLICE})],
)
def test_a_class_that_is_named_by_a_type_has_the_devices_of_it(device_class: str, counted: set[DeviceModel]) -> None:
    part = device(SLICE, capacity={"memory": {"value": "40320Mi"}})
    found = seen(a_slice(device(), part), device_class=device_class)
    assert {group.model for group in found.groups} == counted


WHOLE = a_slice(device(), device(SLICE), device(taints=[]))


def replaced(random: Random, value: Any) -> Any:
    """The same with anything in the place of one part."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.2:
        return json_value(
            random, leaves=["9" * 400, "\ud800", "1e400", float("nan"), 2**80, -1], names=["memory", "value"]
        )
    changed = copy.copy(value)
    key = random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
    changed[key] = replaced(random, value[key])
    return changed


@given(seeds)
def test_a_slice_of_anything_is_read_or_refused(seed: int) -> None:
    random = Random(seed)
    made = WHOLE
    for _ in range(random.randrange(1, 4)):
        made = replaced(random, made)
    try:
        found = device_slice(made)
    except UnreadableObject:
        return
    assert found is None or isinstance(found, DeviceSlice)
    if found is not None:
        for model, count in found.models:
            assert 0 < model.memory_bytes <= 2**50
            assert 0 < count <= 128
            assert model.device(is_amd=False).name.isprintable()
            f"{model.product}{model.kind}{model.profile}".encode()
