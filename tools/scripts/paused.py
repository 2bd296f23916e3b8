"""python -m scripts.paused COMMAND...: runs it on a busy machine, as it were.

Each process below it stands still now and then, for up to some seconds. A test that fails often this way, and otherwise
now and then, has a limit of seconds that a slow machine passes, or a wait that is no wait for a condition.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MARK = "PAUSED_RUN"
"""A variable of all processes of one run, also of those whose parent has ended."""
LOOK_SECONDS = 0.05
CHANCE = 0.03
"""That a process is stopped at a look: it stands still about half of the time."""
MEAN_SECONDS = 0.8
EXAMPLES = """examples:
  python -m scripts.paused .venv/bin/pytest -n 4 tests/unit/runtime
  python -m scripts.paused --longest 6 --seed 2 .venv/bin/pytest -n 4 --dist loadfile tests/unit

With -n, pytest's own process, which gives the tests out, is the one that is never stopped."""


@dataclass
class Pauses:
    """Of all processes that have the mark, but for `root`."""

    mark: bytes
    root: int
    longest: float
    random: random.Random
    _until: dict[int, float] = field(default_factory=dict)
    """Process id -> when it goes on."""
    _known: dict[tuple[int, str], bool] = field(default_factory=dict)
    """Process id and start time -> whether it has the mark."""

    def look(self, now: float) -> None:
        """Let those go on whose time is over, and stop some others."""
        self.end({pid for pid, until in self._until.items() if until <= now})
        for pid in set(self._marked()) - {self.root, *self._until}:
            if self.random.random() < CHANCE:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self._until[pid] = now + min(self.longest, self.random.expovariate(1 / MEAN_SECONDS))

    def end(self, pids: set[int] | None = None) -> None:
        """Let these go on; without `pids`, all."""
        for pid in set(self._until) if pids is None else pids:
            del self._until[pid]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _marked(self) -> Iterator[int]:
        for folder in Path("/proc").glob("[0-9]*"):
            # It ended meanwhile, or is somebody else's.
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                key = (int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()[19])
                if key not in self._known:
                    self._known[key] = self.mark in (folder / "environ").read_bytes().split(b"\0")
                if self._known[key]:
                    yield key[0]


def main(argv: Sequence[str]) -> int:
    """The command's exit code."""
    parser = argparse.ArgumentParser(
        "python -m scripts.paused", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--longest", type=float, default=3.0, help="seconds of a pause at most (3)")
    parser.add_argument("--seed", type=int, default=1, help="of the pauses' chances (1)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="with its arguments")
    arguments = parser.parse_args(argv)
    if not arguments.command:
        parser.error("give the command to run")
    mark = secrets.token_hex(8)
    with subprocess.Popen(arguments.command, env={**os.environ, MARK: mark}) as process:
        chances = random.Random(arguments.seed)
        pauses = Pauses(f"{MARK}={mark}".encode(), process.pid, arguments.longest, chances)
        try:
            while process.poll() is None:
                pauses.look(time.monotonic())
                time.sleep(LOOK_SECONDS)
        finally:
            pauses.end()
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
