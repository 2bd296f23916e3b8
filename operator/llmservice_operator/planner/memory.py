"""From a question to its answer: the budget of one GPU, what is taken out of it, and whether the rest is enough.

budget = gpu_memory_utilization x memory; KV cache = budget - weights - non-torch - activation peak - CUDA graphs: so
the engine reckons itself once it runs (vllm/v1/worker/gpu_worker.py, determine_available_memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from llmservice_operator.planner import attention_memory, kv_cache, weights
from llmservice_operator.planner.batching import Batching, batching
from llmservice_operator.planner.constants import CONSTANTS, Constants
from llmservice_operator.planner.engines import Engine, engine, engine_of
from llmservice_operator.planner.model import heads
from llmservice_operator.planner.model.architecture import Architecture, Incomplete
from llmservice_operator.planner.overheads import Overheads, absorbed, load, overheads
from llmservice_operator.planner.plan import GIB, Device, Fit, Line, Plan, Request

TYPICAL_REQUEST = 2048
"""Tokens that a request has on average, prompt and answer: few are near the longest that is allowed."""
_SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class _Budget:
    """What one GPU has for the KV cache, in bytes."""

    total: float
    weights: weights.Weights
    beside: Overheads | None
    available: float
    band: float
    lines: tuple[Line, ...]
    spare: float = math.inf
    """What the GPU has left when the engine has taken all of that; negative where it has less than the engine takes."""
    spare_reason: str = ""


def plan(request: Request, constants: Constants = CONSTANTS) -> Plan:
    """The verdict and its arithmetic, without remedies. Never raises for what is unknown: that is a verdict too."""
    missing = _missing(request)
    if request.device is None:
        return _unknown(request, missing)
    if request.architecture is not None and not heads.share(request.architecture, request.tensor_parallel_size):
        return _indivisible(request, request.device, request.architecture)
    try:
        weighed = weights.weigh(request)
    except Incomplete as incomplete:
        return _unknown(request, missing or incomplete.missing)
    if request.architecture is None:
        return _by_weights_alone(request, request.device, weighed, missing, constants)
    try:
        layout = kv_cache.layout(request)
        budget = _budget(request, request.architecture, request.device, weighed, constants)
    except Incomplete as incomplete:
        return _by_weights_alone(request, request.device, weighed, incomplete.missing, constants)
    return _planned(request, request.architecture, request.device, budget, layout)


def _missing(request: Request) -> tuple[str, ...]:
    found = []
    if request.device is None:
        found.append("a GPU and its memory")
    if request.architecture is None:
        found.append("the model's config.json")
    return tuple(found)


def _unknown(request: Request, missing: tuple[str, ...]) -> Plan:
    return Plan(
        verdict=Fit.UNKNOWN,
        reason=f"Not known: {', '.join(dict.fromkeys(missing))}.",
        missing=tuple(dict.fromkeys(missing)),
        gpu=request.device.name if request.device is not None else None,
        gpus=_gpus(request),
        memory_gib=request.device.memory_gib if request.device is not None else None,
    )


def _indivisible(request: Request, device: Device, model: Architecture) -> Plan:
    """vLLM refuses to start (vllm/config/model.py, verify_with_parallel_config)."""
    count, kv = model.num_attention_heads, model.num_key_value_heads
    fitting = ", ".join(map(str, heads.sizes(count, kv)))
    return Plan(
        verdict=Fit.DOES_NOT_FIT,
        reason=f"{request.tensor_parallel_size} tensor-parallel ranks cannot share {count} attention heads and {kv} "
        f"key/value heads evenly: use one of {fitting}.",
        gpu=device.name,
        gpus=_gpus(request),
        memory_gib=None if device.is_cpu else device.memory_gib,
    )


def _gpus(request: Request) -> int:
    return request.tensor_parallel_size * request.pipeline_parallel_size * request.data_parallel_size


def _utilization(request: Request, generation: Engine) -> float:
    given = request.gpu_memory_utilization
    return generation.default_utilization if given is None else given


def _by_weights_alone(
    request: Request, device: Device, weighed: weights.Weights, missing: tuple[str, ...], constants: Constants
) -> Plan:
    """Without the architecture only too large a model can be told."""
    generation = engine(request.vllm_version)
    budget = device.memory_gib * _utilization(request, generation) if not device.is_cpu else math.inf
    weights_gib = weighed.per_gpu / GIB
    is_too_large = weights_gib > budget
    names = ", ".join(missing)
    reason = (
        f"The weights alone take {weights_gib:.2f} GiB of each GPU, which has {budget:.2f} GiB for the engine."
        if is_too_large
        else f"The weights take {weights_gib:.2f} GiB of each GPU. Not known: {names}."
    )
    return Plan(
        verdict=Fit.DOES_NOT_FIT if is_too_large else Fit.UNKNOWN,
        reason=reason,
        missing=missing,
        gpu=device.name,
        gpus=_gpus(request),
        memory_gib=device.memory_gib,
        budget_gib=None if device.is_cpu else budget,
        weights_gib=weights_gib,
        weights_total_gib=weighed.total / GIB,
        explanation=weighed.lines,
    )


def _budget(
    request: Request, model: Architecture, device: Device, weighed: weights.Weights, constants: Constants
) -> _Budget:
    if device.is_cpu:
        space = device.memory_gib * GIB
        line = Line("KV cache space", device.memory_gib, f"{device.memory_gib:g} GiB", "VLLM_CPU_KVCACHE_SPACE")
        return _Budget(space, weighed, None, space, 0.0, (*weighed.lines, line))
    generation = engine_of(request, model)
    share = _utilization(request, generation)
    total = math.ceil(device.memory_gib * GIB * share)
    beside = overheads(load(request, model, device, generation, batching(request)), generation, constants)
    line = Line("budget", total / GIB, f"{device.memory_gib:.2f} GiB x {share:g}", "--gpu-memory-utilization")
    if made := sum(absorbed(request, model, generation)):
        added = Line("absorbed", made / GIB, "MLA's expansions multiplied out", generation.name)
        ranks = request.tensor_parallel_size * request.data_parallel_size
        per_gpu, everywhere = weighed.per_gpu + int(made), weighed.total + int(made) * ranks
        weighed = replace(weighed, per_gpu=per_gpu, total=everywhere, lines=(*weighed.lines, added))
    lines = (line, *weighed.lines, *beside.lines)
    free = (device.memory_gib - constants.free_at_start.value) * GIB
    if request.kv_cache_memory_bytes is not None:
        # The engine takes it as it is, whatever the utilization says.
        given = float(request.kv_cache_memory_bytes)
        spare = free - weighed.per_gpu - beside.counted - given
        why = "--kv-cache-memory-bytes is more than the GPU has beside weights and overheads: lower it"
        return _Budget(total, weighed, beside, given, 0.0, lines, spare, why)
    available = total - weighed.per_gpu - beside.counted
    band = generation.band(beside.counted / GIB, constants) * GIB
    why = "--gpu-memory-utilization (gpuMemoryUtilization) asks for more than driver and CUDA context leave: lower it"
    return _Budget(total, weighed, beside, available, band, lines, free - total if generation.is_v1 else math.inf, why)


def _planned(request: Request, model: Architecture, device: Device, budget: _Budget, layout: kv_cache.Layout) -> Plan:
    limit = model.max_position_embeddings
    wanted = _wanted(request, model)
    sure = max(0, int(budget.available - budget.band))
    longest = layout.longest(sure, _limit(request, limit))
    length = wanted or longest
    capacity = layout.capacity(max(0, int(budget.available)), max(1, length))
    needed = layout.needed(length) if length else 0
    verdict = _verdict(budget, needed, length)
    beside = budget.beside
    kv_gib = budget.available / GIB
    concurrency = capacity.max_concurrency if length else 0.0
    naive, flash = attention_memory.per_gpu(model, length, request.tensor_parallel_size)
    return Plan(
        verdict=verdict,
        reason=_reason(verdict, budget, needed, length, longest, device),
        gpu=device.name,
        gpus=_gpus(request),
        memory_gib=None if device.is_cpu else device.memory_gib,
        budget_gib=None if device.is_cpu else budget.total / GIB,
        weights_gib=budget.weights.per_gpu / GIB,
        non_torch_gib=beside.non_torch / GIB if beside else 0.0,
        activation_gib=beside.activation / GIB if beside else 0.0,
        graph_gib=beside.graphs / GIB if beside else 0.0,
        kv_cache_gib=kv_gib,
        kv_bytes_per_token=layout.bytes_per_token,
        kv_cache_tokens=capacity.tokens,
        block_size=layout.block_size,
        num_blocks=capacity.num_blocks,
        max_model_len=longest,
        requested_max_model_len=length or None,
        max_concurrency=concurrency,
        recommended_max_num_seqs=_recommended(capacity.tokens, length, batching(request)),
        error_band=_share(budget.band, budget.available),
        error_band_gib=budget.band / GIB,
        margin_gib=(budget.available - needed) / GIB,
        weights_total_gib=budget.weights.total / GIB,
        kv_cache_total_gib=max(0.0, kv_gib) * _gpus(request),
        naive_attention_gib=naive,
        flash_attention_gib=flash,
        explanation=(*budget.lines, *_kv_lines(budget, layout, capacity, length, needed)),
    )


def _wanted(request: Request, model: Architecture) -> int | None:
    """Tokens that one request must be able to have; None where the longest that fits will do."""
    if request.max_model_len == "auto":
        return None
    if request.max_model_len is not None:
        return int(request.max_model_len)
    return model.default_max_len or model.max_position_embeddings


def _limit(request: Request, limit: int | None) -> int:
    """Longer than this vLLM refuses, unless it is asked for."""
    asked = request.max_model_len if isinstance(request.max_model_len, int) else 0
    return max(limit or 2**31, asked)


def _verdict(budget: _Budget, needed: float, length: int) -> Fit:
    if length == 0 or budget.spare < 0 or budget.available + budget.band < max(needed, 1):
        return Fit.DOES_NOT_FIT
    return Fit.FITS if budget.available - budget.band >= needed else Fit.TIGHT


def _share(band: float, available: float) -> float:
    return min(1.0, band / available) if available > 0 else 1.0


def _recommended(tokens: int, length: int, step: Batching) -> int:
    """As many sequences as the KV cache holds of usual ones, and no more than vLLM's default: others would wait in it,
    or be preempted and computed again."""
    usual = tokens // max(1, min(length, TYPICAL_REQUEST))
    return max(size for size in _SEQUENCES if size <= max(1, min(usual, step.sequences)))


def _reason(verdict: Fit, budget: _Budget, needed: float, length: int, longest: int, device: Device) -> str:
    taken = budget.weights.per_gpu + (budget.beside.counted if budget.beside else 0)
    has, needs, band = budget.available / GIB, needed / GIB, budget.band / GIB
    where = "" if device.is_cpu else " on each GPU"
    if budget.spare < 0:
        return f"{device.name}: {budget.spare_reason} by at least {-budget.spare / GIB:.2f} GiB."
    if has <= 0:
        return (
            f"{device.name}: nothing is left for the KV cache: weights and overheads take {taken / GIB:.2f} GiB of the "
            f"{budget.total / GIB:.2f} GiB that the engine may use."
        )
    text = (
        f"{device.name}: {has:.2f} GiB of KV cache{where}; one request of {length} tokens needs {needs:.2f} GiB."
        if length
        else f"{device.name}: {has:.2f} GiB of KV cache{where} do not hold one block for sure."
    )
    if verdict is Fit.TIGHT:
        return f"{text} That is closer than the planner's error of {band:.2f} GiB: it may start or not."
    if verdict is Fit.DOES_NOT_FIT and longest:
        return f"{text} The longest request that fits has {longest} tokens."
    return text


def _kv_lines(
    budget: _Budget, layout: kv_cache.Layout, capacity: kv_cache.Capacity, length: int, needed: float
) -> tuple[Line, ...]:
    taken = " - weights - non-torch - activation - graphs" if budget.beside else ""
    per_token = f"{layout.bytes_per_token:g} bytes a token, blocks of {layout.block_size}"
    return (
        Line(
            "KV cache", budget.available / GIB, f"{budget.total / GIB:.2f} GiB{taken}", f"± {budget.band / GIB:.2f} GiB"
        ),
        Line("KV tokens", None, f"{capacity.tokens} tokens in {capacity.num_blocks} blocks: {per_token}"),
        Line("one request", needed / GIB, f"{length} tokens", "vllm/v1/core/kv_cache_utils.py"),
    )
