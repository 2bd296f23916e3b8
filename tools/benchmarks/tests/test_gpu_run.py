"""The run that measures a GPU: order, time, limits and results, with a fake clock and with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.served import results, run, server, serving, steps
from benchmarks.gpu.served.__main__ import GROUPS
from benchmarks.gpu.served.cases import Machine
from benchmarks.gpu.served.results import MACHINE, Outcome, Result
from benchmarks.gpu.served.run import Ended, Planned
from benchmarks.gpu.served.server import Place, StepFailed
from benchmarks.gpu.served.steps import Context, Group, Step

ROOT = Path(__file__).parents[3]
WELL = Ended("", ())
ONE, TWO, THREE = (Planned(name, 10, ((f"{name}-a", 20), (f"{name}-b", 20))) for name in ("one", "two", "three"))


@dataclass
class Runner:
    """Takes groups in no time but that of a fake clock."""

    file: Path
    takes: dict[str, float]
    """Seconds that each group takes."""
    leaves_out: frozenset[str] = frozenset()
    """Steps without a result."""
    ended: Ended = WELL
    now: float = 0.0
    allowed: dict[str, float] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now

    def take(self, group: Planned, names: Sequence[str], seconds: float) -> Ended:
        self.allowed[group.name] = seconds
        needed = self.takes[group.name]
        self.now += min(needed, seconds)
        for name in names:
            if needed <= seconds and name not in self.leaves_out:
                results.append(self.file, Result(name, Outcome.MEASURED, 1.0))
        return self.ended if needed <= seconds else Ended(f"it did not end within {seconds:.0f} s", ("last line",))

    def outcomes(self, seconds: float, known: frozenset[str] = frozenset()) -> dict[str, str]:
        groups = (ONE, TWO, THREE)
        run.schedule(groups, known, seconds, clock=self.clock, take=self.take, file=self.file)
        return {result.step: str(result.outcome) for result in results.read(self.file)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


EACH = {"one": 30.0, "two": 30.0, "three": 30.0}
M, F, N = "measured", "failed", "not reached"
FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("seconds", "takes", "outcomes"),
    [
        pytest.param(100, EACH, (M, M, M), id="time for all"),
        pytest.param(70, EACH, (M, M, N), id="the last one has too little left"),
        pytest.param(10, EACH, (N, N, N), id="no time at all"),
        pytest.param(80, EACH | {"two": 49}, (M, M, N), id="a slow one takes the time of the last"),
        pytest.param(200, EACH | {"two": 999}, (M, F, M), id="a hang ends at its own limit"),
        pytest.param(60, EACH | {"two": 999}, (M, N, N), id="a hang at the end of the time"),
    ],
)
def test_the_most_valuable_comes_first(
    file: Path, seconds: float, takes: dict[str, float], outcomes: tuple[str, ...]
) -> None:
    found = Runner(file, takes).outcomes(seconds)
    expected = zip((ONE, TWO, THREE), outcomes, strict=True)
    assert found == {name: outcome for group, outcome in expected for name, _ in group.steps}


def test_a_group_is_allowed_what_its_steps_and_the_rest_of_the_time_are(file: Path) -> None:
    runner = Runner(file, EACH)
    runner.outcomes(85)
    assert runner.allowed == {"one": 50, "two": 50, "three": 25}


def test_what_was_measured_before_is_left_out(file: Path) -> None:
    runner = Runner(file, EACH)
    found = runner.outcomes(100, known=frozenset({"one-a", "one-b", "two-a"}))
    assert found == {"two-b": M, "three-a": M, "three-b": M}
    assert runner.allowed == {"two": 30, "three": 50}


def test_a_step_without_a_result_failed_with_the_last_lines(file: Path) -> None:
    ended = Ended("its process ended with signal 11", ("Fatal Python error: Segmentation fault",))
    Runner(file, EACH, frozenset({"two-b"}), ended).outcomes(100)
    (failed,) = (result for result in results.read(file) if result.outcome is Outcome.FAILED)
    assert (failed.step, failed.why, failed.log) == ("two-b", ended.why, list(ended.log))


def test_a_line_that_was_cut_off_is_left_out(file: Path) -> None:
    results.append(file, Result("a", Outcome.MEASURED, 1.0, {"x": 1}))
    with file.open("a") as out:
        out.write('{"step": "b", "outc')
    assert [result.step for result in results.read(file)] == ["a"]


def test_every_step_has_a_name_of_its_own_and_a_limit() -> None:
    names = [step.name for group in GROUPS for step in group.steps]
    assert len(set(names)) == len(names)
    assert MACHINE not in names
    assert all(step.seconds > 0 and step.title for group in GROUPS for step in group.steps)


HANG = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
"""
KINDS = {
    "hang": (HANG + "time.sleep(600)", 3.0, "it did not end within 3 s"),
    "orphan": (HANG, 60.0, ""),
    "crash": ("import os; print('dying', flush=True); os.abort()", 60.0, "its process ended with signal 6"),
    "exception": ("print('0'); raise KeyError('what')", 60.0, "its process ended with exit code 1"),
    "slow": ("import time; print('starting', flush=True); time.sleep(600)", 2.0, "it did not end within 2 s"),
}
IN_PROCESS = """
import json, sys
from pathlib import Path
from benchmarks.gpu.served import run
run.adopt_orphans()
ended = run.in_process((sys.executable, "-c", sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
print(json.dumps([ended.why, ended.log, run.end_descendants()]))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_fault_is_survived_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    """In a process of its own, since it adopts and ends every descendant."""
    source, seconds, why = KINDS[kind]
    command = [sys.executable, "-c", IN_PROCESS, source, str(seconds), str(tmp_path / "log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said, log, stuck = json.loads(done.stdout)
    assert (said, stuck) == (why, [])
    if kind in ("hang", "orphan"):
        assert not Path(f"/proc/{int(log[0])}").exists(), "a process in a session of its own outlived the step"
    if kind == "exception":
        assert log[-1] == "KeyError: 'what'"


async def _well(context: Context, shared: Any) -> dict[str, Any]:
    return {"shared": shared}


async def _raises(context: Context, shared: Any) -> dict[str, Any]:
    raise StepFailed("no figures", ["its last line"])


async def _hangs(context: Context, shared: Any) -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def _mistaken(context: Context, shared: Any) -> dict[str, Any]:
    return {"x": dict[str, int]()["missing"]}


@asynccontextmanager
async def _server(context: Context) -> AsyncIterator[str]:
    yield "server"


@asynccontextmanager
async def _no_server(context: Context) -> AsyncIterator[str]:
    raise StepFailed("GPUOutOfMemory: too large", ["CUDA out of memory"])
    yield ""


def taken(tmp_path: Path, group: Group, product: str = "GPU") -> dict[str, Result]:
    context = Context(Place(tmp_path, tmp_path / "log", Machine(product, 80, "0.26.0")))
    names = [step.name for step in group.steps]
    asyncio.run(steps.take(group, names, context, tmp_path / "results.jsonl"))
    return {result.step: result for result in results.read(tmp_path / "results.jsonl")}


def test_no_steps_failure_ends_another(tmp_path: Path) -> None:
    works = {"raises": _raises, "hangs": _hangs, "mistaken": _mistaken, "well": _well}
    group = Group("g", tuple(Step(name, name, 0.2, work) for name, work in works.items()), shared=_server)
    found = taken(tmp_path, group)
    assert {name: str(result.outcome) for name, result in found.items()} == {
        "raises": F,
        "hangs": F,
        "mistaken": F,
        "well": M,
    }
    assert (found["raises"].why, found["raises"].log) == ("StepFailed: no figures", ["its last line"])
    assert "its limit" in found["hangs"].why
    assert "KeyError" in found["mistaken"].why
    assert found["well"].values == {"shared": "server"}


def test_a_server_that_does_not_start_is_the_result_of_each_of_its_steps(tmp_path: Path) -> None:
    found = taken(tmp_path, Group("g", (Step("a", "a", 1, _well), Step("b", "b", 1, _well)), shared=_no_server))
    assert {(result.why, *result.log) for result in found.values()} == {
        ("StepFailed: GPUOutOfMemory: too large", "CUDA out of memory")
    }
    assert list(found) == ["a", "b"]


@pytest.mark.parametrize(("product", "outcome"), [("", "replayed"), ("GPU", F)])
def test_a_step_that_needs_cuda_is_replayed_on_cpus_only_and_says_so(
    tmp_path: Path, product: str, outcome: str
) -> None:
    step = Step("a", "a", 1, _raises, lambda _: {"figure": 1})
    found = taken(tmp_path, Group("g", (step,), shared=_server), product)
    assert str(found["a"].outcome) == outcome
    assert ("recorded" in found["a"].why or "log" in found["a"].why) is (outcome == "replayed")


FAKE = """
import sys
from tests.support.stand_in.__main__ import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def fake_vllm(folder: Path) -> Path:
    """A folder that holds the stand-in under vLLM's name."""
    place = folder / "fake" / "vllm" / "entrypoints" / "openai"
    place.mkdir(parents=True)
    for package in (place, place.parent, place.parents[1]):
        (package / "__init__.py").touch()
    (place / "api_server.py").write_text(FAKE)
    return folder / "fake"


