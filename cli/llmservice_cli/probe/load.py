"""Constant load: when the next request is sent, whatever became of the ones before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmservice_cli.load.pace import Pace

from .row import Mode, Row, in_turn
from .sender import Sender


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Either `rate` (requests a second, sent on time even when answers are slow) or `concurrency` is given."""

    duration: float  # seconds in which requests are sent
    modes: Sequence[Mode]
    output_tokens: Sequence[int]
    rate: float | None
    concurrency: int | None


@dataclass(frozen=True)
class Load:
    options: LoadOptions
    sender: Sender
    pace: Pace

    async def run(self, record: Callable[[Row], None]) -> None:
        """Until the last request has ended; each is recorded when it ends."""
        options, began = self.options, self.pace.clock()

        async def send(index: int) -> None:
            mode, tokens = in_turn(options.modes, options.output_tokens, index)
            record(await self.sender.send(index, mode, tokens))

        if options.concurrency is not None:
            await self.pace.in_turn(options.concurrency, began + options.duration, send)
        else:
            rate = options.rate or 0.0
            await self.pace.at((began + number / rate for number in range(round(rate * options.duration))), send)
