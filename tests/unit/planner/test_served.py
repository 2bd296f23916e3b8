"""What vLLM refuses on a GPU whatever its memory: by the GPU's age, and by how the checkpoint is quantized."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_cli.plan.compare import compare
from llmservice_cli.plan.questions import Question
from llmservice_operator.behaviours.fit import planning
from llmservice_planner import memory
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_planner.model import config_json, reading
from llmservice_planner.plan import Device, Fit, Request
from llmservice_planner.remedies import with_remedies
from llmservice_planner.requests import request_of
from llmservice_planner.served import device_refusal
from llmservice_planner.weights import weigh

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
    return planning.pick_device(llm, planning.planner_input(llm, SETTINGS, reading.read(document), None), nodes)


def test_the_operator_passes_a_gpu_over_that_cannot_compute_with_it() -> None:
    assert picked(MXFP4, T4, L4).product == L4
    choice = picked(MXFP4, T4)
    assert choice.plan.verdict is Fit.DOES_NOT_FIT
    assert "It would fit on NVIDIA-L4" in choice.plan.reason


def test_the_grid_marks_what_is_not_served() -> None:
    question = Question(asked(H100, MXFP4), LLMService.from_object(an_llmservice()), (device(T4), device(H100)))
    grid = compare(question)
    refused = {cell.device.name for cell in grid.cells if cell.refused is not None}
    assert T4 in refused
    assert H100 not in refused


def test_an_image_of_the_users_may_be_built_for_older_gpus() -> None:
    assert device_refusal(asked(V100, None, own_image=True)) is None
    assert "fp8" in (device_refusal(asked(V100, FP8, own_image=True)) or ""), (
        "what a method needs, it needs in any image"
    )
    llm = an_llmservice({"model": {"uri": "hf://a/b"}, "runtime": {"image": "own/vllm:v0.32.0"}})
    known: dict[str, Any] = {"architecture": None, "tensors": None, "device": None}
    assert request_of(LLMService.from_object(llm).spec, **known, vllm_version="0.32.0", cpu_kv_cache_gib=1).own_image


@pytest.mark.parametrize(
    ("version", "dtype", "stored", "is_refused"),
    [
        ("0.33.0", "float16", "bfloat16", True),
        ("0.33.0", "float32", "bfloat16", True),
        ("0.33.0", "bfloat16", "bfloat16", False),
        ("0.33.0", "auto", "bfloat16", False),  # the model's own type decides
        ("0.33.0", "float16", "fp8", False),
        ("0.32.0", "float16", "bfloat16", False),
    ],
)
def test_a_kv_cache_in_another_float_type(version: str, dtype: Any, stored: Any, is_refused: bool) -> None:
    request = Request(config_json.read(SMALL), device(H100), dtype=dtype, kv_cache_dtype=stored, vllm_version=version)
    assert ("spec.precision.kvCache to auto" in (device_refusal(request) or "")) == is_refused


def test_octave_is_for_heads_of_one_width() -> None:
    octave = Request(config_json.read(SMALL), device(MI300), kv_cache_dtype="octave_k3v4", vllm_version="0.33.0")
    assert "heads that are 256 wide, and the model's are 64" in (device_refusal(octave) or "")
    wide = config_json.read(SMALL | {"head_dim": 256})
    assert device_refusal(replace(octave, architecture=wide)) is None


@pytest.mark.parametrize(
    ("version", "model_class", "more", "is_refused"),
    [
        pytest.param("0.33.0", "GPT2LMHeadModel", {"lora": {}}, True, id="without LoRA"),
        pytest.param("0.32.0", "GPT2LMHeadModel", {"lora": {}}, True, id="without LoRA, once it is loaded"),
        pytest.param("0.28.0", "GPT2LMHeadModel", {"lora": {}}, True, id="in the oldest version"),
        pytest.param("0.33.0", "GPT2LMHeadModel", {}, False, id="no adapters"),
        pytest.param("0.33.0", "Qwen2ForCausalLM", {"lora": {}}, False, id="with LoRA"),
        pytest.param("0.32.0", "BertForSequenceClassification", {"lora": {}}, True, id="not yet"),
        pytest.param("0.33.0", "BertForSequenceClassification", {"lora": {}}, False, id="from 0.33 on"),
        pytest.param("0.33.0", "NobodysForCausalLM", {"lora": {}}, False, id="a class of nobody's"),
        pytest.param(
            "0.33.0", "GPT2LMHeadModel", {"lora": {}, "runtime": {"extraArgs": ["--model-impl=auto"]}}, False,
            id="another class is asked for",
        ),
    ],
)  # fmt: skip
def test_lora_of_a_class_without_it(version: str, model_class: str, more: Json, is_refused: bool) -> None:
    spec = LLMService.from_object(an_llmservice({"model": {"uri": "hf://a/b"}, **more})).spec
    model = replace(config_json.read(SMALL), name=model_class)
    known: dict[str, Any] = {"architecture": model, "tensors": None, "device": device(H100), "cpu_kv_cache_gib": 1}
    refused = device_refusal(request_of(spec, **known, vllm_version=version)) or ""
    assert (f"vLLM {version[:4]} has no LoRA for {model_class}. Remove spec.lora" in refused) == is_refused


# tensor parallelism against the groups and blocks of a quantization

QWEN2_72B: Json = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
}
MOE: Json = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 640,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}
SHARED: Json = MOE | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "shared_expert_intermediate_size": 640,
}
OCP_MX = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}
QWEN2_MOE = SHARED | {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
OVER_EIGHT = {"tensor_parallel_size": 8, "enable_expert_parallel": True}
OVER_FOUR = {"tensor_parallel_size": 4, "enable_expert_parallel": True}
TWO_ENGINES = OVER_FOUR | {"data_parallel_size": 2}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CT_BLOCKS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "block"}}},
}
OLD_GPTQ = GPTQ | {"desc_act": True}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
MXFP8 = {"quant_method": "modelopt", "quant_algo": "MXFP8"}
MIXED = GPTQ | {"dynamic": {"-:.*mlp.*": {}}}
SPLITS: dict[str, tuple[Json, Json, dict[str, Any], str]] = {
    # model, quantization, how it is split, and the numbers of the refusal
    "AWQ over two": (QWEN2_72B, AWQ, {"tensor_parallel_size": 2}, "29568 / 2 = 14784 is no multiple of 128"),
    "GPTQ over two": (QWEN2_72B, GPTQ, {"tensor_parallel_size": 2}, "29568 / 2 = 14784 is no multiple of 128"),
    "AutoRound over two": (QWEN2_72B, ROUND, {"tensor_parallel_size": 2}, "14784 is no multiple of 128"),
    "compressed-tensors over two": (QWEN2_72B, INT4, {"tensor_parallel_size": 2}, "14784 is no multiple of 128"),
    "blocks over two": (QWEN2_72B, BLOCKS, {"tensor_parallel_size": 2}, "14784 is no multiple of 128"),
    "AWQ on one": (QWEN2_72B, AWQ, {}, ""),
    "AWQ over stages": (QWEN2_72B, AWQ, {"pipeline_parallel_size": 2}, ""),
    "AWQ in groups of 64": (QWEN2_72B, AWQ | {"group_size": 64}, {"tensor_parallel_size": 2}, ""),
    "AWQ by channel": (QWEN2_72B, AWQ | {"group_size": -1}, {"tensor_parallel_size": 8}, ""),
    "fp8 by channel": (QWEN2_72B, FP8, {"tensor_parallel_size": 8}, ""),
    "only attention is quantized": (QWEN2_72B, MIXED, {"tensor_parallel_size": 8}, ""),
    "NVFP4 over eight": (QWEN2_72B, NVFP4, {"tensor_parallel_size": 8}, ""),
    "MXFP8 over eight": (QWEN2_72B, MXFP8, {"tensor_parallel_size": 8}, "29568 / 8 = 3696 is no multiple of 32"),
    "experts in blocks over eight": (MOE, BLOCKS, {"tensor_parallel_size": 8}, "640 / 8 = 80"),
    "experts in blocks over four, refined to 32": (MOE, BLOCKS, {"tensor_parallel_size": 4}, ""),
    "experts in blocks of compressed-tensors": (MOE, CT_BLOCKS, {"tensor_parallel_size": 4}, "640 / 4 = 160"),
    "whole experts": (MOE, BLOCKS, {"tensor_parallel_size": 8, "enable_expert_parallel": True}, ""),
    "experts of all engines": (MOE, BLOCKS, {"tensor_parallel_size": 4, "data_parallel_size": 2}, "640 / 8 = 80"),
    "experts of AWQ, in groups of half the size": (MOE, AWQ, {"tensor_parallel_size": 2}, ""),
    "experts of AWQ over eight": (MOE, AWQ, {"tensor_parallel_size": 8}, "640 / 8 = 80"),
    "experts of compressed-tensors": (MOE, INT4, {"tensor_parallel_size": 2}, "640 / 2 = 320"),
    "a shared expert in blocks": (SHARED, BLOCKS, OVER_FOUR, "640 / 4"),
    "a shared expert that is copied": (SHARED, OCP_MX, OVER_EIGHT, ""),
    "that of Qwen3.5": (SHARED | {"architectures": ["Qwen3_5MoeForConditionalGeneration"]}, OCP_MX, OVER_EIGHT, ""),
    "by the model's type alone": (SHARED | {"architectures": None}, OCP_MX, OVER_EIGHT, ""),
    "not without expert parallelism": (SHARED, OCP_MX, {"tensor_parallel_size": 8}, "640 / 8 = 80"),
    "nor in blocks": (SHARED, BLOCKS, OVER_EIGHT, "640 / 8 = 80"),
    "nor by other classes": (QWEN2_MOE, OCP_MX, OVER_EIGHT, "640 / 8 = 80"),
    "one that several engines copy": (SHARED, BLOCKS, TWO_ENGINES, ""),
    "one that they do not": (QWEN2_MOE, BLOCKS, TWO_ENGINES, "640 / 4 = 160"),
}


@pytest.mark.parametrize(("model", "quantization", "how", "why"), SPLITS.values(), ids=SPLITS)
def test_ranks_share_whole_groups_and_blocks(model: Json, quantization: Json, how: dict[str, Any], why: str) -> None:
    made = config_json.read(model | {"quantization_config": quantization})
    plan = memory.plan(Request(made, device(H100), max_model_len=2048, **how))
    assert (why in plan.reason) == bool(why) or not why
    assert (plan.verdict is Fit.DOES_NOT_FIT and plan.weights_gib is None) == bool(why), plan.reason


def test_the_refusal_of_a_split_says_what_divides() -> None:
    made = config_json.read(MOE | {"quantization_config": BLOCKS})
    request = Request(made, device(H100), max_model_len=2048, tensor_parallel_size=8)
    plan = with_remedies(request, memory.plan(request))
    assert "one of 1, 2, 4" in plan.reason
    assert "parallelism.expertParallel" in plan.reason
    patches = [dict(remedy.patch) for remedy in plan.remedies]
    assert {"parallelism.expertParallel": True} in patches
    assert {"parallelism.tensorParallelSize": 4, "parallelism.pipelineParallelSize": 2} in patches
    assert all(remedy.verdict is Fit.FITS for remedy in plan.remedies)


COPIES: dict[str, tuple[Json, Json | None, dict[str, Any], float]] = {
    # model, quantization, how it is split, and the bits of each weight of the shared expert that is copied
    "Quark's, which ranks cannot share in whole groups": (SHARED, OCP_MX, OVER_EIGHT, 4.25),
    "Quark's in whole groups": (SHARED, OCP_MX, OVER_FOUR, 0),
    "Quark's, by other classes": (QWEN2_MOE, OCP_MX, OVER_EIGHT, 0),
    "of several engines": (SHARED, OCP_MX, TWO_ENGINES, 4.25),
    "of several engines, in 16 bit": (SHARED, None, TWO_ENGINES, 16),
    "of several engines, by other classes": (QWEN2_MOE, None, TWO_ENGINES, 0),
}


@pytest.mark.parametrize(("model", "quantization", "how", "bits"), COPIES.values(), ids=COPIES)
def test_a_copied_shared_expert_is_weighed_whole(
    model: Json, quantization: Json | None, how: dict[str, Any], bits: float
) -> None:
    made = config_json.read(model if quantization is None else model | {"quantization_config": quantization})
    whole = Request(made, device(H100), **how)
    more = weigh(whole).per_gpu - weigh(replace(whole, enable_expert_parallel=False)).per_gpu
    shared, ranks = 48 * 3 * 2048 * 640, how["tensor_parallel_size"]
    assert more == pytest.approx(shared * bits / 8 * (ranks - 1) / ranks, abs=1)


OVER_EIGHT_GPUS: Json = {"batching": {"maxModelLen": 2048}, "parallelism": {"tensorParallelSize": 8}}
REFUSED: dict[str, tuple[Json, Json, str, Json | None]] = {
    # model, what the spec says, the GPU, and the first change
    "a split that cuts blocks": (
        MOE | {"quantization_config": BLOCKS},
        *(OVER_EIGHT_GPUS, H100, {"parallelism.expertParallel": True}),
    ),
    "a step that is smaller than a video": (
        CONFIGS["gemma-4-26b-a4b"],
        {"batching": {"maxModelLen": 32768, "maxNumBatchedTokens": 2048}},
        *(A100, {"batching.maxNumBatchedTokens": 2496}),
    ),
    "a method that vLLM does not have": (
        MOE | {"quantization_config": {"quant_method": "exl3"}},
        *(OVER_EIGHT_GPUS, H100, None),
    ),
    "a type that its method does not compute with": (
        SMALL | {"quantization_config": MXFP4},
        *({"precision": {"dtype": "float32"}}, A100, None),
    ),
    "a GPU that the compatibility matrix refuses too": (
        SMALL | {"quantization_config": MXFP4},
        *({"precision": {"quantization": "mxfp4"}}, T4, None),
    ),
}


@pytest.mark.parametrize(("model", "spec", "product", "patch"), REFUSED.values(), ids=REFUSED)
def test_the_status_has_the_changes_that_lift_a_refusal(
    model: Json, spec: Json, product: str, patch: Json | None
) -> None:
    spec = {"model": {"uri": "hf://a/b"}, "accelerator": {"products": [product]}} | spec
    llm = LLMService.from_object(an_llmservice(spec))
    asked_ = planning.planner_input(llm, SETTINGS, reading.read(json.dumps(model)), None)
    nodes = ClusterGPUs((NodeGroup(product, 8), NodeGroup("NVIDIA-H200", 8)))
    plan = planning.pick_device(llm, asked_, nodes).plan
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert [dict(remedy.patch) for remedy in plan.remedies][:1] == ([] if patch is None else [patch])
    assert "that was tried" not in plan.reason


def test_a_model_that_only_one_rank_can_hold_is_split_into_stages() -> None:
    made = config_json.read(QWEN2_72B | {"quantization_config": AWQ})
    request = Request(made, device(H100), max_model_len=2048, tensor_parallel_size=2)
    plan = with_remedies(request, memory.plan(request))
    assert dict(plan.remedies[0].patch) == {"parallelism.tensorParallelSize": 1, "parallelism.pipelineParallelSize": 2}


# methods that vLLM does not have

EXL3 = {"quant_method": "exl3", "version": "0.0.1", "bits": 4.0, "head_bits": 6}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
METHODS: dict[str, tuple[Json, dict[str, Any], Fit, str]] = {
    # quantization, what else the request says, the verdict, and its reason
    "exl3": (EXL3, {}, Fit.DOES_NOT_FIT, "vLLM 0.32 has no exl3"),
    "exl3 without its bits": ({"quant_method": "exl3"}, {}, Fit.DOES_NOT_FIT, "vLLM 0.32 has no exl3"),
    "exl3 on an older vLLM": (EXL3, {"vllm_version": "0.28.0"}, Fit.DOES_NOT_FIT, "vLLM 0.28 has no exl3"),
    "hqq": ({"quant_method": "hqq", "bits": 4}, {}, Fit.DOES_NOT_FIT, "vLLM 0.32 has no hqq"),
    "bitsandbytes": (BNB, {}, Fit.DOES_NOT_FIT, "vllm-bnb-plugin"),
    "bitsandbytes, in an image that may have it": (BNB, {"own_image": True}, Fit.UNKNOWN, "vllm-bnb-plugin"),
    "bitsandbytes on an older vLLM": (BNB, {"vllm_version": "0.28.0"}, Fit.DOES_NOT_FIT, "only by a plugin"),
    "bitsandbytes on a CPU": (BNB, {"on": "cpu"}, Fit.DOES_NOT_FIT, "vllm-bnb-plugin"),
    "exl3 in an own image": (EXL3, {"own_image": True}, Fit.UNKNOWN, "spec.runtime.image"),
    "gguf": ({"quant_method": "gguf", "bits": 4}, {}, Fit.DOES_NOT_FIT, "vllm-gguf-plugin"),
    "a deprecated method": (FBGEMM, {}, Fit.DOES_NOT_FIT, "--allow-deprecated-quantization"),
    "a deprecated method, allowed": (FBGEMM, {"allow_deprecated_quantization": True}, Fit.FITS, ""),
    "GPTQ in the order of activations": (OLD_GPTQ, {}, Fit.DOES_NOT_FIT, "desc_act"),
    "GPTQ in the order of activations, once": (OLD_GPTQ, {"vllm_version": "0.31.0"}, Fit.FITS, ""),
    "GPTQ by channel in that order": (OLD_GPTQ | {"group_size": -1}, {}, Fit.FITS, ""),
    "GPTQ that a rule puts into that order": (
        GPTQ | {"dynamic": {"+:.*mlp.*": {"desc_act": True}}},
        *({}, Fit.DOES_NOT_FIT, "desc_act"),
    ),
    "GPTQ of three bits": (GPTQ | {"bits": 3}, {}, Fit.DOES_NOT_FIT, "3 bits"),
    "asymmetric GPTQ": (GPTQ | {"sym": False}, {}, Fit.DOES_NOT_FIT, "sym: false"),
    "AWQ of eight bits": (AWQ | {"bits": 8}, {}, Fit.DOES_NOT_FIT, "8 bits"),
}


@pytest.mark.parametrize(("quantization", "more", "verdict", "why"), METHODS.values(), ids=METHODS)
def test_methods_that_this_vllm_has(quantization: Json, more: dict[str, Any], verdict: Fit, why: str) -> None:
    request = asked(more.get("on", H100), quantization, **{name: one for name, one in more.items() if name != "on"})
    plan = memory.plan(request)
    assert plan.verdict is verdict, plan.reason
    assert why in plan.reason
    if verdict is Fit.DOES_NOT_FIT:
        assert with_remedies(request, plan) == plan, "no GPU is large enough for it"
    if verdict is Fit.UNKNOWN:
        assert plan.missing == ("spec.runtime.image",)
        assert plan.weights_gib


def test_the_flag_for_deprecated_methods_counts() -> None:
    llm = an_llmservice({"model": {"uri": "hf://a/b"}, "runtime": {"extraArgs": ["--allow-deprecated-quantization"]}})
    known: dict[str, Any] = {"architecture": None, "tensors": None, "device": None}
    spec = LLMService.from_object(llm).spec
    assert request_of(spec, **known, vllm_version="0.32.0", cpu_kv_cache_gib=1).allow_deprecated_quantization
