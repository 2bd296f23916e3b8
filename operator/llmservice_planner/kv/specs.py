"""What each layer stores, as in vLLM's specs (v1/kv_cache_interface.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from llmservice_planner.kv.blocks import Blocks, has_state, index_bytes, index_width, state_blocks, state_bytes
from llmservice_planner.kv.types import compressed_bytes, head_bytes, is_packed, latent_bytes, value_bytes
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
