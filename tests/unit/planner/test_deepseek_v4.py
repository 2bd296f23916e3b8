"""DeepSeek V4: what its layers hold and store, what vLLM refuses, and a start-up that was measured on two H20.

The layout of its cache is held against vLLM's own classes in test_kv_cache_vllm.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_operator.behaviours.fit import planning
from llmservice_planner import memory
from llmservice_planner.batching import batching
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_planner.kv_cache import layout
from llmservice_planner.model import config_json, reading
from llmservice_planner.model.architecture import Incomplete, InvalidModel, Kind, Layer, UnsupportedModel
from llmservice_planner.overheads import load
from llmservice_planner.plan import GIB, Device, Draft, Fit, Request
from llmservice_planner.remedies import with_remedies
from llmservice_planner.requests import request_of
from llmservice_planner.splits import misfit, sizes
from llmservice_planner.weights import weigh

from tests.unit.decide_world import SETTINGS, an_llmservice
from tests.unit.planner_models import CONFIGS, gpu

FLASH = CONFIGS["deepseek-v4-flash"]
MODEL = config_json.read(FLASH)
RTX, MI300X = gpu("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"), gpu("AMD_Instinct_MI300X_OAM")
H20, B200, A100 = gpu("NVIDIA-H20"), gpu("NVIDIA-B200"), gpu("NVIDIA-A100-SXM4-80GB")
FLASHINFER = "FLASHINFER_MLA_SPARSE_DSV4"
MEASURED = Request(
    MODEL,
    H20,
    tensor_parallel_size=2,
    kv_cache_dtype="fp8",
    block_size=256,
    max_model_len=121_344,
    gpu_memory_utilization=0.95,
)
MTP = Draft("mtp", 1)
PREVIEW_RATIOS = (1, 1, *(4, 128) * 20, 4)
_WORDS = {1: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def without(*names: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in (FLASH | more).items() if name not in names}


FILES: dict[str, dict[str, Any]] = {
    "the publisher's": FLASH,
    "as the inspection shortens it": FLASH | {"compress_ratios": [[0, 2], *[[4, 1], [128, 1]] * 20, [4, 1], [0, 1]]},
    "saved by transformers": without(
        "compress_ratios",
        "num_hash_layers",
        "qk_rope_head_dim",
        layer_types=[_WORDS[ratio] for ratio in PREVIEW_RATIOS],
        compress_rates={_WORDS[4]: 4, _WORDS[128]: 128},
        mlp_layer_types=["hash_moe"] * 3 + ["moe"] * 40,
        partial_rotary_factor=0.125,
    ),
    "without what most files say": without("expert_dtype", "num_hash_layers"),
    "by its class alone": without("model_type"),
    "a type with an ending": FLASH | {"model_type": "deepseek_v4_text"},
    "a language model inside": {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "text_config": FLASH | {"model_type": "deepseek_v4_text"},
    },
}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_a_file(file: dict[str, Any]) -> None:
    made = config_json.read(file)
    assert tuple(layer.attention.compress_ratio for layer in made.layers) == PREVIEW_RATIOS
    assert {layer.attention.kind for layer in made.layers} == {Kind.COMPRESSED}
    assert made.counted_parameters == MODEL.counted_parameters
    assert (len(made.distinct_layers), made.max_position_embeddings, made.mtp_layers) == (3, 1_048_576, 1)
    assert weigh(Request(made, None)).total == weigh(Request(MODEL, None)).total


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a ratio that vLLM does not have": (FLASH | {"compress_ratios": [0, 16] * 22}, UnsupportedModel, "'16'"),
    "a word of later": (without("compress_ratios", layer_types=["warp"] * 43), UnsupportedModel, "'warp'"),
    "the one with pictures": (FLASH | {"vision_n_layers": 24}, UnsupportedModel, "vision_n_layers"),
    "no ratios": (without("compress_ratios"), Incomplete, "compress_ratios"),
    "too few": (FLASH | {"compress_ratios": [0, 4]}, InvalidModel, "2 elements"),
    "no widths of the output": (without("o_lora_rank"), Incomplete, "o_lora_rank"),
    "the next one": (FLASH | {"model_type": "deepseek_v41", "architectures": []}, UnsupportedModel, "deepseek_v41"),
}


@pytest.mark.parametrize(("file", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_not_read(file: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        config_json.read(file)


EXPERTS: dict[str, tuple[dict[str, Any], float]] = {
    # config.json, and GiB of all weights: 43 x 256 x 3 x 4,096 x 2,048 values are the experts'.
    "in 4 bits, with a scale for 32": (FLASH, 145.29),
    "in fp8": (FLASH | {"expert_dtype": "fp8"}, 266.29),
    "in NVIDIA's 4 bits, with a scale for 16": (
        FLASH | {"quantization_config": FLASH["quantization_config"] | {"moe_quant_algo": "NVFP4"}},
        153.35,
    ),
    "nothing is quantized": (without("quantization_config"), 529.68),
}


@pytest.mark.parametrize(("file", "gib"), EXPERTS.values(), ids=EXPERTS)
def test_experts_have_a_form_of_their_own(file: dict[str, Any], gib: float) -> None:
    made = config_json.read(file)
    tables = made.rotary_values * 4 / GIB
    assert weigh(Request(made, None)).total / GIB - tables == pytest.approx(gib, abs=0.01)


def test_experts_in_another_type_are_refused() -> None:
    plan = memory.plan(replace(MEASURED, architecture=config_json.read(FLASH | {"expert_dtype": "int3"})))
    assert (plan.verdict, "experts in int3" in plan.reason) == (Fit.DOES_NOT_FIT, True)


def test_the_arithmetic_names_each_form() -> None:
    lines = {line.name: line for line in reversed(memory.plan(MEASURED).explanation)}
    assert lines["rotary tables"].formula == "134,217,728 sines and cosines x 4 bytes"
    assert lines["weights"].formula.endswith(
        "; fp8, 8 bits, groups of 128, experts in mxfp4, 4 bits, groups of 32, the rest 2 bytes a value"
    )


def test_no_more_layers_than_there_are_pick_experts_by_the_token() -> None:
    every, more = (config_json.read(FLASH | {"num_hash_layers": layers}) for layers in (43, 100_000))
    assert weigh(Request(every, None)).total == weigh(Request(more, None)).total


def test_the_files_and_what_of_them_is_loaded() -> None:
    """148.66 GiB are published, with the layer for prediction, which is loaded only with speculation; the tables of
    sines and cosines are computed."""
    tables = 2 * 1_048_576 * 64 * 4 / GIB
    assert MODEL.rotary_values * 4 / GIB == tables == 0.5
    loaded = {draft: weigh(Request(MODEL, None, draft=draft)).total / GIB - tables for draft in (None, MTP)}
    assert loaded[MTP] == pytest.approx(148.66, rel=0.0005)
    assert loaded[MTP] - loaded[None] == pytest.approx(3.35, abs=0.01)


def test_the_cache_of_two_h20() -> None:
    """A block holds 256 tokens of 21 + 20 layers and of the index; 5 groups take blocks for one request."""
    made = layout(MEASURED)
    assert made.bytes_per_block == 21 * 37_440 + 21 * 8_640 + 20 * 1_728 == 1_002_240
    assert sorted(group.spec.block_size for group in made.groups) == [4, 8, 64, 64, 256]
    # 474 of 256 tokens; windows and compressors of 16,384 tokens in flight, two groups of windows among them.
    assert made.blocks_of(121_344) == 474 + 2 * 259 + 4_099 + 2_065
    assert made.needed(121_344) / GIB == pytest.approx(6.68, abs=0.01)
    assert (made.block_size, made.bytes_per_token) == (256, 3_915)
    assert layout(replace(MEASURED, draft=MTP)).bytes_per_block == 1_002_240


BACKENDS = {"vLLM's choice": ({}, None), "one that is named": ({"attention": {"backend": FLASHINFER}}, FLASHINFER)}


@pytest.mark.parametrize(("more", "backend"), BACKENDS.values(), ids=BACKENDS)
def test_the_question_of_a_spec(more: dict[str, Any], backend: str | None) -> None:
    spec = {
        "model": {"uri": "hf://deepseek-ai/DeepSeek-V4-Flash"},
        "accelerator": {"products": ["NVIDIA-H20"], "gpuMemoryUtilization": 0.95},
        "parallelism": {"tensorParallelSize": 2},
        "precision": {"kvCache": "fp8"},
        "batching": {"maxModelLen": 121_344, "blockSize": 256},
    }
    llm = LLMService.from_object(an_llmservice(spec | more))
    known: dict[str, Any] = {"architecture": MODEL, "tensors": None, "device": H20, "cpu_kv_cache_gib": 4}
    asked = request_of(llm.spec, vllm_version="0.32.0", **known)
    assert layout(asked) == layout(MEASURED)
    assert asked.attention_backend == backend
    assert memory.plan(replace(asked, attention_backend=None)).verdict is Fit.FITS


def test_one_start_up_that_was_measured() -> None:
    """7.71 GiB were left, with prediction; the planner's error covers the difference."""
    plan = memory.plan(replace(MEASURED, draft=MTP))
    assert plan.kv_cache_gib is not None
    assert plan.error_band_gib is not None
    assert plan.kv_cache_gib == pytest.approx(7.71, rel=0.1)
    assert abs(plan.kv_cache_gib - 7.71) < plan.error_band_gib
    assert plan.kv_cache_tokens == pytest.approx(150_992, rel=0.1)
    assert plan.verdict is not Fit.DOES_NOT_FIT


