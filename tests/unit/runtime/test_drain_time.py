"""How long a drain's steps wait, on a clock of the test's own: the pod's grace period has room for nothing else."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from llmservice_runtime import shared_counters
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor import drain
from llmservice_runtime.supervisor.drain import Drain

from tests.unit.runtime.runtime_harness import QUICK

DRAIN_SECONDS, LINGER_SECONDS, LULL_SECONDS, PROPAGATION_SECONDS = 400, 100, 30, 60
# A step looks at the clock a few times more than it waits.
SPARE = 20


def _clock() -> Callable[[], float]:
    """Every look at it is a second later."""
    seconds = itertools.count()
    return lambda: float(next(seconds))


def _drain(folder: Path, slots: memoryview, clock: Callable[[], float], port: int = 1) -> Drain:
    options = ServeOptions(
        drain_seconds=DRAIN_SECONDS, propagation_seconds=PROPAGATION_SECONDS, drain_file=str(folder / "board")
    )
    timing = replace(QUICK, in_flight_seconds=0, linger_seconds=LINGER_SECONDS, lull_seconds=LULL_SECONDS)
    return Drain(slots, options, port, timing, clock)


def _slots() -> memoryview:
    return memoryview(bytearray(shared_counters.SIZE)).cast("Q")


async def test_a_stream_without_an_end_is_waited_for_once(tmp_path: Path) -> None:
    slots, clock = _slots(), _clock()
    slots[shared_counters.IN_FLIGHT] = 1
    drain = _drain(tmp_path, slots, clock)
    await drain.until_idle()
    assert clock() >= DRAIN_SECONDS
    await drain.refuse_all()
    assert clock() < DRAIN_SECONDS + SPARE
    assert drain.in_flight == 1


async def test_a_client_that_asks_no_more_is_lingered_for_once(tmp_path: Path) -> None:
    slots, clock = _slots(), _clock()
    slots[shared_counters.KEPT_ALIVE] = 1
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        drain = _drain(tmp_path, slots, clock, server.getsockname()[1])
        await drain.until_idle()
        lingered = clock()
        assert LINGER_SECONDS <= lingered < DRAIN_SECONDS
        await drain.refuse_all()
        assert clock() - lingered < SPARE


def test_without_room_for_the_list_of_connections_nobody_is_refused_as_a_newcomer(tmp_path: Path) -> None:
    """Every answer tells its connection to end all the same."""
    slots = _slots()
    (tmp_path / "file").touch()
    drain = _drain(tmp_path / "file", slots, _clock())
    drain.close_connections()
    drain.refuse_newcomers()
    assert slots[shared_counters.LEVEL] == shared_counters.CLOSING


async def test_while_nobody_comes_newcomers_are_refused_after_the_usual_time(tmp_path: Path) -> None:
    clock = _clock()
    drain = _drain(tmp_path, _slots(), clock)
    await drain.until_nobody_comes()
    assert PROPAGATION_SECONDS <= clock() < PROPAGATION_SECONDS + SPARE


async def test_who_is_still_sent_here_is_waited_for_until_nobody_comes(tmp_path: Path) -> None:
    """As after a restart of the API server, when the endpoint goes late."""
    slots, last = _slots(), PROPAGATION_SECONDS + 50
    clock = _clock()

    def arriving_clock() -> float:
        now = clock()
        if now < last:
            slots[shared_counters.ARRIVED] += 1
        return now

    await _drain(tmp_path, slots, arriving_clock).until_nobody_comes()
    assert last + LULL_SECONDS <= clock() < last + LULL_SECONDS + SPARE


async def test_who_comes_for_ever_gets_half_of_the_drain(tmp_path: Path) -> None:
    slots, clock = _slots(), _clock()
    slots[shared_counters.IN_FLIGHT] = 1

    def arriving_clock() -> float:
        slots[shared_counters.ARRIVED] += 1
        return clock()

    drain = _drain(tmp_path, slots, arriving_clock)
    await drain.until_nobody_comes()
    assert PROPAGATION_SECONDS + DRAIN_SECONDS / 2 <= clock() < PROPAGATION_SECONDS + DRAIN_SECONDS / 2 + SPARE
    await drain.until_idle()
    assert PROPAGATION_SECONDS + DRAIN_SECONDS <= clock() < PROPAGATION_SECONDS + DRAIN_SECONDS + SPARE


async def test_where_connections_cannot_be_seen_it_lingers_as_if_there_were_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(port: int) -> frozenset[drain.Peer]:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(drain, "established", unseen)
    slots, clock = _slots(), _clock()
    slots[shared_counters.KEPT_ALIVE] = 1
    await _drain(tmp_path, slots, clock).until_idle()
    assert LINGER_SECONDS <= clock() < DRAIN_SECONDS
