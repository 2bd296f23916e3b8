"""Work is known after an unclean death; it comes last and alone then, and only what kills is quarantined."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeloop.resources import Key
from llmservice_operator.service.containment import (
    DEATHS,
    LAST_FOR,
    TRIED_WITHIN,
    Activity,
    InWork,
)

from tests.support.kubeconfig import kubeconfig
from tests.support.patience import PATIENCE

A, B, C = (Key("ns", name) for name in "abc")
WORK: dict[tuple[Activity, Key], str] = {
    ("reconcile", A): "ns/a reconcile u-a/1",
    ("reconcile", B): "ns/b reconcile u-b/1",
    ("state", A): "ns/a state u-a/1",
    ("state", B): "ns/b state u-b/1",
}
"""As it is in the file."""
LIVES = 8


class Process:
    """What one folder goes through: processes that end in order, or die with things in work."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.version = folder, 1000.0, "1"
        self.generations: dict[Key, int] = {}
        self.others_wait = False

    def start(self) -> InWork:
        return InWork(self.folder, self.version, self._identity, lambda: self.others_wait, lambda: self.now)

    def _identity(self, key: Key) -> str:
        return f"u-{key.name}/{self.generations.get(key, 1)}"

    async def die_with(self, *work: tuple[Activity, Key]) -> None:
        """Of one that had these in work, whatever earlier deaths interrupted."""
        in_work = self.start()
        for each in work:
            in_work._idle.set()
            in_work._alone = asyncio.Lock()
            await in_work.during(*each).__aenter__()
        in_work._file = -1


async def test_work_is_interrupted_by_a_death_and_not_by_an_orderly_end(tmp_path: Path) -> None:
    process = Process(tmp_path)
    in_work = process.start()
    async with in_work.during("reconcile", A):
        pass
    await in_work.during("reconcile", B).__aenter__()
    in_work.close()
    assert process.start().interrupted == {}
    await process.die_with(("reconcile", A), ("state", B))
    assert process.start().interrupted == {WORK["reconcile", A]: 0, WORK["state", B]: 0}


