"""A hung engine is found; an idle, a busy and a slowly prefilling one are left alone."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import threading
from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason, Phase
from llmservice_runtime.health.hang import (
    MOVING,
    Counts,
    Sample,
    Thresholds,
    Verdict,
    Watch,
    innermost_calls,
    sample,
)
from llmservice_vllm import metrics

from tests.support.patience import PATIENCE
from tests.unit.runtime.runtime_harness import NEVER, watched

LIMITS = Thresholds(unready=30, restart=90)
STILL = (1.0, 2.0)
METRICS = Path(__file__).parents[1] / "fixtures" / "vllm_metrics.txt"


def verdicts(samples: list[Sample], thresholds: Thresholds = LIMITS, every: float = 5) -> list[Verdict]:
    """What is said of samples that come at even times."""
    watch, found = Watch(0.0, every), []
    for number, seen in enumerate(samples, start=1):
        watch = watch.seen(seen, number * every)
        found.append(watch.verdict(thresholds))
    return found


@pytest.mark.parametrize(
    ("samples", "last"),
    [
        pytest.param([Sample(False, STILL)] * 1000, Verdict.HEALTHY, id="idle for ever"),
        pytest.param([Sample(True, (float(n),)) for n in range(1000)], Verdict.HEALTHY, id="busy for ever"),
        pytest.param([Sample(True, STILL)] * 6, Verdict.HEALTHY, id="still for 25 s"),
        pytest.param([Sample(True, STILL)] * 7, Verdict.UNREADY, id="still for 30 s"),
        pytest.param([Sample(True, STILL)] * 24, Verdict.UNREADY, id="still for 115 s"),
        pytest.param([Sample(True, STILL)] * 25, Verdict.RESTART, id="still for 120 s"),
        pytest.param([Sample(True, STILL)] * 7 + [Sample(True, (2.0, 2.0))], Verdict.HEALTHY, id="moves again"),
        pytest.param([Sample(True, STILL)] * 7 + [Sample(False, STILL)], Verdict.HEALTHY, id="its clients left"),
        pytest.param([Sample(False, STILL)] * 99 + [Sample(True, STILL)] * 6, Verdict.UNREADY, id="hangs after idling"),
        pytest.param([Sample(True, None)] * 6, Verdict.UNREADY, id="does not answer"),
        pytest.param([Sample(True, None)] * 24, Verdict.RESTART, id="does not answer for long"),
        pytest.param([Sample(True, None, 0, n) for n in range(99)], Verdict.HEALTHY, id="flooded, and nobody waits"),
        pytest.param([Sample(True, None, 0, 7)] * 25, Verdict.RESTART, id="takes no request any more"),
        pytest.param([Sample(True, STILL), Sample(True, None)] * 10, Verdict.UNREADY, id="hangs, answers at times"),
    ],
)
def test_verdict(samples: list[Sample], last: Verdict) -> None:
    assert verdicts(samples)[-1] is last


class Imagined:
    """A server on an injected clock, with the counters of a real one, looked at every 5 s."""

    def __init__(self) -> None:
        self.now, self.watch = 0.0, Watch(0.0, 5.0)
        self.counters = dict.fromkeys(MOVING, 0.0)
        self.seen: set[Verdict] = set()

    def look(self, counts: Counts, *, after: float = 5.0, answers: bool = True, **moved: float) -> None:
        """`moved`: what counters (by the last part of their names) are now."""
        self.now += after
        self.counters |= {f"vllm:{name}": value for name, value in moved.items()}
        self.watch = self.watch.seen(sample(self.counters if answers else None, counts), self.now)
        self.seen.add(self.watch.verdict(LIMITS))


ONE = Counts(in_flight=1, awaiting=1)


def test_a_prefill_of_a_minute_is_no_hang() -> None:
    """No token comes and no counter of tokens moves; the cache fills with every chunk."""
    server = Imagined()
    for chunk in range(12):
        server.look(ONE, num_requests_running=1, kv_cache_usage_perc=chunk / 100)
    assert server.now == 60
    assert server.seen == {Verdict.HEALTHY}


def test_an_idle_hour_is_no_hang_and_neither_is_the_first_request_after_it() -> None:
    server = Imagined()
    for _ in range(720):
        server.look(Counts())
    for _ in range(5):
        server.look(ONE)
    assert server.now == 3625
    assert server.seen == {Verdict.HEALTHY}


@pytest.mark.parametrize("gap", [60, 600], ids=["a minute", "ten minutes"])
def test_a_watcher_without_cpu_holds_its_own_gap_against_nobody(gap: float) -> None:
    """A machine that was suspended, or a container that was throttled, with all that is in it."""
    server = Imagined()
    server.look(ONE)
    for _ in range(5):
        server.look(ONE, after=gap)
    assert server.seen == {Verdict.HEALTHY}


def test_an_engine_without_cpu_moves_slowly_but_moves() -> None:
    server = Imagined()
    for token in range(20):
        for _ in range(4):
            server.look(ONE, generation_tokens_total=token)
    assert server.now == 400
    assert server.seen == {Verdict.HEALTHY}


def test_a_server_that_has_no_time_to_be_asked_but_answers_its_clients_moves() -> None:
    server = Imagined()
    for piece in range(40):
        server.look(Counts(1, 0, sent=piece), after=10, answers=False)
    assert server.now == 400
    assert server.seen == {Verdict.HEALTHY}


def test_a_watcher_that_is_late_now_and_then_still_finds_a_hang() -> None:
    server = Imagined()
    for _ in range(8):
        server.look(ONE)
        server.look(ONE, after=40)
    assert server.seen == {Verdict.HEALTHY, Verdict.UNREADY}


@pytest.mark.parametrize(
    ("thresholds", "last"),
    [
        pytest.param(Thresholds(0, 90), Verdict.HEALTHY, id="off"),
        pytest.param(Thresholds(30, 0), Verdict.UNREADY, id="never restarted"),
    ],
)
def test_thresholds_can_be_switched_off(thresholds: Thresholds, last: Verdict) -> None:
    assert verdicts([Sample(True, STILL)] * 1000, thresholds)[-1] is last


@pytest.mark.parametrize(
    ("running", "counts", "busy"),
    [
        pytest.param(0, Counts(0, 0), False, id="idle"),
        pytest.param(2, Counts(2, 0), True, id="streams run"),
        pytest.param(0, Counts(1, 1), True, id="a request waits for its first byte"),
        pytest.param(0, Counts(3, 0), False, id="slow uploads and slow readers"),
        pytest.param(1, Counts(0, 0), False, id="an old number without requests"),
        pytest.param(1, Counts(0, None), True, id="no middleware: the engine's word counts"),
        pytest.param(0, Counts(0, None), False, id="no middleware, idle"),
    ],
)
def test_busy(running: int, counts: Counts, busy: bool) -> None:
    assert sample({metrics.RUNNING: float(running)}, counts).busy is busy


def test_no_statistics_and_no_answer() -> None:
    assert sample({}, Counts(5, 5)).busy is False
    assert sample(None, Counts()) == Sample(True, None)


def test_vllms_page_holds_what_is_looked_for() -> None:
    found = metrics.totals(METRICS.read_text(), MOVING)
    assert set(MOVING) == set(found)
    assert found["vllm:generation_tokens_total"] == 3
    assert found["vllm:request_success_total"] == 1


async def test_a_hung_server_goes_unready_and_is_ended(tmp_path: Path) -> None:
    async with watched(tmp_path) as server:
        waiting = server.hold("@hang")
        state = await server.until(lambda state: not state.ready, jump=NEVER)
        assert (state.hung, state.phase) == (True, Phase.SERVING)
        failure = await server.failed(jump=NEVER)
        waiting.cancel()
        assert failure.reason is FailureReason.ENGINE_HUNG


DUMP = """
>>> Call stack dump #{number} at Sat Nov 28 03:00:00 2026 due to feed timeout

