"""A probe that sends its requests from this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from llmservice_cli.load.pace import Pace
from llmservice_cli.load.server import base_of, direct, http_client, inspect

from .arguments import Options
from .gathered import Gathered
from .load import Load
from .options import load_options
from .sender import CONNECT_SECONDS, NONE_KEPT, POOL, Question, Sender

WAY = "from here"


@dataclass
class Local:
    """`follow` sends the load; `stop` ends the sending."""

    target: str
    model: str
    load: Load
    way: str = WAY

    async def follow(self, gathered: Gathered) -> None:
        """Until the last request has ended."""
        gathered.begin(self.load.pace.clock())
        await self.load.run(gathered.take)
        gathered.end()

    async def stop(self) -> None:
        self.load.pace.stop()


@asynccontextmanager
async def opened(options: Options, url: str) -> AsyncIterator[Local]:
    """By the flags of the command; CliError where the server does not answer at all."""
    async with (
        http_client(options, POOL, CONNECT_SECONDS) as pooled,
        http_client(options, NONE_KEPT, CONNECT_SECONDS) as fresh,
    ):
        model = options.model or (await inspect(direct(url, fresh), None)).model
        clock = steady_clock()
        question = Question(model, options.prompt, options.api == "chat")
        sender = Sender(pooled, fresh, question, options.timeout, options.retries, clock, asyncio.sleep, Random())
        yield Local(base_of(url), model, Load(load_options(options), sender, Pace(clock)))


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never step back, whatever happens to the machine's time."""
    began, offset = time.monotonic(), time.time()
    return lambda: offset + time.monotonic() - began
