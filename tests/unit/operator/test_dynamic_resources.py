"""GPUs by claims of devices, in place of an extended resource."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.manifests.pod_template import effective, gpus, pod_template
from llmservice_operator.manifests.settings import Settings
from llmservice_planner.devices import ClusterDevices, DeviceGroup, DeviceModel

from tests.unit.decide_world import SETTINGS, World, a_world, an_llmservice, spec

Json = dict[str, Any]
CLAIMED: Json = {
    "memory": "80Gi",
    "resourceClaims": [
        {"name": "gpus", "resourceClaimTemplateName": "two-gpus"},
        {"name": "nic", "resourceClaimTemplateName": "rdma", "request": "port"},
    ],
}
CLAIM: Json = {"claim": {"deviceClass": "gpu.nvidia.com"}}
MODEL: Json = {"uri": "hf://Qwen/Qwen2.5-7B-Instruct"}
MIB = 2**20
SMALL = DeviceModel(15360 * MIB, "Tesla T4", "gpu", capability=(7, 5))
LARGE = DeviceModel(81559 * MIB, "NVIDIA H100 80GB HBM3", "gpu", capability=(9, 0))
HIDDEN = frozenset({"ResourceClaimTemplate"})


def test_claims_are_the_pods_and_the_server_asks_for_no_extended_resource() -> None:
    service = World(an_llmservice(spec(accelerator=CLAIMED, parallelism={"tensorParallelSize": 2}))).service()
    template = pod_template(service, SETTINGS)
    assert template["spec"]["resourceClaims"] == [
        {"name": "gpus", "resourceClaimTemplateName": "two-gpus"},
        {"name": "nic", "resourceClaimTemplateName": "rdma"},
    ]
    (server,) = template["spec"]["containers"]
    assert server["resources"]["claims"] == [{"name": "gpus"}, {"name": "nic", "request": "port"}]
    assert not [name for name in server["resources"].get("limits", {}) if "/" in name]
    assert "affinity" not in template["spec"], "nodes need no labels"
    assert template["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert effective(service, template)["accelerator"] == {"type": "nvidia", "count": 2, "gpuMemoryUtilization": 0.92}
    assert gpus(service) == 2


def test_the_plan_takes_the_stated_memory_and_otherwise_asks_for_it() -> None:
    world = a_world(accelerator=CLAIMED)
    world.settle()
    assert world.condition("Fits") == ("True", "Fits")
    assert world.plan["gpu"] == "a GPU of 80 GiB"
    world = a_world(accelerator={"resourceClaims": CLAIMED["resourceClaims"]})
    world.settle()
    assert world.condition("Fits")[0] == "Unknown"
    assert "spec.accelerator.memory" in world.message("Fits")
    assert "products" not in world.message("Fits"), "which are refused beside claims"
    assert "Deployment" in world.kinds()
    world = a_world(accelerator=CLAIMED | {"memory": "12Gi"})
    world.settle()
    assert world.condition("Ready") == ("False", "DoesNotFit")
    assert world.kinds() == set()


def test_without_the_api_or_the_right_no_pod_is_made_and_the_remedy_is_named() -> None:
    world = a_world(accelerator=CLAIMED)
    world.hidden = HIDDEN
    world.settle()
    assert world.condition("Ready") == ("False", "AdmissionRefused")
    assert "dynamicResources.enabled" in world.message("Ready")
    assert "Kubernetes 1.34" in world.message("Ready")
    assert world.kinds() == set()
    world.hidden = frozenset()
    world.serve()
    assert world.condition("Ready")[0] == "True"


def test_an_edit_to_claims_waits_for_them_and_what_serves_goes_on() -> None:
    world = a_world(accelerator={"memory": "80Gi"})
    world.serve()
    world.hidden, before = HIDDEN, dict(world.children)
    world.edit(accelerator=CLAIMED)
    world.settle()
    assert world.children == before
    assert world.condition("Ready")[1] == "AdmissionRefused"
    assert world.condition("Available")[0] == "True"


def test_a_service_without_claims_misses_nothing() -> None:
    world = a_world(accelerator={"memory": "80Gi"})
    world.hidden = HIDDEN
    world.serve()
    assert world.condition("Ready")[0] == "True"


def test_claims_are_off_unless_they_are_on() -> None:
    found = [Settings.from_mapping(given).has_dynamic_resources for given in ({}, {"hasDynamicResources": True})]
    assert found == [False, True]


def claiming(*models: DeviceModel, per_node: int = 8, **sections: Any) -> World:
    """A 7B model that claims devices of those that there are."""
    world = a_world(**{"accelerator": CLAIM} | sections)
    world.devices = ClusterDevices(tuple(DeviceGroup(model, per_node) for model in models))
    world.settle()
    return world


def templates(world: World) -> dict[str, Json]:
    return {name: child for (kind, name), child in world.children.items() if kind == "ResourceClaimTemplate"}


def claimed(world: World) -> str:
    """The template that new pods claim by."""
    (claim,) = world.deployment["spec"]["template"]["spec"]["resourceClaims"]
    assert claim["name"] == "gpus"
    return str(claim["resourceClaimTemplateName"])


def request(world: World) -> Json:
    (found,) = templates(world)[claimed(world)]["spec"]["spec"]["devices"]["requests"]
    return dict(found["exactly"])


def memory_gib(world: World) -> int:
    (selector,) = request(world)["selectors"]
    return int(selector["cel"]["expression"].partition("quantity('")[2].partition("Gi')")[0])


def test_the_operators_own_claim_asks_for_the_memory_that_the_plan_needs_and_for_no_name() -> None:
    world = claiming(SMALL, LARGE)
    assert world.condition("Fits") == ("True", "Fits")
    assert (world.plan["gpu"], "products" in world.message("Fits")) == ("NVIDIA-H100-80GB-HBM3", False)
    asked = request(world)
    gib = memory_gib(world)
    assert 15 < gib < 30, "16-bit weights of 7.6B parameters, and a cache"
    assert asked == {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [
            {
                "cel": {
                    "expression": "'memory' in device.capacity['gpu.nvidia.com'] && "
                    f"device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('{gib}Gi')) >= 0"
                }
            }
        ],
    }
    assert f"at least {gib} GiB" in world.message("Fits")
    (server,) = world.template["spec"]["containers"]
    assert server["resources"]["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in server["resources"].get("limits", {})


@pytest.mark.parametrize("more", [0, 1])
def test_the_memory_is_the_least_with_which_the_plan_fits(more: int) -> None:
    gib = memory_gib(claiming(LARGE))
    other = DeviceModel((gib - more) * 1024 * MIB, "Some GPU", "gpu", capability=(8, 0))
    assert claiming(other).plan["verdict"] == ("Tight" if more else "Fits")


def test_a_plan_that_needs_more_than_any_device_says_so_before_a_pod_exists() -> None:
    world = claiming(SMALL)
    assert world.condition("Ready") == world.condition("Fits") == ("False", "DoesNotFit")
    assert "the largest of class gpu.nvidia.com has 15.0 GiB" in world.message("Fits")
    assert world.kinds() == set()
    assert world.decide().requeue_after == 60, "no event comes with a new device"
    world.devices = ClusterDevices((DeviceGroup(LARGE, 8),))
    world.settle()
    assert world.condition("Fits")[0] == "True"


def test_devices_that_are_not_known_are_claimed_by_what_is_needed() -> None:
    world = claiming()
    assert world.condition("Fits")[0] == "Unknown"
    assert "no ResourceSlice has a device of class gpu.nvidia.com" in world.message("Fits")
    assert memory_gib(world) == memory_gib(claiming(LARGE))
    world = a_world(accelerator=CLAIM)
    world.devices = ClusterDevices(unread="the operator has no right to list resourceslices.resource.k8s.io")
    world.settle()
    assert "has no right to list resourceslices" in world.message("Fits")
    assert "Deployment" in world.kinds()


@pytest.mark.parametrize("devices", [(LARGE,), ()], ids=["published", "stated"])
def test_a_planned_length_is_claimed_for(devices: tuple[DeviceModel, ...]) -> None:
    """Else a smaller device would get the length of the planned one."""
    long = {"maxPositionEmbeddings": 2**20}
    stated = CLAIM | {"memory": "79Gi"}
    world = claiming(
        *devices, accelerator=stated, batching={"maxModelLen": "auto"}, model=MODEL | {"architecture": long}
    )
    assert world.plan["maxModelLen"] > 200_000
    assert memory_gib(world) > 70


def test_what_is_not_planned_claims_any_device_of_the_class() -> None:
    world = claiming(LARGE, fitPolicy="Ignore")
    assert "selectors" not in request(world)


def test_count_attribute_and_driver_are_the_specs() -> None:
    asked = {"deviceClass": "big", "driver": "gpu.example.com", "count": 4, "matchAttribute": "a.example.com/rack"}
    world = claiming(LARGE, accelerator={"claim": asked}, parallelism={"tensorParallelSize": 2})
    devices = templates(world)[claimed(world)]["spec"]["spec"]["devices"]
    assert devices["constraints"] == [{"requests": ["gpus"], "matchAttribute": "a.example.com/rack"}]
    assert (request(world)["deviceClassName"], request(world)["count"]) == ("big", 4)
    assert "device.capacity['gpu.example.com']" in request(world)["selectors"][0]["cel"]["expression"]
    world = claiming(accelerator=CLAIM | {"type": "amd"}, runtime={"image": "vllm/vllm-openai-rocm:v0.32.0"})
    assert "device.capacity['gpu.amd.com']" in request(world)["selectors"][0]["cel"]["expression"]


def test_a_node_with_too_few_devices_is_named() -> None:
    world = claiming(LARGE, per_node=1, parallelism={"tensorParallelSize": 2})
    assert world.condition("Fits")[0] == "Unknown"
    assert "needs 2 devices of class gpu.nvidia.com, and the largest node has 1" in world.message("Fits")


def test_a_product_with_the_memory_on_which_the_model_does_not_run_is_left_out() -> None:
    volta = DeviceModel(32768 * MIB, "Tesla V100-SXM2-32GB", "gpu", capability=(7, 0))
    world = claiming(volta, LARGE, precision={"dtype": "bfloat16"})
    (selector,) = request(world)["selectors"]
    assert "productName in ['Tesla V100-SXM2-32GB'])" in selector["cel"]["expression"]
    assert world.plan["gpu"] == "NVIDIA-H100-80GB-HBM3"


def test_each_revision_has_a_template_of_its_own_until_none_that_is_kept_needs_it() -> None:
    world = claiming(LARGE)
    world.roll_out()
    world.settle()
    made = {claimed(world)}
    for count in range(2, 9):
        world.edit(accelerator={"claim": CLAIM["claim"] | {"count": count}})
        world.settle()
        world.roll_out()
        world.settle()
        made.add(claimed(world))
        assert claimed(world) in templates(world)
    assert len(made) == 8
    kept = {
        each["resourceClaimTemplateName"]
        for (kind, _), child in world.children.items()
        if kind == "ControllerRevision"
        for each in child["data"]["template"]["spec"]["resourceClaims"]
    }
    assert set(templates(world)) == kept < made


def test_a_steady_service_keeps_its_claim_whatever_devices_come() -> None:
    world = claiming(LARGE)
    world.serve()
    before = dict(world.children)
    world.devices = ClusterDevices((DeviceGroup(SMALL, 8), DeviceGroup(replace(LARGE, memory_bytes=2**37), 8)))
    assert world.decide().is_steady
    world.edit(drain={"timeoutSeconds": 5})
    world.settle()
    assert {name for name in world.children if name[0] == "ResourceClaimTemplate"} <= before.keys()


def test_a_claim_is_made_again_while_an_edit_is_held() -> None:
    world = claiming(LARGE)
    world.serve()
    name = claimed(world)
    world.edit(batching={"maxModelLen": 32768, "maxNumSeqs": 8}, parallelism={"tensorParallelSize": 3})
    world.settle()
    assert world.condition("Ready")[1] == "DoesNotFit"
    del world.children["ResourceClaimTemplate", name]
    world.settle()
    assert name in templates(world)


def test_claims_of_nobody_are_gone_with_the_field() -> None:
    world = claiming(LARGE)
    world.serve()
    world.edit(accelerator={"memory": "80Gi"})
    world.settle()
    assert templates(world), "the record of its revision may be returned to"
    assert "resourceClaims" not in world.template["spec"]
