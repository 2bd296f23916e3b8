"""Computes a Plan from a Request: the budget of one GPU, what is subtracted, and whether the rest is enough.

budget = gpu_memory_utilization x memory; KV cache = budget - weights - non-torch - activation peak - CUDA graphs, as
the engine itself computes at run time (vllm/v1/worker/gpu_worker.py, determine_available_memory).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmservice_api.constants import TYPICAL_REQUEST

from llmservice_planner import host, kv_cache, splits, weights
from llmservice_planner.batching import Batching, batching, whole_item
from llmservice_planner.constants import CONSTANTS, TAKEN_OF_UNIFIED, Constant, Constants
from llmservice_planner.model.architecture import Architecture, Attention, Incomplete, Kind
from llmservice_planner.overheads import Overheads, load, model_runner, overheads
from llmservice_planner.plan import GIB, GPU_MEMORY_UTILIZATION, Device, Fit, Line, Plan, Request
from llmservice_planner.served import device_refusal, unsure

# Memory of attention for one sequence: all its scores, or with FlashAttention only its result. Not part of the budget,
# since every backend of vLLM works as FlashAttention; informational.

SUM_BYTES = 4
"""FlashAttention keeps one 32-bit sum of exponentials for each query and head."""


def naive_attention_bytes(heads: int, tokens: int, value_bytes: int = 2, window: int | None = None) -> int:
    """Bytes of the scores QK^T of one layer: heads x tokens x tokens, or x window with a sliding window."""
    return heads * tokens * min(tokens, window or tokens) * value_bytes


def flash_attention_bytes(heads: int, head_dim: int, tokens: int, value_bytes: int = 2) -> int:
    """Bytes that FlashAttention stores for one layer: the result, and a sum for each row of scores."""
    return heads * tokens * (head_dim * value_bytes + SUM_BYTES)


def attention_per_gpu(
    model: Architecture, tokens: int, tensor_parallel_size: int = 1, value_bytes: int = 2
) -> tuple[float, float]:
    """GiB of naive attention and of FlashAttention, of the largest layer; layers run one after the other.

    Tensor parallelism splits the heads. Both are 0 for models without attention.
    """
    naive = flash = 0
    mixers = {id(layer.attention): layer.attention for layer in model.layers}
    for attention in (mixer for mixer in mixers.values() if mixer.kind is not Kind.STATE):
        heads = math.ceil(attention.heads / tensor_parallel_size)
        naive = max(naive, naive_attention_bytes(heads, tokens, value_bytes, attention.window))
        flash = max(flash, flash_attention_bytes(heads, _width(attention), tokens, value_bytes))
    return naive / GIB, flash / GIB


def _width(attention: Attention) -> int:
    """Width of the result of one head: a value's, also where the cache has a latent vector."""
    return attention.value_dim or attention.key_dim or attention.latent_dim


_SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class _Start:
    """Whether the memory that the engine takes at its start is free."""

    spare: float = math.inf
    """Bytes that remain; negative where it is too little."""
    band: float = 0.0
    """Uncertainty in bytes."""
    short: str = ""
    """Texts for surely too little, and for possibly too little."""
    unsure: str = ""

    @property
    def verdict(self) -> Fit:
        if self.spare < -self.band:
            return Fit.DOES_NOT_FIT
        return Fit.FITS if self.spare >= self.band else Fit.TIGHT


@dataclass(frozen=True, slots=True)
class _Budget:
    """Memory of one GPU for the KV cache, in bytes."""

    total: float
    weights: weights.Weights
    overhead: Overheads | None
    available: float
    band: float
    lines: tuple[Line, ...]
    start: _Start = _Start()
    has_cache: bool = True
    """Whether any layer stores something; if not, `available` is what weights and overheads leave."""


def plan(request: Request, constants: Constants = CONSTANTS) -> Plan:
    """The verdict with its arithmetic, without remedies. Does not raise for unknown facts: the verdict is then
    Unknown."""
    found = _plan(request, constants)
    why = unsure(request)
    if why is None or found.verdict is Fit.DOES_NOT_FIT:
        return found
    missing = tuple(dict.fromkeys((*found.missing, "spec.runtime.image")))
    return replace(found, verdict=Fit.UNKNOWN, reason=f"{why} {found.reason}", missing=missing)