Current thread 0x00007f0000000002 (most recent call first):
  File "/opt/venv/lib/python3.12/site-packages/vllm/utils/watch_dog.py", line 97 in dump_stack

Thread 0x00007f0000000001 (most recent call first):
  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_worker.py", line {number} in {name}
  File "<string>", line 1 in <module>

================================================================
"""
STUCK = [
    # text of the file, and where its process is stuck
    pytest.param("", "", id="nothing"),
    pytest.param(DUMP.format(number=1, name="execute"), "execute (vllm/v1/worker/gpu_worker.py:1)", id="one dump"),
    pytest.param(
        "".join(DUMP.format(number=number, name="load") for number in (1, 2)), "load (vllm/v1/worker/gpu_worker.py:2)",
        id="the last dump counts",
    ),
    pytest.param('Thread 0x1\n  File "' + '"' * 9999, "", id="no dump of Python's"),
    pytest.param("Thread 0x1:\n" + '  File "/a.py", line 1 in f\n' * 9, " < ".join(["f (/a.py:1)"] * 6), id="deep"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls"), STUCK)
def test_where_a_process_is_stuck(text: str, calls: str) -> None:
    assert innermost_calls(text).removesuffix(" < <module> (<string>:1)") == calls


def test_where_this_process_is_stuck(tmp_path: Path) -> None:
    """As the watchdog has it said: by a thread of its own."""
    path = tmp_path / "dump"

    def dump() -> None:
        with path.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    thread = threading.Thread(target=dump)
    thread.start()
    thread.join()
    with path.open("a") as file:
        file.write("\n" + "=" * 64)
    assert "test_where_this_process_is_stuck (" in innermost_calls(path.read_text())


async def test_a_hung_server_says_where_its_processes_are_stuck(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    stacks.mkdir()

    def dumped(process: str, name: str) -> Path:
        (path := stacks / f"VLLM_STACK_DUMP_for_{process}.log").write_text(DUMP.format(number=7, name=name))
        return path

    os.utime(dumped("worker_9_9", "earlier"), (0, 0))
    os.mkfifo(stacks / "VLLM_STACK_DUMP_for_worker_8_8.log")
    async with watched(tmp_path, stacks_dir=str(stacks)) as server:
        waiting = server.hold("@hang")
        await server.until(lambda state: state.hung, jump=NEVER)
        for process, name in (("engine_0_12", "wait"), ("worker_0_13", "reduce"), ("worker_1_14", "reduce")):
            dumped(process, name)
        failure = await server.failed(jump=NEVER)
        waiting.cancel()
    assert [line.partition(" (")[0] for line in failure.evidence] == ["engine_0: wait", "worker_0, worker_1: reduce"]


async def test_a_long_prefill_is_no_hang(tmp_path: Path) -> None:
    """No look of the supervisor finds the cache as the one before left it, since each waits until it fills."""
    async with watched(tmp_path) as server:
        waiting, filled = server.hold("@slow:600"), set[float]()
        async with asyncio.timeout(PATIENCE):
            while len(filled) < 10:
                if (usage := await server.measured(metrics.KV_USAGE)) not in filled:
                    filled.add(usage)
                    server.jump(NEVER)
                assert await server.probe("/readyz") in (200, 0), "0: the later time ended this request too"
                await server.passed(0.1)
        assert not waiting.done()
        waiting.cancel()
