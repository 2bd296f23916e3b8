"""What is in work is known after an unclean death; suspects come last and alone, and only the culprit is set aside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_operator.api.service import Key
from llmservice_operator.control.containment.in_work import DEATHS, LAST_FOR, LATE, TRIED_WITHIN, InWork
from llmservice_operator.control.containment.in_work_file import (
    _HEAD,
    SLOT,
    SLOTS,
    Activity,
    InWorkFile,
    Suspect,
    Work,
    _slots_of,
)

from tests.support.patience import PATIENCE
from tests.unit.hostile import json_value, seeds

A, B, C = (Key("ns", name) for name in "abc")
RECONCILE, STATE = Activity.RECONCILE, Activity.STATE
LIVES = 8


class Process:
    """What one folder goes through: processes that end in order, or die with things in work."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.version = folder, 1000.0, "1"
        self.generations: dict[Key, int] = {}

    def start(self) -> InWork:
        made = InWork.of(self.folder, self.version, identity=self._identity, clock=lambda: self.now)
        made.begin({A, B, C})
        return made

    def _identity(self, key: Key) -> tuple[str, int]:
        return f"u-{key.name}", self.generations.get(key, 1)

    async def die_with(self, *work: tuple[Activity, Key]) -> None:
        """Of one that had these in work, whatever it thought of them."""
        in_work = self.start()
        for each in work:
            in_work._busy = 0
            in_work._is_alone = False
            await in_work.during(*each).__aenter__()
        assert in_work._file is not None
        os.close(in_work._file._descriptor)


async def test_what_was_in_work_at_a_death_is_suspected_and_nothing_after_an_orderly_end(tmp_path: Path) -> None:
    process = Process(tmp_path)
    in_work = process.start()
    async with in_work.during(RECONCILE, A):
        pass
    await in_work.during(RECONCILE, B).__aenter__()
    in_work.close()
    assert process.start().suspects == set()
    await process.die_with((RECONCILE, A), (STATE, B))
    in_work = process.start()
    assert set(in_work.suspects) == {Work(RECONCILE, *A), Work(STATE, *B)}
    in_work.begin({B})
    assert set(in_work.suspects) == {Work(STATE, *B)}, "services that are gone are forgotten"


@pytest.mark.parametrize(
    ("deaths", "quarantined"),
    [
        pytest.param([[(RECONCILE, A)]], [], id="once"),
        pytest.param([[(RECONCILE, A)]] * 2, [A], id="alone twice"),
        pytest.param([[(RECONCILE, A), (RECONCILE, B)]] * 9, [], id="never alone"),
        pytest.param([[(RECONCILE, A), (RECONCILE, B)], [(RECONCILE, A)]], [], id="alone once"),
        pytest.param([[(RECONCILE, A), (RECONCILE, B)], [(RECONCILE, A)], [(RECONCILE, A)]], [A], id="found among two"),
        pytest.param([[(RECONCILE, A)], [(RECONCILE, B)], [(RECONCILE, A)]], [A], id="another between"),
        pytest.param([[(STATE, A)]] * 2, [A], id="while its pods were asked"),
        pytest.param([[(STATE, A), (STATE, A)]] * 2, [A], id="while two of its pods were asked"),
        pytest.param([[(RECONCILE, A), (STATE, A)]] * 2, [A], id="one service in two ways is alone"),
        pytest.param([[]] * 5, [], id="idle"),
    ],
)
async def test_who_is_quarantined(
    deaths: list[list[tuple[Activity, Key]]], quarantined: list[Key], tmp_path: Path
) -> None:
    process = Process(tmp_path)
    for work in deaths:
        await process.die_with(*work)
    in_work = process.start()
    assert [key for key in (A, B, C) if in_work.quarantined(key)] == quarantined


async def test_one_that_survives_begins_anew(tmp_path: Path) -> None:
    """Two outside kills that meet the same service, with a successful attempt between, prove nothing."""
    process = Process(tmp_path)
    for _ in range(5):
        await process.die_with((RECONCILE, A))
        in_work = process.start()
        assert not in_work.quarantined(A)
        async with in_work.during(RECONCILE, A):
            pass
        assert in_work.suspects == set()
        in_work.close()


@pytest.mark.parametrize("change", ["spec", "version", "object"])
async def test_a_change_has_it_tried_again(change: str, tmp_path: Path) -> None:
    process = Process(tmp_path)
    for _ in range(DEATHS):
        await process.die_with((RECONCILE, A))
    if change == "spec":
        in_work = process.start()
        assert in_work.quarantined(A)
        process.generations[A] = 2
        assert not in_work.quarantined(A), "an edit is seen at once"
        assert Work(RECONCILE, *A) in in_work.suspects, "and tried last and alone"
    elif change == "version":
        process.version = "2"
        assert process.start().suspects == set()
    else:
        in_work = InWork.of(tmp_path, "1", identity=lambda key: ("u-another", 1))
        assert not in_work.quarantined(A)


