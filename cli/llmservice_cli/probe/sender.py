"""A probe that sends its requests from this process, as the OpenAI client for Python does, retries included."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import random

import httpx

from llmservice_cli.load.answer import Loss
from llmservice_cli.load.client import Exchange, Pace, Request
from llmservice_cli.load.server import base_of, client_of, direct, headers_of, inspect, key_of
from llmservice_cli.probe import Mode, Options
from llmservice_cli.probe.report import ProbedRequest

from .report import Gathered

# openai-python's: its pool, the five seconds that it keeps an idle connection for (httpx's own), its time to connect.
POOL = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=5.0)
NONE_KEPT = httpx.Limits(max_connections=None, max_keepalive_connections=0)
CONNECT_SECONDS = 5.0
# Its retries, where some are asked for.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, LONGEST_RETRY_AFTER = 0.5, 8.0, 120.0
RETRIED_STATUSES = (408, 409, 429)
PAUSE_SECONDS = 0.01
"""Between two requests of one client, so that a server that refuses at once is not flooded."""


def in_turn(modes: Sequence[Mode], tokens: Sequence[int], index: int) -> tuple[Mode, int]:
    """Mode and length of the request number `index`: every mode with every length, in the same order each time."""
    return modes[index % len(modes)], tokens[index // len(modes) % len(tokens)]


@dataclass(frozen=True)
class Sender:
    """Asks a model the same over and over.

    `pooled` reuses connections and `fresh` keeps none; `timeout` is of one attempt. `clock` gives seconds since 1970
    and never steps back.
    """

    pooled: httpx.AsyncClient
    fresh: httpx.AsyncClient
    model: str
    prompt: str
    is_chat: bool
    timeout: float
    retries: int
    clock: Callable[[], float]

    async def send(self, index: int, mode: Mode, tokens: int) -> ProbedRequest:
        """For an answer of exactly so many tokens; until the last attempt's end. Only cancelling raises."""
        request = Request.of(self.model, self.prompt, tokens, is_chat=self.is_chat, is_streamed=mode.is_streamed)
        sent, number = self.clock(), 1
        while True:
            exchange = Exchange(request, self.clock)
            await exchange.run(self.pooled if mode.is_pooled else self.fresh, self.timeout)
            if number > self.retries or not may_retry(exchange):
                break
            await asyncio.sleep(_pause(number, retry_after(exchange)))
            number += 1
        failure = exchange.failure
        assert exchange.ended is not None
        return ProbedRequest(
            index,
            mode,
            sent=sent,
            ended=exchange.ended,
            loss=None if failure is None else str(failure.loss),
            error=None if failure is None else failure.error,
            first_token=exchange.first_token,
            attempts=number,
            reused=exchange.reused,
            got=exchange.got,
        )


def _pause(number: int, retry_after: float | None) -> float:
    """Seconds: what the server asked for; else twice as long each time, less a random quarter at most."""
    if retry_after:
        return retry_after
    longest = min(FIRST_RETRY_SECONDS * 2.0 ** (number - 1), LONGEST_RETRY_SECONDS)
    return longest * (1 - 0.25 * random())


def may_retry(exchange: Exchange) -> bool:
    """Whether the OpenAI client tries again: after a connection that broke, and by the status or the server's word."""
    response, failure = exchange.response, exchange.failure
    if failure is None:
        return False
    if response is None:
        return True
    if failure.loss == Loss.CUT:
        # The client reads an answer of one piece inside its retries; a stream is its caller's.
        return not exchange.request.is_streamed
    if response.status_code == 200 or failure.loss == Loss.TIMEOUT:
        return False
    if (retry_after(exchange) or 0) > LONGEST_RETRY_AFTER:
        return False
    asked = response.headers.get("x-should-retry")
    if asked in ("true", "false"):
        return bool(asked == "true")
    return response.status_code in RETRIED_STATUSES or response.status_code >= 500


def retry_after(exchange: Exchange) -> float | None:
    """Seconds of the answer's Retry-After header; None also for a date, which the OpenAI client reads and servers of
    models do not send."""
    try:
        value = math.nan if exchange.response is None else float(exchange.response.headers.get("retry-after", "nan"))
    except ValueError:
        return None
    return value if value >= 0 else None


@dataclass
class Local:
    """A probe that sends its requests from this process."""

    target: str
    options: Options
    sender: Sender
    pace: Pace
    way: str = "from here"

    @property
    def model(self) -> str:
        return self.sender.model

    async def follow(self, gathered: Gathered) -> None:
        """Until the last request has ended."""
        options, pace, began = self.options, self.pace, self.pace.clock()
        gathered.begin(began)

        async def send(index: int) -> None:
            mode, tokens = in_turn(options.modes, options.output_tokens, index)
            gathered.take(await self.sender.send(index, mode, tokens))

        if options.paced is None:
            until, numbers = began + options.duration, itertools.count()
            going_on = itertools.takewhile(lambda _: pace.clock() < until, numbers)
            await pace.in_turn(options.concurrency, going_on, send, PAUSE_SECONDS)
        else:
            rate = options.paced
            await pace.at((began + number / rate for number in range(round(rate * options.duration))), send)
        gathered.end()

    async def stop(self) -> None:
        self.pace.stop()


@asynccontextmanager
async def opened(options: Options, url: str) -> AsyncIterator[Local]:
    """By the flags of the command; CliError where the server does not answer at all."""
    headers, timeout = headers_of(key_of(options.api_key_env)), httpx.Timeout(None, connect=CONNECT_SECONDS)
    async with (
        client_of(url, headers, POOL, timeout) as pooled,
        client_of(url, headers, NONE_KEPT, timeout) as fresh,
    ):
        model = options.model or (await inspect(direct(url, fresh), None)).model
        sender = Sender(
            pooled,
            fresh,
            model,
            options.prompt,
            options.api == "chat",
            options.timeout,
            options.retries,
            steady_clock(),
        )
        yield Local(base_of(url), options, sender, Pace(sender.clock))


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never step back, whatever happens to the machine's time."""
    began, offset = time.monotonic(), time.time()
    return lambda: offset + time.monotonic() - began
