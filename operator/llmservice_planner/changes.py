"""Single changes of a service that need less memory or provide more: candidates for remedies.py.

Each kind yields its variants by preference; the first that fits is proposed. A kind that cannot provide nearly enough
yields none, to avoid needless plans.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from llmservice_api.dtypes import FLOAT_WEIGHTS, LOAD_METHODS
from llmservice_api.matrix import DIMENSIONS, ROWS
from llmservice_api.matrix.dimensions import MANY, OFF, ON, ONE

from llmservice_planner import served, splits
from llmservice_planner.batching import batching, whole_item
from llmservice_planner.checks import matches
from llmservice_planner.model.architecture import Kind, Quantization
from llmservice_planner.plan import Device, Plan, Request

Fields = tuple[tuple[str, object], ...]
"""Paths under spec, and their new values."""

USEFUL_TOKENS = 2048
"""A length that is sufficient for chat. A shorter one is no remedy, unless a short one was requested."""
USEFUL_SHARE = 8
"""Of the requested length, at least one eighth."""
HIGHER_UTILIZATIONS = (0.93, 0.94, 0.95)
"""Above the last one nothing is left for memory that the engine does not count."""
LOWER_UTILIZATIONS = (0.95, 0.92, 0.9, 0.85)
"""For a request of nearly all memory, and for small GPUs, where the CUDA context is a tenth."""
LESS_BATCHING = ((256, 2048), (64, 1024), (16, 512))
"""maxNumSeqs and maxNumBatchedTokens, from vLLM's defaults for GPUs below 70 GiB down."""
RANKS = (2, 4, 8)
"""Factors for the tensor-parallel size."""
INT4 = Quantization("awq", 4, 128, zero_bits=4)
"""The usual int4 format: groups of 128 with a scale and a zero point."""
_PRODUCT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Change:
    """A change in words, its fields, and the changed request."""

    words: str
    fields: Fields
    request: Request
    gpu: str | None = None
    """The other product."""

    @classmethod
    def setting(cls, request: Request, **fields: object) -> Change:
        """A change that sets these fields; section__field stands for spec.section.field."""
        patch = tuple((name.replace("__", "."), value) for name, value in fields.items())
        words = " and ".join(f"spec.{path} to {str(value).lower()}" for path, value in patch)
        return cls(f"set {words}", patch, request)

    def then(self, other: Change) -> Change:
        """Both changes; `other` was derived from this one's request."""
        return Change(
            f"{self.words}, and {other.words}", (*self.fields, *other.fields), other.request, other.gpu or self.gpu
        )


@dataclass(frozen=True, slots=True)
class Alternatives:
    """GPUs that a change may use."""

    others: Sequence[Device] = ()
    most_gpus: int = 8
    """For one replica."""


ChangeKind = Callable[[Request, Plan, Alternatives], Iterator[Change]]


def accepted_settings(request: Request, _: Plan, __: Alternatives) -> Iterator[Change]:
    """Settings that vLLM accepts in place of refused ones, as named by the refusal."""
    new, fields = served.with_accepted_settings(request)
    model, step = request.architecture, request.max_num_batched_tokens
    if model is not None and request.device is not None and not request.device.is_cpu:
        tokens, _kind = whole_item(model, request.disabled_inputs)
        if step is not None and step < tokens:
            new = replace(new, max_num_batched_tokens=tokens)
            fields = (*fields, ("batching.maxNumBatchedTokens", tokens))
    if fields:
        yield Change.setting(new, **{path.replace(".", "__"): value for path, value in fields})


