"""Visible progress: one line for each step, how long it took, and signs of life while a long one runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO


def duration(seconds: float) -> str:
    """12.3 s below a minute, 2 min 05 s above."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


@dataclass
class Step:
    """A running step; `detail` is shown with the next sign of life."""

    title: str
    detail: str = ""


@dataclass(frozen=True)
class Progress:
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    every: float = 15.0
    started: float = field(default_factory=time.monotonic)

    def line(self, text: str) -> None:
        elapsed = duration(self.clock() - self.started)
        self.stream.write(f"[{elapsed:>11}] {text}\n")
        self.stream.flush()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Says when it starts if it lasts, and how long it took when it ends."""
        step = Step(title)
        begun = self.clock()
        over = threading.Event()

        def signs_of_life() -> None:
            while not over.wait(self.every):
                detail = f", {step.detail}" if step.detail else ""
                self.line(f"{step.title} ... {duration(self.clock() - begun)}{detail}")

        watcher = threading.Thread(target=signs_of_life, daemon=True)
        watcher.start()
        try:
            yield step
        except BaseException:
            self.line(f"{step.title}: failed after {duration(self.clock() - begun)}")
            raise
        finally:
            over.set()
            watcher.join()
        self.line(f"{step.title}: {duration(self.clock() - begun)}")
