"""The KV cache of an engine: its blocks, their tokens, and the needs of one request.

Equal to what vLLM computes and prints (v1/core/kv_cache_utils.py); tests compare both. Bytes are of one GPU, of the
pipeline stage with the largest blocks, since all stages get as many blocks as that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from llmservice_planner.batching import batching, steps_in_flight
from llmservice_planner.kv.blocks import blocks, is_sparse
from llmservice_planner.kv.specs import PlacedSpec, Spec, placed_specs
from llmservice_planner.kv.types import is_compressed, stored_type
from llmservice_planner.model.architecture import Incomplete, Kind
from llmservice_planner.plan import Request

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
