"""`llmservice plan --cluster`: which of the cluster's products a service gets, and on which nodes there is room."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_cli.errors import BadInput, CliError
from llmservice_cli.plan.cluster import with_record
from llmservice_cli.plan.questions import Question
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_planner.plan import Request

from tests.unit.api_server import ApiServer
from tests.unit.cli.nodes_world import L4, L40S, T4, node, pod, put, quota
from tests.unit.cli_world import LLAMA_8B, SERVICES, Command, Json, Ran, manifest

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


class World:
    """A cluster, and the command in it."""

    def __init__(self, api: ApiServer, llmservice: Command) -> None:
        self.api, self.llmservice = api, llmservice

    def has(self, *objects: Json) -> None:
        put(self.api, *objects)

    async def plan(self, *words: str, **spec: Any) -> Ran:
        file = self.llmservice.manifest(manifest("chat", **{"batching": {"maxModelLen": 8192}, **spec}))
        return await self.llmservice.within("plan", "-f", file, "--cluster", "-n", "team", *words)

    async def planned(self, *words: str, **spec: Any) -> Json:
        found: Json = (await self.plan("-o", "json", *words, **spec)).json
        return found


@pytest.fixture
def world(api_server: ApiServer, llmservice: Command) -> World:
    return World(api_server, llmservice)


def rooms(found: Json) -> dict[str, tuple[int, int, str | None]]:
    """Free accelerators, replicas and why not, by node."""
    return {each["name"]: (each["free"], each["replicas"], each["reason"]) for each in found["cluster"]["nodes"]}


async def test_the_smallest_product_that_fits_is_taken_and_every_node_has_its_room(world: World) -> None:
    world.has(node("a", T4, 4), node("b", L4, 4), node("c", L4, 2), node("d", L40S, 8), pod("busy", "b", 3))
    found = await world.planned()
    cluster = found["cluster"]
    assert (found["verdict"], found["gpu"], found["product"]) == ("Fits", L4, L4)
    assert (cluster["fitsNow"], cluster["product"], cluster["replicas"]) == (True, L4, 3 + 8)
    rest = {"b": (1, 1, None), "c": (2, 2, None)}
    assert rooms(found) == rest | {"a": (4, 0, f"it does not fit on {T4}"), "d": (8, 8, None)}
    named = await world.planned(accelerator={"products": [L4]})
    assert named["cluster"]["replicas"] == 3
    assert rooms(named) == rest | {
        "a": (4, 0, f"its GPU is {T4}, not {L4}"),
        "d": (8, 0, f"its GPU is {L40S}, not {L4}"),
    }


async def test_a_node_without_a_label_has_room_unless_a_product_is_named(world: World) -> None:
    world.has(node("x", None), node("good", L4))
    assert rooms(await world.planned())["x"] == (4, 4, None)
    assert rooms(await world.planned("--gpu", "L4"))["x"][1] == 0


async def test_a_full_cluster_is_a_warning_that_says_who_holds_the_gpus_and_with_strict_a_no(world: World) -> None:
    world.has(node("b", L4, 2), pod("busy", "b", 2), pod("mine", "b", 0, "team"))
    ran = await world.plan()
    assert (ran.code, "warning: chat: the cluster has no room for it now" in ran.err) == (0, True)
    assert "room for no replicas (NVIDIA-L4 is preferred)" in " ".join(ran.out.split())
    assert "A pod asks for 1 nvidia.com/gpu; free are 0 NVIDIA-L4" in " ".join(ran.out.split())
    assert "busy" not in ran.out, "what runs in other namespaces is not named"
    assert "node b: 0 of 2 NVIDIA-L4 free, no room: 0 of 2 nvidia.com/gpu free, 1 needed" in " ".join(ran.out.split())
    assert (await world.plan("--strict")).code == 1


ARM = node("x", L4)
ARM["metadata"]["labels"]["kubernetes.io/arch"] = "arm64"
NODES: dict[str, tuple[Json, Json, str]] = {
    "a taint": (node("x", L4, 4, TAINT), {}, "the taint team=a:NoSchedule is not tolerated"),
    "a selector": (node("x", L4), {"nodeSelector": {"pool": "b"}}, "its labels do not match"),
    "too few CPUs": (node("x", L4, cpu="1"), {}, "cpu free"),
    "an architecture": (ARM, {}, "arm64, which the images are not built for"),
    "a product nobody knows": (node("x", "My-GPU"), {}, "My-GPU is not in the catalogue and no label says its memory"),
    "no label": (node("x", None), {}, "is not in the catalogue"),
}


@pytest.mark.parametrize(("there", "pod_spec", "why"), NODES.values(), ids=NODES.keys())
async def test_a_node_without_room_says_why(there: Json, pod_spec: Json, why: str, world: World) -> None:
    world.has(there, node("good", L4))
    found = await world.planned("--gpu", "L4", podTemplate={"spec": pod_spec})
    _, replicas, reason = rooms(found)["x"]
    assert (replicas, why in (reason or "")) == (0, True), reason


ROOMY: dict[str, tuple[Json, Mapping[str, Any]]] = {
    "the taint of GPU nodes": (node("x", L4, 4, GPU_TAINT), {}),
    "a taint that is tolerated": (
        node("x", L4, 4, TAINT),
        {"podTemplate": {"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}}},
    ),
    "a selector": (node("x", L4, pool="b"), {"podTemplate": {"spec": {"nodeSelector": {"pool": "b"}}}}),
    "the second product": (node("x", L40S), {"accelerator": {"products": [L4, L40S]}}),
}


@pytest.mark.parametrize(("there", "spec"), ROOMY.values(), ids=ROOMY.keys())
async def test_products_selectors_and_tolerations_are_those_of_the_spec(
    there: Json, spec: Mapping[str, Any], world: World
) -> None:
    world.has(there)
    assert (await world.planned(**spec))["cluster"]["replicas"] == 4


async def test_slices_are_found_by_their_own_product(world: World) -> None:
    """Beside the label of the whole card."""
    slices, product = "nvidia.com/mig-3g.40gb", "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"
    there = node("x", "NVIDIA-H100-80GB-HBM3", 0)
    there["metadata"]["labels"] |= {f"{slices}.product": product, f"{slices}.memory": "40448"}
    there["status"]["allocatable"][slices] = "4"
    other = node("y", "NVIDIA-H100-80GB-HBM3", 0)
    other["metadata"]["labels"] |= {f"{slices}.product": f"{product}.me"}
    other["status"]["allocatable"][slices] = "4"
    world.has(there, other)
    found = await world.planned(accelerator={"products": [product], "resourceName": slices})
    assert (found["cluster"]["replicas"], rooms(found)["x"]) == (4, (4, 4, None))
    assert rooms(found)["y"] == (4, 0, f"its GPU is {product}.me, not {product}")
    assert {each["product"] for each in found["cluster"]["nodes"]} == {product, f"{product}.me"}


async def test_slices_are_found_by_the_label_of_their_card(world: World) -> None:
    slices, card = "nvidia.com/mig-3g.40gb", "NVIDIA-H100-80GB-HBM3"
    there = node("x", card, 0)
    there["metadata"]["labels"] |= {f"{slices}.product": f"{card}-MIG-3g.40gb", f"{slices}.memory": "40448"}
    there["status"]["allocatable"][slices] = "4"
    world.has(there)
    found = await world.planned(accelerator={"products": [card], "resourceName": slices})
    assert found["memoryGiB"] == 39.25
    assert (found["cluster"]["replicas"], rooms(found)["x"]) == (4, (4, 4, None))


RACK = "example.com/rack"
OVER_NODES: dict[str, tuple[list[Json], str | None, int, str]] = {
    "each node has room for one pod of each": (
        [node("a", L4, 4), node("b", L4, 4)],
        None,
        2,
        "room for 2 replicas over",
    ),
    "one node has room for more pods": (
        [node("a", L4, 8), node("b", L4, 2)],
        None,
        1,
        "room for 1 replica over 2 nodes",
    ),
    "three nodes share them": ([node("a", L4, 4), node("b", L4, 2), node("c", L4, 2)], None, 2, "room for 2 replicas"),
    "one node only": ([node("a", L4, 8)], None, 0, "A replica needs room on 2 nodes at once."),
    "in one rack": (
        [node("a", L4, 2, **{RACK: "r1"}), node("b", L4, 2, **{RACK: "r1"}), node("c", L4, 2, **{RACK: "r2"})],
        RACK,
        1,
        f"{RACK} r1: room for 1, on a, b {RACK} r2: room for no replica, on c",
    ),
    "each in another rack": (
        [node("a", L4, 2, **{RACK: "r1"}), node("b", L4, 2, **{RACK: "r2"}), node("c", L4, 2)],
        RACK,
        0,
        f"A replica needs room on 2 nodes with the same {RACK} at once.",
    ),
}


@pytest.mark.parametrize(("there", "key", "replicas", "said"), OVER_NODES.values(), ids=OVER_NODES.keys())
async def test_a_replica_over_two_nodes_needs_room_on_both(
    there: list[Json], key: str | None, replicas: int, said: str, world: World
) -> None:
    world.has(*there)
    within = {} if key is None else {"topologyKey": key}
    parallelism = {"nodes": 2, "tensorParallelSize": 2, "pipelineParallelSize": 2, **within}
    found = await world.planned(parallelism=parallelism)
    assert found["cluster"]["replicas"] == replicas
    assert said in " ".join((await world.plan(parallelism=parallelism)).out.split())


@pytest.mark.parametrize(("policy", "nodes"), [("Warn", 2), ("Ignore", 1)])
async def test_auto_is_the_number_of_nodes_that_the_operator_would_take(policy: str, nodes: int, world: World) -> None:
    """A T4 has no bfloat16: not on the one node that has enough GPUs."""
    world.has(node("a", T4, 2), node("b", L4, 1), node("c", L4, 1))
    parallelism = {"nodes": "auto", "tensorParallelSize": 2}
    spec = {"parallelism": parallelism, "precision": {"dtype": "bfloat16"}, "fitPolicy": policy}
    found = await world.planned(**spec)
    assert ("over 2 nodes" in (await world.plan(**spec)).out) is (nodes == 2)
    assert found["cluster"]["replicas"] == 1


async def test_a_quota_counts_all_pods_of_a_replica(world: World) -> None:
    world.has(node("a", L4, 8), node("b", L4, 8), quota(**{"requests.nvidia.com/gpu": "9"}))
    found = await world.planned(parallelism={"nodes": 2, "tensorParallelSize": 2, "pipelineParallelSize": 2})
    assert found["cluster"]["replicas"] == 2


async def test_the_gpus_of_one_replica_must_be_on_one_node(world: World) -> None:
    world.has(node("a", L4, 4), node("b", L4, 4), pod("one", "a", 1), pod("two", "b", 3))
    found = await world.planned(parallelism={"tensorParallelSize": 2})
    assert {name: room[:2] for name, room in rooms(found).items()} == {"a": (3, 1), "b": (1, 0)}


async def test_a_share_of_a_card_is_no_room_where_another_pod_may_hold_its_memory(world: World) -> None:
    labels: Any = {"nvidia.com__gpu.replicas": "4", "nvidia.com__gpu.sharing-strategy": "time-slicing"}
    world.has(node("a", f"{L4}-SHARED", **labels), node("b", f"{L4}-SHARED", **labels), pod("one", "b", 1))
    found = await world.planned()
    assert {name: room[:2] for name, room in rooms(found).items()} == {"a": (4, 1), "b": (3, 0)}
    assert "may hold the memory of the GPUs" in str(rooms(found)["b"][2])
    assert "counts on all of its memory" in found["reason"]


async def test_a_quota_of_the_namespace_ends_it_before_the_nodes_do(world: World) -> None:
    world.has(node("a", L4, 8), quota(**{"requests.nvidia.com/gpu": "2"}))
    found = await world.planned()
    assert found["cluster"]["quota"] == {"name": "team", "key": "requests.nvidia.com/gpu", "replicas": 2}
    assert found["cluster"]["replicas"] == 2
    assert "the ResourceQuota team admits 2" in (await world.plan()).out


async def test_a_cluster_without_gpus_says_so(world: World) -> None:
    world.has(node("a", None, 0))
    ran = await world.plan()
    assert ran.code == 3
    assert "no node has nvidia.com/gpu" in ran.err


async def test_options_alone_are_planned_for_the_cluster_too(world: World) -> None:
    world.has(node("a", T4, 4), node("b", L40S, 4))
    words = ("plan", "--config", world.llmservice.config(), "--max-model-len", "8K", "--cluster", "-o", "json")
    found = (await world.llmservice.within(*words)).json
    assert (found["gpu"], found["cluster"]["replicas"]) == (L40S, 4)
    two = (await world.llmservice.within(*words, "-tp", "2")).json
    assert (two["gpu"], two["cluster"]["replicas"]) == (T4, 2 + 2)
    named = (await world.llmservice.within(*words, "--gpu", "L4")).json
    assert (named["verdict"], named["gpu"], named["cluster"]["replicas"]) == ("Fits", L4, 0)
    assert "No node has NVIDIA-L4 now." in named["reason"]


async def test_a_grid_has_the_clusters_products(world: World) -> None:
    world.has(node("a", T4, 4), node("b", L40S, 4))
    found = await world.planned("--compare")
    assert {cell["product"] for cell in found["cells"]} == {T4, L40S}
    del world.api.objects["/api/v1/nodes/a"]
    found = await world.planned("--compare")
    assert {cell["product"] for cell in found["cells"]} == {L40S}
    world.has(node("a", T4, 4))
    found = await world.planned("--compare", accelerator={"products": [L4]})
    assert [*dict.fromkeys(cell["product"] for cell in found["cells"])] == [L4, T4, L40S]


async def test_a_grid_without_any_gpu_is_refused(world: World) -> None:
    world.has(node("a", None, 0))
    ran = world.plan("--compare")
    with pytest.raises(CliError, match="no node that the pods may go to has a GPU that is known"):
        await ran


async def test_on_cpus_nodes_are_counted_by_cpus_and_memory(world: World) -> None:
    world.has(node("a", None, 0, cpu="2"), node("b", None, 0, cpu="2"))
    found = await world.planned(accelerator={"type": "cpu"}, runtime={"resources": {"requests": {"cpu": "2"}}})
    assert (found["product"], found["cluster"]["resource"], found["cluster"]["replicas"]) == (None, None, 2)


async def test_on_cpus_options_alone_have_the_room_of_a_manifest_with_them(world: World) -> None:
    """Pods ask for the memory of the KV cache that --gpu-memory-gib names."""
    world.has(node("a", None, 0))
    cpus = ("--gpu", "cpu", "--gpu-memory-gib", "64", "--config", world.llmservice.config(), "--max-model-len", "8K")
    alone = (await world.llmservice.within("plan", "--cluster", "-o", "json", *cpus)).json["cluster"]
    beside = (await world.planned(*cpus))["cluster"]
    assert (alone["replicas"], rooms({"cluster": alone})) == (beside["replicas"], rooms({"cluster": beside}))
    assert 1 <= alone["replicas"] < 512 // 64


@pytest.mark.parametrize("words", [("--cluster",), ("--context", "one"), ("--compare", "--cluster")], ids=" ".join)
async def test_without_the_right_to_list_nodes_the_right_is_named(words: tuple[str, ...], world: World) -> None:
    world.api.refused["nodes"] = 403
    file = world.llmservice.manifest(manifest())
    with pytest.raises(CliError, match="you have no right to list nodes") as raised:
        await world.llmservice.within("plan", "-f", file, *words)
    assert (raised.value.exit_code, "ClusterRole" in raised.value.remedy) == (2, True)


async def test_without_the_right_to_list_pods_the_product_is_known_and_the_room_is_not(world: World) -> None:
    world.has(node("a", L4, 4))
    world.api.answers["/api/v1/pods"] = 403
    found = await world.planned()
    assert (found["verdict"], found["cluster"]["replicas"], found["cluster"]["fitsNow"]) == ("Fits", None, None)
    assert found["cluster"]["reason"] == "you have no right to list pods in all namespaces"


async def test_names_that_a_cluster_has_are_shown_without_control_characters(world: World) -> None:
    world.has(node("a\x1b[2J", "L4\x1b]0;x"))
    ran = await world.plan("--gpu", "L4")
    assert "\x1b" not in ran.out + ran.err
    assert "\\u001b" not in json.dumps((await world.planned("--gpu", "L4"))["cluster"])


ON_A_CLAIM = {"model": {"uri": "pvc://models/llama"}, "batching": {"maxModelLen": 8192}}
INSPECTION = inspection_key(LLMServiceSpec.model_validate(ON_A_CLAIM))
RECORDS: dict[str, tuple[object, str]] = {
    "of this model": ({"inspection": INSPECTION, "config": json.dumps(LLAMA_8B)}, "Fits"),
    "of another model": ({"inspection": "x", "config": json.dumps(LLAMA_8B)}, "Unknown"),
    "no JSON": ({"inspection": INSPECTION, "config": "{"}, "Unknown"),
    "no configuration": ({"inspection": INSPECTION, "config": "[]"}, "Unknown"),
    "tensors that are none": (
        {"inspection": INSPECTION, "config": json.dumps(LLAMA_8B), "tensors": {"bytes": "many"}},
        "Fits",
    ),
    "nothing": (None, "Unknown"),
}


@pytest.mark.parametrize(("record", "verdict"), RECORDS.values(), ids=RECORDS.keys())
async def test_a_model_on_a_claim_is_known_from_the_status_of_the_service(
    record: object, verdict: str, world: World
) -> None:
    world.has(node("a", L4))
    made = manifest("chat") | {"spec": ON_A_CLAIM}
    world.api.objects[f"{SERVICES}/chat"] = made | {"status": {"model": record}}
    file = world.llmservice.manifest(made)
    found = (await world.llmservice.within("plan", "-f", file, "--cluster", "-o", "json")).json
    assert found["verdict"] == verdict, found["reason"]
    assert ("the model's facts are from status.model" in " ".join(found["notes"])) == (verdict == "Fits")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LLAMA_8B, "bytes"]), inner),
    max_leaves=20,
)


@given(st.one_of(JSON, st.just(dict(LLAMA_8B)), st.dictionaries(st.sampled_from([*LLAMA_8B]), JSON)), JSON)
def test_whatever_a_status_says_of_the_model_is_read_or_left_out(config: object, tensors: object) -> None:
    metadata = {"name": "chat", "namespace": "team"}
    service = LLMService.from_object({"metadata": metadata, "spec": ON_A_CLAIM})
    asked = Question(Request(architecture=None, device=None), service)
    for text in (json.dumps(config), config):
        record = {"inspection": INSPECTION, "config": text, "tensors": tensors}
        try:
            found = with_record(asked, record)
        except BadInput:
            continue
        assert found is asked or found.request.architecture is not None


def test_a_kubeconfig_that_is_not_there_is_not_a_no(llmservice: Command) -> None:
    ran = llmservice("plan", "--parameters", "7B", "--kubeconfig", str(llmservice.folder / "none"))
    assert (ran.code, ran.out, "there is no such file" in ran.err) == (2, "", True), ran.err


async def test_a_document_begins_with_its_version(world: World) -> None:
    world.has(node("a"))
    assert list(await world.planned())[:3] == ["version", "service", "namespace"]


def test_a_namespace_without_a_cluster_is_refused(llmservice: Command) -> None:
    ran = llmservice("plan", "--parameters", "7B", "-n", "team")
    assert (ran.code, "-n: it has no effect" in ran.err) == (2, True)