def shorter_length(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """A shorter maxModelLen: the longest that fits, rounded down, if it is useful."""
    requested, longest = plan.requested_max_model_len, plan.max_model_len
    if not requested or not longest or request.max_model_len == "auto":
        return
    length = rounded_length(min(longest, requested - 1))
    # The length affects other values slightly (blocks, batched tokens), so the next shorter step is tried too.
    for tokens in (length, rounded_length(length * 7 // 8)):
        if tokens and (tokens >= USEFUL_TOKENS or tokens * USEFUL_SHARE >= requested):
            yield Change.setting(replace(request, max_model_len=tokens), batching__maxModelLen=tokens)


def rounded_length(tokens: int) -> int:
    """Rounded down to a round number, by a sixteenth at most."""
    step = 1 << max(0, tokens.bit_length() - 5)
    return tokens // step * step


def smaller_batches(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """Fewer sequences and tokens per step: a lower activation peak and fewer CUDA graphs, for less throughput."""
    if _missing_gib(plan) > (plan.activation_gib or 0.0) + (plan.graph_gib or 0.0):
        return
    now = batching(request)
    draft_tokens = 1 + (request.draft.num_speculative_tokens if request.draft is not None else 0)
    for sequences, tokens in LESS_BATCHING:
        new, fields = request, dict[str, int]()
        if sequences < now.sequences:
            new, fields = replace(new, max_num_seqs=sequences), {"batching__maxNumSeqs": sequences}
        if tokens < now.tokens:
            new, fields = (
                replace(new, max_num_batched_tokens=tokens),
                fields | {"batching__maxNumBatchedTokens": tokens},
            )
        step = batching(new)
        if fields and step.tokens >= step.sequences * draft_tokens:
            yield Change.setting(new, **fields)


def higher_utilization(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """A higher gpuMemoryUtilization, where little is missing."""
    yield from _utilizations(request, plan, HIGHER_UTILIZATIONS, is_higher=True)


def lower_utilization(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """A lower gpuMemoryUtilization, where the engine would request more than is free at its start."""
    if plan.margin_gib is not None and plan.margin_gib >= 0:
        yield from _utilizations(request, plan, LOWER_UTILIZATIONS, is_higher=False)


def _utilizations(request: Request, plan: Plan, shares: Sequence[float], *, is_higher: bool) -> Iterator[Change]:
    """The shares that leave the cache enough; none where the budget does not depend on a share."""
    if request.device is None or request.device.is_cpu or not plan.budget_gib or not plan.memory_gib:
        return
    if request.kv_cache_memory_bytes is not None:
        return
    now = plan.budget_gib / plan.memory_gib
    for share in shares:
        is_other = share > now + 0.001 if is_higher else share < now - 0.001
        if is_other and (share - now) * plan.memory_gib >= _missing_gib(plan):
            yield Change.setting(
                replace(request, gpu_memory_utilization=share), accelerator__gpuMemoryUtilization=share
            )


def fp8_cache(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """Half the bytes per token, where GPU and model have a kernel for it."""
    if request.kv_cache_dtype not in ("auto", "float16", "bfloat16") or (plan.kv_cache_gib or 0.0) <= 0:
        return
    if request.device is None or _is_old_amd(request.device):
        return
    new = replace(request, kv_cache_dtype="fp8")
    if is_compatible(request, new):
        yield Change.setting(new, precision__kvCache="fp8")


def without_graphs(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """No CUDA graphs: more memory for the cache, slower decoding."""
    if request.enforce_eager or request.cuda_graphs is not None or _missing_gib(plan) > (plan.graph_gib or 0.0):
        return
    if plan.graph_gib:
        yield Change.setting(replace(request, enforce_eager=True), compilation__enforceEager=True)


def fp8_weights(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """Convert a 16-bit checkpoint while it is loaded."""
    device, model = request.device, request.architecture
    if device is None or device.is_cpu or model is None or _is_old_amd(device):
        return
    if model.quantization is None and request.quantization is None and request.weights in ("auto", *FLOAT_WEIGHTS):
        new = replace(request, weights="fp8")
        if _may_save_enough(plan, 2) and is_compatible(request, new):
            yield Change.setting(new, precision__weights="fp8")


def int4_checkpoint(request: Request, plan: Plan, _: Alternatives) -> Iterator[Change]:
    """Another checkpoint of the model; without a patch, since no field converts it."""
    if _may_save_enough(plan, 4):
        yield from _int4(request)


def _int4(request: Request) -> Iterator[Change]:
    model = request.architecture
    if request.device is None or request.device.is_cpu or model is None or model.quantization is not None:
        return
    if request.quantization is not None or request.weights not in ("auto", *FLOAT_WEIGHTS):
        return
    quantized = replace(model, quantization=INT4)
    new = replace(request, architecture=quantized, tensors=None, weights="int4", quantization="awq")
    if is_compatible(request, new):
        yield Change("name an int4 checkpoint of the model (AWQ or GPTQ) in spec.model.uri", (), new)


def int4_over_ranks(request: Request, plan: Plan, alternatives: Alternatives) -> Iterator[Change]:
    """Another checkpoint over more GPUs, for models where neither is enough. The patch has the GPUs only."""
    for int4 in _int4(request):
        # Planned as if the weights were already a quarter.
        quarter = None if plan.weights_gib is None else plan.weights_gib / 4
        for ranks in more_ranks(int4.request, replace(plan, weights_gib=quarter), alternatives):
            yield int4.then(ranks)


def fp8_over_ranks(request: Request, plan: Plan, alternatives: Alternatives) -> Iterator[Change]:
    """Half the weights over more GPUs, but fewer than without."""
    for fp8 in fp8_weights(request, replace(plan, weights_gib=None), alternatives):
        half = None if plan.weights_gib is None else plan.weights_gib / 2
        for ranks in more_ranks(fp8.request, replace(plan, weights_gib=half), alternatives):
            yield fp8.then(ranks)


def more_ranks(request: Request, plan: Plan, alternatives: Alternatives) -> Iterator[Change]:
    """Tensor parallelism over more GPUs."""
    for times in RANKS:
        size = request.tensor_parallel_size * times
        new = replace(request, tensor_parallel_size=size)
        is_possible = new.gpus <= alternatives.most_gpus and splits.possible(new) and _may_split(request, new)
        if is_possible and _may_save_enough(plan, times):
            yield Change.setting(new, parallelism__tensorParallelSize=size)


def more_stages(request: Request, plan: Plan, alternatives: Alternatives) -> Iterator[Change]:
    """Pipeline parallelism, where heads do not divide or links are slow."""
    size = request.pipeline_parallel_size * 2
    new = replace(request, pipeline_parallel_size=size)
    layers = len(request.architecture.layers) if request.architecture is not None else 0
    if size <= layers and new.gpus <= alternatives.most_gpus and _may_split(request, new) and _may_save_enough(plan, 2):
        yield Change.setting(new, parallelism__pipelineParallelSize=size)


def whole_experts(request: Request, _: Plan, __: Alternatives) -> Iterator[Change]:
    """Whole experts per rank, where slices would cut groups of the quantization."""
    new = replace(request, enable_expert_parallel=True)
    if not request.enable_expert_parallel and not splits.possible(request) and splits.possible(new):
        yield Change.setting(new, parallelism__expertParallel=True)


def another_split(request: Request, _: Plan, __: Alternatives) -> Iterator[Change]:
    """The same number of GPUs with fewer ranks and more stages, where the ranks cannot share the model."""
    if splits.possible(request) or request.architecture is None:
        return
    gpus = request.tensor_parallel_size * request.pipeline_parallel_size
    for ranks in reversed(splits.sizes(request)):
        stages = gpus // ranks
        if ranks < request.tensor_parallel_size and gpus % ranks == 0 and stages <= len(request.architecture.layers):
            new = replace(request, tensor_parallel_size=ranks, pipeline_parallel_size=stages)
            if is_compatible(request, new):
                yield Change.setting(
                    new, parallelism__tensorParallelSize=ranks, parallelism__pipelineParallelSize=stages
                )


def another_gpu(request: Request, plan: Plan, alternatives: Alternatives) -> Iterator[Change]:
    """The same number of another product, the smallest first: cost follows memory."""
    now = request.device
    if now is None or now.is_cpu:
        return
    alike = {device.name: device for device in alternatives.others if device.is_amd == now.is_amd and not device.is_cpu}
    for device in sorted(alike.values(), key=lambda device: device.memory_gib):
        new = replace(request, device=device)
        times = device.memory_gib / now.memory_gib if now.memory_gib > 0 else math.inf
        if times > 1 and _may_save_enough(plan, times) and is_compatible(request, new):
            is_label = _PRODUCT.fullmatch(device.name) is not None
            fields: Fields = (("accelerator.products", (device.name,)),) if is_label else ()
            yield Change(f"take {device.name} (spec.accelerator.products)", fields, new, device.name)


def is_compatible(old: Request, new: Request) -> bool:
    """Whether the new request is refused for nothing that the old one is not refused for."""
    return _refused(_values(new)) <= _refused(_values(old))


@lru_cache(maxsize=4096)
def _refused(values: frozenset[tuple[str, str]]) -> frozenset[int]:
    known = dict(values)
    return frozenset(index for index, row in enumerate(ROWS) if matches(row, known))


def _values(request: Request) -> frozenset[tuple[str, str]]:
    """Values for the compatibility matrix, as far as a request has them."""
    device, model, draft = request.device, request.architecture, request.draft
    known: dict[str, str | None] = {
        "weights": request.weights,
        "method": request.quantization or LOAD_METHODS.get(request.weights),
        "dtype": None if request.dtype == "auto" else request.dtype,
        "kvCache": request.kv_cache_dtype,
        "backend": request.attention_backend or "auto",
        "blockSize": None if request.block_size is None else str(request.block_size),
        "tensorParallel": ONE if request.tensor_parallel_size == 1 else MANY,
        "pipelineParallel": ONE if request.pipeline_parallel_size == 1 else MANY,
        "dataParallel": ONE if request.data_parallel_size == 1 else MANY,
        "expertParallel": ON if request.enable_expert_parallel else OFF,
        "speculation": "none" if draft is None else draft.method,
        "lora": OFF if request.adapters is None else ON,
        "enforceEager": ON if request.enforce_eager else OFF,
    }
    if device is not None:
        known["accelerator"] = device.accelerator
        known["capability"] = None if device.capability is None else "{}.{}".format(*device.capability)
    if model is not None:
        known["mla"] = "yes" if _is_latent(request) else "no"
    return frozenset((name, value) for name, value in known.items() if value in DIMENSIONS[name].values)


def _is_latent(request: Request) -> bool:
    model = request.architecture
    return model is not None and any(
        layer.attention.kind in (Kind.LATENT, Kind.COMPRESSED) for layer, _ in model.distinct_layers
    )


def _is_old_amd(device: Device) -> bool:
    """The MI200 series has no fp8."""
    return device.is_amd and re.search(r"mi2\d\d", device.name.lower()) is not None


def _may_split(old: Request, new: Request) -> bool:
    """False for MIG slices, which cannot communicate."""
    return old.device is not None and "mig" not in old.device.name.lower() and is_compatible(old, new)


def weights_may_fit(request: Request, plan: Plan, split: Request) -> bool:
    """False where the weights of `request`, divided evenly over the GPUs of `split`, exceed their memory."""
    if plan.weights_gib is None or split.device is None:
        return True
    ranks = request.tensor_parallel_size * request.pipeline_parallel_size
    return (
        plan.weights_gib * ranks < split.device.memory_gib * split.tensor_parallel_size * split.pipeline_parallel_size
    )


def _missing_gib(plan: Plan) -> float:
    """GiB per GPU that are missing to fit surely."""
    return (plan.error_band_gib or 0.0) - (plan.margin_gib or 0.0)


def _may_save_enough(plan: Plan, times: float) -> bool:
    """False where the weights, divided by `times`, exceed the budget."""
    if plan.weights_gib is None or plan.budget_gib is None:
        return True
    return plan.weights_gib / times < plan.budget_gib
