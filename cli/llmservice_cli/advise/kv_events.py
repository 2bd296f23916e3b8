"""Which blocks a vLLM cached and gave up lately, from the replay port of its events (vllm/distributed/kv_events.py).

What comes is untrusted, and bounded: a batch of a step is MessagePack, and what is kept of it are hashes. The tokens of
prompts that are in it are dropped as soon as it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from .estimate import Block, Cleared, Event, Stored

MOST_BATCH = 4 * 2**20
"""Bytes of one."""
MOST_BYTES = 256 * 2**20
"""That are read of one replica."""
MOST_BLOCKS = 200_000
"""That are kept of one replica: the latest."""
MOST_HASH = 64
"""Bytes."""
LARGEST = 2**256
BATCH_SECONDS = 5.0
"""For the next batch of an answer, after which it is asked for again: vLLM gives up what it cannot send at once, also
what says that the answer is over."""
READ_SECONDS = 60.0
"""For all that is new."""
HIGH_WATER = 1_000
"""Batches that wait here; more wait in the network."""
END = (2**64 - 1).to_bytes(8, "big")
"""The number of what ends an answer."""

_ORDER: Mapping[str, Sequence[str]] = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx"),
    ),
    "AllBlocksCleared": (),
}
"""Of the fields where an event is an array, as earlier versions send it."""


class SeveralGroups(ValueError):
    """Layers of several kinds, each with blocks of its own: no one of them tells what a prefix takes."""


def events_of(payload: bytes) -> list[Event]:
    """Of one batch: what the accelerator's memory stores, and that it gave up all. Which blocks it gives up one by one
    is not needed. ValueError where it is none."""
    import msgspec

    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no MessagePack: {error}") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise ValueError("no batch of events")
    at = batch[0]
    if not isinstance(at, int | float) or isinstance(at, bool) or not isfinite(at) or not 0 <= at < 2**40:
        raise ValueError("a batch without a time")
    return [event for each in batch[1] for event in _event(float(at), each)]


def _event(at: float, given: Any) -> Iterator[Event]:
    kind, fields = _fields(given)
    if kind == "AllBlocksCleared":
        yield Cleared(at)
    if kind != "BlockStored" or str(fields.get("medium") or "GPU").upper() != "GPU":
        return
    if fields.get("group_idx") not in (None, 0):
        raise SeveralGroups("the model has layers of several kinds")
    if blocks := _blocks(fields.get("block_hashes")):
        parent = fields.get("parent_block_hash")
        yield Stored(at, None if parent is None else _blocks([parent])[0], blocks)


def _fields(given: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(given, Mapping):
        return str(given.get("type", "")), given
    if isinstance(given, list) and given and isinstance(given[0], str):
        return given[0], dict(zip(_ORDER.get(given[0], ()), given[1:], strict=False))
    raise ValueError("no event")


def _blocks(given: Any) -> tuple[Block, ...]:
    if not isinstance(given, list):
        raise ValueError("no hashes")
    for each in given:
        is_one = isinstance(each, bytes) and len(each) <= MOST_HASH
        if not is_one and not (isinstance(each, int) and not isinstance(each, bool) and abs(each) < LARGEST):
            raise ValueError("no hash")
    return tuple(given)


@dataclass(slots=True)
class Kept:
    """The latest events of one replica."""

    events: deque[Event] = field(default_factory=deque)
    blocks: int = 0
    read: int = 0
    """Bytes."""
    next: int | None = None
    """The number of the next batch; None before the first."""
    taken: int = 0
    """Events, those that are not kept any more too."""
    marked: int = 0
    """`taken` when the counters were read first."""
    missed: int = 0
    """Batches since then that vLLM had given up before they were asked for."""
    failed: str = ""
    """Why there are no more."""

    def mark(self) -> None:
        """The counters are read now."""
        self.marked, self.missed = self.taken, 0

    @property
    def before(self) -> int | None:
        """How many of the kept events came before the mark; None where later ones are not kept any more."""
        return None if (dropped := self.taken - len(self.events)) > self.marked else self.marked - dropped

    def take(self, number: int, payload: bytes, *, is_first: bool) -> bool:
        """Whether the batch is the next one, or the first of an answer, before which vLLM has given up what is
        missing. ValueError for what is no batch, or too much."""
        self.read += len(payload)
        if self.read > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB of events")
        if self.next is not None and number != self.next:
            if number < self.next or not is_first:
                return False
            self.missed += number - self.next
        self.next = number + 1
        for event in events_of(payload):
            self.events.append(event)
            self.taken += 1
            self.blocks += _size(event)
        while self.blocks > MOST_BLOCKS and len(self.events) > 1:
            self.blocks -= _size(self.events.popleft())
        return True


def _size(event: Event) -> int:
    return len(event.blocks) + 1 if isinstance(event, Stored) else 1


class ReplayClient:
    """Asks the replay port behind a Unix socket."""

    def __init__(self, path: Path) -> None:
        import zmq
        import zmq.asyncio

        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        # A connection that ends is not made again: behind it may be another process, with numbers of its own.
        options = ((zmq.LINGER, 0), (zmq.RCVHWM, HIGH_WATER), (zmq.MAXMSGSIZE, MOST_BATCH), (zmq.RECONNECT_IVL, -1))
        for option, value in options:
            self._socket.setsockopt(option, value)
        self._socket.connect(f"ipc://{path}")
        self._has_rest = False
        """Batches of an answer that was given up may still come."""

    def close(self) -> None:
        """End the connection."""
        self._context.destroy(linger=0)

    async def read(self, kept: Kept) -> None:
        """All batches since the last read that vLLM still has. TimeoutError; ValueError for what is no answer."""
        async with asyncio.timeout(READ_SECONDS):
            while not await self._answer(kept):
                pass

    async def _answer(self, kept: Kept) -> bool:
        """Whether it was whole; else the rest has to be asked for. TimeoutError where nothing came."""
        before = kept.next
        await self._socket.send_multipart([b"", (before or 0).to_bytes(8, "big")])
        is_first, is_whole = not self._has_rest, not self._has_rest
        while True:
            try:
                async with asyncio.timeout(BATCH_SECONDS):
                    frames = await self._socket.recv_multipart()
            except TimeoutError:
                if kept.next == before:
                    raise
                self._has_rest = True
                return False
            if len(frames) < 3 or len(frames[-2]) != 8:
                raise ValueError("no answer of a replay port")
            if frames[-2] == END:
                self._has_rest = False
                return is_whole
            is_whole = kept.take(int.from_bytes(frames[-2], "big"), frames[-1], is_first=is_first)
            is_first = False
