"""The rows and marks of a running probe, and the lines that show its progress."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import TextIO

from llmservice_runtime.bounded_json import clean

from llmservice_cli.load.display import IN_A_LOG, repeated

from .report import clock
from .row import Row
from .tally import Mark

LOSSES_PRINTED = 20


@dataclass
class Gathered:
    """Rows and marks; it grows while requests end.

    `out` gets a line for each mark and each loss at once; `lines` gets every row as JSON.
    """

    out: TextIO | None
    lines: TextIO | None = None
    now: Callable[[], float] = time.time
    rows: dict[int, Row] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    lost: int = 0
    _behind: float | None = None

    def observe_clock(self, moment: float) -> None:
        """`moment` is by the sender's clock, and not after now: the smallest difference seen is that of the clocks."""
        behind = self.now() - moment
        self._behind = behind if self._behind is None else min(behind, self._behind)

    def begin(self, moment: float) -> None:
        """The sender's clock, before the first request."""
        self.observe_clock(moment)
        self._write(json.dumps({"begin": moment}))
        self.write_line(f"{clock(moment)} the first request is sent")

    def end(self) -> None:
        self._write(json.dumps({"end": len(self.rows)}))

    def take(self, row: Row) -> None:
        """One more; a row that is there already changes nothing."""
        if row.index in self.rows:
            return
        self.rows[row.index] = row
        self.observe_clock(row.ended)
        self._write(row.to_line())
        if not row.is_complete:
            self.lost += 1
            if self.lost <= LOSSES_PRINTED:
                self.write_line(f"{clock(row.ended)} lost: {row.loss} ({row.mode}): {row.error}")

    def mark(self, name: str) -> None:
        """Now, by the sender's clock."""
        self.marks.append(Mark(name, self.now() - (self._behind or 0.0)))
        self.write_line(f"{clock(self.marks[-1].at)} mark {name}: {self}")

    def write_line(self, line: str) -> None:
        if self.out is not None:
            self.out.write(f"{clean(line)}\n")
            self.out.flush()

    def _write(self, line: str) -> None:
        if self.lines is not None:
            self.lines.write(f"{line}\n")
            self.lines.flush()

    def __str__(self) -> str:
        return f"{len(self.rows)} ended, {self.lost} lost"


def shown(gathered: Gathered) -> AbstractAsyncContextManager[None]:
    """A line every ten seconds."""
    return repeated(lambda: gathered.write_line(f"{clock(gathered.now())} {gathered}"), IN_A_LOG)


def mark_by_lines(gathered: Gathered, loop: asyncio.AbstractEventLoop) -> None:
    """Every line of standard input is a mark, until its end or ours.

    A thread, since regular files cannot be awaited; on the bare descriptor, since a thread that waits in sys.stdin
    would keep Python from ending.
    """

    def read() -> None:
        rest = b""
        with suppress(OSError):  # it is closed, or no input
            while piece := os.read(sys.stdin.fileno(), 4096):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    name = line.decode(errors="replace").strip() or f"mark {len(gathered.marks) + 1}"
                    with suppress(RuntimeError):  # the loop has ended meanwhile
                        loop.call_soon_threadsafe(gathered.mark, name)

    threading.Thread(target=read, name="marks", daemon=True).start()
