"""What vLLM refuses on a GPU whatever its memory: by the GPU's age, and by how the checkpoint is quantized."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_cli.plan.compare import compare
from llmservice_cli.plan.questions import Question
from llmservice_operator.api.service import LLMService
from llmservice_operator.decide.fit import planning
from llmservice_operator.planner import memory
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup
from llmservice_operator.planner.model import config_json, reading
from llmservice_operator.planner.plan import Device, Fit, Request
from llmservice_operator.planner.requests import request_of
from llmservice_operator.planner.served import unserved

from tests.unit.decide_world import SETTINGS, an_llmservice
from tests.unit.planner_models import CONFIGS, gpu

Json = dict[str, Any]

SMALL: Json = CONFIGS["qwen2.5-0.5b"]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def _int4(packing: str, group_size: int) -> Json:
    weights = {"num_bits": 4, "strategy": "group", "group_size": group_size}
    return {"quant_method": "compressed-tensors", "format": packing, "config_groups": {"a": {"weights": weights}}}


INT4, CT_MXFP4 = _int4("pack-quantized", 128), _int4("mxfp4-pack-quantized", 32)
P100, V100, T4, L4 = "Tesla-P100-PCIE-16GB", "Tesla-V100-SXM2-32GB", "Tesla-T4", "NVIDIA-L4"
A100, H100, MI300 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "AMD_Instinct_MI300X_OAM"


def asked(product: str, quantization: Json | None, **more: Any) -> Request:
    config = SMALL if quantization is None else SMALL | {"quantization_config": quantization}
    return Request(config_json.read(config), device(product), max_model_len=2048, **more)


def device(product: str) -> Device:
    return Device("cpu", 4, is_cpu=True) if product == "cpu" else gpu(product)


CHECKPOINTS: dict[str, tuple[str, Json | None, str]] = {
    # GPU, quantization, and why it is refused
    "a P100": (P100, None, "compute capability 7.5"),
    "a V100": (V100, None, "compute capability 7.5"),
    "mxfp4 on a T4": (T4, MXFP4, "mxfp4 needs compute capability 8.0"),
    "mxfp4 of another maker on a T4": (T4, CT_MXFP4, "needs compute capability 8.0"),
    "fp8 on a V100": (V100, FP8, "compute capability"),
    "NVFP4 on a CPU": ("cpu", NVFP4, "NVFP4"),
    "AWQ on a T4": (T4, AWQ, ""),
    "GPTQ on a T4": (T4, GPTQ, ""),
    "fp8 on a T4, weights only": (T4, FP8, ""),
    "mxfp4 on an A100": (A100, MXFP4, ""),
    "NVFP4 on a T4, by Marlin": (T4, NVFP4, ""),
    "int4 of compressed-tensors on a T4": (T4, INT4, ""),
    "fp8 on AMD": (MI300, FP8, ""),
    "a plain model on a CPU": ("cpu", None, ""),
}


@pytest.mark.parametrize(("product", "quantization", "why"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_what_is_served(product: str, quantization: Json | None, why: str) -> None:
    plan = memory.plan(asked(product, quantization))
    assert plan.verdict is (Fit.DOES_NOT_FIT if why else Fit.FITS), plan.reason
    assert why in plan.reason
    assert plan.reason.startswith(product)
    assert (plan.margin_gib is None) == bool(why)


def test_an_old_gpu_is_refused_without_a_known_model() -> None:
    plan = memory.plan(Request(None, device(P100)))
    assert plan.verdict is Fit.DOES_NOT_FIT


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_compute_type_that_the_checkpoints_method_does_not_take(dtype: str) -> None:
    plan = memory.plan(asked(A100, MXFP4, dtype=dtype))
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert "dtype" in plan.reason


def picked(quantization: Json, *products: str) -> Any:
    """As the operator chooses among a cluster's nodes."""
    llm = LLMService.from_object(an_llmservice({"model": {"uri": "hf://a/b"}, "batching": {"maxModelLen": 2048}}))
    document = json.dumps(SMALL | {"quantization_config": quantization})
    nodes = ClusterGPUs(tuple(NodeGroup(product, 8) for product in products))
    return planning.picked(llm, planning.question(llm, SETTINGS, reading.read(document), None), nodes)


def test_the_operator_passes_a_gpu_over_that_cannot_compute_with_it() -> None:
    assert picked(MXFP4, T4, L4).product == L4
    choice = picked(MXFP4, T4)
    assert choice.plan.verdict is Fit.DOES_NOT_FIT
    assert "It would fit on NVIDIA-L4" in choice.plan.reason


def test_the_grid_marks_what_is_not_served() -> None:
    question = Question(asked(H100, MXFP4), (device(T4), device(H100)))
    grid = compare(question)
    refused = {cell.device.name for cell in grid.cells if cell.refused is not None}
    assert T4 in refused
    assert H100 not in refused


def test_an_image_of_the_users_may_be_built_for_older_gpus() -> None:
    assert unserved(asked(V100, None, own_image=True)) is None
    assert "fp8" in (unserved(asked(V100, FP8, own_image=True)) or ""), "what a method needs, it needs in any image"
    llm = an_llmservice({"model": {"uri": "hf://a/b"}, "runtime": {"image": "own/vllm:v0.32.0"}})
    known: dict[str, Any] = {"architecture": None, "tensors": None, "device": None}
    assert request_of(LLMService.from_object(llm).spec, **known, vllm_version="0.32.0", cpu_kv_cache_gib=1).own_image
