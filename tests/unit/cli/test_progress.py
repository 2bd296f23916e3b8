"""How far something is, and how long the rest takes: said after a while, on standard error."""

from __future__ import annotations

import asyncio
import io

import pytest
from llmservice_cli import progress
from llmservice_cli.progress import Steps, shown

from tests.support.patience import PATIENCE


@pytest.mark.parametrize(
    ("done", "of", "line"),
    [
        (0, 0, "reading ..."),
        (0, 9, "reading: 0 of 9"),
        (3, 9, "reading: 3 of 9, about 20s left"),
        (9, 9, "reading: 9 of 9"),
    ],
)
def test_the_line_after_ten_seconds(done: int, of: int, line: str) -> None:
    assert Steps("reading", of, done).line(10.0) == line


async def test_each_step_counts_once_also_one_that_fails() -> None:
    steps = Steps("reading", 2)

    async def read() -> int:
        return 7

    async def fail() -> int:
        raise ValueError

    assert await steps.counted(read()) == 7
    with pytest.raises(ValueError):
        await steps.counted(fail())
    assert steps.done == 2


async def test_what_ends_soon_is_not_mentioned() -> None:
    out = io.StringIO()
    async with shown(Steps("reading", 2), out):
        await asyncio.sleep(0)
    assert out.getvalue() == ""


class Lines(io.StringIO):
    """Tells when there are two."""

    def __init__(self) -> None:
        super().__init__()
        self.are_two = asyncio.Event()

    def flush(self) -> None:
        if self.getvalue().count("\n") == 2:
            self.are_two.set()


async def test_what_takes_longer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal a line for each time."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "IN_A_LOG", 0.01)
    out, moments = Lines(), iter(range(1000))
    steps = Steps("reading", 4, 1)
    async with asyncio.timeout(PATIENCE), shown(steps, out, clock=lambda: float(next(moments))):
        await out.are_two.wait()
    assert out.getvalue().splitlines()[:2] == ["reading: 1 of 4, about 3s left", "reading: 1 of 4, about 6s left"]
