"""What the plan says before a pod exists: what it stops, what it lets through, and that vLLM agrees with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.cache import cached_model
from tests.e2e.conftest import own_namespace
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.measured import Record
from tests.support.models import claim_folder, release_folder
from tests.support.operator import operator_metrics
from tests.support.services import idle, llmservice, stand_in
from tests.support.serving import Metrics
from tests.unit.planner_models import CONFIGS

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-fit"
LENGTH = 2**20
"""The model's own: 2 GiB of KV cache in float32, where a CPU engine has one."""
MODEL = "pvc://long/tiny"
PLANNED_WITHIN = 60.0
PRODUCT = "NVIDIA-H100-80GB-HBM3"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """With a claim of the tiny model, made to say that it takes a million tokens, and of Gemma 4's configuration."""
    folder = ClusterPaths.of_this_clone().models / "long"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(cached_model(print), folder / "tiny")
    config = folder / "tiny" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": LENGTH}))
    (folder / "gemma").mkdir()
    (folder / "gemma" / "config.json").write_text(json.dumps(CONFIGS["gemma-4-26b-a4b"]))
    with own_namespace(cluster, NAMESPACE):
        claim_folder(cluster, NAMESPACE, "long", folder)
        yield NAMESPACE
    release_folder(cluster, NAMESPACE, "long")


@pytest.fixture(scope="module")
def asker(cluster: Cluster, namespace: str) -> ClientPod:
    return ClientPod.start(cluster, namespace)


def planned(name: str, **batching: Any) -> JSON:
    """A service of that model; without a length in its spec it has the model's own."""
    return llmservice(name, model={"uri": MODEL}, batching={"maxModelLen": None, **batching})


def measured(cluster: Cluster, namespace: str, name: str) -> JSON:
    """What vLLM measured; until it is read, the status says why it is not there."""

    def figures() -> JSON | None:
        found: JSON = cluster.status(namespace, name).get("measured") or {}
        return found if "kvCacheTokens" in found else None

    return eventually("what vLLM measured", figures, 30)


def patch(cluster: Cluster, namespace: str, name: str, body: str) -> None:
    cluster.kubectl("patch", "llms", name, "-n", namespace, "--type", "merge", "-p", body)


def uids(cluster: Cluster, namespace: str, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in cluster.pods(namespace, name)}


def errors(cluster: Cluster, namespace: str, name: str) -> dict[str, float]:
    """llmservice_plan_error_ratio of a service, by quantity."""
    samples = Metrics(operator_metrics(cluster)).samples("llmservice_plan_error_ratio")
    mine = {"namespace": namespace, "service": name}.items()
    return {sample.labels["quantity"]: sample.value for sample in samples if mine <= sample.labels.items()}