STORED: dict[str, tuple[dict[str, Any], int]] = {
    # What is asked for, and bytes of a block of the widest group.
    "auto": ({"kv_cache_dtype": "auto"}, 1_002_240),
    "FlashInfer where it packs": (
        {"device": RTX, "attention_backend": FLASHINFER},
        1_002_240,
    ),
    "plain rows in 16 bit": (
        {"kv_cache_dtype": "bfloat16", "attention_backend": FLASHINFER, "device": B200},
        21 * 65_536 + 21 * 8_704 + 20 * 2_048,
    ),
    "AMD": ({"device": MI300X}, 1_002_240),
    "no GPU known": ({"device": None}, 1_002_240),
}


@pytest.mark.parametrize(("how", "expected"), STORED.values(), ids=STORED)
def test_what_is_stored(how: dict[str, Any], expected: int) -> None:
    assert layout(replace(MEASURED, **how)).bytes_per_block == expected


EVEN = config_json.read(FLASH | {"num_hidden_layers": 42})
"""20 layers have an index."""
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    # What is asked for beside the measured start-up, and the refusal.
    "as measured": ({}, ""),
    "an A100": ({"device": A100, "tensor_parallel_size": 4}, "compute capability 9.0"),
    "an L40S": ({"device": gpu("NVIDIA-L40S"), "tensor_parallel_size": 8}, "the GPU has 8.9"),
    "an A100, with an image of one's own": (
        {"device": A100, "tensor_parallel_size": 4, "own_image": True},
        "",
    ),
    "a B200": ({"device": B200}, ""),
    "blocks of 128": ({"block_size": 128}, "blocks of 256 tokens only"),
    "blocks of vLLM's choice": ({"block_size": None}, ""),
    "a cache in 16 bit": ({"kv_cache_dtype": "bfloat16"}, "refuses bfloat16"),
    "a cache in 16 bit, by FlashInfer: 1,600,000 bytes are no whole rows": (
        {"kv_cache_dtype": "bfloat16", "attention_backend": FLASHINFER, "device": B200},
        "needs blocks of whole rows",
    ),
    "the same where the index has an even number of layers": (
        {"kv_cache_dtype": "bfloat16", "attention_backend": FLASHINFER, "device": B200, "architecture": EVEN},
        "",
    ),
    "in fp8, by FlashInfer": ({"attention_backend": FLASHINFER, "device": B200}, ""),
    "blocks of each pipeline stage must be whole rows": (
        {
            "kv_cache_dtype": "bfloat16",
            "attention_backend": FLASHINFER,
            "device": B200,
            "architecture": EVEN,
            "pipeline_parallel_size": 4,
        },
        "needs blocks of whole rows",
    ),
    "a backend that vLLM refuses for it": (
        {"attention_backend": "FLASHINFER_MLA_SPARSE", "device": B200},
        "refuses the attention backend FLASHINFER_MLA_SPARSE for",
    ),
    "the same for RTX": (
        {"attention_backend": "FLASHINFER_MLA_SPARSE_SM120", "device": RTX},
        "refuses the attention backend FLASHINFER_MLA_SPARSE_SM120 for",
    ),
    "the next model's": ({"attention_backend": "FLASHMLA_SPARSE_DSV41"}, ""),
    "one of its own": ({"attention_backend": "FLASHMLA_SPARSE"}, ""),
    "by its own name": ({"attention_backend": "FLASHMLA_SPARSE_DSV4"}, ""),
    "AMD's": ({"attention_backend": "ROCM_FLASHMLA_SPARSE_DSV4", "device": MI300X}, ""),
    "3 ranks": (
        {"tensor_parallel_size": 3},
        "cannot share 64 attention heads and 1 key/value heads evenly: use one of",
    ),
    "16 ranks": (
        {"tensor_parallel_size": 16},
        "16 tensor-parallel ranks cannot share 8 groups of the output projection (o_groups) evenly: use one of 1, 2,",
    ),
    "4 ranks, of 3 groups": (
        {"tensor_parallel_size": 4, "architecture": config_json.read(FLASH | {"o_groups": 3})},
        "cannot share 3 groups of the output projection (o_groups) evenly: use one of 1.",
    ),
}


