"""Child processes of a supervisor that is PID 1: each in its own process group, all of them reaped."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def hide_environment() -> None:
    """Protect /proc/PID/environ and the memory of this process from processes of the same user, such as vLLM.

    Child processes are not affected.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@dataclass(frozen=True)
class Ended:
    """How a process ended: an exit code, or the signal that ended it."""

    code: int | None
    signal: int | None

    @classmethod
    def from_status(cls, status: int) -> Ended:
        """Decode waitpid's status."""
        if os.WIFSIGNALED(status):
            return cls(None, os.WTERMSIG(status))
        return cls(os.WEXITSTATUS(status), None)

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {signal.Signals(self.signal).name}"
        return f"exit code {self.code}"


class Child:
    """A process in a group of its own."""

    def __init__(self, pid: int, output: int, ended: asyncio.Future[Ended]) -> None:
        self.pid = pid
        self.output = output
        self.ended = ended
        self._swept = False

    def signal(self, number: int) -> None:
        """Send a signal to the process, not to its group; no effect after its end."""
        if not self.ended.done():
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL the process and its group. At most once after its end, because its id may be reused."""
        if self._swept:
            return
        self._swept = self.ended.done()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left in it
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def has_group(self) -> bool:
        """Whether a process of its group is left, running or unreaped."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it became another user's
            return True
        return True


class Reaper:
    """Owns SIGCHLD and reaps all children, orphans of vLLM's workers included (as PID 1 or as subreaper)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._children: dict[int, Child] = {}
        _become_subreaper()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], *, merge_stderr: bool, stdin: int | None = None
    ) -> Child:
        """Start a command with its output in a pipe. OSError where that fails."""
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        actions: list[tuple[int, int, int]] = [(os.POSIX_SPAWN_DUP2, theirs, 1)]
        if stdin is not None:
            actions.append((os.POSIX_SPAWN_DUP2, stdin, 0))
        if merge_stderr:
            actions.append((os.POSIX_SPAWN_DUP2, theirs, 2))
        try:
            # Python ignores SIGPIPE, and children inherit that.
            pid = os.posix_spawnp(
                command[0], list(command), environment, file_actions=actions, setpgroup=0, setsigdef=[signal.SIGPIPE]
            )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        child = Child(pid, ours, self._loop.create_future())
        self._children[pid] = child
        # The child may have ended before it was registered.
        self._loop.call_soon(self._reap)
        return child

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None and not child.ended.done():
                child.ended.set_result(Ended.from_status(status))


def _become_subreaper() -> None:
    if sys.platform == "linux" and os.getpid() != 1:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
