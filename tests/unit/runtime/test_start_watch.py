"""A start past its budget: slow for as long as something moves, stopped when nothing does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from llmservice_runtime.contract import START_CEILING_SECONDS, FailureReason, Phase, State
from llmservice_runtime.health import start_watch
from llmservice_runtime.health.start_watch import LineFilter, Usage, Verdict, increase
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.log_reader import parse_line
from llmservice_runtime.supervisor.starting import Start

MIB = 2**20
LOGS = Path(__file__).parents[1] / "fixtures" / "vllm_logs"
LOADING = State(Phase.LOADING, progress="loading the weights: 42%")


class Imagined:
    """A start on an injected clock and an injected /proc: a second each look, and what moves in it."""

    def __init__(self, budget: float = 600.0) -> None:
        self.now = 0.0
        self.used = Usage()
        options = ServeOptions(start_seconds=budget, usual_seconds=90)
        self.start = Start(options, Dependencies(clock=lambda: self.now, usage=lambda group: {1: self.used}), 0.0)
        self.start.begin()

    def live(self, seconds: float, *, reads: float = 0, computes: float = 0, says: Iterator[str] | None = None) -> None:
        """Let time pass; what is read (bytes) and computed (CPU seconds) in each second of it."""
        for _ in range(int(seconds)):
            self.now += 1
            self.used = Usage(self.used.bytes_read + int(reads), self.used.cpu_seconds + computes)
            if says is not None and (line := next(says, None)) is not None:
                self.start.on_line(line)
            self.verdict = self.start.evaluate(1, self.start.remaining(LOADING, 0))


def shards() -> Iterator[str]:
    """A bar that grows once a minute."""
    for number in range(10_000):
        yield f"Loading safetensors checkpoint shards: {number // 60} of 1000"


def one_shard() -> Iterator[str]:
    """A bar that only tells of the time that passes."""
    for number in range(10_000):
        passed = f"{number // 60:02}:{number % 60:02}"
        yield f"Loading safetensors checkpoint shards:  50% Completed | 1/2 [{passed}<?, ?it/s]"


def waiting() -> Iterator[str]:
    """What an API server writes every ten seconds while its engine does not come."""
    while True:
        yield "Waiting for 1 local, 0 remote core engine proc(s) to start."
        yield "No available shared memory broadcast block found in 60 seconds. This typically happens when some"


Past = Callable[[Imagined], None]


@pytest.mark.parametrize(
    ("past_the_budget", "verdict"),
    [
        pytest.param(lambda it: it.live(1), Verdict.STOPPED, id="it stood still for all of its budget"),
        pytest.param(lambda it: it.live(3000, says=shards()), Verdict.SLOW, id="the log says something new"),
        pytest.param(lambda it: it.live(3000, says=one_shard()), Verdict.STOPPED, id="a bar that does not grow"),
        pytest.param(lambda it: it.live(3000, says=waiting()), Verdict.STOPPED, id="the same line again and again"),
        pytest.param(lambda it: it.live(3000, reads=MIB), Verdict.SLOW, id="files are read"),
        pytest.param(lambda it: it.live(3000, reads=1000), Verdict.STOPPED, id="polling reads a little"),
        pytest.param(lambda it: it.live(1100, computes=1), Verdict.SLOW, id="compiles in silence"),
        pytest.param(lambda it: it.live(2500, computes=1), Verdict.STOPPED, id="spins in silence for too long"),
        pytest.param(lambda it: it.live(3000, computes=0.02), Verdict.STOPPED, id="waits, with a little CPU"),
        pytest.param(
            lambda it: it.live(3000, computes=1, reads=MIB / 20), Verdict.SLOW, id="computes, and reads at times"
        ),
    ],
)  # fmt: skip
def test_past_the_budget(past_the_budget: Past, verdict: Verdict) -> None:
    it = Imagined()
    it.live(600)
    past_the_budget(it)
    assert it.verdict is verdict


def test_within_the_budget_nothing_has_to_move() -> None:
    it = Imagined()
    it.live(599)
    assert it.verdict is Verdict.IN_TIME


@pytest.mark.parametrize(("still", "verdict"), [(299, Verdict.SLOW), (300, Verdict.STOPPED)])
def test_what_moved_until_now_may_rest_a_while(still: int, verdict: Verdict) -> None:
    it = Imagined()
    it.live(700, says=(f"line {number}" for number in range(700)))
    it.live(still)
    assert it.verdict is verdict


def test_the_ceiling_of_the_probe_ends_what_moves() -> None:
    it = Imagined()
    it.live(START_CEILING_SECONDS - 59, reads=MIB)
    assert it.verdict is Verdict.TOO_LONG
    failure = it.start.failure(it.verdict, LOADING)
    assert failure.reason is FailureReason.START_TIMEOUT
    assert "though it made progress until the end" in failure.message


@pytest.mark.parametrize(
    ("phase", "progress", "remedy"),
    [
        (Phase.LOADING, "loading the weights: 42%", "storage"),
        (Phase.LOADING, "compiling the model", "enforceEager"),
        (Phase.LOADING, "capturing CUDA graphs: 7%", "cudaGraphs"),
        (Phase.LOADING, "starting vLLM", "NCCL"),
        (Phase.SMOKE, "no response, and no progress for 601 s", "enforceEager"),
    ],
)
def test_a_start_that_stopped_says_where_and_what_to_do(phase: Phase, progress: str, remedy: str) -> None:
    it = Imagined()
    it.live(601)
    failure = it.start.failure(Verdict.STOPPED, State(phase, progress=progress))
    assert progress in failure.message
    assert remedy in failure.remedy
    if phase is Phase.SMOKE:
        assert failure.reason is FailureReason.SMOKE_REQUEST_FAILED
    else:
        assert failure.reason is FailureReason.START_TIMEOUT
        assert "budget of 600 s" in failure.message
        assert "for 601 s" in failure.message


def test_the_first_request_has_a_budget_of_its_own() -> None:
    it = Imagined(budget=3600)
    assert it.start.remaining(LOADING, phase_seconds=301) == 3600
    assert it.start.remaining(State(Phase.SMOKE), phase_seconds=301) == -1


def test_the_state_tells_what_is_usual_until_it_started() -> None:
    it = Imagined()
    starting = it.start.with_budget(State(Phase.LOADING))
    assert (starting.start_budget_seconds, starting.usual_start_seconds) == (600, 90)
    assert State.from_json(replace(starting, slow=True).to_json()) == replace(starting, slow=True)
    it.start.is_done = True
    started = it.start.with_budget(replace(starting, slow=True, started=True))
    assert (started.slow, started.start_budget_seconds, started.usual_start_seconds) == (False, None, None)


def test_of_a_recorded_start_most_lines_say_something_once() -> None:
    news, lines = LineFilter(), [parse_line(line).text for line in (LOGS / "start.log").read_text().splitlines()]
    first = sum(news.is_new(line) for line in lines)
    assert first > 40
    assert not any(news.is_new(line) for line in lines)


def test_increase() -> None:
    before = {1: Usage(10, 1.0), 2: Usage(100, 9.0)}
    now = {1: Usage(30, 1.5), 3: Usage(5, 0.25)}
    assert increase(before, now) == Usage(25, 0.75)
    # A number that was given to another process.
    assert increase({1: Usage(10, 1.0)}, {1: Usage(3, 0.5)}) == Usage(0, 0)


def test_the_kernel_tells_what_a_group_reads_and_computes(tmp_path: Path) -> None:
    """A real process in a group of its own: it reads a file, then computes, then only waits."""
    (tmp_path / "weights").write_bytes(bytes(16 * MIB))
    program = (
        "import sys, time\n"
        "open(sys.argv[1], 'rb').read()\n"
        "until = time.process_time() + 0.3\n"
        "while time.process_time() < until: pass\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "weights")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        used = start_watch.usage_of_group(process.pid)
        assert set(used) == {process.pid}
        assert used[process.pid].bytes_read >= 16 * MIB
        assert used[process.pid].cpu_seconds >= 0.25
        process.communicate()
    assert start_watch.usage_of_group(process.pid) == {}


def test_a_process_with_a_strange_name_and_one_that_may_not_be_looked_at(tmp_path: Path) -> None:
    rest = " ".join(["S", "1", "7", *["0"] * 8, "100", "50", "10", "40", "0"])
    for pid, name in ((11, "python3"), (12, "a) S 1 8 (b")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {rest}")
    (tmp_path / "11" / "io").write_text("rchar: 5\nwchar: 0\nread_bytes: 4096\n")
    (tmp_path / "13").mkdir()
    (tmp_path / "self").mkdir()
    seconds = 200 / os.sysconf("SC_CLK_TCK")
    assert start_watch.usage_of_group(7, tmp_path) == {11: Usage(4096, seconds), 12: Usage(0, seconds)}
    assert start_watch.usage_of_group(8, tmp_path) == {}