@pytest.mark.parametrize(
    ("behaviour", "seconds", "outcomes", "why"),
    [
        pytest.param({}, 60, (M, M), "", id="well", marks=FULL),
        pytest.param({"fails": "kv-cache-too-small"}, 60, (F, F), "KVCacheTooSmall", id="it ends while it loads"),
        pytest.param(
            {"stalls_at": 0, "shards": 4}, 16, (N, N), "time was over", id="it hangs while it loads", marks=FULL
        ),
        pytest.param({"start_seconds": 600}, 16, (N, N), "time was over", id="a slow start", marks=FULL),
        pytest.param({"first_request": "die"}, 60, (F, F), "EngineDied", id="it dies of its first request", marks=FULL),
    ],
)
def test_a_planted_fault_of_the_server(
    tmp_path: Path, behaviour: dict[str, Any], seconds: float, outcomes: tuple[str, str], why: str
) -> None:
    """The stand-in for vLLM under the real supervisor: within the time, each step has a result."""
    environment = os.environ | {"PYTHONPATH": f"{fake_vllm(tmp_path)}:{ROOT}", "STAND_IN": json.dumps(behaviour)}
    command = (sys.executable, "-m", "benchmarks.gpu.served", "--out", str(tmp_path / "out"), "--device", "cpu")
    chosen = ("--vllm-version", "0.32.0", "--only", "server-start", "server-prefix", "--seconds", str(seconds))
    done = subprocess.run((*command, *chosen), cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    machine, *found = results.read(tmp_path / "out" / "results.jsonl")
    assert machine.step == MACHINE
    assert [str(result.outcome) for result in found] == list(outcomes), done.stdout
    assert all(why in result.why for result in found)
    assert "A rehearsal" in (tmp_path / "out" / "page.md").read_text()
    assert len(list((tmp_path / "out").iterdir())) <= 6


async def test_nothing_of_a_server_is_left_for_the_next_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is in a process group of its own, and its engine is a child of it."""
    monkeypatch.setenv("PYTHONPATH", f"{fake_vllm(tmp_path)}:{ROOT}")
    place = Place(tmp_path / "work", tmp_path / "log", Machine("", 0, "0.32.0"))
    async with server.started(place, serving.eight_billion()) as one:
        await one.until_ready()
        pids = [one.process.popen.pid, *run.descendants(one.process.popen.pid)]
        assert one.engine() in pids
    assert len(pids) >= 3
    assert not [pid for pid in pids if run.runs(pid)]


@pytest.mark.full
@pytest.mark.vllm
def test_the_rehearsal_takes_every_step(tmp_path: Path) -> None:
    """With vLLM on CPUs and tiny models; what needs CUDA reads a recorded log."""
    out = tmp_path / "out"
    command = (sys.executable, "-m", "benchmarks.gpu.served", "--out", str(out), "--device", "cpu", "--seconds", "3600")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = results.run_of(out / "results.jsonl").results
    replayed = {step.name for group in GROUPS for step in group.steps if step.replay is not None}
    expected = {
        step.name: Outcome.REPLAYED if step.name in replayed else Outcome.MEASURED
        for group in GROUPS
        for step in group.steps
    }
    assert {result.step: result.outcome for result in found} == expected, [
        (result.step, result.why, result.log) for result in found if result.outcome is Outcome.FAILED
    ]
    values = {result.step: result.values for result in found}
    for step in ("server-start", "plan-long", "plan-sequences", "plan-1.5b", "plan-32b"):
        assert values[step]["plan"]["kv_cache_tokens"] == values[step]["log"]["kv_cache_tokens"], step
    assert values["hang"]["unready_after"] >= values["hang"]["limit"]
    assert values["killed"]["reason"] == "EngineDied"
    assert values["too-long"]["reason"] == "KVCacheTooSmall"
    assert values["held-memory"]["vllm"]["reason"] == "GPUMemoryBusy"
    assert values["server-drain"]["whole"] == values["server-drain"]["streams"]
    assert values["server-samples"]["samples_share"] < values["server-samples"]["requests_share"]
    assert values["speculation"]["accepted"] > 0
    page = (out / "page.md").read_text()
    assert page.startswith("# A rehearsal")
    assert page.count("(replayed)") == len(replayed)
