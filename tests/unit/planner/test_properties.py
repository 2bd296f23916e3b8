"""What must hold for every plan, whatever the model, the GPU and the settings: drawn at random."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llmservice_planner import memory, splits
from llmservice_planner.gpus import CATALOGUE
from llmservice_planner.kv_cache import layout
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.plan import GIB, Adapters, Device, Draft, Fit, Plan, Request
from llmservice_planner.remedies import MOST, with_remedies
from llmservice_planner.served import device_refusal
from llmservice_planner.weights import weigh

from tests.unit.planner_models import CONFIGS

WORST_FIRST = (Fit.DOES_NOT_FIT, Fit.TIGHT, Fit.FITS)
SMALL = settings(max_examples=60)
VERSIONS = ("0.28.0", None)


@st.composite
def configs(draw: st.DrawFn, *families: str) -> dict[str, Any]:
    """A config.json of one of the families."""
    family = draw(st.sampled_from(families or tuple(_FAMILIES)))
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4, 7, 8]))
    head_dim = draw(st.sampled_from([64, 128, 256]))
    layers = draw(st.integers(2, 96))
    return {
        "num_hidden_layers": layers,
        "hidden_size": draw(st.sampled_from([512, 1024, 3584, 8192])),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": draw(st.sampled_from([1024, 4864, 18944, 53248])),
        "vocab_size": draw(st.sampled_from([1, 1000, 32000, 151936, 262208])),
        "max_position_embeddings": draw(st.sampled_from([1, 2048, 32768, 131072, 1_048_576])),
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        **draw(_FAMILIES[family](layers)),
        **draw(st.sampled_from(_QUANTIZED)),
    }


def _dense(_: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"model_type": st.sampled_from(["llama", "qwen2", "qwen3", "phi3", "starcoder2"])})


def _windowed(layers: int) -> st.SearchStrategy[dict[str, Any]]:
    window = st.sampled_from([16, 512, 1024, 4096])
    kinds = st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=layers, max_size=layers)
    return st.one_of(
        st.fixed_dictionaries({"model_type": st.just("mistral"), "sliding_window": window}),
        st.fixed_dictionaries({"model_type": st.just("gemma3_text"), "sliding_window": window, "layer_types": kinds}),
    )


def _latent(_: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "model_type": st.sampled_from(["deepseek_v2", "deepseek_v3"]),
            "kv_lora_rank": st.sampled_from([256, 512]),
            "q_lora_rank": st.sampled_from([None, 1536]),
            "qk_rope_head_dim": st.just(64),
            "qk_nope_head_dim": st.just(128),
            "v_head_dim": st.just(128),
            "first_k_dense_replace": st.integers(0, 2),
            "n_shared_experts": st.integers(0, 2),
            **_experts("n_routed_experts"),
        }
    )


def _mixture(_: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"model_type": st.just("qwen3_moe"), **_experts("num_experts")})


def _experts(name: str) -> dict[str, st.SearchStrategy[Any]]:
    return {
        name: st.sampled_from([8, 64, 128]),
        "num_experts_per_tok": st.sampled_from([1, 2, 8]),
        "moe_intermediate_size": st.sampled_from([768, 1408, 2048]),
    }


def _states(layers: int) -> st.SearchStrategy[dict[str, Any]]:
    kinds = st.lists(st.sampled_from(["linear_attention", "full_attention"]), min_size=layers, max_size=layers)
    return st.fixed_dictionaries(
        {
            "model_type": st.just("qwen3_next"),
            "layer_types": kinds,
            "linear_num_value_heads": st.just(32),
            "linear_num_key_heads": st.just(16),
            "linear_key_head_dim": st.just(128),
            "linear_value_head_dim": st.just(128),
            "linear_conv_kernel_dim": st.just(4),
            **_experts("num_experts"),
        }
    )


_FAMILIES = {"dense": _dense, "windowed": _windowed, "latent": _latent, "mixture": _mixture, "states": _states}
_QUANTIZED: tuple[dict[str, Any], ...] = (
    *({}, {}, {}),
    {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}},
    {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """A GPU of the catalogue that vLLM runs on, or one that nobody ever heard of."""
    if draw(st.booleans()):
        gpu = draw(st.sampled_from([gpu for gpu in CATALOGUE.values() if (gpu.capability or (7, 5)) >= (7, 5)]))
        return Device(gpu.product, gpu.memory_gib, gpu.capability, is_amd=gpu.is_amd)
    return Device("something", draw(st.floats(0.0, 2000.0)), draw(st.sampled_from([None, (7, 5), (9, 0)])))


@dataclass(frozen=True)
class Case:
    """A request, as what it is made of: that is short enough to be shown where a test fails."""

    config: dict[str, Any]
    settings: dict[str, Any]

    @property
    def request(self) -> Request:
        """With the model."""
        return Request(config_json.read(self.config), **self.settings)


@st.composite
def cases(draw: st.DrawFn, *families: str, versions: tuple[str | None, ...] = (None,)) -> Case:
    """What a spec or the command line can ask, and vLLM serves where there is memory."""
    config = draw(configs(*families))
    model = config_json.read(config)
    plain = model.quantization is None
    sequences = draw(st.one_of(st.none(), st.integers(1, 4096)))
    tokens = draw(st.one_of(st.none(), st.integers(sequences or 1024, 131_072)))
    asked: dict[str, Any] = {
        "device": draw(devices()),
        "dtype": draw(st.sampled_from(["auto", "bfloat16", "float16", *(["float32"] if plain else [])])),
        "weights": draw(st.sampled_from(["auto", "auto", "fp8"])) if plain else "auto",
        "kv_cache_dtype": draw(st.sampled_from(["auto", "fp8", "bfloat16"])),
        "tensor_parallel_size": draw(st.sampled_from(_ranks(model))),
        "pipeline_parallel_size": draw(st.integers(1, min(4, len(model.layers)))),
        "enable_expert_parallel": any(each.feed_forward.experts for each in model.layers) and draw(st.booleans()),
        "gpu_memory_utilization": draw(st.one_of(st.none(), st.floats(0.05, 1.0))),
        "max_model_len": draw(st.one_of(st.none(), st.just("auto"), st.integers(1, 1_000_000))),
        "max_num_seqs": sequences,
        "max_num_batched_tokens": tokens,
        "block_size": draw(st.sampled_from([None, None, 16, 32, 64])),
        "enforce_eager": draw(st.booleans()),
        "draft": draw(st.sampled_from([None, None, Draft("ngram", 3), Draft("mtp", 2)])),
        "adapters": draw(st.sampled_from([None, None, Adapters(4, 64)])),
        "vllm_version": draw(st.sampled_from(versions)),
    }
    case = Case(config, asked)
    assert device_refusal(case.request) is None
    assume(splits.problem(case.request) is None)
    return case


def _ranks(model: Architecture) -> list[int]:
    heads, kv_heads = model.num_attention_heads or 1, model.num_key_value_heads or 1
    return [n for n in (1, 2, 4, 8) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]


def _same_steps(request: Request) -> Request:
    """With the scheduler's limits said: vLLM raises them on larger GPUs, which is another question."""
    return replace(
        request,
        max_num_seqs=request.max_num_seqs or 256,
        max_num_batched_tokens=request.max_num_batched_tokens or max(2048, request.max_num_seqs or 256),
    )


