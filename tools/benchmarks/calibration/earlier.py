"""Start-ups of earlier vLLM versions as questions to today's planner, and the constants that held for them.

The operator serves vLLM from 0.28 on, but most published start-ups ran on earlier versions. Their defaults become
stated values, their treatment of a model a changed architecture, and their way to profile other constants.
"""

# ruff: noqa: RUF009 - Constant is frozen

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from llmservice_planner import kv_cache, weights
from llmservice_planner.batching import longest_length
from llmservice_planner.constants import CONSTANTS, Constant, Constants
from llmservice_planner.kv_blocks import Blocks
from llmservice_planner.kv_cache import Group, placed_specs
from llmservice_planner.model.architecture import Architecture, Attention, FeedForward, Kind
from llmservice_planner.plan import Plan, Request

Version = tuple[int, int, int]

_LISTED = frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"})
"""Classes that the second model runner took first."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a range of versions profiles, counts and takes by default."""

    name: str
    sampler: Literal["v0", "v1", "plain"] | None
    """How logits are copied while the engine profiles itself; None: as today."""
    is_v1: bool = True
    default_utilization: float = 0.9
    graphs_in_budget: bool = False
    counts_context: bool = False
    """Whether the CUDA context counts as the engine's own memory."""
    counts_growth: bool = False
    """Whether only what came after the start counts as memory outside torch."""
    mla: Literal["latent", "padded", "expanded"] = "latent"
    """How MLA models keep their cache: compressed, padded to 640 values, or expanded to full heads of 256."""
    drops_windows: bool = True
    """Whether sliding-window layers keep their window only; before, they counted as full ones."""
    divides_blocks: bool = True
    """Whether the printed tokens are the blocks, divided evenly among groups (vLLM issue 40691)."""
    has_videos: bool = True
    """Whether a video may be what encoders are profiled with."""
    cuts_items: bool = True
    """Whether pictures whose tokens attend to each other were cut into steps too: Gemma 4 served with 2,048 tokens."""
    chunk_above: int | None = None
    """V0: a longer maximum switches chunked prefill on."""
    chunk_tokens: int = 2048
    """V0: tokens of a step with chunked prefill."""
    expert_chunk: int | None = None
    """Tokens that experts work on at a time (VLLM_FUSED_MOE_CHUNK_SIZE); None: all."""
    has_many_sequences: bool = False
    """1,024 sequences by default on every GPU."""
    second_runner: Literal["none", "listed", "dense", "all"] = "none"
    """Models that the second model runner takes."""


_V0 = Generation("V0, to 0.2", "v0", is_v1=False, mla="expanded", drops_windows=False, has_videos=False)
_V0_03 = replace(_V0, name="V0, 0.3 to 0.5.2", counts_context=True)
_V0_053 = replace(_V0_03, name="V0, 0.5.3 to 0.5.5", chunk_above=32768, chunk_tokens=512, expert_chunk=32768)
_V0_06 = replace(_V0_053, name="V0, 0.6", counts_context=False)
_V0_07 = replace(_V0_06, name="V0, 0.7 on", mla="padded", chunk_tokens=2048)
_V1_085 = Generation("V1, 0.8.5 to 0.9.1", "v1", drops_windows=False, has_videos=False, expert_chunk=32768)
_V1_080 = replace(_V1_085, name="V1, 0.8.0 to 0.8.4", has_many_sequences=True)
_V1_092 = replace(_V1_085, name="V1, 0.9.2", counts_growth=True)
_V1_010 = replace(_V1_092, name="V1, 0.10 to 0.18", drops_windows=True, has_videos=True)
_V1_019 = Generation("V1, 0.19", "plain")
_V1_020 = replace(_V1_019, name="V1, 0.20", divides_blocks=False, cuts_items=False)
_V1_021 = replace(_V1_020, name="V1, 0.21 to 0.22", default_utilization=0.92, graphs_in_budget=True)
_V1_023 = replace(_V1_021, name="V1, 0.23 to 0.26", second_runner="listed")
_V1_027 = replace(_V1_021, name="V1, 0.27 to 0.31", sampler=None, second_runner="dense")
_V1_032 = replace(_V1_027, name="V1, 0.32 on", second_runner="all")