def _plan(request: Request, constants: Constants) -> Plan:
    missing = _missing(request)
    if request.device is None:
        return _unknown(request, missing)
    if (why := device_refusal(request)) is not None:
        return _refused(request, why)
    if (why := splits.problem(request)) is not None:
        return _refused(request, why)
    if request.architecture is not None and (why := _cut_item(request, request.architecture, request.device)):
        return _refused(request, why)
    try:
        weighed = weights.weigh(request)
    except Incomplete as incomplete:
        return _unknown(request, missing or incomplete.missing)
    if request.architecture is None:
        return _by_weights_alone(request, request.device, weighed, missing)
    try:
        layout = kv_cache.layout(request)
        budget = _budget(request, request.architecture, request.device, weighed, constants, bool(layout.groups))
    except Incomplete as incomplete:
        return _by_weights_alone(request, request.device, weighed, incomplete.missing)
    return _with_longest(_planned(request, request.architecture, request.device, budget, layout), request, constants)


def _with_longest(found: Plan, request: Request, constants: Constants) -> Plan:
    """The plan with the longest request that fits when it is requested: a longer one may enlarge steps
    (batching.py)."""
    requested, longest = request.max_model_len, found.max_model_len
    if not isinstance(requested, int) or not longest or longest <= requested:
        return found
    longer = replace(request, max_model_len=longest)
    if batching(longer) == batching(request):
        return found
    fitting = plan(longer, constants).max_model_len or 0
    return replace(found, max_model_len=min(longest, max(requested, fitting)))


def _missing(request: Request) -> tuple[str, ...]:
    found = []
    if request.device is None:
        found.append("a GPU and its memory")
    if request.architecture is None:
        found.append("the model's config.json")
    return tuple(found)


def _without_figures(request: Request, verdict: Fit, reason: str, missing: tuple[str, ...] = ()) -> Plan:
    """A plan whose verdict needs no arithmetic."""
    device = request.device
    return Plan(
        verdict=verdict,
        reason=reason,
        missing=missing,
        gpu=None if device is None else device.name,
        gpus=request.gpus,
        memory_gib=None if device is None else device.memory_gib,
    )


def _refused(request: Request, why: str) -> Plan:
    """A plan that does not fit whatever the memory; a CPU's memory is not shown."""
    plan = _without_figures(request, Fit.DOES_NOT_FIT, why)
    return replace(plan, memory_gib=None) if request.device is not None and request.device.is_cpu else plan


def _unknown(request: Request, missing: tuple[str, ...]) -> Plan:
    missing = tuple(dict.fromkeys(missing))
    return _without_figures(request, Fit.UNKNOWN, f"Not known: {', '.join(missing)}.", missing)


def _cut_item(request: Request, model: Architecture, device: Device) -> str | None:
    """Why vLLM refuses a step smaller than one image or video that cannot be cut
    (vllm/v1/core/encoder_cache_manager.py, compute_mm_encoder_budget); it raises its own default as needed."""
    (tokens, kind), step = whole_item(model, request.disabled_inputs), request.max_num_batched_tokens
    if device.is_cpu or step is None or step >= tokens:
        return None
    return (
        f"{step:,} tokens a step (maxNumBatchedTokens) are fewer than the {tokens:,} of one {kind}, which this model "
        f"takes in one step: set spec.batching.maxNumBatchedTokens (--max-num-batched-tokens) to {tokens} or more, or "
        f"start without that input (--limit-mm-per-prompt)."
    )


def _utilization(request: Request) -> float:
    given = request.gpu_memory_utilization
    return GPU_MEMORY_UTILIZATION if given is None else given


