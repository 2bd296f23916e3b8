"""One run of a tool as a whole process: its wall time, its CPU time, its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.02


class ToolFailed(Exception):
    """A tool did not do what it was measured for."""


@dataclass(frozen=True)
class Command:
    """What is run: arguments, the whole environment, the folder."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True)
class Run:
    """Seconds of wall time, and of user and system time of the process and its children; MiB resident at the peak."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def measure(command: Command, limit_seconds: float = 600) -> Run:
    """From start to end. ToolFailed where it does not end with 0 in time."""
    with _started(command) as (process, log):
        begun = time.monotonic()
        timer = threading.Timer(limit_seconds, process.kill)
        timer.start()
        with _peak(process.pid) as peak:
            _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begun
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise ToolFailed(f"{' '.join(command.argv)} ended with {process.returncode}:\n{_tail(log)}")
    # Not ru_maxrss, which begins with the memory of the process that started this one.
    return Run(seconds, used.ru_utime + used.ru_stime, peak())


def kill_when(command: Command, condition: Callable[[], bool], limit_seconds: float = 600) -> bool:
    """Run until a condition holds, then end all of it with SIGKILL; False: it ended by itself before."""
    with _started(command) as (process, log):
        until = time.monotonic() + limit_seconds
        while process.poll() is None and time.monotonic() < until:
            if condition():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise ToolFailed(f"{' '.join(command.argv)} is too slow:\n{_tail(log)}")
    return False


@contextmanager
def _started(command: Command) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """In a session of its own, with its output in a file: a pipe would have to be read."""
    with tempfile.NamedTemporaryFile(prefix="fetch-", suffix=".log") as log:
        process = subprocess.Popen(
            command.argv,
            env=command.environment,
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        yield process, Path(log.name)


@contextmanager
def _peak(pid: int) -> Iterator[Callable[[], float]]:
    """The most MiB that a process and its descendants had, each at its own peak."""
    highest: dict[int, int] = {}
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            for member in _tree(pid):
                highest[member] = max(highest.get(member, 0), _high_water(member))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: sum(highest.values()) / 1024
    finally:
        done.set()
        thread.join()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        found = [task.joinpath("children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # it, or one of its threads, has ended: the next sample says more
        return
    for child in (child for children in found for child in children):
        yield from _tree(int(child))


def _high_water(pid: int) -> int:
    """KiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
