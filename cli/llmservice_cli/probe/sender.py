"""Sends one request as the OpenAI client for Python does, retries included."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

import httpx

from llmservice_cli.load.answer import Loss
from llmservice_cli.load.exchange import Exchange, Request
from llmservice_cli.load.pace import Pace

from .row import Mode, Row, in_turn

# Constant load: when the next request is sent, whatever became of the ones before.


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


# openai-python's: its pool, the five seconds that it keeps an idle connection for (httpx's own), its time to connect.
POOL = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=5.0)
NONE_KEPT = httpx.Limits(max_connections=None, max_keepalive_connections=0)
CONNECT_SECONDS = 5.0
# Its retries, where some are asked for.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, LONGEST_RETRY_AFTER = 0.5, 8.0, 120.0
RETRIED_STATUSES = (408, 409, 429)


@dataclass(frozen=True)
class Question:
    """What is asked, over and over."""

    model: str
    prompt: str
    is_chat: bool

    def request(self, tokens: int, is_streamed: bool) -> Request:
        """For an answer of exactly `tokens` tokens."""
        return Request.of(self.model, self.prompt, tokens, is_chat=self.is_chat, is_streamed=is_streamed)


@dataclass(frozen=True)
class Sender:
    """`pooled` reuses connections and `fresh` keeps none; `timeout` is of one attempt.

    `clock` gives seconds since 1970 and never steps back.
    """

    pooled: httpx.AsyncClient
    fresh: httpx.AsyncClient
    question: Question
    timeout: float
    retries: int
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    random: Random

    async def send(self, index: int, mode: Mode, tokens: int) -> Row:
        """From the first sending to the last attempt's end. Only cancelling raises."""
        request = self.question.request(tokens, mode.is_streamed)
        sent, number = self.clock(), 1
        while True:
            exchange = Exchange(request, self.clock)
            await exchange.run(self.pooled if mode.is_pooled else self.fresh, self.timeout)
            if number > self.retries or not may_retry(exchange):
                break
            await self.sleep(self._pause(number, retry_after(exchange)))
            number += 1
        failure = exchange.failure
        assert exchange.ended is not None
        return Row(
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

    def _pause(self, number: int, retry_after: float | None) -> float:
        """Seconds: what the server asked for; else twice as long each time, less a random quarter at most."""
        if retry_after:
            return retry_after
        longest = min(FIRST_RETRY_SECONDS * 2.0 ** (number - 1), LONGEST_RETRY_SECONDS)
        return longest * (1 - 0.25 * self.random.random())


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
    """Seconds of the answer's Retry-After header."""
    return None if exchange.response is None else seconds(exchange.response.headers.get("retry-after"))


def seconds(text: str | None) -> float | None:
    """Of a Retry-After header; None for a date, which the OpenAI client reads and servers of models do not send."""
    try:
        value = math.nan if text is None else float(text)
    except ValueError:
        return None
    return value if value >= 0 else None
