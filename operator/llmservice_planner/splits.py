"""Numbers of tensor-parallel ranks that can share a model, by its heads and by groups and blocks of its quantization.

vLLM refuses to start with others. Heads: config/model.py, verify_with_parallel_config. Groups and blocks: each rank
needs whole ones, by the method's own rule (model_executor/layers/quantization: auto_awq.py, utils/marlin_utils.py,
utils/fp8_utils.py, modelopt.py, quark, compressed_tensors; fused_moe/oracle/fp8.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmservice_planner import storage
from llmservice_planner.model.architecture import Architecture, Incomplete, Kind, Layer, Linear, Quantization, Split
from llmservice_planner.plan import Request


def heads_divide(ranks: int, heads: int, kv_heads: int | None) -> bool:
    """Whether attention heads divide evenly; key/value heads must, too, or are copied if there are fewer than ranks."""
    if heads % ranks:
        return False
    return not kv_heads or kv_heads % ranks == 0 or ranks % kv_heads == 0


def head_sizes(heads: int, kv_heads: int | None) -> tuple[int, ...]:
    """Every possible number of ranks."""
    return tuple(ranks for ranks in range(1, heads + 1) if heads_divide(ranks, heads, kv_heads))


# Layers of each pipeline stage, as in vLLM (distributed/utils.py, get_pp_indices).


def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, first to last. A remainder goes to stages before the last one, from the end: the first and
    the last hold the embedding and the head."""
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    return tuple(counts)