@pytest.mark.parametrize(("how", "why"), ASKED.values(), ids=ASKED)
def test_what_vllm_refuses(how: dict[str, Any], why: str) -> None:
    plan = memory.plan(replace(MEASURED, **how))
    assert why in plan.reason
    assert (plan.margin_gib is None) == bool(why)


def test_ranks_hold_whole_groups_of_the_output() -> None:
    """64 heads could be shared by 16 ranks, 8 groups cannot."""
    assert sizes(MEASURED) == (1, 2, 4, 8)


WIDE = config_json.read(FLASH | {"num_attention_heads": 128, "o_groups": 16, "moe_intermediate_size": 3072})
"""24 blocks of a shared expert: 16 ranks get 2 each of 32."""
SHARED: dict[str, tuple[dict[str, Any], float, bool]] = {
    # What is asked for, values of a shared expert that a rank holds, and whether vLLM takes it.
    "whole blocks by themselves": ({"tensor_parallel_size": 8}, 384, True),
    "padded": ({"tensor_parallel_size": 16}, 256, True),
    "padded, and experts whole": ({"tensor_parallel_size": 16, "enable_expert_parallel": True}, 256, True),
    "AMD's class does not pad": ({"tensor_parallel_size": 16, "device": MI300X}, 192, False),
}


