"""The KV cache of an engine: its blocks, the tokens that they hold, and what one request needs of them.

Exactly what vLLM computes and prints (v1/core/kv_cache_utils.py); tests hold both against each other. Bytes are
those of one GPU: of the pipeline stage whose blocks are the largest, since all stages get as many blocks as that one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmservice_operator.planner.batching import batching, steps_in_flight
from llmservice_operator.planner.kv.blocks import blocks, is_sparse
from llmservice_operator.planner.kv.groups import Group, groups
from llmservice_operator.planner.kv.specs import placed_specs
from llmservice_operator.planner.kv.types import is_compressed, stored_type
from llmservice_operator.planner.model.architecture import Incomplete, Kind
from llmservice_operator.planner.plan import Request


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits into some memory."""

    tokens: int
    """As vLLM prints them: `GPU KV cache size: N tokens`. One engine holds them, over all its GPUs."""
    num_blocks: int
    max_concurrency: float
    """Requests of the full length at once: `Maximum concurrency for N tokens per request`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an engine lays out its KV cache."""

    block_size: int
    """Tokens of a block of the layers that keep everything, or of the others where there are none."""
    bytes_per_block: int
    """On one GPU."""
    groups: tuple[Group, ...]
    in_flight: int
    """Tokens that are scheduled and not settled; sliding windows wait for them."""

    @property
    def bytes_per_token(self) -> float:
        """On one GPU, for each further token of a long request; of a short one where nothing grows with length.

        0 for models that keep states only, and without any cache.
        """
        growing = [one for one in self.groups if one.spec.kind in (Kind.FULL, Kind.LATENT, Kind.COMPRESSED)]
        chosen = growing or [one for one in self.groups if one.spec.kind is Kind.SLIDING]
        return sum(self.bytes_per_block / one.spec.block_size for one in chosen)

    def blocks_of(self, length: int) -> int:
        """Blocks that one request of that length takes, over all groups."""
        return sum(group.spec.blocks_of(length, self.in_flight) for group in self.groups)

    def needed(self, length: int) -> int:
        """Bytes with which vLLM starts for requests of that length, one block included that no request gets."""
        spare = 1 if self.groups else 0
        return self.bytes_per_block * (self.blocks_of(length) + spare)

    def capacity(self, available_bytes: int, max_model_len: int) -> Capacity:
        """Of that much memory. Models without a cache have one block and no tokens."""
        if not self.groups:
            return Capacity(0, 1, 0.0)
        count = max(0, available_bytes) // self.bytes_per_block
        concurrency = count / self.blocks_of(max_model_len)
        return Capacity(int(concurrency * max_model_len), count, concurrency)

    def longest(self, available_bytes: int, limit: int) -> int:
        """The largest length up to `limit` that vLLM would start with; 0: not even one token fits."""
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
    """Of the request's model on its device.

    `amx`: a CPU with AMX tiles, whose MLA kernel takes blocks of 128 tokens instead of 16. `wide_states`: one with
    AVX-512 BF16, where recurrent states are float32. Both are nothing to GPUs. Incomplete: without an architecture.
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
