"""What holds for every KV cache: more memory never holds less, and a longer request never needs less."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from llmservice_operator.api.dtypes import KVCache
from llmservice_operator.planner.kv_cache import layout
from llmservice_operator.planner.model.architecture import Architecture, Attention, FeedForward, Kind, Layer
from llmservice_operator.planner.plan import Device, Draft, Request

WIDTHS = st.sampled_from((32, 64, 80, 96, 128, 192, 256))
HEADS = st.sampled_from((1, 2, 4, 5, 8, 16, 40, 48))
FULL = st.builds(lambda heads, width: Attention(Kind.FULL, 8 * heads, heads, width, width), HEADS, WIDTHS)
SLIDING = st.builds(
    lambda one, window: replace(one, kind=Kind.SLIDING, window=window), FULL, st.sampled_from((64, 512, 4096))
)
LATENT = st.just(Attention(Kind.LATENT, 16, latent_dim=512, rope_dim=64))
STATE = st.builds(
    lambda conv, recurrent: Attention(Kind.STATE, conv_values=conv * 3 * 16, recurrent_values=recurrent * 16),
    st.integers(1, 1024),
    st.integers(1, 65536),
)
# As vLLM serves them: attention of one kind or with windows between, compressed or not, with states or without.
KINDS = st.one_of(
    st.lists(st.one_of(FULL, SLIDING), min_size=1, max_size=3),
    st.lists(LATENT, min_size=1, max_size=1),
    st.tuples(STATE, FULL).map(list),
    st.tuples(STATE, LATENT).map(list),
    st.lists(STATE, min_size=1, max_size=1),
)
DEVICES = st.sampled_from(
    (
        None,
        Device("A100", 80.0, (8, 0)),
        Device("H100", 80.0, (9, 0)),
        Device("B200", 178.0, (10, 0)),
        Device("cpu", 1, is_cpu=True),
    )
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kinds, count = draw(KINDS), draw(st.integers(1, 24))
    layers = tuple(Layer(kinds[place % len(kinds)], FeedForward(1)) for place in range(count))
    return Request(
        Architecture("LlamaForCausalLM", 1024, 32000, layers),
        draw(DEVICES),
        pipeline_parallel_size=draw(st.integers(1, min(3, count))),
        max_num_batched_tokens=draw(st.sampled_from((256, 2048, 16384))),
        block_size=draw(st.sampled_from((None, 16, 32, 128))),
        draft=draw(st.sampled_from((None, Draft("ngram", 3)))),
    )


LENGTHS = st.integers(1, 200_000)
MEMORY = st.integers(0, 2**37)


@given(requests(), MEMORY, MEMORY, LENGTHS)
def test_more_memory_never_holds_less(request: Request, one: int, other: int, length: int) -> None:
    made, less, more = layout(request), min(one, other), max(one, other)
    assert made.capacity(less, length).tokens <= made.capacity(more, length).tokens
    assert made.longest(less, length) <= made.longest(more, length)


@given(requests(), LENGTHS, LENGTHS)
def test_a_longer_request_never_needs_less(request: Request, one: int, other: int) -> None:
    made = layout(request)
    assert made.needed(min(one, other)) <= made.needed(max(one, other))


@given(requests(), MEMORY, LENGTHS)
def test_the_longest_request_fits_and_the_next_does_not(request: Request, available: int, limit: int) -> None:
    made = layout(request)
    longest = made.longest(available, limit)
    assert 0 <= longest <= limit
    assert longest == 0 or made.needed(longest) <= available
    assert longest == limit or made.needed(longest + 1) > available


@given(requests(), st.sampled_from(("fp8", "fp8_e5m2")), LENGTHS)
def test_a_narrower_type_never_costs_more_a_token(request: Request, narrow: KVCache, length: int) -> None:
    """What it saves, states may eat up: they stay as they are, and blocks grow to their size."""
    made, narrower = layout(request), layout(replace(request, kv_cache_dtype=narrow))
    assert narrower.bytes_per_token <= made.bytes_per_token
    if not any(one.attention.kind is Kind.STATE for one in _layers(request)):
        assert narrower.needed(length) <= made.needed(length) + _rounding(request)


@given(requests(), st.sampled_from((2, 4, 8, 16)))
def test_more_ranks_never_hold_more_each(request: Request, ranks: int) -> None:
    """Where ranks share all heads: with fewer heads than ranks, layers that differ can need padding, for vLLM too."""
    assume(all(layer.attention.kv_heads % ranks == 0 for layer in _layers(request)))
    shared = replace(request, tensor_parallel_size=ranks)
    assert layout(shared).bytes_per_token <= layout(request).bytes_per_token


def _layers(request: Request) -> tuple[Layer, ...]:
    assert request.architecture is not None
    return request.architecture.layers


def _rounding(request: Request) -> int:
    """MLA's kernel for fp8 takes blocks of 64 tokens instead of 16: the last one and the spare one are larger."""
    latent = any(one.attention.kind is Kind.LATENT for one in _layers(request))
    return 2 * 64 // 16 * layout(request).bytes_per_block if latent else 0