@pytest.mark.parametrize(
    ("deaths", "quarantined"),
    [
        pytest.param([[("reconcile", A)]], [], id="once"),
        pytest.param([[("reconcile", A)]] * 2, [A], id="alone twice"),
        pytest.param([[("reconcile", A), ("reconcile", B)]] * 9, [], id="never alone"),
        pytest.param([[("reconcile", A), ("reconcile", B)], [("reconcile", A)]], [], id="alone once"),
        pytest.param(
            [[("reconcile", A), ("reconcile", B)], [("reconcile", A)], [("reconcile", A)]], [A], id="found among two"
        ),
        pytest.param([[("reconcile", A)], [("reconcile", B)], [("reconcile", A)]], [A], id="another between"),
        pytest.param([[("state", A)]] * 2, [A], id="while its pods were asked"),
        pytest.param([[("state", A), ("state", A)]] * 2, [A], id="while two of its pods were asked"),
        pytest.param([[("reconcile", A), ("state", A)]] * 2, [A], id="one service in two ways is alone"),
        pytest.param([[("reconcile", A)]] * 4, [A], id="and again"),
        pytest.param([[], [("reconcile", A)], [], []], [], id="idle"),
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
        await process.die_with(("reconcile", A))
        in_work = process.start()
        assert not in_work.quarantined(A)
        async with in_work.during("reconcile", A):
            pass
        assert in_work.interrupted == {}
        in_work.close()


@pytest.mark.parametrize("change", ["spec", "version", "object"])
async def test_a_change_has_it_tried_again(change: str, tmp_path: Path) -> None:
    process = Process(tmp_path)
    for _ in range(DEATHS):
        await process.die_with(("reconcile", A))
    if change == "spec":
        in_work = process.start()
        assert in_work.quarantined(A)
        process.generations[A] = 2
        assert not in_work.quarantined(A), "an edit is seen at once"
    elif change == "version":
        process.version = "2"
        assert process.start().interrupted == {}
    else:
        assert not InWork(tmp_path, "1", lambda key: "u-another/1").quarantined(A)


async def test_deaths_before_an_edit_do_not_count(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.die_with(("reconcile", A))
    process.generations[A] = 2
    await process.die_with(("reconcile", A))
    assert not process.start().quarantined(A)


async def test_interrupted_work_waits_for_all_other_but_not_for_ever(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.die_with(("reconcile", A), ("reconcile", B))
    await process.die_with(("reconcile", A))
    in_work = process.start()
    process.others_wait = True
    assert in_work.may_begin("reconcile", C)
    assert in_work.may_begin("state", A), "this was not interrupted"
    process.now += LAST_FOR  # of a follower
    assert not in_work.may_begin("reconcile", B)
    process.now += LAST_FOR
    assert in_work.may_begin("reconcile", B)
    process.now -= LAST_FOR
    process.others_wait = False
    assert (in_work.may_begin("reconcile", A), in_work.may_begin("reconcile", B)) == (False, True), "most deaths last"
    async with in_work.during("reconcile", B):
        pass
    assert in_work.may_begin("reconcile", A)


async def test_interrupted_work_is_tried_alone(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.die_with(("reconcile", A), ("reconcile", B))
    in_work = process.start()
    at_work: list[Key] = []
    company: dict[Key, int] = {}

    async def work(key: Key) -> None:
        async with in_work.during("reconcile", key):
            at_work.append(key)
            for _ in range(5):
                company[key] = max(company.get(key, 0), len(at_work))
                await asyncio.sleep(0)
            at_work.remove(key)

    others = [Key("ns", f"other-{number}") for number in range(10)]
    await asyncio.wait_for(asyncio.gather(*map(work, [*others[:5], A, B, *others[5:]])), PATIENCE)
    assert (company[A], company[B]) == (1, 1)
    assert max(company.values()) > 1
    assert in_work.interrupted == {}
    await asyncio.gather(work(A), work(B))
    assert company[A] == 2, "one that survived is like any other"


async def test_one_that_is_cancelled_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.die_with(("reconcile", A))
    in_work = process.start()
    async with in_work.during("reconcile", B):
        waiting = asyncio.create_task(in_work.during("reconcile", A).__aenter__())
        await asyncio.sleep(0)
        other = asyncio.create_task(in_work.during("reconcile", C).__aenter__())
        await asyncio.sleep(0)
        assert not other.done()
        waiting.cancel()
        await asyncio.wait_for(other, PATIENCE)


async def test_interrupted_work_that_is_not_tried_again_within_an_hour_is_forgotten(tmp_path: Path) -> None:
    """A pod that is asked no more keeps its death; an outside kill, weeks later, would be its second."""
    process = Process(tmp_path)
    for work in (("reconcile", B), ("reconcile", B), ("state", A)):
        await process.die_with(work)
    in_work = process.start()
    process.now += TRIED_WITHIN - 1
    assert in_work.may_begin("reconcile", C)
    assert in_work.interrupted == {WORK["state", A]: 1, WORK["reconcile", B]: 2}
    process.now += 1
    assert in_work.may_begin("reconcile", C)
    assert in_work.interrupted == {WORK["reconcile", B]: 2}, "what is quarantined stays so"
    in_work.close()
    await process.die_with(("state", A))
    assert not process.start().quarantined(A)


async def test_without_a_folder_that_can_be_written_nothing_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("")
    for in_work in (InWork(path, "1"), InWork(Path("/proc/nothing"), "1"), InWork()):
        async with in_work.during("reconcile", A):
            assert in_work.may_begin("reconcile", A)
        assert not in_work.quarantined(A)
        in_work.close()


async def test_a_full_disk_ends_the_record_and_no_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_work = Process(tmp_path).start()
    in_work._file = os.open("/dev/full", os.O_WRONLY)
    for _ in range(2):
        async with in_work.during("reconcile", A):
            pass
    assert caplog.text.count("cannot record what is in work any more") == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(b"", {}, id="empty"),
        pytest.param(b"2\n2 ns/a reconcile u\n\n", {}, id="another version"),
        pytest.param(b"1\n\nworking ns/a reconcile u\n\n", {}, id="left of a longer one"),
        pytest.param(b"1\n1 ns/a reconcile u\n", {"ns/a reconcile u": 1}, id="not ended"),
        pytest.param(b"1\n\xff 2\n2 ns/a state u\n\n", {"ns/a state u": 2}, id="no text"),
        pytest.param(b"1\n3 ns/a state u\n-1 ns/a state u\n1e9 ns/a state u\n\n", {}, id="no number of deaths"),
        pytest.param(
            b"1\nworking ns/a state u\n" + b"x" * 2**16 + b"\n2 ns/b state u\n\n", {"ns/a state u": 1}, id="too long"
        ),
    ],
)
def test_damaged_lines_are_left_out(text: bytes, found: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "in-work").write_bytes(text)
    assert InWork(tmp_path, "1").interrupted == found


@given(body=st.text() | st.lists(st.text()).map(" ".join) | st.from_regex(r"(working|[012]) (state|ns)( |\n|.)*"))
def test_whatever_the_file_holds_is_read(body: str) -> None:
    InWork()._restore(f"\n{body}\n\n")


async def test_long_names_and_many_deaths_leave_room_for_what_was_interrupted_last(tmp_path: Path) -> None:
    process, keys = Process(tmp_path), [Key("n" * 63, f"{number:0253}") for number in range(516)]
    in_work = process.start()
    in_work.interrupted |= {in_work._work("reconcile", key): 1 for key in keys[16:]}
    for number, key in enumerate(keys[:16]):
        if number == 8:
            in_work = process.start()
        await in_work.during("state", key).__aenter__()
    assert {in_work._work("state", key) for key in keys[:16]} <= process.start().interrupted.keys()


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
    command = [sys.executable, "-m", "tests.unit.operator.crashing_worker"]
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


BLOCKED = """
import asyncio, sys, time
from kubeloop.resources import Key
from llmservice_operator import __main__ as main, options

async def run(operator):
    async with operator._in_work.during("reconcile", Key("ns", "a")):
        time.sleep(60)

main.LONGEST_BLOCK, main.Operator.run = 0.2, run
asyncio.run(main.serve(options.load(sys.argv[1:])))
"""


def test_work_that_blocks_the_event_loop_ends_the_process_and_is_recorded(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, server="http://127.0.0.1:1")
    command = [sys.executable, "-c", BLOCKED, f"--kubeconfig={config}", f"--state-dir={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    assert "in run" in ended.stderr, "where it stood"
    (version, work, *_) = (tmp_path / "in-work").read_text().split("\n")
    assert work == "working ns/a reconcile "
    assert InWork(tmp_path, version).interrupted == {"ns/a reconcile ": 1}


def test_what_the_record_costs(tmp_path: Path) -> None:
    """Two writes into the page cache and a few lines: no synchronous write. Counted in CPU time, with a wide margin."""

    async def work(in_work: InWork, times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            async with in_work.during("reconcile", A):
                pass
        return (time.process_time() - began) / times

    seconds = asyncio.run(work(Process(tmp_path).start(), 5000))
    print(f"{seconds * 1e6:.1f} us of CPU for each key")
    assert seconds < 0.0005
