"""What ends a supervisor whose loop stands still: there is no probe for it that a flood could starve."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.support.patience import PATIENCE

SCRIPT = """
import asyncio, sys, time
from llmservice_runtime.health.watchdog import watching

async def main():
    with watching(asyncio.get_running_loop(), {limit}):
        {work}
    print("through", flush=True)
    {after}

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("work", "after", "code"),
    [
        pytest.param("time.sleep(30)", "", 1, id="stands still"),
        pytest.param("while True: pass", "", 1, id="spins"),
        pytest.param("__import__('ctypes').PyDLL(None).sleep(60)", "", 1, id="keeps Python's lock"),
        pytest.param("await asyncio.sleep(1.2)", "", 0, id="waits"),
        pytest.param("pass", "time.sleep(1.2)", 0, id="over"),
    ],
)
def test_a_loop_that_stands_still_ends_the_process(work: str, after: str, code: int) -> None:
    # What must end does so at its limit, and without Python's lock at twenty times that; the others need some room.
    script = SCRIPT.format(work=work, after=after, limit=0.1 if code else 0.3)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == code
    assert ("through" in ended.stdout) is (code == 0)
    assert ("Timeout" in ended.stderr) is (code == 1)
    assert ("in main" in ended.stderr) is (code == 1), "where it stood"


FROZEN = """
import asyncio
from llmservice_runtime.health.watchdog import watching

async def main():
    with watching(asyncio.get_running_loop(), 0.5):
        print("begun", flush=True)
        await asyncio.sleep(1.0)
    print("through", flush=True)

asyncio.run(main())
"""


def test_time_in_which_the_whole_process_stood_does_not_count() -> None:
    with subprocess.Popen([sys.executable, "-c", FROZEN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)  # longer than the loop may stand still; that it passes is the very matter
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == "through\n"
    assert process.returncode == 0


def test_the_environment_of_a_supervisor_is_its_own() -> None:
    script = """
import ctypes, subprocess, sys
from llmservice_runtime.supervisor.processes import hide_environment
hide_environment()
of_child = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
subprocess.run([sys.executable, "-c", of_child], check=True)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ended.stdout.split() == ["0", "1"], "its own is hidden, vLLM's is not"