@pytest.mark.parametrize(("how", "values", "taken"), SHARED.values(), ids=SHARED)
def test_shared_experts_are_padded_to_whole_blocks(how: dict[str, Any], values: float, taken: bool) -> None:
    """vllm/models/deepseek_v4/nvidia/model.py, DeepseekV4MLP."""
    request = replace(MEASURED, architecture=WIDE, **how)
    assert (misfit(request) is None) == taken
    assert WIDE.mtp_layer is not None
    layers, predicting = tuple(map(without_shared, WIDE.layers)), without_shared(WIDE.mtp_layer)
    one = 3 * 4096 * values * (1 + 4 / 128**2)
    for draft, count in ((None, 43), (MTP, 44)):
        asked = replace(request, draft=draft)
        others = replace(asked, architecture=replace(WIDE, layers=layers, mtp_layer=predicting))
        assert weigh(asked).per_gpu - weigh(others).per_gpu == pytest.approx(count * one, rel=1e-4)


def without_shared(layer: Layer) -> Layer:
    return replace(layer, linears=tuple(one for one in layer.linears if "shared_experts" not in one.module))


def test_the_operator_passes_a_gpu_over_that_has_no_kernels_for_it() -> None:
    spec = {"model": {"uri": "hf://a/b"}, "parallelism": {"tensorParallelSize": 4}, "batching": {"maxModelLen": 65_536}}
    llm = LLMService.from_object(an_llmservice(spec))
    nodes = ClusterGPUs((NodeGroup("NVIDIA-A100-SXM4-80GB", 8), NodeGroup("NVIDIA-H100-80GB-HBM3", 8)))
    chosen = planning.pick_device(
        llm, planning.planner_input(llm, SETTINGS, reading.read(json.dumps(FLASH)), None), nodes
    )
    assert (chosen.product, chosen.plan.verdict) == ("NVIDIA-H100-80GB-HBM3", Fit.FITS)


def test_what_would_make_it_fit() -> None:
    """A long request on two H20: smaller steps, since windows and compressors cover the tokens in flight."""
    request = replace(MEASURED, max_model_len=1_048_576, draft=MTP)
    plan = with_remedies(request, memory.plan(request))
    assert plan.verdict is Fit.DOES_NOT_FIT
    smaller = plan.remedies[0]
    assert dict(smaller.patch)["batching.maxNumBatchedTokens"] == 2048
    assert (smaller.verdict, smaller.max_model_len) == (Fit.FITS, 1_048_576)


ON_B200 = {"device": B200, "attention_backend": FLASHINFER, "gpu_memory_utilization": 0.92}
NAMED: dict[str, tuple[dict[str, Any], dict[str, object]]] = {
    # What is asked for and refused, and what the reason says to set.
    "blocks of 128": ({"block_size": 128}, {"batching.blockSize": 256}),
    "a cache in 16 bit": ({"kv_cache_dtype": "bfloat16"}, {"precision.kvCache": "fp8"}),
    "both": (
        {"block_size": 64, "kv_cache_dtype": "bfloat16"},
        {"batching.blockSize": 256, "precision.kvCache": "fp8"},
    ),
    "a backend of other models": ({"attention_backend": "FLASHINFER_MLA_SPARSE"}, {"attention.backend": "auto"}),
    "blocks of no whole rows": (ON_B200 | {"kv_cache_dtype": "auto"}, {"precision.kvCache": "fp8"}),
    "too few GPUs as well": (
        {"block_size": 128, "tensor_parallel_size": 1},
        {"parallelism.tensorParallelSize": 2, "batching.blockSize": 256},
    ),
}


