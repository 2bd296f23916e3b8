"""What is read of the events of a KV cache: vLLM's own publisher, earlier forms, and what is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.advise import kv_events
from llmservice_cli.advise.estimate import Cleared, Stored
from llmservice_cli.advise.kv_events import Kept, ReplayClient, SeveralGroups, events_of

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [b"b", b"c"],
    "parent_block_hash": b"a",
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def batch(*events: Any, at: Any = 5.0) -> bytes:
    return msgspec.msgpack.encode([at, list(events), 0])


TAKEN = {
    "stored": (STORED, Stored(5.0, b"a", (b"b", b"c"))),
    "stored, the first": ({**STORED, "parent_block_hash": None}, Stored(5.0, None, (b"b", b"c"))),
    "stored, by an earlier version": (
        ["BlockStored", [7, 8], 6, [1, 2, 3, 4], 2, None, "GPU"],
        Stored(5.0, 6, (7, 8)),
    ),
    "cleared": ({"type": "AllBlocksCleared"}, Cleared(5.0)),
}
LEFT_OUT = {
    "of the node's memory": {**STORED, "medium": "CPU"},
    "removed": {"type": "BlockRemoved", "block_hashes": [b"b"], "medium": "GPU"},
    "of a kind that comes later": {"type": "BlockTouched", "block_hashes": [b"b"]},
    "of no blocks": {**STORED, "block_hashes": []},
}
REFUSED = {
    "no MessagePack": b"\xc1",
    "no batch": msgspec.msgpack.encode({"events": []}),
    "no time": batch(STORED, at=None),
    "a time that is none": batch(STORED, at=float("nan")),
    "an event that is none": batch(3),
    "no hashes": batch({**STORED, "block_hashes": "abc"}),
    "a hash that is none": batch({**STORED, "block_hashes": [[1]]}),
    "a hash that is too long": batch({**STORED, "block_hashes": [b"x" * 65]}),
    "a parent that is none": batch({**STORED, "parent_block_hash": True}),
    "nested too deeply": b"\x91" * 100_000,
}


@pytest.mark.parametrize("name", TAKEN)
def test_events_that_are_taken(name: str) -> None:
    event, expected = TAKEN[name]
    assert events_of(batch(event)) == [expected]


@pytest.mark.parametrize("name", LEFT_OUT)
def test_events_that_are_left_out(name: str) -> None:
    assert events_of(batch(LEFT_OUT[name])) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_batch_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        events_of(REFUSED[name])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(sorted(STORED)), inner),
)


@given(st.binary() | VALUES.map(msgspec.msgpack.encode) | st.lists(VALUES).map(lambda found: batch(*found)))
def test_anything_is_events_or_refused(payload: bytes) -> None:
    try:
        found = events_of(payload)
    except ValueError:
        return
    assert all(isinstance(event, Stored | Cleared) for event in found)


def test_layers_of_several_kinds_are_of_no_use() -> None:
    with pytest.raises(SeveralGroups):
        events_of(batch(STORED, {**STORED, "group_idx": 1}))


def taken(kept: Kept, *numbers: int, is_first: bool = False) -> list[bool]:
    return [kept.take(number, batch(STORED, at=float(number)), is_first=is_first) for number in numbers]


def test_the_latest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "MOST_BLOCKS", 9)
    kept = Kept()
    assert taken(kept, 4, 5) == [True, True]
    kept.mark()
    assert kept.before == 2
    assert taken(kept, 6) == [True]
    assert (kept.before, [event.at for event in kept.events]) == (2, [4.0, 5.0, 6.0])
    assert taken(kept, 7) == [True]
    assert (kept.before, [event.at for event in kept.events]) == (1, [5.0, 6.0, 7.0])
    taken(kept, 8, 9)
    assert kept.before is None, "some since the mark are not kept any more"


def test_a_batch_that_did_not_come_is_asked_for_again_or_given_up() -> None:
    kept = Kept()
    taken(kept, 0, 1)
    assert taken(kept, 3) == [False], "the next is 2"
    assert (kept.next, kept.missed) == (2, 0)
    assert taken(kept, 5, is_first=True) == [True], "vLLM has no earlier one"
    assert (kept.next, kept.missed) == (6, 3)
    assert taken(kept, 1, is_first=True) == [False], "and no numbers of the past"
    kept.mark()
    assert kept.missed == 0, "what was missed before the watch is not"


def test_more_than_a_replica_may_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "MOST_BYTES", 200)
    kept = Kept()
    taken(kept, 0)
    with pytest.raises(ValueError, match="of events"):
        taken(kept, 1)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Any]:
    """vLLM's own, as the operator has it run; its replay port is a Unix socket here."""
    from vllm.distributed.kv_events import ZmqEventPublisher

    found = ZmqEventPublisher(0, "inproc://kv-events", f"ipc://{tmp_path}/replay", buffer_steps=3_000)
    yield found
    found.shutdown()


def publish(publisher: Any, *numbers: int) -> None:
    from vllm.distributed.kv_events import BlockStored, EventBatch

    for number in numbers:
        stored = BlockStored([number.to_bytes(2, "big")], None, [number], 1, None, "GPU", None)
        publisher.publish(EventBatch(time.time(), [stored]))
    publisher._event_queue.join()


def numbers_of(kept: Kept) -> list[int]:
    return [int.from_bytes(event.blocks[0], "big") for event in kept.events if isinstance(event, Stored)]  # type: ignore[arg-type]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
async def test_the_events_of_vllms_own_publisher(publisher: Any, tmp_path: Path) -> None:
    """Of 3,000 batches its socket gives up what does not fit: they are asked for again."""
    client, kept = ReplayClient(tmp_path / "replay"), Kept()
    try:
        publish(publisher, *range(5_000))
        await client.read(kept)
        assert numbers_of(kept) == [*range(2_000, 5_000)], "it keeps the latest"
        kept.mark()
        publish(publisher, 5_000, 5_001)
        await client.read(kept)
        assert (numbers_of(kept)[-3:], kept.missed) == ([4_999, 5_000, 5_001], 0)
        publish(publisher, *range(5_002, 8_102))
        await client.read(kept)
        assert (numbers_of(kept)[-1], kept.missed) == (8_101, 100), "a hundred were given up before"
    finally:
        client.close()


async def test_nobody_who_answers_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "BATCH_SECONDS", 0.2)
    client = ReplayClient(tmp_path / "nobody")
    try:
        with pytest.raises(TimeoutError):
            await client.read(Kept())
    finally:
        client.close()
