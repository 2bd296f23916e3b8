"""Budget, verdict and what a plan says, for one GPU after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_planner import host
from llmservice_planner.batching import batching, longest_length
from llmservice_planner.memory import plan
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Kind, Tensors
from llmservice_planner.plan import GIB, Device, Fit, Request
from llmservice_planner.remedies import with_remedies

from tests.unit.planner_models import CONFIGS, architecture

L4 = Device("NVIDIA-L4", 22.03, (8, 9))
T4 = Device("Tesla-T4", 14.58, (7, 5))
H100 = Device("NVIDIA-H100-80GB-HBM3", 79.18, (9, 0))
CPU = Device("cpu", 4.0, is_cpu=True)
LLAMA_8B = architecture("llama-3.1-8b")


A100 = Device("NVIDIA-A100-SXM4-80GB", 79.25, (8, 0))
GEMMA_4 = Request(architecture("gemma-4-26b-a4b"), A100, gpu_memory_utilization=0.9, max_model_len=32768)
BGE = Request(architecture("bge-m3"), L4)


def asked(**more: Any) -> Request:
    """Llama-3.1-8B on an L4."""
    return replace(Request(LLAMA_8B, L4), **more)


VERDICTS: dict[str, tuple[Request, Fit, str]] = {
    "8B, 8k on an L4": (asked(max_model_len=8192), Fit.FITS, "needs 1.00 GiB"),
    "8B, its whole 128k on an L4": (asked(), Fit.DOES_NOT_FIT, "The longest request that fits has"),
    "auto takes what there is": (asked(max_model_len="auto"), Fit.FITS, "GiB of KV cache"),
    "about what there is": (asked(max_model_len=32768), Fit.TIGHT, "closer than the planner's error"),
    "not even the weights": (asked(device=T4), Fit.DOES_NOT_FIT, "nothing is left for the KV cache"),
    "128k on an H100": (asked(device=H100), Fit.FITS, "131072 tokens needs 16.00 GiB"),
    "TP 3": (asked(tensor_parallel_size=3), Fit.DOES_NOT_FIT, "use one of 1, 2, 4, 8, 16, 32"),
    "no GPU": (asked(device=None), Fit.UNKNOWN, "a GPU and its memory"),
    "nothing of the model": (Request(None, L4), Fit.UNKNOWN, "config.json"),
    "its size alone": (Request(None, L4, parameters=8_030_261_248), Fit.UNKNOWN, "14.96 GiB"),
    "too large": (Request(None, L4, parameters=70 * 10**9), Fit.DOES_NOT_FIT, "weights alone take"),
    "too many GiB": (Request(None, L4, weights_gib=40), Fit.DOES_NOT_FIT, "40.00 GiB"),
    "a given cache": (asked(kv_cache_memory_bytes=4 * GIB, max_model_len=8192), Fit.FITS, "4.00 GiB of KV cache"),
    "a given cache without room": (
        asked(kv_cache_memory_bytes=9 * GIB, max_model_len=8192),
        *(Fit.DOES_NOT_FIT, "--kv-cache-memory-bytes is more than the GPU has"),
    ),
    "a given cache near the end of the GPU": (
        asked(kv_cache_memory_bytes=int(5.3 * GIB), max_model_len=8192),
        *(Fit.TIGHT, "--kv-cache-memory-bytes leaves"),
    ),
    "a step that is smaller than a video": (
        replace(GEMMA_4, max_num_batched_tokens=2048),
        *(Fit.DOES_NOT_FIT, "2,048 tokens a step (maxNumBatchedTokens) are fewer than the 2,496 of one video"),
    ),
    "one that holds it": (replace(GEMMA_4, max_num_batched_tokens=2496), Fit.FITS, "GiB of KV cache"),
    "vLLM's own is raised": (GEMMA_4, Fit.FITS, "GiB of KV cache"),
    "pictures alone": (
        replace(GEMMA_4, max_num_batched_tokens=2048, disabled_inputs=frozenset({"video"})),
        *(Fit.FITS, "GiB of KV cache"),
    ),
    "a step that is smaller than a picture": (
        replace(GEMMA_4, max_num_batched_tokens=256, disabled_inputs=frozenset({"video"})),
        *(Fit.DOES_NOT_FIT, "the 280 of one image"),
    ),
    "an encoder stores nothing": (BGE, Fit.FITS, "no KV cache"),
    "and needs no share of the memory": (replace(BGE, gpu_memory_utilization=0.1), Fit.FITS, "take 2.05 GiB"),
    "but what the weights take": (
        replace(BGE, device=Device("small", 1.7, (8, 9)), gpu_memory_utilization=0.1),
        *(Fit.DOES_NOT_FIT, "of the 1.30 GiB that are free"),
    ),
    "about that": (
        replace(BGE, device=Device("small", 2.5, (8, 9)), gpu_memory_utilization=0.1),
        Fit.TIGHT,
        "closer than",
    ),
    "and its share free at the start": (replace(BGE, gpu_memory_utilization=0.999), Fit.DOES_NOT_FIT, "less free"),
    "on a CPU": (replace(BGE, device=CPU), Fit.FITS, "no KV cache"),
}


@pytest.mark.parametrize(("request_", "verdict", "says"), VERDICTS.values(), ids=VERDICTS)
def test_verdict(request_: Request, verdict: Fit, says: str) -> None:
    found = plan(request_)
    assert found.verdict is verdict
    assert says in found.reason


def test_the_longest_fits_when_it_is_asked_for() -> None:
    longest = plan(asked()).max_model_len
    assert longest is not None
    assert 4096 < longest < 131072
    assert plan(asked(max_model_len=longest)).verdict is Fit.FITS
    assert plan(asked(max_model_len=longest + 16)).verdict is not Fit.FITS
    assert plan(asked(device=H100)).max_model_len == 131072, "no longer than the model"


_MAMBA = {"hidden_size": 2560, "state_size": 16, "conv_kernel": 4, "intermediate_size": 5120, "time_step_rank": 160}
MAMBA = config_json.read(_MAMBA | {"model_type": "mamba", "num_hidden_layers": 64, "vocab_size": 50280})


@pytest.mark.parametrize(("asked_for", "longest"), [(None, 2048), ("auto", 2048), (8192, 8192)])
def test_a_model_without_a_length_has_vllms(asked_for: Any, longest: int) -> None:
    """States cost the same for any length; vLLM takes 2,048 tokens where config.json has no length."""
    found = plan(Request(MAMBA, L4, max_model_len=asked_for))
    assert found.verdict is Fit.FITS
    assert (found.max_model_len, found.requested_max_model_len) == (longest, longest)
    assert longest_length(Request(MAMBA, L4, max_model_len=asked_for)) == longest


def test_cpus_have_the_space_that_they_are_given() -> None:
    found = plan(asked(device=CPU, max_model_len=8192))
    assert (found.kv_cache_gib, found.error_band, found.memory_gib) == (4.0, 0.0, None)
    assert found.kv_cache_tokens == 4 * GIB // 131072
    assert found.verdict is Fit.FITS


A5000 = Device("NVIDIA-RTX-A5000", 23.57, (8, 6))
RTX4090 = Device("NVIDIA-GeForce-RTX-4090", 23.64, (8, 9))
NEARLY_ALL = {
    # what is left of the GPU: 0.40 GiB of driver and context, and 0.15 either way
    "0.11 GiB left": (L4, 0.995, Fit.DOES_NOT_FIT, "to 0.97 or lower"),
    "0.24 GiB left": (L4, 0.989, Fit.DOES_NOT_FIT, "to 0.97 or lower"),
    "0.26 GiB left": (L4, 0.988, Fit.TIGHT, "to be sure, set gpuMemoryUtilization"),
    "0.53 GiB left": (L4, 0.976, Fit.TIGHT, "to 0.97 or lower"),
    "what the reason says": (L4, 0.97, Fit.FITS, ""),
    "an A5000 that served with 0.56 left": (A5000, 0.9764, Fit.FITS, ""),
    "a 4090 that served with 0.71 left": (RTX4090, 0.97, Fit.FITS, ""),
    "0.79 GiB of a large one": (H100, 0.99, Fit.FITS, ""),
}


@pytest.mark.parametrize(("gpu", "share", "verdict", "says"), NEARLY_ALL.values(), ids=NEARLY_ALL)
def test_nearly_all_of_a_gpu_is_never_sure(gpu: Device, share: float, verdict: Fit, says: str) -> None:
    """The driver and the CUDA context have their share: the engine refuses to start where less is free."""
    found = plan(asked(device=gpu, gpu_memory_utilization=share, max_model_len=2048))
    assert found.verdict is verdict
    assert says in found.reason
    assert ("driver and CUDA context" in found.reason) == bool(says)


def test_both_shortages_are_reported() -> None:
    found = plan(asked(gpu_memory_utilization=0.995))
    assert "gpuMemoryUtilization" in found.reason
    assert "The longest request that fits has" in found.reason
    tight = plan(asked(gpu_memory_utilization=0.98))
    assert tight.verdict is Fit.DOES_NOT_FIT
    assert "may leave less free" in tight.reason
    assert "The longest request that fits has" in tight.reason


@pytest.mark.parametrize(
    ("recommended", "more"),
    [
        (16, {"max_model_len": 16384}),
        (64, {"max_model_len": 512}),
        (192, {"device": H100}),
        (32, {"device": H100, "max_num_seqs": 32}),
        (1, {"device": T4}),
    ],
)
def test_the_recommended_number_of_sequences_follows_the_cache(recommended: int, more: dict[str, Any]) -> None:
    assert plan(asked(**more)).recommended_max_num_seqs == recommended


def test_every_step_of_the_arithmetic_is_explained() -> None:
    names = [line.name for line in plan(asked()).explanation]
    assert names[0] == "budget"
    assert {"non-torch", "CUDA graphs", "KV cache", "KV tokens", "one request"} <= set(names)
    assert any(name.startswith("activation") for name in names)


def test_tokens_and_blocks_agree_where_all_layers_keep_everything() -> None:
    found = plan(asked(max_model_len=8192))
    assert found.kv_groups == 1
    assert found.kv_cache_text == f"{found.kv_cache_tokens:,} tokens in {found.num_blocks:,} blocks of 16"
    assert found.kv_cache_tokens == 16 * (found.num_blocks or 0)
    assert found.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert found.kv_cache_tokens == pytest.approx((found.kv_cache_gib or 0) * GIB / 131_072, abs=16)


def test_tokens_of_several_groups_are_those_of_whole_requests() -> None:
    windowed = LLAMA_8B
    layers = tuple(
        replace(layer, attention=replace(layer.attention, kind=Kind.SLIDING, window=1024)) if index % 2 else layer
        for index, layer in enumerate(windowed.layers)
    )
    found = plan(asked(architecture=replace(windowed, layers=layers), max_model_len=8192))
    assert found.kv_groups == 2
    assert "requests of 8,192); " in found.kv_cache_text
    assert found.kv_cache_text.endswith("blocks that 2 groups of layers share")
    assert any(line.name == "KV tokens" and found.kv_cache_text in line.formula for line in found.explanation)


def test_an_unknown_model_on_a_cpu_shows_the_cache_space_and_a_refused_one_does_not() -> None:
    assert plan(Request(None, CPU)).memory_gib == 4.0
    assert plan(asked(device=CPU, tensor_parallel_size=3)).memory_gib is None


def test_an_encoder_has_weights_and_no_cache() -> None:
    found = plan(BGE)
    assert BGE.architecture is not None
    assert BGE.architecture.counted_parameters == 566_705_152
    assert found.weights_gib == pytest.approx(1.056, abs=0.001)
    assert (found.kv_cache_gib, found.kv_bytes_per_token, found.kv_cache_tokens) == (0, 0, None)
    assert (found.max_model_len, found.max_concurrency, found.recommended_max_num_seqs) == (8194, None, 256)
    assert batching(BGE).tokens == 8194, "a prompt is one step"


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ({"use_bidirectional_attention": "vision"}, True),
        ({"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 256}, True),
        ({"hidden_size_per_layer_input": 256}, False),
        ({}, True),
    ],
)
def test_whose_pictures_are_in_one_step(text: dict[str, Any], is_whole: bool) -> None:
    config = CONFIGS["gemma-4-26b-a4b"]
    made = config_json.read(config | {"text_config": config["text_config"] | text})
    assert (made.encoder.is_whole, made.encoder.video) == (is_whole, 2496)
    assert batching(replace(GEMMA_4, architecture=made)).tokens == (2496 if is_whole else 2048)


NGRAMS = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "layer_types": ["full_attention"] * 2,
    "ple_layer_ids": [2],
    "ple_embed_dim": 2560,
    "ngram_vocab_size_base": 20_000_000,
}
FP8_TABLES = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
KEPT_TABLES = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["model.ple.ngram_embedding"]}}
ENGRAM = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [2**28, 2**28],
    "engram_head_dim": 64,
}
PINNED: dict[str, tuple[dict[str, Any], dict[str, Any], float | None]] = {
    # keys of config.json, what the request says, GiB of the node's memory
    "a plain model": ({"ple_layer_ids": None}, {}, None),
    "a table of 51.2 billion values": ({}, {}, 95.37),
    "one in fp8": (FP8_TABLES, {}, 47.68),
    "one that fp8 leaves alone": (KEPT_TABLES, {}, 95.37),
    "one whose type is stated": ({"ple_embedding_dtype": "float8_e4m3fn"}, {}, 47.68),
    "ranks share it": ({}, {"tensor_parallel_size": 2}, 95.37),
    "engines do not": ({}, {"data_parallel_size": 2}, 190.73),
    "two layers": ({"ple_layer_ids": [2, 4]}, {}, 190.73),
    "on the GPU": ({}, {"tables_on_gpu": True}, None),
    "DeepSeek's": ({"ple_layer_ids": None, **ENGRAM}, {}, 33.0),
    "offloaded weights and cache": (
        {"ple_layer_ids": None},
        {"cpu_offload_gib": 0.0001, "kv_offloading_gib": 10.0, "tensor_parallel_size": 2},
        10.0002,
    ),
    "a CPU": ({}, {"device": CPU}, None),
}


@pytest.mark.parametrize(("keys", "how", "gib"), PINNED.values(), ids=PINNED)
def test_what_is_pinned_of_the_nodes_memory(keys: dict[str, Any], how: dict[str, Any], gib: float | None) -> None:
    large = replace(H100, memory_gib=141.0) if how.get("tables_on_gpu") else H100
    found = plan(replace(Request(config_json.read(NGRAMS | keys), large, max_model_len=2048), **how))
    assert found.host_memory_gib == (None if gib is None else pytest.approx(gib, abs=0.01))
    pinned = sum(line.gib or 0 for line in found.explanation if line.name.startswith("node memory"))
    assert pinned == pytest.approx(gib or 0, abs=0.01)
    assert (found.weights_gib or 0) > 90 if how.get("tables_on_gpu") else (found.weights_gib or 0) < 1


def test_tables_among_the_tensors_are_no_weights_of_a_gpu() -> None:
    model = config_json.read(NGRAMS)
    tables = Tensors(attention=model.table_bytes + 10**6, parameters=model.table_bytes // 2)
    found = plan(Request(model, H100, tensors=tables, max_model_len=2048))
    assert found.weights_gib == pytest.approx(0, abs=0.1)


def test_offloaded_weights_leave_the_gpu() -> None:
    whole, less = plan(asked(device=H100)), plan(asked(device=H100, cpu_offload_gib=5.0))
    assert whole.weights_gib is not None
    assert less.weights_gib == pytest.approx(whole.weights_gib - 5)
    assert less.host_memory_gib == 5
    assert plan(asked(device=H100, cpu_offload_gib=500.0)).weights_gib == 0


def test_the_containers_limit_must_hold_what_is_pinned() -> None:
    pinned = plan(Request(config_json.read(NGRAMS), H100, max_model_len=2048))
    assert host.within_limit(pinned, None) == host.within_limit(pinned, 112.0) == pinned
    short = host.within_limit(pinned, 64.0)
    assert short.verdict is Fit.DOES_NOT_FIT
    assert "pins 95.37 GiB" in short.reason
    assert dict(short.remedies[0].patch) == {"runtime.resources.limits.memory": "111Gi"}
    plain = plan(asked(max_model_len=2048))
    assert host.within_limit(plain, 1.0) == plain


GB10 = Device("NVIDIA-GB10", 121.7, (12, 1))
UNIFIED: dict[str, tuple[Device, dict[str, Any], Fit]] = {
    # device, what the request says, the verdict of a start
    "the default on a GB10": (GB10, {}, Fit.DOES_NOT_FIT),
    "0.85 of it, which serves": (GB10, {"gpu_memory_utilization": 0.85}, Fit.FITS),
    "0.88 of it": (GB10, {"gpu_memory_utilization": 0.88}, Fit.TIGHT),
    "a Thor": (Device("NVIDIA-Thor", 122.8, (11, 0)), {}, Fit.DOES_NOT_FIT),
    "an Orin": (Device("Orin", 61.3, (8, 7)), {}, Fit.DOES_NOT_FIT),
    "a GH200, which has a memory of its own": (Device("NVIDIA-GH200-480GB", 94.5, (9, 0)), {}, Fit.FITS),
    "with what is pinned of the same memory": (
        GB10,
        {"gpu_memory_utilization": 0.85, "kv_offloading_gib": 20.0},
        Fit.DOES_NOT_FIT,
    ),
    "a given KV cache": (GB10, {"kv_cache_memory_bytes": 96 * GIB}, Fit.DOES_NOT_FIT),
}


@pytest.mark.parametrize(("device", "how", "verdict"), UNIFIED.values(), ids=UNIFIED)
def test_what_the_node_has_of_a_memory_that_it_shares_is_not_free(
    device: Device, how: dict[str, Any], verdict: Fit
) -> None:
    request = asked(device=device, max_model_len=8192, **how)
    found = plan(request)
    assert found.verdict is verdict, found.reason
    if not how and verdict is Fit.DOES_NOT_FIT:
        assert "shares this memory" in found.reason
        (remedy, *_) = with_remedies(request, found).remedies
        assert remedy.verdict is Fit.FITS
        assert dict(remedy.patch)["accelerator.gpuMemoryUtilization"] == 0.85
