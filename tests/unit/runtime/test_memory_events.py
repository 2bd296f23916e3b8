"""What the kernel killed for memory: read from either kind of cgroup, and told from what the engine outlived."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason, Phase
from llmservice_runtime.health.memory_events import MemoryEvents, read

from tests.support.patience import PATIENCE
from tests.support.stand_in.behaviour import Behaviour
from tests.unit.runtime.runtime_harness import NEVER, QUICK, marked, supervised, watched

V1 = {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"}
V2 = {"memory.events": "low 0\nhigh 0\nmax 12\noom {hits}\noom_kill {kills}\noom_group_kill 0\n"}


def write(root: Path, files: Mapping[str, str], kills: int, hits: int = 0) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text.format(kills=kills, hits=hits))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, MemoryEvents(0, None), id="neither"),
        pytest.param(V1, MemoryEvents(2, None), id="cgroup v1"),
        pytest.param(V1 | V2, MemoryEvents(2, 3), id="both are mounted: v2 has the controller"),
        pytest.param({"memory.events": "nonsense\n", **V1}, MemoryEvents(2, None), id="not to be understood"),
        pytest.param({"memory/memory.oom_control": "oom_kill_disable 0\n"}, MemoryEvents(0, None), id="old kernel"),
    ],
)
def test_read(tmp_path: Path, files: Mapping[str, str], expected: MemoryEvents) -> None:
    write(tmp_path, files, kills=2, hits=3)
    assert read(tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "hits", "words"),
    [
        pytest.param(V1, 0, "reached its memory limit", id="cgroup v1"),
        pytest.param(V2, 0, "was below its own limit", id="the node had no memory left"),
    ],
)
async def test_an_engine_that_is_killed_for_memory(
    tmp_path: Path, files: Mapping[str, str], hits: int, words: str
) -> None:
    write(tmp_path, files, kills=0)
    # A look between the two lines below would find that the engine got on after the kill.
    timing = replace(QUICK, watch_seconds=PATIENCE)
    async with supervised(tmp_path, cgroup=tmp_path, timing=timing) as server:
        await server.ready()
        write(tmp_path, files, kills=1, hits=hits)
        os.kill(server.engine(), signal.SIGKILL)
        failure = await server.failed(128 + signal.SIGKILL)
        assert (failure.reason, failure.phase) == (FailureReason.MEMORY_LIMIT_EXCEEDED, Phase.SERVING)
        assert words in failure.message


async def test_a_worker_that_is_killed_while_the_rest_waits_for_it_is_no_mere_hang(tmp_path: Path) -> None:
    write(tmp_path, V1, kills=0)
    async with watched(tmp_path, cgroup=tmp_path) as server:
        waiting = server.hold("@hang")
        await server.until(lambda state: not state.ready, jump=NEVER)
        write(tmp_path, V1, kills=1)
        failure = await server.failed(jump=NEVER)
        waiting.cancel()
        assert failure.reason is FailureReason.MEMORY_LIMIT_EXCEEDED


async def test_what_was_killed_before_the_engine_moved_on_did_not_end_it(tmp_path: Path) -> None:
    """A compiler, say, while loading."""
    write(tmp_path, V1, kills=0)
    async with supervised(tmp_path, Behaviour(shards=2, stalls_at=1), cgroup=tmp_path) as server:
        await server.until(lambda state: state.progress.startswith("loading the weights: 50%"))
        write(tmp_path, V1, kills=1)
        server.release()
        await server.ready()
        assert (await server.complete()).status == 200
        await server.logged("GET /metrics", times=2)  # the answer to the first one was looked at
        os.kill(server.engine(), signal.SIGKILL)
        failure = await server.failed(128 + signal.SIGKILL)
        assert failure.reason is FailureReason.ENGINE_DIED


async def test_a_supervisor_that_is_killed_itself_leaves_the_word_to_the_log(tmp_path: Path) -> None:
    """An empty termination message with a failed exit is what FallbackToLogsOnError waits for."""
    async with supervised(tmp_path) as server:
        await server.ready()
        server.signal(signal.SIGKILL)
        assert await server.ended() == -signal.SIGKILL
        assert server.failure() is None
        assert "Serving" in "".join(server.log)
        assert marked(server.mark), "its engine outlives it"
    assert not (tmp_path / "termination-log").exists()
    await ends(server.mark)


async def ends(mark: str) -> None:
    """Nothing of a server is left behind; a process that was killed may need a moment."""
    deadline = time.monotonic() + 10
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)
