"""PagedAttention on a real engine: what shares its blocks, and what a prompt that was seen before costs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.serving import Completion, Sampled, Server, sampled, serving

pytestmark = pytest.mark.full
SAMPLES = 4
# The tokenizer knows few words: nearly a token a character. Several whole blocks (128 tokens each on CPUs).
LONG_PROMPT = "The quick brown fox jumps over the lazy dog while the operator watches. " * 11
ANSWER_TOKENS = 180


@pytest.fixture(scope="module")
def caching(cluster: Cluster, shared_namespace: str) -> Iterator[Server]:
    with serving(cluster, shared_namespace, "caching", batching={"maxModelLen": 1024, "prefixCaching": True}) as ready:
        yield ready


@pytest.fixture(scope="module")
def forgetting(cluster: Cluster, shared_namespace: str) -> Iterator[Server]:
    batching = {"maxModelLen": 1024, "prefixCaching": False}
    with serving(cluster, shared_namespace, "forgetting", batching=batching) as ready:
        yield ready


@dataclass(frozen=True)
class Blocks:
    """Blocks of the KV cache in use at the peak of a load."""

    peak: int
    size: int
    of: int


async def load(server: Server, requests: list[tuple[str, dict[str, object]]]) -> tuple[list[Completion], Sampled]:
    async with server.client() as client:
        began = time.monotonic()
        wishes = [server.send(client, began, text, ignore_eos=True, **fields) for text, fields in requests]
        tasks = [asyncio.create_task(wish) for wish in wishes]
        peaks = await sampled(server, client, tasks)
        return list(await asyncio.gather(*tasks)), peaks


def blocks_of(server: Server, requests: list[tuple[str, dict[str, object]]]) -> Blocks:
    """What a load takes at its peak, from vLLM's own gauge: a share of its blocks."""
    done, peaks = asyncio.run(load(server, requests))
    assert {answer.status for answer in done} == {200}, done
    facts = server.metrics().labels("vllm:cache_config_info")
    total = int(facts["num_gpu_blocks"])
    # One block is set aside for padding and not counted among those that can be used.
    return Blocks(round(peaks.kv_cache * (total - 1)), int(facts["block_size"]), total)


def test_samples_of_one_prompt_share_its_blocks(caching: Server, record: Record) -> None:
    wish: dict[str, object] = {"max_tokens": ANSWER_TOKENS, "n": SAMPLES, "temperature": 1.0}
    fresh = uuid.uuid4().hex[:8]  # a prompt that was seen before would share blocks with itself
    alone = blocks_of(caching, [(f"{fresh} one {LONG_PROMPT}", {**wish, "n": 1})])
    together = blocks_of(caching, [(f"{fresh} four {LONG_PROMPT}", wish)])
    apart = blocks_of(caching, [(f"{number} {fresh} {LONG_PROMPT}", {**wish, "n": 1}) for number in range(SAMPLES)])
    assert alone.peak >= 4, f"the prompt is too short to tell anything: {alone}"
    assert apart.peak >= SAMPLES * (alone.peak - 1), "prompts that differ from the start shared blocks"
    assert together.peak <= apart.peak / 2, f"{SAMPLES} samples took {together}, {SAMPLES} prompts {apart}"
    record(
        block_size=alone.size,
        one_sample=alone.peak,
        four_samples=together.peak,
        four_prompts=apart.peak,
        ratio=round(together.peak / apart.peak, 2),
    )


def two_turns(server: Server) -> tuple[float, float]:
    """Tokens that the second turn of a chat asked the prefix cache for, and found in it."""
    first = "Tell me everything about this. " + LONG_PROMPT
    said = server.chat(first, max_tokens=20)
    assert said["status"] == 200, said
    before = server.metrics()
    earlier = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": said["choices"][0]["message"]["content"]},
    ]
    again = server.chat("And then?", *earlier, max_tokens=20)
    assert again["status"] == 200, again
    after = server.metrics()
    queries, hits = (
        after.value(f"vllm:prefix_cache_{name}_total") - before.value(f"vllm:prefix_cache_{name}_total")
        for name in ("queries", "hits")
    )
    return queries, hits


def test_the_second_turn_of_a_chat_is_found_in_the_cache(caching: Server, record: Record) -> None:
    queries, hits = two_turns(caching)
    assert hits > queries / 2
    record(prompt_tokens=queries, found_in_the_cache=hits, share=round(hits / queries, 2))


def test_without_prefix_caching_nothing_is_found(forgetting: Server, record: Record) -> None:
    queries, hits = two_turns(forgetting)
    assert hits == 0
    record(prompt_tokens=queries, found_in_the_cache=hits)
