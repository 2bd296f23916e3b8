"""Takes steps in the order of their value until time is over, each group of them in a process of its own.

A group's process writes its results itself. What it leaves without one when it ends, or when its limit ends it, becomes
a result too, with the last lines of its output.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.served import results
from benchmarks.gpu.served.results import Outcome, Result

LEAST_SECONDS = 15.0
"""A group is not begun with less."""
LAST_LINES = 25
_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Planned:
    """A group of steps as the schedule sees it: what it is called, and how long each part may take."""

    name: str
    start_seconds: float
    """Of what its steps share, such as a server."""
    steps: tuple[tuple[str, float], ...]
    """Names, and the limit of each in seconds."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process of a group ended."""

    why: str
    """Empty where it ended by itself with exit code 0."""
    log: tuple[str, ...]


Take = Callable[[Planned, Sequence[str], float], Ended]
"""Runs the process of a group for these steps, within so many seconds."""


def schedule(
    groups: Iterable[Planned],
    known: frozenset[str],
    seconds: float,
    *,
    clock: Callable[[], float],
    take: Take,
    file: Path,
) -> None:
    """Every step gets a result in `file`, but those in `known`."""
    ends = clock() + seconds
    for group in groups:
        limits = {name: limit for name, limit in group.steps if name not in known}
        left = ends - clock()
        if left < LEAST_SECONDS:
            for name in limits:
                results.append(file, Result(name, Outcome.NOT_REACHED, 0.0, why="time was over"))
            continue
        if not limits:
            continue
        allowed = group.start_seconds + sum(limits.values())
        began = clock()
        ended = take(group, tuple(limits), min(allowed, left))
        took, have = clock() - began, {result.step for result in results.read(file)}
        is_cut = left < allowed and clock() >= ends
        for name in limits:
            if name not in have and is_cut:
                results.append(file, Result(name, Outcome.NOT_REACHED, 0.0, why="time was over during its group"))
            elif name not in have:
                why = ended.why or "its process ended without a result"
                results.append(file, Result(name, Outcome.FAILED, round(took, 1), why=why, log=ended.log))


def in_process(command: Sequence[str], seconds: float, log: Path) -> Ended:
    """Runs a command to its end; after it, or after so many seconds, nothing that it started is left.

    Its output is appended to `log`. Call `adopt_orphans` once before.
    """
    begins_at = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    why = ""
    try:
        code = process.wait(seconds)
        if code:
            why = f"its process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
    except subprocess.TimeoutExpired:
        why = f"it did not end within {seconds:.0f} s"
    finally:
        stuck = end_descendants()
    if stuck:
        why = f"{why or 'it ended'}; processes {', '.join(map(str, stuck))} do not end on SIGKILL"
    with log.open("rb") as whole:
        whole.seek(begins_at)
        lines = [line for line in whole.read().decode(errors="replace").splitlines() if line.strip()]
    return Ended(why, tuple(lines[-LAST_LINES:]))


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, whatever their session, and can be ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_descendants() -> tuple[int, ...]:
    """Kill every descendant and wait until the kernel has let go of it, and so of the GPU's memory.

    Those that do not end, as in an uninterruptible call of a driver.
    """
    ends = time.monotonic() + _END_SECONDS
    while found := descendants(os.getpid()):
        _kill(found)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > ends:
            return tuple(found)
        time.sleep(_POLL_SECONDS)
    return ()


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started, in whatever sessions, and wait until all are gone or a limit is over."""
    found = [process.pid, *descendants(process.pid)]
    _kill(found)
    process.wait()
    ends = time.monotonic() + _END_SECONDS
    while any(map(runs, found)) and time.monotonic() < ends:
        time.sleep(_POLL_SECONDS)


def descendants(pid: int) -> list[int]:
    """Of a process, by /proc; empty for one that is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Whether a process has not ended; one that nobody waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