LEAST_BLOCK = 32
"""vLLM shrinks blocks of fp8 experts, and groups of AWQ and GPTQ, down to this if a slice needs it."""
_INTEGERS = ("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "auto-round", "inc")
_SCALED_IN_GROUPS = ("modelopt", "quark", "mxfp8")
_MERGED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "gate_proj", "up_proj")
"""vLLM merges these into one matrix; with fp8's own blocks each may then begin inside one."""
_SINGLE = ("self_attn.q_b_proj", "self_attn.kv_b_proj")
_WITHOUT_HEADS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A matrix of which a rank would get a part of a group or block."""

    module: str
    size: int
    ranks: int
    unit: int
    method: str

    def __str__(self) -> str:
        share = f"{self.size} / {self.ranks} = {self.size / self.ranks:g}"
        return f"{self.module}, in {self.method}: {share} is no multiple of {self.unit}"


def problem(request: Request) -> str | None:
    """Why vLLM refuses how the model is split over ranks, and what it accepts; None if it does not."""
    model, ranks = request.architecture, request.tensor_parallel_size
    if model is None:
        return None
    if request.enable_expert_parallel and request.own_class and not _has_experts(model):
        replicas = ", and set scaling.replicas in place of dataParallelSize" if request.data_parallel_size > 1 else ""
        return (
            "The model has no experts to spread, and vLLM refuses to start: remove parallelism.expertParallel"
            f"{replicas}."
        )
    is_shared, found = shares_heads(model, ranks), misfit(request)
    if is_shared and found is None:
        return None
    others = ", ".join(map(str, sizes(request))) or "1"
    if not is_shared:
        return f"{ranks} tensor-parallel ranks cannot share {_unshared(model, ranks)} evenly: use one of {others}."
    remedy = f"Set parallelism.tensorParallelSize to one of {others}"
    if others == "1":
        remedy = "Set parallelism.tensorParallelSize to 1, and pipelineParallelSize to the number of GPUs"
    if not request.enable_expert_parallel and misfit(replace(request, enable_expert_parallel=True)) is None:
        remedy += ", or parallelism.expertParallel to true"
    return (
        f"{ranks} tensor-parallel ranks cannot share the quantized weights in whole groups ({found}), and vLLM refuses "
        f"to start. {remedy}."
    )


def _has_experts(model: Architecture) -> bool:
    """vllm/config/model.py, _verify_with_expert_parallelism."""
    return any(layer.feed_forward.experts for layer, _ in model.distinct_layers)


def possible(request: Request) -> bool:
    """Whether vLLM accepts the number of ranks, as far as heads and quantization decide."""
    model = request.architecture
    return model is not None and shares_heads(model, request.tensor_parallel_size) and misfit(request) is None


def sizes(request: Request) -> tuple[int, ...]:
    """Every accepted number of ranks."""
    model = request.architecture
    if model is None:
        return ()
    able = head_sizes(model.num_attention_heads, model.num_key_value_heads) or _WITHOUT_HEADS
    return tuple(ranks for ranks in able if possible(replace(request, tensor_parallel_size=ranks)))


def shares_heads(model: Architecture, ranks: int) -> bool:
    """Whether so many ranks can share the heads of every layer."""
    return all(heads_divide(ranks, *one) and groups % ranks == 0 for *one, groups in _shared(model))


def _shared(model: Architecture) -> frozenset[tuple[int, int, int]]:
    """Attention heads, key/value heads and output groups of the layers."""
    mixers = (layer.attention for layer, _ in model.distinct_layers if layer.attention.kind is not Kind.STATE)
    return frozenset((mixer.heads, mixer.kv_heads, mixer.output_groups) for mixer in mixers)


def _unshared(model: Architecture, ranks: int) -> str:
    """What so many ranks cannot share: output groups if the heads can be shared."""
    if all(heads_divide(ranks, *one) for *one, _ in _shared(model)):
        groups = next(groups for *_, groups in _shared(model) if groups % ranks)
        return f"{groups} groups of the output projection (o_groups)"
    return f"{model.num_attention_heads} attention heads and {model.num_key_value_heads} key/value heads"


def misfit(request: Request) -> Misfit | None:
    """The first matrix that ranks cannot share in whole groups, or None."""
    model = request.architecture
    if model is None or model.quantization is None or request.tensor_parallel_size == 1:
        return None
    try:
        held = storage.engine(request)
    except Incomplete:
        return None
    if not held.own:
        return None
    found = (_misfit(request, layer, linear, form) for layer, linear, form in _quantized(model, held))
    return next((one for one in found if one is not None), None)


def _quantized(model: Architecture, held: storage.Storage) -> Iterator[tuple[Layer, Linear, Quantization]]:
    for layer, _ in model.distinct_layers:
        for linear in layer.linears:
            form = held.form_of(linear)
            if form is not None and form.group_size:
                yield layer, linear, form


def _misfit(request: Request, layer: Layer, linear: Linear, form: Quantization) -> Misfit | None:
    ranks = request.tensor_parallel_size
    if linear.split is Split.EXPERTS:
        if request.enable_expert_parallel or not linear.is_row_parallel:
            return None
        return _of_experts(linear, form, ranks * request.data_parallel_size)
    if linear.split is Split.NONE or storage.copies(request, linear, form) or storage.pads(request, linear, form):
        return None
    if linear.is_row_parallel:
        unit = form.group_size if _has_whole_groups(form) else 1
        return _of(linear.module, linear.inputs, ranks, unit, form)
    if form.group_rows == 1:
        return None
    single = linear.module.endswith(_SINGLE) or (
        layer.attention.kind is Kind.LATENT and linear.module.endswith("self_attn.q_proj")
    )
    if single or (form.method == "compressed-tensors" and linear.module.endswith(_MERGED)):
        # Heads that are fewer than ranks are copied whole.
        return _of(linear.module, linear.outputs, min(ranks, linear.units or ranks), form.group_rows, form)
    return None


def _has_whole_groups(form: Quantization) -> bool:
    """Whether the method's dense layers raise if a rank's inputs are not a multiple of the group."""
    if form.group_rows > 1 or form.method in _INTEGERS or form.method.startswith(_SCALED_IN_GROUPS):
        return True
    return form.method == "compressed-tensors" and form.scale_bits > 8


def _of_experts(linear: Linear, form: Quantization, slices: int) -> Misfit | None:
    """Of the down-projection, whose inputs are the outputs of gate and up."""
    size, hidden, group = linear.inputs, linear.outputs, form.group_size
    share = size // slices
    if form.method == "compressed-tensors" and form.scale_bits > 8:
        return _of(linear.module, size, slices, math.lcm(group, form.group_rows), form)
    if form.group_rows > 1:
        refined = math.gcd(form.group_rows, group, share, hidden)
        is_whole = size % slices == 0 and (share % form.group_rows == 0 or refined >= LEAST_BLOCK)
        return None if is_whole else Misfit(linear.module, size, slices, LEAST_BLOCK, form.method)
    if form.method in _INTEGERS:
        while group > LEAST_BLOCK and (share % group or hidden % group):
            group //= 2
        return _of(linear.module, size, slices, group, form)
    is_mxfp8 = form.bits == 8 and form.method.startswith(("modelopt", "mxfp8"))
    return _of(linear.module, size, slices, group, form) if is_mxfp8 else None


def _of(module: str, size: int, ranks: int, unit: int, form: Quantization) -> Misfit | None:
    return None if size % (ranks * unit) == 0 else Misfit(module, size, ranks, unit, form.method)