def _by_weights_alone(request: Request, device: Device, weighed: weights.Weights, missing: tuple[str, ...]) -> Plan:
    """From the weights alone: DoesNotFit where they exceed the budget, else Unknown."""
    budget = device.memory_gib * _utilization(request) if not device.is_cpu else math.inf
    weights_gib = weighed.per_gpu / GIB
    is_too_large = weights_gib > budget
    names = ", ".join(missing)
    reason = (
        f"The weights alone take {weights_gib:.2f} GiB of each GPU, which has {budget:.2f} GiB for the engine."
        if is_too_large
        else f"The weights take {weights_gib:.2f} GiB of each GPU. Not known: {names}."
    )
    verdict = Fit.DOES_NOT_FIT if is_too_large else Fit.UNKNOWN
    return replace(
        _without_figures(request, verdict, reason, missing),
        budget_gib=None if device.is_cpu else budget,
        weights_gib=weights_gib,
        weights_total_gib=weighed.total / GIB,
        explanation=weighed.lines,
    )


def _budget(
    request: Request,
    model: Architecture,
    device: Device,
    weighed: weights.Weights,
    constants: Constants,
    has_cache: bool,
) -> _Budget:
    if device.is_cpu:
        space = device.memory_gib * GIB
        line = Line("KV cache space", device.memory_gib, f"{device.memory_gib:g} GiB", "VLLM_CPU_KVCACHE_SPACE")
        return _Budget(space, weighed, None, space, 0.0, (*weighed.lines, line), has_cache=has_cache)
    share = _utilization(request)
    total = math.ceil(device.memory_gib * GIB * share)
    overhead = overheads(load(request, model, device, batching(request)), model_runner(request, model), constants)
    context = _context(request, device, constants)
    if not has_cache:
        start = _start_with_share(device, total, context)
        return _without_cache(device, weighed, overhead, start, context, constants)
    line = Line("budget", total / GIB, f"{device.memory_gib:.2f} GiB x {share:g}", "--gpu-memory-utilization")
    lines = (line, *weighed.lines, *overhead.lines)
    band = constants.band_gib.value * GIB + constants.band_share.value * overhead.counted
    if request.kv_cache_memory_bytes is not None:
        # The engine takes it whatever the utilization.
        given = float(request.kv_cache_memory_bytes)
        taken = weighed.per_gpu + overhead.counted + given
        start = _start_with_given(device, taken, band, context)
        return _Budget(total, weighed, overhead, given, 0.0, lines, start)
    available = total - weighed.per_gpu - overhead.counted
    start = _start_with_share(device, total, context)
    return _Budget(total, weighed, overhead, available, band, lines, start)


def _without_cache(
    device: Device,
    weighed: weights.Weights,
    overhead: Overheads,
    start: _Start,
    context: Constant,
    constants: Constants,
) -> _Budget:
    """vLLM then profiles nothing (v1/engine/core.py, has_kv_cache): weights and a step have all free memory, whatever
    share was requested."""
    taken = overhead.activation + overhead.non_torch + overhead.graphs
    free = (device.memory_gib - context.value) * GIB
    line = Line("free memory", free / GIB, f"{device.memory_gib:.2f} - {context.value:g} GiB", "free_at_start")
    band = (constants.band_gib.value + context.uncertainty) * GIB + constants.band_share.value * taken
    lines = (line, *weighed.lines, *overhead.lines)
    return _Budget(free, weighed, overhead, free - weighed.per_gpu - taken, band, lines, start, has_cache=False)


def _context(request: Request, device: Device, constants: Constants) -> Constant:
    """GiB that are not free when the engine starts; with unified memory also what it pins."""
    if not device.is_unified:
        return constants.free_at_start
    share = TAKEN_OF_UNIFIED
    taken = share.value * device.memory_gib + host.pinned_gib(request)
    return Constant(taken, "GiB", share.uncertainty * device.memory_gib, share.source)


def _start_with_given(device: Device, taken: float, band: float, context: Constant) -> _Start:
    spare = (device.memory_gib - context.value) * GIB - taken
    more = f"--kv-cache-memory-bytes is more than the GPU has beside weights and overheads by {-spare / GIB:.2f} GiB"
    near = f"--kv-cache-memory-bytes leaves {spare / GIB:.2f} GiB, less than the planner's error"
    return _Start(spare, context.uncertainty * GIB + band, f"{more}: lower it.", f"{near}: it may start or not.")