@pytest.mark.parametrize(("how", "patch"), NAMED.values(), ids=NAMED)
def test_what_a_refusal_names_is_a_remedy(how: dict[str, Any], patch: dict[str, object]) -> None:
    request = replace(MEASURED, max_model_len=65_536, **how)
    plan = with_remedies(request, memory.plan(request), [gpu("NVIDIA-H200")])
    assert (plan.verdict, "enough" in plan.reason) == (Fit.DOES_NOT_FIT, False)
    assert dict(plan.remedies[0].patch) == patch


def test_no_gpu_is_named_on_which_the_backend_is_refused() -> None:
    """Two H200 would be enough without it, and are smaller than two B200."""
    request = replace(MEASURED, device=B200, attention_backend=FLASHINFER, tensor_parallel_size=1)
    plan = with_remedies(request, memory.plan(request), [gpu("NVIDIA-H200")], accepts=lambda _: False, most_gpus=1)
    assert plan.reason.endswith("it needs 2 x NVIDIA-B200.")


VERSIONS: dict[str, tuple[dict[str, Any], Fit]] = {
    # A file as transformers saves it: who reads it.
    "the version whose class was read": ({"vllm_version": "0.32.0"}, Fit.DOES_NOT_FIT),
    "an older one": ({"vllm_version": "0.30.1"}, Fit.UNKNOWN),
    "an image of one's own": ({"vllm_version": "0.32.0", "own_image": True}, Fit.UNKNOWN),
    "a newer one": ({"vllm_version": "0.33.0", "own_image": True}, Fit.FITS),
}


@pytest.mark.parametrize(("how", "verdict"), VERSIONS.values(), ids=VERSIONS)
def test_which_vllm_reads_a_file_that_transformers_saved(how: dict[str, Any], verdict: Fit) -> None:
    request = replace(MEASURED, architecture=config_json.read(FILES["saved by transformers"]), **how)
    plan = with_remedies(request, memory.plan(request))
    assert (plan.verdict, "layer_types" in plan.reason) == (verdict, verdict is not Fit.FITS)
    assert not plan.remedies
    assert memory.plan(replace(MEASURED, **how)).verdict is Fit.FITS


def test_what_a_cpu_stores_is_not_known() -> None:
    plan = memory.plan(replace(MEASURED, device=Device("cpu", 400.0, is_cpu=True)))
    assert (plan.verdict, "CPU" in plan.reason) == (Fit.UNKNOWN, True)


GATHERED = {
    # The longest request, and what is reserved beside the scores of the index.
    "vectors of four requests are more": (65_536, 4 * (16_384 + 128 + 8_192) * 512 * 2),
    "keys of the index are more": (262_144, 262_144 * 40 // 4 * 132),
    "beyond 256K tokens": (1_048_576, 4 * (262_144 + 128 + 8_192) * 512 * 2),
}


@pytest.mark.parametrize(("length", "taken"), GATHERED.values(), ids=GATHERED)
def test_a_workspace_for_what_a_step_gathers(length: int, taken: int) -> None:
    request = replace(MEASURED, max_model_len=length)
    assert load(request, MODEL, H20, batching(request)).index_bytes == taken + 512 * 2**20


def test_what_a_token_holds_inside_a_layer() -> None:
    """Of a layer with an index: queries of 32 heads, queries and results of 64, four streams before and after."""
    inside = (32 + 2 * 64) * 512 + 1_024 + 512 + 2 * 2_048 + 64 * 128 + 64 + 2 * 512
    found = load(MEASURED, MODEL, H20, batching(MEASURED))
    assert found.layer_values == inside + 2 * 4 * 4_096
    predicting = replace(MEASURED, draft=MTP)
    assert load(predicting, MODEL, H20, batching(predicting)).layer_values == inside + 5 * 4 * 4_096
    assert (found.graph_layers, found.graph_sizes) == (3 * 43, 51)


def test_the_most_that_ranks_share() -> None:
    """Experts and heads; not what compresses, the index, and the residual streams."""
    alone, two = (weigh(replace(MEASURED, tensor_parallel_size=ranks)).per_gpu / GIB for ranks in (1, 2))
    assert alone == pytest.approx(145.79, abs=0.01)
    assert two == pytest.approx(73.76, abs=0.01)
