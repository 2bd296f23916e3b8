"""A probe that sends its requests from this process."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import httpx

from llmservice_cli.bench.target import Target, api_key, look
from llmservice_cli.errors import CliError

from .gathered import Gathered
from .load import Load
from .options import load_options
from .sender import Question, Sender, open_clients

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
        gathered.begin(self.load.clock())
        await self.load.run(gathered.take)
        gathered.end()

    async def stop(self) -> None:
        """Send nothing more."""
        self.load.stop()


@asynccontextmanager
async def opened(options: argparse.Namespace) -> AsyncIterator[Local]:
    """By the flags of the command; CliError where the server does not answer at all."""
    base = options.url.rstrip("/").removesuffix("/v1")
    try:
        httpx.URL(base)
    except httpx.InvalidURL as error:
        raise CliError(f"{options.url} is not a URL: {error}", "give one such as http://127.0.0.1:8000") from error
    async with open_clients(base, api_key(options.api_key_env)) as clients:
        model = options.model
        if model is None:
            asked = Target(clients.fresh, base, "direct", "check the address, and that the server is up")
            model = (await look(asked, None)).model
        clock = steady_clock()
        sender = Sender(
            clients=clients,
            question=Question(model, options.prompt, options.api == "chat"),
            timeout=options.timeout,
            retries=options.retries,
            clock=clock,
            sleep=asyncio.sleep,
            random=Random(),
        )
        yield Local(base, model, Load(load_options(options), sender, clock))


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never step back, whatever happens to the machine's time."""
    began, offset = time.monotonic(), time.time()
    return lambda: offset + time.monotonic() - began