async def test_suspects_wait_for_everything_else_but_not_for_ever(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.die_with((RECONCILE, A), (RECONCILE, B))
    await process.die_with((RECONCILE, A))
    in_work = process.start()
    waits = True
    in_work.others_wait = lambda: waits
    assert in_work.may_begin(RECONCILE, C)
    assert in_work.may_begin(STATE, A), "what it was not doing is not suspected"
    assert not in_work.may_begin(RECONCILE, B)
    process.now += LAST_FOR
    assert in_work.may_begin(RECONCILE, B)
    process.now -= LAST_FOR
    waits = False
    assert (in_work.may_begin(RECONCILE, A), in_work.may_begin(RECONCILE, B)) == (False, True), "the most suspect last"
    async with in_work.during(RECONCILE, B):
        pass
    assert in_work.may_begin(RECONCILE, A)


async def test_a_suspect_is_alone_in_work(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.die_with((RECONCILE, A), (RECONCILE, B))
    in_work = process.start()
    at_work: list[Key] = []
    company: dict[Key, int] = {}

    async def work(key: Key) -> None:
        async with in_work.during(RECONCILE, key):
            at_work.append(key)
            for _ in range(5):
                company[key] = max(company.get(key, 0), len(at_work))
                await asyncio.sleep(0)
            at_work.remove(key)

    others = [Key("ns", f"other-{number}") for number in range(10)]
    await asyncio.wait_for(asyncio.gather(*map(work, [*others[:5], A, B, *others[5:]])), PATIENCE)
    assert (company[A], company[B]) == (1, 1)
    assert max(company.values()) > 1
    assert in_work.suspects == set()
    await asyncio.gather(work(A), work(B))
    assert company[A] == 2, "one that survived is like any other"


async def test_one_that_is_cancelled_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.die_with((RECONCILE, A))
    in_work = process.start()
    async with in_work.during(RECONCILE, B):
        suspect = asyncio.create_task(in_work.during(RECONCILE, A).__aenter__())
        await asyncio.sleep(0)
        other = asyncio.create_task(in_work.during(RECONCILE, C).__aenter__())
        await asyncio.sleep(0)
        assert not other.done()
        suspect.cancel()
        await asyncio.wait_for(other, PATIENCE)


@pytest.mark.parametrize(("blocked", "suspected"), [(LATE + 1, True), (1.0, False)], ids=["blocked", "well"])
async def test_a_loop_that_was_blocked_until_it_was_asked_to_stop_died_of_what_was_in_work(
    blocked: float, suspected: bool, tmp_path: Path
) -> None:
    process = Process(tmp_path)
    in_work = process.start()
    in_work.beat()
    async with in_work.during(RECONCILE, A):
        process.now += blocked
        in_work.stopping()
    in_work.close()
    assert bool(process.start().suspects) is suspected


@pytest.mark.parametrize("beats", [0, 1, 2])
async def test_a_step_that_blocked_the_loop_and_ended_is_suspected_where_the_signal_came_meanwhile(
    beats: int, tmp_path: Path
) -> None:
    """What ends without a turn of the loop ends before the signal is seen; the heartbeat may be seen before it too."""
    process = Process(tmp_path)
    await process.die_with((RECONCILE, A))
    in_work = process.start()
    in_work.beat()
    async with in_work.during(RECONCILE, A):
        process.now += LATE + 1
    for _ in range(beats):
        in_work.beat()
        process.now += 1.0
    in_work.stopping()
    in_work.close()
    assert bool(process.start().suspects) is (beats < 2), "with one more heartbeat, it was no signal's doing"
    assert process.start().quarantined(A) is (beats < 2)


async def test_a_suspect_that_is_never_tried_again_is_none_after_an_hour(tmp_path: Path) -> None:
    """A pod that is asked no more keeps its death; an outside kill, weeks later, would be its second."""
    process = Process(tmp_path)
    for work in ((RECONCILE, B), (RECONCILE, B), (STATE, A)):
        await process.die_with(work)
    in_work = process.start()
    process.now += TRIED_WITHIN - 1
    in_work.beat()
    assert Work(STATE, *A) in in_work.suspects
    process.now += 1
    in_work.beat()
    assert set(in_work.suspects) == {Work(RECONCILE, *B)}, "what is quarantined stays so"
    await process.die_with((STATE, A))
    assert not process.start().quarantined(A)


async def test_without_a_folder_that_can_be_written_nothing_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("")
    for in_work in (InWork.of(path, "1"), InWork.of(Path("/proc/nothing"), "1"), InWork()):
        async with in_work.during(RECONCILE, A):
            assert in_work.may_begin(RECONCILE, A)
        assert not in_work.quarantined(A)
        in_work.close()


ENTRY = b'"namespace":"n","name":"a","uid":"u"'
DAMAGED = [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b'{"version":"1","suspects":[{}]}']
DAMAGED += [
    b'{"version":"1","suspects":[{"activity":"%s",%s,"generation":%s}]}' % (activity, ENTRY, generation)
    for activity, generation in ((b"reconcile", b"1e999"), (b"reconcile", b"-1"), (b"x", b"1"))
]
DAMAGED.append(orjson.dumps({"version": "1", "suspects": [], "x": "y" * 100_000}))


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_an_empty_one_with_a_log_line(
    text: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "suspects.json").write_bytes(text)
    assert InWork.of(tmp_path, "1").suspects == set()
    assert "damaged" in caplog.text


@given(page=st.binary(max_size=2 * SLOT) | st.binary(min_size=SLOT, max_size=SLOT).map(lambda one: one * 3))
def test_whatever_the_slots_hold_is_read(page: bytes) -> None:
    assert len(list(_slots_of(page))) <= SLOTS


@given(given=seeds.map(lambda seed: json_value(Random(seed))))
def test_whatever_json_a_slot_holds_is_read(given: object) -> None:
    body = json.dumps(given).encode()[: SLOT - _HEAD.size]
    assert list(_slots_of(_HEAD.pack(zlib.crc32(body), len(body)) + body)) == []


def test_the_longest_names_fit(tmp_path: Path) -> None:
    file, _ = InWorkFile.open(tmp_path, "1")
    work = Work(STATE, "n" * 63, "m" * 253)
    file.write(3, work, "u" * 36, 2**62)
    _, death = InWorkFile.open(tmp_path, "1")
    assert death.in_work == ((work, Suspect("u" * 36, 2**62)),)


# With processes that really die.


class Lives:
    """Processes on one record; each life is one of them."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.folder, self._server = folder, server

    def live(self, count: int, *crashing: str, how: str = "kill", **generations: int) -> tuple[int, list[list[str]]]:
        """How one ended, and what it did until then."""
        events = self.folder / "events"
        events.write_text("")
        named = {name.replace("_", "-"): generation for name, generation in generations.items()}
        asked = [str(self.folder / "state"), count, crashing, how, str(events), named]
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        assert code in (0, 1, -signal.SIGKILL)
        return code, [line.split() for line in events.read_text().splitlines()]


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    command = [sys.executable, "-m", "tests.unit.crashing_worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Lives(tmp_path, server)
        server.communicate(timeout=PATIENCE)


def named(events: list[list[str]], what: str) -> set[str]:
    """The services of the events that begin or end with this word."""
    return {event[1] for event in events if what in (event[0], event[-1])}


def test_a_service_that_takes_the_process_is_set_aside_and_the_others_go_on(lives: Lives) -> None:
    each: list[tuple[int, list[list[str]]]] = []
    while not each or (each[-1][0] != 0 and len(each) < LIVES):
        each.append(lives.live(20, "service-3"))
    assert [code for code, _ in each[-2:]] == [-signal.SIGKILL, 0]
    assert len(each) == 1 + 1 + DEATHS, "one death in company, and then alone"
    everybody = {f"service-{number}" for number in range(20)}
    for _, events in each[1:-1]:
        assert events[-1] == ["try", "service-3"], "it comes last, and takes nobody with it"
    for number, (_, events) in enumerate(each[1:], 1):
        innocent = set() if number > 1 else named(each[0][1], "try")
        assert named(events, "done") | innocent >= everybody - {"service-3"}, "all others before it is tried again"
    assert set.union(*(named(events, "Quarantined") for _, events in each)) == {"service-3"}
    assert ["try", "service-3"] not in each[-1][1]
    assert lives.live(20, "service-3")[0] == 0, "it stays set aside"
    _, events = lives.live(20, service_3=2)
    assert ["done", "service-3"] in events, "an edit has it tried again"


@pytest.mark.full
def test_two_that_take_the_process_are_both_found_and_nobody_else(lives: Lives) -> None:
    for _ in range(2 * LIVES):
        code, events = lives.live(12, "service-2", "service-7", how="exit")
        if code == 0:
            break
    assert code == 0
    assert named(events, "Quarantined") == {"service-2", "service-7"}
    assert named(events, "done") >= {"service-0", "service-11"}


def test_what_the_record_costs(tmp_path: Path) -> None:
    """Two writes into the page cache and a few lines: no synchronous write. Counted in CPU time, with a wide margin."""

    async def work(in_work: InWork, times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            async with in_work.during(RECONCILE, A):
                pass
        return (time.process_time() - began) / times

    seconds = asyncio.run(work(Process(tmp_path).start(), 5000))
    print(f"{seconds * 1e6:.1f} us of CPU for each key")
    assert seconds < 0.0005
