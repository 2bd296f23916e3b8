"""What each layer keeps for its requests, as vLLM 0.32 describes it to itself (v1/kv_cache_interface.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from llmservice_operator.planner.architecture import Architecture, Attention, Incomplete, Kind
from llmservice_operator.planner.engines import engine
from llmservice_operator.planner.kv_blocks import Blocks
from llmservice_operator.planner.kv_states import state_blocks, state_bytes
from llmservice_operator.planner.kv_types import head_bytes, is_packed, latent_bytes, value_bytes
from llmservice_operator.planner.plan import Draft, Request
from llmservice_operator.planner.stages import layers_of_stages

INDEXER_BYTES = 132
"""Of one token in the index of sparse MLA: 128 values of 8 bits and a scale (vllm models/deepseek_v2.py)."""
_SPARSE = ("DeepseekV32", "GlmMoeDsa")


class Spec(NamedTuple):
    """One layer's cache on one GPU. Two layers are alike for vLLM exactly when their specs are equal."""

    kind: Kind
    block_size: int
    """Tokens of one block."""
    page: int
    """Bytes of one block, padding included."""
    shape: tuple[int, ...] = ()
    """What else sets it apart: heads and widths."""
    window: int = 0
    """Tokens that a request keeps beside those in flight, for SLIDING."""
    blocks: int = 0
    """That a request takes whatever its length, for STATE."""

    def blocks_of(self, length: int, in_flight: int) -> int:
        """Blocks that one request of that length takes at most."""
        if self.kind is Kind.STATE:
            return self.blocks
        if self.kind is Kind.SLIDING:
            # One more, since a window begins anywhere in its first block.
            return -(-min(self.window - 1 + in_flight, length) // self.block_size) + 1
        return -(-length // self.block_size)


class Placed(NamedTuple):
    """A spec, and the pipeline stage that holds it."""

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
        """Of one layer: none, one, or two where it has attention and a state, or an index."""
        if attention.shares_cache:
            return []
        made: list[Spec] = []
        if attention.kind is not Kind.STATE:
            made.append(self._attention(attention, plain))
        if attention.conv_values or attention.recurrent_values:
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
        if attention.kind is Kind.SLIDING and attention.window and self.keeps_windows:
            block = self.blocks.sliding
            return Spec(Kind.SLIDING, block, block * token, shape, attention.window + self.extra_window)
        return Spec(Kind.FULL, self.blocks.full, self.blocks.full * token, shape)

    def _latent(self, attention: Attention, kv_dtype: str, size: int) -> Spec:
        width = attention.latent_dim + attention.rope_dim
        generation = engine(self.request.vllm_version).mla
        if generation == "expanded":
            # Before MLA was built in: keys and values of every head, both as wide as the next supported size.
            token = max(1, attention.heads // self.ranks) * head_bytes(kv_dtype, 256, 256, size)
        else:
            width = -(-width // 128) * 128 if generation == "padded" else width
            token = latent_bytes(kv_dtype, width, size)
        return Spec(Kind.LATENT, self.blocks.full, self.blocks.full * token, (token,))

    def _state(self, attention: Attention) -> Spec:
        page = max(state_bytes(self.request, attention, self.ranks, self.wide_states), self.blocks.state_page)
        return Spec(Kind.STATE, 0, page, (), 0, state_blocks(self.request))

    @property
    def keeps_windows(self) -> bool:
        """Chunked local attention (Llama 4) is kept like full attention, for it is faster so."""
        architecture = self.request.architecture
        chunked = architecture is not None and architecture.name.startswith("Llama4")
        return engine(self.request.vllm_version).swa_groups and not chunked

    @property
    def extra_window(self) -> int:
        """Several MTP modules read further back, each one token."""
        draft, architecture = self.request.draft, self.request.architecture
        if draft is None or draft.method != "mtp" or architecture is None:
            return 0
        several = min(architecture.mtp_layers, draft.num_speculative_tokens) > 1
        return draft.num_speculative_tokens - 1 if several else 0


def placed_specs(request: Request, blocks: Blocks, *, wide_states: bool) -> list[Placed]:
    """Every layer that stores something, in the order in which vLLM finds them."""
    architecture = request.architecture
    if architecture is None:
        raise Incomplete("model.architecture")
    setting = _Setting(request, blocks, request.tensor_parallel_size, wide_states)
    counts = layers_of_stages(len(architecture.layers), request.pipeline_parallel_size)
    stages = [stage for stage, count in enumerate(counts) for _ in range(count)]
    outer = _unquantized(request, architecture)
    placed = [
        Placed(spec, stage)
        for place, (layer, stage) in enumerate(zip(architecture.layers, stages, strict=True))
        for spec in setting.specs(layer.attention, plain=place in outer)
    ]
    if architecture.name.startswith(_SPARSE):
        index = Spec(Kind.LATENT, blocks.full, blocks.full * INDEXER_BYTES, (INDEXER_BYTES,))
        placed += [Placed(index, one.stage) for one in placed if one.spec.kind is Kind.LATENT]
    if request.draft is not None:
        placed += [Placed(spec, len(counts) - 1) for spec in _draft_specs(setting, request.draft, architecture)]
    return placed


def _unquantized(request: Request, architecture: Architecture) -> frozenset[int]:
    """The two first and the two last layers of a dense model, with types that are hard on them."""
    count = len(architecture.layers)
    if not is_packed(request.kv_cache_dtype) or any(one.attention.kind is Kind.STATE for one in architecture.layers):
        return frozenset()
    edge = min(2, count // 2)
    return frozenset((*range(edge), *range(count - edge, count)))


def _draft_specs(setting: _Setting, draft: Draft, architecture: Architecture) -> list[Spec]:
    """Of the layers that speculation adds; they are on the last stage."""
    if draft.method == "mtp":
        return setting.specs(architecture.layers[-1].attention) * max(1, architecture.mtp_layers)
    if draft.method in ("eagle", "eagle3") and draft.architecture is None:
        # A head is one layer of the model's own kind.
        return setting.specs(architecture.layers[-1].attention)
    if draft.method not in ("draftModel", "draft_model", "eagle", "eagle3"):
        return []
    if draft.architecture is None:
        raise Incomplete("the draft model's config.json")
    ranks = draft.tensor_parallel_size or setting.ranks
    own = _Setting(setting.request, setting.blocks, ranks, setting.wide_states)
    return [spec for layer in draft.architecture.layers for spec in own.specs(layer.attention)]
