"""Which shard a namespace is in, and which one a process that has fewer than others asks for."""

from __future__ import annotations

from collections import Counter

import pytest
from llmservice_operator.kube.partition import ShardLease, shard_of, shard_to_ask_for


@pytest.mark.parametrize(
    ("namespace", "shards", "shard"),
    [
        # Written down: another value in a later version would have two versions own one namespace.
        ("123456789", 64, 0xCBF43926 % 64),  # the check value of CRC-32
        ("default", 1, 0),
        ("default", 2, 1),
        ("default", 64, 31),
        ("", 2, 0),
    ],
)
def test_a_namespace_is_in_one_shard_for_ever(namespace: str, shards: int, shard: int) -> None:
    assert shard_of(namespace, shards) == shard


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_namespaces_are_spread(shards: int) -> None:
    found = Counter(shard_of(f"team-{number}", shards) for number in range(800))
    assert sorted(found) == list(range(shards))
    assert max(found.values()) < 1.5 * 800 / shards


def leases_of(text: str) -> dict[int, ShardLease]:
    """One word a shard: its holder, and who wants it; - for nobody."""
    words = (word.partition("<") for word in text.split())
    return {number: ShardLease(holder.strip("-"), by) for number, (holder, _, by) in enumerate(words)}


@pytest.mark.parametrize(
    ("leases", "shards", "asked"),
    [
        pytest.param("a a", 2, 1, id="the last one of the only one"),
        pytest.param("a b", 2, None, id="one each"),
        pytest.param("a me", 2, None, id="even"),
        pytest.param("a a me", 3, None, id="one ahead is as even as it gets"),
        pytest.param("a a a me", 4, 2, id="two ahead"),
        pytest.param("a b b b", 4, 3, id="of who has most"),
        pytest.param("a a -", 3, None, id="one is free"),
        pytest.param("a a", 3, None, id="not all are known"),
        pytest.param("a a<me", 2, None, id="asked already"),
        pytest.param("a a<b", 2, None, id="what others asked for counts as given"),
        pytest.param("a a a<b", 3, 1, id="there is more than that"),
        pytest.param("me me me", 3, None, id="all are ours"),
    ],
)
def test_what_is_asked_for(leases: str, shards: int, asked: int | None) -> None:
    assert shard_to_ask_for("me", leases_of(leases), shards) == asked
