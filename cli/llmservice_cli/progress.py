"""How much of something that takes a while is done, and how long the rest will take."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TextIO, TypeVar

from .text import duration

PATIENCE = 2.0
"""Seconds after which it is said what is waited for."""
ON_A_TERMINAL, IN_A_LOG = 0.5, 10.0
"""Seconds between two lines, of which the first kind renews itself."""
T = TypeVar("T")


@asynccontextmanager
async def repeated(show: Callable[[], None], seconds: float) -> AsyncIterator[None]:
    """Calls `show` after every so many seconds of the block."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds)
            show()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass
class Steps:
    """Steps of one piece of work, each as long as the others; `of` grows as more of them are known."""

    what: str
    of: int = 0
    done: int = 0

    async def counted(self, step: Awaitable[T]) -> T:
        """The result of one step, which is then done."""
        try:
            return await step
        finally:
            self.done += 1

    def line(self, seconds: float) -> str:
        """As it is after so many seconds."""
        if not self.of:
            return f"{self.what} ..."
        left = seconds / self.done * (self.of - self.done) if self.done else None
        rest = "" if left is None or left < 1 else f", about {duration(left)} left"
        return f"{self.what}: {self.done} of {self.of}{rest}"


@asynccontextmanager
async def shown(
    steps: Steps, out: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[None]:
    """Says on standard error how far it is, once it has taken a while: a line that renews itself on a terminal, one
    every ten seconds elsewhere."""
    to, began = out or sys.stderr, clock()
    is_live, is_begun = to.isatty(), False

    def say() -> None:
        text = steps.line(clock() - began)
        to.write(f"\r{text:<70}" if is_live else f"{text}\n")
        to.flush()

    async def work() -> None:
        nonlocal is_begun
        await asyncio.sleep(PATIENCE)
        is_begun = True
        say()
        async with repeated(say, ON_A_TERMINAL if is_live else IN_A_LOG):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if is_begun and is_live:
            to.write(f"\r{'':<70}\r")
            to.flush()
