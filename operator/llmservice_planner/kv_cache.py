"""The KV cache of an engine: its blocks, their tokens, and the needs of one request.

Equal to what vLLM computes and prints (v1/core/kv_cache_utils.py); tests compare both. Bytes are of one GPU, of the
pipeline stage with the largest blocks, since all stages get as many blocks as that one.
What each layer stores is as in vLLM's specs (v1/kv_cache_interface.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from llmservice_planner.batching import batching, steps_in_flight
from llmservice_planner.kv_blocks import (
    Blocks,
    blocks,
    compressed_bytes,
    has_state,
    head_bytes,
    index_bytes,
    index_width,
    is_compressed,
    is_packed,
    is_sparse,
    latent_bytes,
    state_blocks,
    state_bytes,
    stored_type,
    value_bytes,
)
from llmservice_planner.model import deepseek_v4
from llmservice_planner.model.architecture import Architecture, Attention, Incomplete, Kind, Layer
from llmservice_planner.plan import Draft, Request
from llmservice_planner.splits import layers_of_stages


class Spec(NamedTuple):
    """One layer's cache on one GPU. vLLM treats layers as equal exactly if their specs are."""

    kind: Kind
    block_size: int
    """Tokens of one block."""
    page: int
    """Bytes of one block, including padding."""
    shape: tuple[int, ...] = ()
    """Further parts of its identity: heads and widths."""
    window: int = 0
    """Tokens that a request keeps beside those in flight, for SLIDING."""
    begins_anywhere: int = 0
    """1: the window may begin inside a block, so that a request needs one more; chunks begin with blocks."""
    blocks: int = 0
    """Blocks of a request of any length: all for STATE, in addition to those of its tokens for FULL."""

    def blocks_of(self, length: int, in_flight: int) -> int:
        """Maximum of blocks for one request of that length."""
        if self.kind is Kind.STATE:
            return self.blocks
        if self.kind is Kind.SLIDING:
            return -(-min(self.window + in_flight, length) // self.block_size) + self.begins_anywhere
        return -(-length // self.block_size) + self.blocks


class PlacedSpec(NamedTuple):
    """A spec and its pipeline stage."""

    spec: Spec
    stage: int


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the specs of all layers share."""

    request: Request
    blocks: Blocks
    ranks: int
    wide_states: bool

    def specs(self, attention: Attention, *, plain: bool = False) -> list[Spec]:
        """Specs of one layer: none, one, or two if it has attention and a state."""
        if attention.shares_cache or attention.kind is Kind.ENCODER:
            return []
        if attention.kind is Kind.COMPRESSED:
            return self._compressed(attention)
        made: list[Spec] = []
        if attention.kind is not Kind.STATE:
            made.append(self._attention(attention, plain))
        if has_state(attention):
            made.append(self._state(attention))
        return made

    def _attention(self, attention: Attention, plain: bool) -> Spec:
        kv_dtype = "auto" if plain else self.request.kv_cache_dtype
        size = value_bytes(self.request)
        if attention.kind is Kind.LATENT:
            return self._latent(attention, kv_dtype, size)
        heads = max(1, attention.kv_heads // self.ranks)
        token = heads * head_bytes(kv_dtype, attention.key_dim, attention.value_dim, size)
        shape = (heads, attention.key_dim, attention.value_dim, token)
        if self._keeps_window(attention) and attention.window:
            if attention.chunked:
                return Spec(Kind.SLIDING, self.blocks.full, self.blocks.full * token, shape, attention.window)
            block, kept = self.blocks.sliding, attention.window - 1 + self.extra_window
            return Spec(Kind.SLIDING, block, block * token, shape, kept, 1)
        page = self.blocks.full * (token + attention.index_bytes)
        return Spec(Kind.FULL, self.blocks.full, page, shape, blocks=attention.more_blocks)

    def _latent(self, attention: Attention, kv_dtype: str, size: int) -> Spec:
        token = latent_bytes(kv_dtype, attention.latent_dim + attention.rope_dim, size)
        return Spec(Kind.LATENT, self.blocks.full, self.blocks.full * token, (token,))

    def _compressed(self, attention: Attention) -> list[Spec]:
        """Specs of a layer of DeepSeek V4: its window, its vectors, those of its index, and each compressor's partial
        vectors (vllm/models/deepseek_v4: attention.py, compressor.py; mla/sparse_swa.py)."""
        kv_dtype, ratio, full = self.request.kv_cache_dtype, attention.compress_ratio, self.blocks.full
        width, rope = attention.latent_dim + attention.rope_dim, attention.rope_dim
        token = compressed_bytes(kv_dtype, width, rope, value_bytes(self.request))
        unit = 576 if kv_dtype == "fp8_ds_mla" else 512

        def spec(kind: Kind, block: int, size: int, window: int = 0) -> Spec:
            return Spec(kind, block, -(-size // unit) * unit, (size,), window, int(window > 0))

        made = [spec(Kind.SLIDING, 64, 64 * token, (attention.window or 1) - 1)]
        if ratio > 1:
            made.append(spec(Kind.COMPRESSED, full, full // ratio * token))
        dims = ((width,) if ratio > 1 else ()) + ((attention.index_dim,) if attention.index_dim else ())
        for dim in dims:
            vectors = deepseek_v4.overlap(ratio)
            block = 4 if vectors > 1 else 8
            # A sum and a score for each value, in 32 bit.
            made.append(spec(Kind.SLIDING, block, block * 2 * vectors * dim * 4, vectors * ratio - 1))
        if attention.index_dim:
            made.append(spec(Kind.COMPRESSED, full, full // ratio * index_bytes(attention.index_dim)))
        return made

    def _state(self, attention: Attention) -> Spec:
        page = state_bytes(self.request, attention, self.ranks, self.wide_states)
        return Spec(Kind.STATE, 0, page, blocks=state_blocks(self.request, attention))

    def _keeps_window(self, attention: Attention) -> bool:
        """Whether tokens before the window are dropped; chunks (Llama 4) cannot be combined with drafts from hidden
        states."""
        if attention.kind is not Kind.SLIDING:
            return False
        draft = self.request.draft
        return not (attention.chunked and draft is not None and draft.method in ("eagle", "eagle3", "mtp"))

    @property
    def extra_window(self) -> int:
        """Several MTP modules read further back, each one token."""
        draft, architecture = self.request.draft, self.request.architecture
        if draft is None or draft.method != "mtp" or architecture is None:
            return 0
        several = min(architecture.mtp_layers, draft.num_speculative_tokens) > 1
        return draft.num_speculative_tokens - 1 if several else 0


def placed_specs(request: Request, blocks: Blocks, *, wide_states: bool) -> list[PlacedSpec]:
    """Specs of every layer that stores something, in vLLM's order."""
    architecture = request.architecture
    if architecture is None:
        raise Incomplete("model.architecture")
    setting = _Setting(request, blocks, request.tensor_parallel_size, wide_states)
    counts = layers_of_stages(len(architecture.layers), request.pipeline_parallel_size)
    stages = [stage for stage, count in enumerate(counts) for _ in range(count)]
    outer = _unquantized(request, architecture)
    # Most layers are the same object.
    made: dict[tuple[int, bool], tuple[Spec, ...]] = {}
    placed: list[PlacedSpec] = []
    for place, (layer, stage) in enumerate(zip(architecture.layers, stages, strict=True)):
        key = (id(layer), place in outer)
        if key not in made:
            made[key] = (*setting.specs(layer.attention, plain=key[1]), *_index(layer, blocks))
        placed += [PlacedSpec(spec, stage) for spec in made[key]]
    if request.draft is not None:
        placed += [PlacedSpec(spec, len(counts) - 1) for spec in _draft_specs(setting, request.draft, architecture)]
    return placed


def _index(layer: Layer, blocks: Blocks) -> list[Spec]:
    """The index of sparse MLA, which stores every token as the layer does."""
    width = index_width(layer)
    if not width:
        return []
    token = index_bytes(width)
    return [Spec(Kind.LATENT, blocks.full, blocks.full * token, (token,))]


def _unquantized(request: Request, architecture: Architecture) -> frozenset[int]:
    """The first two and last two layers of a dense model, for types that degrade them."""
    count = len(architecture.layers)
    if not is_packed(request.kv_cache_dtype) or any(one.attention.kind is Kind.STATE for one in architecture.layers):
        return frozenset()
    edge = min(2, count // 2)
    return frozenset((*range(edge), *range(count - edge, count)))


def _draft_specs(setting: _Setting, draft: Draft, architecture: Architecture) -> list[Spec]:
    """Specs of layers that speculation adds, on the last stage."""
    if draft.method == "mtp" and architecture.mtp_layer is not None:
        return setting.specs(architecture.mtp_layer.attention) * max(1, architecture.mtp_layers)
    last = next((one for one in reversed(architecture.layers) if one.attention.heads), None)
    if draft.method == "mtp" and last is not None:
        # Each has an index, whichever of the model's own layers have one.
        index = _index(max(architecture.layers, key=index_width), setting.blocks)
        return [*setting.specs(last.attention), *index] * max(1, architecture.mtp_layers)
    if draft.method in ("eagle", "eagle3") and draft.architecture is None and last is not None:
        # A head is one layer of the model's own kind.
        return setting.specs(last.attention)
    if draft.method not in ("draftModel", "eagle", "eagle3"):
        return []
    if draft.architecture is None:
        raise Incomplete("the draft model's config.json")
    ranks = draft.tensor_parallel_size or setting.ranks
    own = _Setting(setting.request, setting.blocks, ranks, setting.wide_states)
    return [spec for layer in draft.architecture.layers for spec in own.specs(layer.attention)]


# Layers that share block tables, grouped as in vLLM (v1/core/kv_cache_utils.py, get_kv_cache_groups). All groups take
# blocks from one pool, so a block has the same size in each: that of the widest group.


class Group(NamedTuple):
    """Layers that get blocks together."""

    spec: Spec
    """Of its first layer: a request takes the same for all."""
    bytes_of_stages: tuple[int, ...]
    """Bytes of one block, for the group's layers on each pipeline stage."""


def groups(layers: Sequence[PlacedSpec], stages: int) -> tuple[Group, ...]:
    """One group where all layers need the same number of blocks; else one for each position in the pattern of
    layers."""
    if not layers:
        return ()
    if _is_uniform([layer.spec for layer in layers]):
        return (_group(layers, stages),)
    if any(layer.spec.kind is Kind.COMPRESSED for layer in layers):
        return tuple(_group(part, stages) for part in _packed(layers))
    buckets: dict[Spec, list[PlacedSpec]] = {}
    for layer in _unified(layers):
        buckets.setdefault(layer.spec, []).append(layer)
    return tuple(_group(part, stages) for part in _split(list(buckets.values())))


def _group(layers: Sequence[PlacedSpec], stages: int) -> Group:
    held = [0] * stages
    for spec, stage in layers:
        held[stage] += spec.page
    return Group(layers[0].spec, tuple(held))


def _is_uniform(specs: Sequence[Spec]) -> bool:
    """Whether all layers need the same number of blocks, of whatever size."""
    first = specs[0]
    alike = set(specs)
    if len(alike) == 1:
        return True
    if any(spec.block_size != first.block_size for spec in alike):
        return False
    if first.kind is Kind.STATE:
        return all(spec.kind is Kind.STATE and spec.page == first.page for spec in alike)
    if first.kind is Kind.SLIDING:
        window = (Kind.SLIDING, first.window, first.begins_anywhere)
        return all((spec.kind, spec.window, spec.begins_anywhere) == window for spec in alike)
    return all(spec.kind in (Kind.FULL, Kind.LATENT, Kind.COMPRESSED) for spec in alike)


def _unified(layers: Sequence[PlacedSpec]) -> list[PlacedSpec]:
    """The layers with equal page sizes: by more tokens per block where that divides evenly, else by padding."""
    largest = max(layer.spec.page for layer in layers)
    changed = {spec: _widened(spec, largest) for spec in {layer.spec for layer in layers}}
    if None in changed.values():
        changed = {spec: _promoted(spec, layers) for spec in changed}
    return [PlacedSpec(changed[spec] or spec, stage) for spec, stage in layers]


def _widened(spec: Spec, page: int) -> Spec | None:
    if spec.page == page:
        return spec
    if spec.kind is not Kind.STATE and page % spec.page == 0:
        return spec._replace(block_size=spec.block_size * (page // spec.page), page=page)
    # Kernels index latent vectors by whole rows: no padding.
    return None if spec.kind is Kind.LATENT else spec._replace(page=page)


def _promoted(spec: Spec, layers: Sequence[PlacedSpec]) -> Spec:
    """Beside latent layers that cannot be padded, sliding ones keep everything, as full attention does."""
    if spec.kind is not Kind.SLIDING:
        return spec
    size = next((one.spec.block_size for one in layers if one.spec.kind is Kind.LATENT), spec.block_size)
    return Spec(Kind.FULL, size, spec.page // spec.block_size * size, spec.shape)


def _split(buckets: list[list[PlacedSpec]]) -> list[list[PlacedSpec]]:
    """Groups of as many layers as the rarest kind has, or the most frequent where the two are close.

    The layers of a group are taken at even distances, so that every pipeline stage has some of each group.
    """
    fewest, most = min(map(len, buckets)), max(map(len, buckets))
    size = most if most < fewest * 1.5 else fewest
    parts: list[list[PlacedSpec]] = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        parts += [bucket[place::count] for place in range(count)]
    return parts


def _packed(layers: Sequence[PlacedSpec]) -> list[list[PlacedSpec]]:
    """Groups whose layers lie side by side in a block of any size (_get_packed_kv_cache_groups).

    Layers with the same number of blocks per request form a bucket. If a bucket has as many layers of each page size,
    they repeat a pattern; such buckets are split into groups of about as many repeats, at least the longest pattern of
    several sizes. Without such a pattern, windows are split to fit the others' block.
    """
    buckets: dict[tuple[Kind, int, int], dict[int, list[PlacedSpec]]] = {}
    for layer in layers:
        spec = layer.spec
        sizes = buckets.setdefault((spec.kind, spec.block_size, spec.window), {})
        sizes.setdefault(spec.page, []).append(layer)
    repeats = {key: len(found) for key, sizes in buckets.items() if (found := _repeats(sizes))}
    least = max((count for key, count in repeats.items() if len(buckets[key]) > 1), default=0)
    size = _least_padding(list(repeats.values()), least) if least else 0
    floor = max(
        sum(page * (1 if not least and key[0] is Kind.SLIDING else len(found)) for page, found in sizes.items())
        for key, sizes in buckets.items()
    )
    parts: list[list[PlacedSpec]] = []
    for key, sizes in buckets.items():
        count = 1
        if least:
            count = -(-repeats[key] // size) if key in repeats else 1
        elif key[0] is Kind.SLIDING:
            page, alike = next(iter(sizes.items()))
            count = -(-len(alike) // max(1, floor // page))
        whole = [tuple(one for found in sizes.values() for one in found)]
        together = whole if count == 1 else _repeats(sizes)
        parts += [[one for repeat in together[place::count] for one in repeat] for place in range(count)]
    return parts


def _repeats(sizes: Mapping[int, list[PlacedSpec]]) -> list[tuple[PlacedSpec, ...]]:
    """One layer of each size together; empty where the numbers differ."""
    return list(zip(*sizes.values(), strict=True)) if len(set(map(len, sizes.values()))) == 1 else []


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size, from `least` on, with the fewest empty places; the largest of those (_approximate_gcd)."""
    return min(range(least, max(least, *counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))


@dataclass(frozen=True, slots=True)
class Capacity:
    tokens: int
    """As vLLM prints: `GPU KV cache size: N tokens`. Of one engine, over all its GPUs."""
    num_blocks: int
    max_concurrency: float
    """Requests of full length at once: `Maximum concurrency for N tokens per request`."""


@dataclass(frozen=True, slots=True)
class Layout:
    block_size: int
    """Tokens per block of layers that keep everything, or of the others without such layers."""
    bytes_per_block: int
    """On one GPU."""
    groups: tuple[Group, ...]
    in_flight: int
    """Tokens that are scheduled and not finished; sliding windows keep them."""

    @property
    def bytes_per_token(self) -> float:
        """On one GPU, for each further token of a long request; of a short one if nothing grows with length.

        0 for models with states only, and without a cache.
        """
        growing = [one for one in self.groups if one.spec.kind in (Kind.FULL, Kind.LATENT, Kind.COMPRESSED)]
        chosen = growing or [one for one in self.groups if one.spec.kind is Kind.SLIDING]
        return sum(self.bytes_per_block / one.spec.block_size for one in chosen)

    def blocks_of(self, length: int) -> int:
        """Blocks of one request of that length, over all groups."""
        return sum(group.spec.blocks_of(length, self.in_flight) for group in self.groups)

    def needed(self, length: int) -> int:
        """Bytes with which vLLM starts for requests of that length, including one block that no request gets."""
        spare = 1 if self.groups else 0
        return self.bytes_per_block * (self.blocks_of(length) + spare)

    def capacity(self, available_bytes: int, max_model_len: int) -> Capacity:
        """Capacity of that much memory. Models without a cache have one block and no tokens."""
        if not self.groups:
            return Capacity(0, 1, 0.0)
        count = max(0, available_bytes) // self.bytes_per_block
        concurrency = count / self.blocks_of(max_model_len)
        return Capacity(int(concurrency * max_model_len), count, concurrency)

    def longest(self, available_bytes: int, limit: int) -> int:
        """The largest length up to `limit` with which vLLM would start; 0: not even one token fits."""
        if self.needed(limit) <= available_bytes:
            return limit
        fits, too_long = 0, limit
        while too_long - fits > 1:
            length = (fits + too_long) // 2
            if self.needed(length) <= available_bytes:
                fits = length
            else:
                too_long = length
        return fits


def layout(request: Request, *, amx: bool = False, wide_states: bool = False) -> Layout:
    """The layout of the request's model on its device.

    `amx`: a CPU with AMX tiles, whose MLA kernel has blocks of 128 tokens instead of 16. `wide_states`: one with
    AVX-512 BF16, where recurrent states are float32. Both have no effect on GPUs. Incomplete without an architecture.
    """
    architecture = request.architecture
    if architecture is None:
        raise Incomplete("model.architecture")
    if request.device is not None and request.device.is_cpu and is_compressed(architecture):
        raise Incomplete("what a CPU stores for DeepSeek V4")
    request = replace(request, kv_cache_dtype=stored_type(request, sparse=is_sparse(architecture)))
    size = blocks(request, architecture, amx=amx, wide_states=wide_states)
    placed = placed_specs(request, size, wide_states=wide_states)
    made = groups(placed, request.pipeline_parallel_size)
    return Layout(
        block_size=_block_size(made, size.full),
        bytes_per_block=max((bytes_ for group in made for bytes_ in group.bytes_of_stages), default=0),
        groups=made,
        in_flight=steps_in_flight(request) * batching(request).tokens,
    )


def _block_size(made: tuple[Group, ...], default: int) -> int:
    if any(group.spec.kind is Kind.COMPRESSED for group in made):
        return default
    attending = [group.spec.block_size for group in made if group.spec.kind is not Kind.STATE]
    return min(attending, default=default)