def _start_with_share(device: Device, total: float, context: Constant) -> _Start:
    free = (device.memory_gib - context.value) * GIB
    certain = math.floor(100 * (1 - (context.value + context.uncertainty) / max(device.memory_gib, 0.01))) / 100
    who = "the system, which shares this memory," if device.is_unified else "driver and CUDA context"
    lower = (
        f"set gpuMemoryUtilization (--gpu-memory-utilization) to {certain:g} or lower"
        if certain > 0
        else "it is too small"
    )
    return _Start(
        free - total,
        context.uncertainty * GIB,
        f"{who} leave{'s' if device.is_unified else ''} less free than the engine asks for at its start: {lower}.",
        f"{who} may leave less free than the engine asks for at its start: to be sure, {lower}.",
    )


def _planned(request: Request, model: Architecture, device: Device, budget: _Budget, layout: kv_cache.Layout) -> Plan:
    limit = model.max_position_embeddings or model.default_max_len
    requested = _requested_length(request, model)
    certain = max(0, int(budget.available - budget.band))
    longest = layout.longest(certain, _limit(request, limit))
    length = requested or longest
    capacity = layout.capacity(max(0, int(budget.available)), max(1, length))
    needed = layout.needed(length) if length else 0
    overhead = budget.overhead
    kv_gib = budget.available / GIB if budget.has_cache else 0.0
    concurrency = capacity.max_concurrency if length else 0.0
    step = batching(request)
    naive, flash = attention_per_gpu(model, length, request.tensor_parallel_size)
    found = Plan(
        verdict=_verdict(budget, needed, length),
        reason=_reason(budget, needed, length, longest, device),
        gpu=device.name,
        gpus=request.gpus,
        memory_gib=None if device.is_cpu else device.memory_gib,
        budget_gib=None if device.is_cpu else budget.total / GIB,
        weights_gib=budget.weights.per_gpu / GIB,
        non_torch_gib=overhead.non_torch / GIB if overhead else 0.0,
        activation_gib=overhead.activation / GIB if overhead else 0.0,
        graph_gib=overhead.graphs / GIB if overhead else 0.0,
        kv_cache_gib=kv_gib,
        kv_bytes_per_token=layout.bytes_per_token,
        kv_cache_tokens=capacity.tokens if budget.has_cache else None,
        block_size=layout.block_size if budget.has_cache else None,
        num_blocks=capacity.num_blocks if budget.has_cache else None,
        kv_groups=len(layout.groups),
        max_model_len=longest,
        requested_max_model_len=length or None,
        max_concurrency=concurrency if budget.has_cache else None,
        recommended_max_num_seqs=_recommended(capacity.tokens, length, step) if budget.has_cache else step.sequences,
        error_band=_share(budget.band, budget.available),
        error_band_gib=budget.band / GIB,
        margin_gib=(budget.available - needed) / GIB,
        weights_total_gib=budget.weights.total / GIB,
        kv_cache_total_gib=max(0.0, kv_gib) * request.gpus,
        host_memory_gib=host.pinned_gib(request) or None,
        naive_attention_gib=naive,
        flash_attention_gib=flash,
    )
    lines = _kv_lines(budget, found, layout, length, needed)
    return replace(found, explanation=(*budget.lines, *lines, *_between_nodes(request), *host.lines(request)))


def _between_nodes(request: Request) -> Iterator[Line]:
    """What the plan does not know of a replica over several nodes."""
    if request.nodes > 1 and request.device is not None and not request.device.is_cpu:
        held = "what NCCL holds of each GPU for ranks on other nodes was not measured, and is not counted"
        yield Line("between nodes", None, held)


def _requested_length(request: Request, model: Architecture) -> int | None:
    """Tokens that one request must be able to have; None where the longest that fits is sufficient."""
    if request.max_model_len == "auto":
        return None
    if request.max_model_len is not None:
        return int(request.max_model_len)
    return model.default_max_len or model.max_position_embeddings


def _limit(request: Request, limit: int | None) -> int:
    """vLLM refuses a longer one, unless it is requested."""
    requested = request.max_model_len if isinstance(request.max_model_len, int) else 0
    return max(limit or 2**31, requested)