_GENERATIONS: tuple[tuple[Version, Generation], ...] = (
    ((0, 0, 0), _V0),
    ((0, 3, 0), _V0_03),
    ((0, 5, 3), _V0_053),
    ((0, 6, 0), _V0_06),
    ((0, 7, 0), _V0_07),
    ((0, 8, 0), _V1_080),
    ((0, 8, 5), _V1_085),
    ((0, 9, 2), _V1_092),
    ((0, 10, 0), _V1_010),
    ((0, 19, 0), _V1_019),
    ((0, 20, 0), _V1_020),
    ((0, 21, 0), _V1_021),
    ((0, 23, 0), _V1_023),
    ((0, 27, 0), _V1_027),
    ((0, 32, 0), _V1_032),
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_RELEASED: tuple[tuple[tuple[int, int], Version], ...] = (
    # The first release of a month, where it is another generation.
    ((2023, 1), (0, 1, 0)),
    ((2024, 2), (0, 3, 0)),
    ((2024, 7), (0, 5, 3)),
    ((2024, 9), (0, 6, 0)),
    ((2025, 2), (0, 7, 2)),
    ((2025, 4), (0, 8, 3)),
    ((2025, 5), (0, 8, 5)),
    ((2025, 8), (0, 10, 0)),
    ((2026, 2), (0, 16, 0)),
    ((2026, 4), (0, 19, 0)),
    ((2026, 5), (0, 21, 0)),
    ((2026, 6), (0, 23, 0)),
    ((2026, 8), (0, 27, 0)),
    ((2026, 11), (0, 32, 0)),
)


@lru_cache(maxsize=256)
def generation(version: str | None) -> Generation:
    """Of a version as people write it: 0.32.0, `0.8.3 (V0)`, `Mar 2026`; the newest one for what names none."""
    text = (version or "").lower()
    found = _version(text)
    if found is None:
        return _V1_032
    says_v0, says_v1 = re.search(r"\bv0\b(?!\.)", text), re.search(r"\bv1\b", text)
    if says_v0 and not says_v1 and found >= (0, 8, 0):
        return _V0_07
    chosen = [made for since, made in _GENERATIONS if since <= found][-1]
    return _V1_080 if says_v1 and not chosen.is_v1 else chosen


def _version(text: str) -> Version | None:
    number = re.search(r"(?<![\d.])(\d+)\.(\d+)(?:\.(\d+))?", text)
    if number:
        return (int(number[1]), int(number[2]), int(number[3] or 0))
    year = re.search(r"\b(20\d\d)(?:-(\d\d))?", text)
    if year is None:
        return None
    month = int(year[2]) if year[2] else next((i for i, name in enumerate(_MONTHS, 1) if name in text), 12)
    return next((v for since, v in reversed(_RELEASED) if since <= (int(year[1]), month)), None)


def as_today(request: Request, version: str | None) -> Request:
    """The question with what that version did by default and to the model."""
    made = generation(version)
    is_second = made.second_runner == "dense" or (made.second_runner == "listed" and _is_listed(request))
    utilization = request.gpu_memory_utilization
    request = replace(
        _with_limits(request, made),
        vllm_version="0.28.0" if is_second else None,
        gpu_memory_utilization=made.default_utilization if utilization is None else utilization,
        disabled_inputs=request.disabled_inputs if made.has_videos else request.disabled_inputs | {"video"},
        own_image=request.own_image or made.second_runner in ("none", "listed"),
    )
    model = request.architecture
    if model is None:
        return request
    changed = {
        id(layer): replace(
            layer,
            attention=_attention(layer.attention, request, made),
            feed_forward=_feed_forward(layer.feed_forward, request, model.hidden_size, made),
        )
        for layer in model.layers
    }
    encoder = replace(model.encoder, is_whole=model.encoder.is_whole and not made.cuts_items)
    layers = tuple(changed[id(one)] for one in model.layers)
    request = replace(request, architecture=replace(model, layers=layers, encoder=encoder))
    return _with_absorbed(request, model) if made.mla == "padded" else request


def constants_of(constants: EarlierConstants, version: str | None, request: Request) -> Constants:
    """Those with which today's planner computes what that version did."""
    made, ranks = generation(version), request.tensor_parallel_size
    sampler = {"v0": constants.sampler_bytes_v0, "v1": constants.sampler_bytes_v1}
    changes: dict[str, Constant] = {}
    if made.sampler is not None and request.vllm_version is None:
        changes["sampler_bytes_bare"] = sampler.get(made.sampler, constants.sampler_bytes_plain)
    if not made.graphs_in_budget:
        changes["graph_mib"] = replace(constants.graph_mib, value=0.0)
    if not made.is_v1:
        context = constants.cuda_context.value if made.counts_context else 0.0
        changes["non_torch"] = replace(constants.non_torch_v0, value=constants.non_torch_v0.value + context)
        # V0 took its share of the whole GPU, whether it was free or not.
        changes["free_at_start"] = replace(constants.free_at_start, value=0.0, uncertainty=0.0)
        if ranks > 1:
            changes["hidden_copies"] = constants.hidden_copies_v0
    elif made.counts_growth:
        changes["non_torch"] = constants.non_torch_growth
    if made.counts_context:
        changes |= {"band_gib": constants.band_reserved_gib, "band_share": constants.band_reserved_share}
    elif made.sampler in ("v0", "v1"):
        changes["band_share"] = constants.band_share_old
    return replace(constants, **changes)


def printed(plan: Plan, version: str | None) -> Plan:
    """The plan with the tokens that the version prints for its blocks."""
    if not generation(version).divides_blocks or plan.num_blocks is None:
        return plan
    return replace(plan, kv_cache_tokens=plan.num_blocks // (plan.kv_groups or 1) * (plan.block_size or 0))


def packed_tokens(request: Request, available: int) -> int:
    """What 0.26 prints for DeepSeek V4 and so much memory (v1/core/kv_cache_utils.py): pages of windows and compressors
    are padded to one of the others' sizes, and a request counts by the bytes of its blocks' own groups instead of by
    whole blocks."""
    made, length = kv_cache.layout(request), longest_length(request) or 0
    packed = replace(request, kv_cache_dtype="fp8_ds_mla")
    specs = [placed.spec for placed in placed_specs(packed, Blocks(256, 256), wide_states=False)]
    kept = Counter(spec.page for spec in specs if spec.kind is Kind.COMPRESSED)
    buckets: dict[tuple[int, int], Counter[int]] = {}
    for spec in specs:
        if spec.kind is not Kind.COMPRESSED:
            page = min(size for size in kept if size >= spec.page)
            buckets.setdefault((spec.block_size, spec.window), Counter())[page] += 1
    whole = sum(page * count for page, count in kept.items())
    taken = sum(group.spec.blocks_of(length, made.in_flight) * whole for group in made.groups if _keeps(group))
    slots = Counter(kept)
    for key, pages in buckets.items():
        parts = [one for one in made.groups if not _keeps(one) and key == (one.spec.block_size, one.spec.window)]
        each = Counter({page: -(-count // len(parts)) for page, count in pages.items()})
        slots |= each
        taken += sum(page * count for page, count in pages.items()) * parts[0].spec.blocks_of(length, made.in_flight)
    blocks = available // sum(page * count for page, count in slots.items())
    return int(blocks / -(-taken // whole) * length)


def _keeps(group: Group) -> bool:
    return group.spec.kind is Kind.COMPRESSED


def _is_listed(request: Request) -> bool:
    return request.architecture is not None and request.architecture.name in _LISTED


def _with_limits(request: Request, made: Generation) -> Request:
    tokens, sequences = request.max_num_batched_tokens, request.max_num_seqs
    if made.is_v1:
        if made.has_many_sequences:
            return replace(request, max_num_seqs=sequences or 1024, max_num_batched_tokens=tokens or 2048)
        is_large = request.device is not None and request.device.memory_gib >= 160 and not made.graphs_in_budget
        return replace(request, max_num_batched_tokens=tokens or 8192) if is_large else request
    if tokens is None:
        length = longest_length(request) or made.chunk_tokens
        is_chunked = made.chunk_above is not None and length > made.chunk_above and not _is_latent(request)
        # Without chunked prefill a step holds the longest request.
        tokens = made.chunk_tokens if is_chunked else max(length, 2048)
    return replace(request, max_num_seqs=sequences or 256, max_num_batched_tokens=tokens)


def _is_latent(request: Request) -> bool:
    """V0 engines switched chunked prefill off for MLA."""
    model = request.architecture
    return model is not None and any(layer.attention.kind is Kind.LATENT for layer, _ in model.distinct_layers)


def _attention(attention: Attention, request: Request, made: Generation) -> Attention:
    if attention.kind is Kind.SLIDING and not made.drops_windows:
        return replace(attention, kind=Kind.FULL)
    if attention.kind is not Kind.LATENT or made.mla == "latent":
        return attention
    # The width counts for the cache alone: its rotated part takes what was stored beside.
    width = -(-(attention.latent_dim + attention.rope_dim) // 128) * 128
    if made.mla == "expanded":
        width = max(1, attention.heads // request.tensor_parallel_size) * 2 * 256
    return replace(attention, rope_dim=width - attention.latent_dim)


def _feed_forward(layer: FeedForward, request: Request, hidden_size: int, made: Generation) -> FeedForward:
    """With one expert a token, as wide as it takes to hold what all of them held: they worked on a part of the tokens
    at a time, and the first and the last product of V0's did not share a workspace."""
    tokens = request.max_num_batched_tokens or 1
    share = min(1.0, (made.expert_chunk or tokens) / tokens)
    if not layer.experts or (made.is_v1 and share == 1):
        return layer
    ranks, matrices = request.tensor_parallel_size, 2 if layer.gated else 1
    width = layer.expert_intermediate / ranks
    first = matrices * width
    outer = max(first, hidden_size) if made.is_v1 else first + hidden_size
    held = share * (layer.experts_per_token * (outer + width) + hidden_size) - hidden_size
    return replace(layer, experts_per_token=1, expert_intermediate=round(held / (matrices + 1) * ranks))


def _with_absorbed(request: Request, model: Architecture) -> Request:
    """With the matrices that V0 engines multiplied out for MLA, beside those of the checkpoint.

    Queries times the keys' expansion and the values' expansion times the output (0.7: vllm/attention/backends/mla).
    """
    own = model.quantization.method if model.quantization is not None else ""
    size = 1 if "fp8" in (request.quantization or own) else 2
    made = 0.0
    for layer, count in model.distinct_layers:
        attention = layer.attention
        if attention.kind is Kind.LATENT:
            width = (attention.query_rank or model.hidden_size) + model.hidden_size
            made += count * attention.heads * attention.latent_dim * width * size
    if not made:
        return request
    made /= request.tensor_parallel_size * request.pipeline_parallel_size
    one, two = (weights.weigh(replace(request, weights_gib=size)).per_gpu for size in (1.0, 2.0))
    wanted = weights.weigh(request).per_gpu + made
    return replace(request, weights_gib=1 + (wanted - one) / (two - one))


@dataclass(frozen=True, slots=True)
class EarlierConstants(Constants):
    """With those of earlier versions."""

    hidden_copies_v0: Constant = Constant(
        5.0,
        "values per hidden unit and token",
        0.5,
        "As hidden_copies, for V0 engines whose ranks sum up their results: what goes into the sum and what comes out "
        "of it have buffers of their own. Slope of vllm#10517, 70B on two GPUs at 20,000 and 24,000 tokens: 5.4.",
    )
    sampler_bytes_v0: Constant = Constant(
        39.0,
        "bytes per sequence and token of the vocabulary",
        5.0,
        "Logits in 16 and 32 bit, sorted values and their indices, probabilities, sums and masks. Eight V0 start-ups "
        "that print their activation peak: 35 to 48.",
    )
    sampler_bytes_v1: Constant = Constant(
        41.0,
        "bytes per sequence and token of the vocabulary",
        4.0,
        "As sampler_bytes_v0, for V1 engines before 0.19, which sort on the GPU too: 125M model with 1,024 sequences, "
        "two start-ups.",
    )
    non_torch_growth: Constant = Constant(
        0.10,
        "GiB",
        0.05,
        "As non_torch, for engines from 0.9.2 to 0.18, which counted only what came after the start: 0.07 printed.",
    )
    non_torch_v0: Constant = Constant(
        0.10, "GiB", 0.12, "As non_torch, as V0 engines print it: 0.04 to 0.35 on one GPU."
    )
    cuda_context: Constant = Constant(
        0.50, "GiB", 0.1, "The CUDA context, which engines from 0.3 to 0.5 counted as theirs."
    )
    band_share_old: Constant = Constant(0.35, "share of the overheads", 0.0, "As band_share, for engines before 0.19.")
    band_reserved_gib: Constant = Constant(
        0.60,
        "GiB per GPU",
        0.0,
        "As band_gib, for engines from 0.3 to 0.5, which counted gaps in the allocator's reserve as well.",
    )
    band_reserved_share: Constant = Constant(
        0.20, "share of the overheads", 0.0, "As band_share, for the same engines."
    )


PRIOR = EarlierConstants()
"""What sources and single measurements say of each; the fit does not go far from it."""

FITTED: dict[str, float] = {
    "hidden_copies_v0": 4.6,
    "sampler_bytes_v0": 35.6,
    "sampler_bytes_v1": 43.3,
    "non_torch_v0": 0.07,
    "cuda_context": 0.53,
}
"""The values of the last calibration."""

ALL = replace(
    PRIOR,
    **CONSTANTS.named(),
    **{name: replace(PRIOR.named()[name], value=value) for name, value in FITTED.items()},
)