def _rank(plan: Plan) -> int:
    return WORST_FIRST.index(plan.verdict)


@SMALL
@given(cases(), st.floats(0.0, 500.0))
def test_more_memory_never_fits_less(case: Case, more: float) -> None:
    request = _same_steps(case.request)
    assert request.device is not None
    larger = replace(request, device=replace(request.device, memory_gib=request.device.memory_gib + more))
    small, large = memory.plan(request), memory.plan(larger)
    assert _rank(large) >= _rank(small)
    assert (large.kv_cache_tokens or 0) >= (small.kv_cache_tokens or 0) or request.max_model_len in (None, "auto")
    assert (large.num_blocks or 0) >= (small.num_blocks or 0)
    assert (large.max_model_len or 0) >= (small.max_model_len or 0)


@SMALL
@given(cases(), st.integers(1, 1_000_000), st.integers(0, 500_000))
def test_a_longer_request_never_needs_less(case: Case, length: int, more: int) -> None:
    request = replace(case.request, max_model_len=length)
    short, long = memory.plan(request), memory.plan(replace(request, max_model_len=length + more))
    assert _rank(long) <= _rank(short)
    assert (long.margin_gib or 0.0) <= (short.margin_gib or 0.0)
    found = layout(request)
    assert found.needed(length + more) >= found.needed(length)