def _verdict(budget: _Budget, needed: float, length: int) -> Fit:
    """The worse of both: the engine must start, and its cache must hold a request."""
    both = budget.start.verdict, _cache_verdict(budget, needed, length)
    return next((worse for worse in (Fit.DOES_NOT_FIT, Fit.TIGHT) if worse in both), Fit.FITS)


def _cache_verdict(budget: _Budget, needed: float, length: int) -> Fit:
    if length == 0 or budget.available + budget.band < max(needed, 1):
        return Fit.DOES_NOT_FIT
    return Fit.FITS if budget.available - budget.band >= needed else Fit.TIGHT


def _share(band: float, available: float) -> float:
    return min(1.0, band / available) if available > 0 else 1.0


def _recommended(tokens: int, length: int, step: Batching) -> int:
    """The number of usual sequences that the KV cache holds, at most vLLM's default: others would wait, or be preempted
    and recomputed."""
    usual = tokens // max(1, min(length, TYPICAL_REQUEST))
    return max(size for size in _SEQUENCES if size <= max(1, min(usual, step.sequences)))


def _reason(budget: _Budget, needed: float, length: int, longest: int, device: Device) -> str:
    """All shortages, the larger first."""
    cache, start = _cache_verdict(budget, needed, length), budget.start.verdict
    sentences = []
    if start is Fit.FITS or cache is not Fit.FITS:
        sentences.append(_cache_reason(cache, budget, needed, length, longest, device))
    if start is Fit.DOES_NOT_FIT:
        sentences.insert(0, budget.start.short)
    elif start is Fit.TIGHT:
        sentences.insert(0 if cache is not Fit.DOES_NOT_FIT else 1, budget.start.unsure)
    first, *more = sentences
    return " ".join((f"{device.name}: {first}", *(sentence[0].upper() + sentence[1:] for sentence in more)))


_NEAR = "That is closer than the planner's error of {:.2f} GiB: it may start or not."


def _cache_reason(cache: Fit, budget: _Budget, needed: float, length: int, longest: int, device: Device) -> str:
    taken = budget.weights.per_gpu + (budget.overhead.counted if budget.overhead else 0)
    has, needs, band = budget.available / GIB, needed / GIB, budget.band / GIB
    where = "" if device.is_cpu else " on each GPU"
    if not budget.has_cache:
        free = "" if device.is_cpu else f" of the {budget.total / GIB:.2f} GiB that are free on each GPU"
        text = f"nothing is stored for a request (no KV cache); weights and overheads take {taken / GIB:.2f} GiB{free}."
        return f"{text} {_NEAR.format(band)}" if cache is Fit.TIGHT else text
    if has <= 0:
        return (
            f"nothing is left for the KV cache: weights and overheads take {taken / GIB:.2f} GiB of the "
            f"{budget.total / GIB:.2f} GiB that the engine may use."
        )
    text = (
        f"{has:.2f} GiB of KV cache{where}; one request of {length} tokens needs {needs:.2f} GiB."
        if length
        else f"{has:.2f} GiB of KV cache{where} do not hold one block for sure."
    )
    if cache is Fit.TIGHT:
        return f"{text} {_NEAR.format(band)}"
    if cache is Fit.DOES_NOT_FIT and longest:
        return f"{text} The longest request that fits has {longest} tokens."
    return text


def _kv_lines(budget: _Budget, plan: Plan, layout: kv_cache.Layout, length: int, needed: float) -> tuple[Line, ...]:
    if not budget.has_cache:
        return (
            Line("left", budget.available / GIB, "free memory - weights - overheads", f"± {budget.band / GIB:.2f} GiB"),
        )
    taken = " - weights - non-torch - activation - graphs" if budget.overhead else ""
    per_token = f"{layout.bytes_per_token:g} bytes a token"
    return (
        Line(
            "KV cache", budget.available / GIB, f"{budget.total / GIB:.2f} GiB{taken}", f"± {budget.band / GIB:.2f} GiB"
        ),
        Line("KV tokens", None, f"{plan.kv_cache_text}: {per_token}"),
        Line("one request", needed / GIB, f"{length} tokens", "vllm/v1/core/kv_cache_utils.py"),
    )