def test_what_cannot_fit_makes_no_pod_and_a_proposed_change_makes_it_ready(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """With the stand-in; the next test has vLLM's own figures beside the planned ones."""
    too_long: JSON = {"model": {"uri": MODEL}, "batching": {"maxModelLen": None}}
    cluster.apply(stand_in("too-long", fitPolicy="Enforce", **too_long), namespace)
    fits = cluster.wait_condition(namespace, "too-long", "Fits", "False", reason="DoesNotFit", timeout=PLANNED_WITHIN)
    assert cluster.get("deployments", namespace, "too-long") is None
    assert cluster.pods(namespace, "too-long") == []
    cluster.wait_condition(namespace, "too-long", "Ready", "False", reason="DoesNotFit", timeout=0)
    assert "DoesNotFit" in cluster.kubectl("get", "llms", "too-long", "-n", namespace)
    described = cluster.kubectl("describe", "llms", "too-long", "-n", namespace)
    assert f"one request of {LENGTH} tokens needs 2.00 GiB" in described
    assert "What would fit: set spec.batching.maxModelLen to" in described
    reported = cluster.kubectl("get", "events", "-n", namespace, "--field-selector", "reason=DoesNotFit")
    assert "What would fit" in reported

    remedies = cluster.status(namespace, "too-long")["plan"]["remedies"]
    patch(cluster, namespace, "too-long", next(remedy["patch"] for remedy in remedies if "patch" in remedy))
    cluster.wait_condition(namespace, "too-long", "Fits", "True", timeout=PLANNED_WITHIN)
    cluster.wait_condition(namespace, "too-long", "Ready", "True")
    found = measured(cluster, namespace, "too-long")
    planned_tokens = cluster.status(namespace, "too-long")["plan"]["kvCacheTokens"]
    ratio = planned_tokens / found["kvCacheTokens"] - 1
    assert errors(cluster, namespace, "too-long")["kv_cache_tokens"] == pytest.approx(ratio, abs=0.01)
    record(message=fits["message"], planned=planned_tokens, measured=found["kvCacheTokens"])
    cluster.kubectl("delete", "llms", "too-long", "-n", namespace)
    eventually("the metric to go with the service", lambda: errors(cluster, namespace, "too-long") == {}, 30)


def test_a_refusal_that_is_not_about_memory_is_lifted_by_its_remedy(cluster: Cluster, namespace: str) -> None:
    """vLLM refuses a step that is smaller than one video of a model that takes it whole. No node has the GPU."""
    small_steps: JSON = {
        "model": {"uri": "pvc://long/gemma"},
        "accelerator": {"type": "nvidia", "products": ["NVIDIA-A100-SXM4-80GB"]},
        "precision": {"dtype": "bfloat16"},
        "batching": {"maxModelLen": 32768, "maxNumBatchedTokens": 2048},
    }
    cluster.apply(idle("small-steps", fitPolicy="Enforce", **small_steps), namespace)
    fits = cluster.wait_condition(
        namespace, "small-steps", "Fits", "False", reason="DoesNotFit", timeout=PLANNED_WITHIN
    )
    assert "fewer than the 2,496 of one video" in fits["message"]
    assert cluster.get("deployments", namespace, "small-steps") is None
    (remedy, *_) = cluster.status(namespace, "small-steps")["plan"]["remedies"]
    assert json.loads(remedy["patch"]) == {"spec": {"batching": {"maxNumBatchedTokens": 2496}}}

    patch(cluster, namespace, "small-steps", remedy["patch"])
    cluster.wait_condition(namespace, "small-steps", "Fits", "True", reason="Fits", timeout=PLANNED_WITHIN)
    eventually("a Deployment", lambda: cluster.get("deployments", namespace, "small-steps"), 30)


@pytest.mark.full
def test_auto_is_the_planned_length_and_an_edit_that_would_not_fit_leaves_what_serves_alone(
    cluster: Cluster, namespace: str, asker: ClientPod, record: Record
) -> None:
    cluster.apply(planned("auto", maxModelLen="auto"), namespace)
    cluster.wait_condition(namespace, "auto", "Ready", "True")
    found = measured(cluster, namespace, "auto")
    reported = cluster.status(namespace, "auto")
    length = reported["plan"]["maxModelLen"]
    deployment = cluster.must_get("deployments", namespace, "auto")
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    assert f"--max-model-len={length}" in server["args"] or str(length) in server["args"]
    assert reported["effective"]["batching"]["maxModelLen"] == length == found["maxModelLen"]
    assert reported["plan"]["kvCacheTokens"] == found["kvCacheTokens"]
    assert errors(cluster, namespace, "auto")["kv_cache_tokens"] == 0
    pods = uids(cluster, namespace, "auto")

    patch(cluster, namespace, "auto", json.dumps({"spec": {"batching": {"maxModelLen": LENGTH}}}))
    cluster.wait_condition(namespace, "auto", "Fits", "False", reason="DoesNotFit", timeout=PLANNED_WITHIN)
    cluster.must_have(namespace, "auto", Available="True", Ready="False", Stalled="True")
    after = cluster.must_get("deployments", namespace, "auto")
    assert after["metadata"]["generation"] == deployment["metadata"]["generation"]
    assert uids(cluster, namespace, "auto") == pods
    assert asker.chat("auto", "hello").status == 200

    # What is kept back can be had all the same, and ends as it was planned.
    patch(cluster, namespace, "auto", json.dumps({"spec": {"fitPolicy": "Warn", "rollout": {"strategy": "Recreate"}}}))
    cluster.wait_condition(namespace, "auto", "Ready", "False", reason="KVCacheTooSmall")
    cluster.wait_condition(namespace, "auto", "Fits", "False", reason="DoesNotFit", timeout=0)
    record(length=length, vllm=cluster.failure(namespace, "auto")["message"])
    cluster.kubectl("delete", "llms", "auto", "-n", namespace)


@contextmanager
def gpu_node(cluster: Cluster, name: str, product: str, mib: int, count: int, pool: str) -> Iterator[None]:
    """A Node that no kubelet stands behind, labelled as GPU feature discovery does, in a pool of the test's own."""
    labels = {
        "example.com/pool": pool,
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(node))
    amounts = {"nvidia.com/gpu": str(count)}
    body = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", body)
    try:
        yield
    finally:
        cluster.kubectl("delete", "node", name, "--ignore-not-found")


# Of Llama 3.1, whose facts the spec gives: no pod can look at a model on a node that no kubelet stands behind.
COMMON = {"numKeyValueHeads": 8, "vocabSize": 128256, "maxPositionEmbeddings": 8192}
LLAMA_8B = COMMON | {"numHiddenLayers": 32, "hiddenSize": 4096, "numAttentionHeads": 32, "intermediateSize": 14336}
LLAMA_70B = COMMON | {"numHiddenLayers": 80, "hiddenSize": 8192, "numAttentionHeads": 64, "intermediateSize": 28672}


def on_gpus(name: str, pool: str, facts: JSON, **spec: Any) -> JSON:
    """A service that asks for a GPU of a pool and makes no pod."""
    made = llmservice(
        name, model={"architecture": facts}, batching={"maxModelLen": None}, precision={"dtype": "float16"}
    )
    placed = {"podTemplate": {"spec": {"nodeSelector": {"example.com/pool": pool}}}}
    made["spec"] |= {"accelerator": {"type": "nvidia"}, "scaling": {"replicas": 0}, **placed, **spec}
    return made


def products(cluster: Cluster, namespace: str, name: str, kind: str = "preferred") -> list[str]:
    """What the pods' node affinity names: `preferred`, or `required` (In) and `excluded` (NotIn)."""
    template = cluster.must_get("deployments", namespace, name)["spec"]["template"]
    affinity = template["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    if kind == "preferred":
        terms = [t["preference"] for t in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
    operator = "NotIn" if kind == "excluded" else "In"
    parts = [part for term in terms for part in term["matchExpressions"] if part["operator"] == operator]
    return [value for part in parts for value in part["values"]]


def test_a_product_is_picked_among_nodes_and_stays_when_its_node_goes(cluster: Cluster, namespace: str) -> None:
    with gpu_node(cluster, "fake-gpu", PRODUCT, 81559, 4, "a"):
        cluster.apply(on_gpus("picked", "a", LLAMA_8B), namespace)
        cluster.wait_condition(namespace, "picked", "Fits", "True", reason="Fits", timeout=PLANNED_WITHIN)
        assert cluster.status(namespace, "picked")["plan"]["gpu"] == PRODUCT
        assert products(cluster, namespace, "picked") == [PRODUCT]
        before = cluster.must_get("deployments", namespace, "picked")
        cluster.apply(on_gpus("wide", "a", LLAMA_8B, parallelism={"tensorParallelSize": 8}), namespace)
        too_few = cluster.wait_condition(
            namespace, "wide", "Fits", "Unknown", reason="FactsMissing", timeout=PLANNED_WITHIN
        )
        assert "the largest node has 4" in too_few["message"]
        assert cluster.get("deployments", namespace, "wide") is not None, "an autoscaler may bring a larger one"
    # Something to look at again for: the template stays, with the node gone.
    patch(cluster, namespace, "picked", json.dumps({"spec": {"drain": {"timeoutSeconds": 7}}}))
    cluster.wait_condition(namespace, "picked", "Fits", "True", reason="Fits", timeout=PLANNED_WITHIN)
    after = cluster.must_get("deployments", namespace, "picked")
    assert after["spec"]["template"] == before["spec"]["template"]


def test_a_nickname_of_a_gpu_is_refused_with_its_label_and_a_label_of_ones_own_is_taken(
    cluster: Cluster, namespace: str
) -> None:
    wanted = on_gpus("nickname", "c", LLAMA_8B, accelerator={"type": "nvidia", "products": ["H100"]})
    with gpu_node(cluster, "labelled-gpu", PRODUCT, 81559, 1, "c"):
        cluster.apply(wanted, namespace)
        said = cluster.wait_condition(
            namespace, "nickname", "Fits", "False", reason="DoesNotFit", timeout=PLANNED_WITHIN
        )
        assert f"H100 is no value of the node label: write {PRODUCT}, which this cluster has" in said["message"]
        assert cluster.get("deployments", namespace, "nickname") is None
        (remedy, *_) = cluster.status(namespace, "nickname")["plan"]["remedies"]
        patch(cluster, namespace, "nickname", remedy["patch"])
        cluster.wait_condition(namespace, "nickname", "Fits", "True", reason="Fits", timeout=PLANNED_WITHIN)
        assert products(cluster, namespace, "nickname", "required") == [PRODUCT]
    with gpu_node(cluster, "hand-labelled-gpu", "H100", 81559, 1, "d"):
        own = on_gpus("own-label", "d", LLAMA_8B, accelerator={"type": "nvidia", "products": ["H100"]})
        cluster.apply(own, namespace)
        cluster.wait_condition(namespace, "own-label", "Fits", "True", reason="Fits", timeout=PLANNED_WITHIN)
        assert products(cluster, namespace, "own-label", "required") == ["H100"]


@pytest.mark.full
def test_a_node_that_comes_is_noticed(cluster: Cluster, namespace: str) -> None:
    large = on_gpus("large", "b", LLAMA_70B)
    with gpu_node(cluster, "small-gpu", "Tesla-T4", 15360, 1, "b"):
        cluster.apply(large, namespace)
        short = cluster.wait_condition(namespace, "large", "Fits", "False", reason="DoesNotFit", timeout=PLANNED_WITHIN)
        assert "Tesla-T4" in short["message"]
        with gpu_node(cluster, "large-gpu", "NVIDIA-B300-SXM6-AC", 275000, 8, "b"):
            cluster.wait_condition(namespace, "large", "Fits", "True", reason="Fits", timeout=90)
            assert products(cluster, namespace, "large") == ["NVIDIA-B300-SXM6-AC"]
            assert "Tesla-T4" in products(cluster, namespace, "large", "excluded")