@SMALL
@given(cases(), st.integers(0, 2**37), st.integers(1, 200_000))
def test_the_longest_length_fits_and_the_next_does_not(case: Case, available: int, limit: int) -> None:
    made = layout(case.request)
    longest = made.longest(available, limit)
    assert 0 <= longest <= limit
    assert longest == 0 or made.needed(longest) <= available
    assert longest == limit or made.needed(longest + 1) > available
    assert made.capacity(available // 2, limit).tokens <= made.capacity(available, limit).tokens


@SMALL
@given(cases(), st.integers(0, 65_536), st.integers(0, 2048))
def test_larger_steps_never_need_less(case: Case, tokens: int, sequences: int) -> None:
    request = _same_steps(case.request)
    assert request.max_num_batched_tokens is not None
    assert request.max_num_seqs is not None
    more = replace(
        request,
        max_num_batched_tokens=request.max_num_batched_tokens + tokens,
        max_num_seqs=request.max_num_seqs + sequences,
    )
    small, large = memory.plan(request), memory.plan(more)
    assert (large.activation_gib or 0.0) >= (small.activation_gib or 0.0)
    assert (large.kv_cache_gib or 0.0) <= (small.kv_cache_gib or 0.0)
    # With `auto` the length gives way, and the margin is what blocks leave over.
    assert (large.margin_gib or 0.0) <= (small.margin_gib or 0.0) or request.max_model_len == "auto"
    assert _rank(large) <= _rank(small)


@SMALL
@given(cases("dense", "windowed", "latent", "mixture"), st.integers(1, 1_000_000))
def test_an_fp8_cache_never_needs_more(case: Case, tokens: int) -> None:
    """But for blocks: their kernels want larger ones for fp8, and a short request has one all the same.

    States are left out: they stay as they are, and vLLM gives attention blocks as large as theirs.
    """
    request = case.request
    assume(splits.problem(request) is None)
    whole, half = (replace(request, kv_cache_dtype=kind, max_model_len=tokens) for kind in ("bfloat16", "fp8"))
    wide, narrow = layout(whole), layout(half)
    rounding = 2 * len(narrow.groups) * narrow.bytes_per_block
    assert narrow.bytes_per_token <= wide.bytes_per_token
    assert narrow.needed(tokens) <= wide.needed(tokens) + rounding
    before, after = memory.plan(whole), memory.plan(half)
    assert before.margin_gib is not None
    assert after.margin_gib is not None
    assert after.margin_gib >= before.margin_gib - rounding / GIB
    assert _rank(after) >= _rank(before) or before.margin_gib < (before.error_band_gib or 0.0) + rounding / GIB


@SMALL
@given(cases())
def test_ranks_split_what_they_split(case: Case) -> None:
    request = case.request
    model = request.architecture
    assert model is not None
    before = None
    for ranks in _ranks(model):
        split = replace(request, tensor_parallel_size=ranks)
        weights, per_token = weigh(split), layout(split).bytes_per_token
        if before is not None:
            assert weights.per_gpu <= before[0].per_gpu
            assert per_token <= before[1]
            assert weights.total >= before[0].total - ranks
            assert weights.per_gpu * ranks * request.pipeline_parallel_size >= weights.total - ranks
        before = weights, per_token


@SMALL
@given(cases(), st.floats(0.9, 1.5))
def test_the_verdict_follows_from_margin_and_band(case: Case, share: float) -> None:
    """Around the longest request, where verdicts change; what a small card has free at the start is another matter."""
    request = case.request
    longest = memory.plan(request).max_model_len or 0
    plan = memory.plan(replace(request, max_model_len=max(1, int(share * longest))))
    assert plan.margin_gib is not None
    assert plan.error_band_gib is not None
    if plan.verdict is Fit.FITS:
        assert plan.margin_gib >= plan.error_band_gib
    if plan.verdict is Fit.TIGHT and "less free than the engine asks for" not in plan.reason:
        assert abs(plan.margin_gib) <= plan.error_band_gib
    if plan.margin_gib < -plan.error_band_gib:
        assert plan.verdict is Fit.DOES_NOT_FIT


@SMALL
@given(cases())
def test_the_longest_request_fits(case: Case) -> None:
    """What a small card has free at the start is another matter."""
    request = case.request
    plan = memory.plan(request)
    assume(plan.max_model_len and plan.verdict is not Fit.DOES_NOT_FIT)
    longest = memory.plan(replace(request, max_model_len=plan.max_model_len))
    assert longest.verdict is Fit.FITS or "less free than the engine asks for" in longest.reason


@SMALL
@given(cases(versions=VERSIONS))
def test_every_legal_question_has_an_answer_in_numbers(case: Case) -> None:
    request = case.request
    for asked in (
        request,
        replace(request, device=None),
        replace(request, architecture=None),
        replace(request, architecture=None, weights_gib=3.0),
        replace(request, architecture=None, parameters=7_000_000_000),
        replace(request, weights_gib=3.0),
        replace(request, parameters=7_000_000_000),
        replace(request, kv_cache_memory_bytes=2**30),
        replace(request, device=Device("cpu", 4.0, is_cpu=True)),
    ):
        plan = memory.plan(asked)
        for field in fields(plan):
            value = getattr(plan, field.name)
            assert not isinstance(value, float) or math.isfinite(value), field.name
        assert all(line.gib is None or math.isfinite(line.gib) for line in plan.explanation)
        assert plan.reason
        assert plan.error_band is None or 0 <= plan.error_band <= 1
        assert min(plan.kv_cache_tokens or 0, plan.max_model_len or 0, plan.num_blocks or 0) >= 0
        assert (plan.verdict is Fit.UNKNOWN) == bool(plan.missing) or plan.verdict is Fit.DOES_NOT_FIT
        assert memory.plan(asked) == plan


@SMALL
@given(cases(versions=VERSIONS), st.lists(devices(), max_size=3))
def test_what_is_proposed_fits(case: Case, others: list[Device]) -> None:
    request = case.request
    plan = memory.plan(request)
    better = with_remedies(request, plan, others)
    assert len(better.remedies) <= MOST
    assert all(remedy.verdict in (Fit.FITS, Fit.TIGHT) and remedy.change for remedy in better.remedies)
    assert replace(better, remedies=(), reason=plan.reason) == plan
    assert with_remedies(request, plan, others) == better


_LATENT = CONFIGS["deepseek-v2-lite"] | {"torch_dtype": "float32", "num_hidden_layers": 15, "hidden_size": 8192}
_LATENT |= {"num_attention_heads": 1, "num_key_value_heads": 1, "kv_lora_rank": 256, "n_shared_experts": 0}
_LATENT |= {"first_k_dense_replace": 0, "n_routed_experts": 8, "num_experts_per_tok": 1, "intermediate_size": 1024}
_LATENT |= {"moe_intermediate_size": 2048, "vocab_size": 262208, "max_position_embeddings": 1048576}


@pytest.mark.parametrize(("asked", "chunked"), [(1, None), (4096, False)], ids=["short steps", "whole prompts"])
def test_a_longer_request_that_makes_steps_larger_fits(asked: int, chunked: bool | None) -> None:
    device = Device("AMD_Radeon_AI_PRO_R9700", 31.86, is_amd=True)
    request = Case(_LATENT, {"device": device, "max_model_len": asked, "chunked_prefill": chunked}).request
    longest = memory.plan(request).max_model_len
    assert longest is not None
    assert longest >= asked
    assert memory.plan(replace(request, max_model_len=longest)).verdict is Fit.FITS
