"""Sends one request as the OpenAI client for Python does, and tells what became of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import httpx

from llmservice_cli.completion import error_text

from .answer import Events, Wrong, check_body
from .row import Loss, Mode, Row, status_loss

# openai-python's: its pool, the five seconds that it keeps an idle connection for (httpx's own), its time to connect.
POOL = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=5.0)
CONNECT_SECONDS = 5.0
# Its retries, where some are asked for.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, LONGEST_RETRY_AFTER = 0.5, 8.0, 120.0
RETRIED_STATUSES = (408, 409, 429)


@dataclass(frozen=True)
class Clients:
    """One pool for all requests that reuse connections, and a client that keeps none."""

    pooled: httpx.AsyncClient
    fresh: httpx.AsyncClient

    def of(self, mode: Mode) -> httpx.AsyncClient:
        return self.pooled if mode.is_pooled else self.fresh


@asynccontextmanager
async def open_clients(base_url: str, api_key: str | None) -> AsyncIterator[Clients]:
    """No proxy of the environment: it would hide what happens to connections."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    options: dict[str, Any] = {
        "base_url": base_url,
        "headers": headers,
        "timeout": httpx.Timeout(None, connect=CONNECT_SECONDS),
        "trust_env": False,
    }
    none_kept = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(limits=POOL, **options) as pooled,
        httpx.AsyncClient(limits=none_kept, **options) as fresh,
    ):
        yield Clients(pooled, fresh)


@dataclass(frozen=True)
class Question:
    """What is asked, over and over."""

    model: str
    prompt: str
    is_chat: bool

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, tokens: int, is_streamed: bool) -> Mapping[str, Any]:
        """An answer of exactly `tokens` tokens: `ignore_eos` is vLLM's own field."""
        said_by_user = {"messages": [{"role": "user", "content": self.prompt}]}
        return {
            "model": self.model,
            **(said_by_user if self.is_chat else {"prompt": self.prompt}),
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            **({"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}),
        }


@dataclass
class _Attempt:
    """What one attempt is known to have done so far."""

    first_token: float | None = None
    reused: bool | None = None
    got: int = 0
    has_answer: bool = False
    retry_after: float | None = None
    may_retry: bool = False

    async def trace(self, event: str, _: Any) -> None:
        """httpx calls it at every step of a connection."""
        if event.endswith("connect_tcp.started"):
            self.reused = False
        elif event.endswith("send_request_headers.started") and self.reused is None:
            self.reused = True


@dataclass(frozen=True)
class Sender:
    """`clock` gives seconds since 1970 and never steps back; `timeout` is of one attempt."""

    clients: Clients
    question: Question
    timeout: float
    retries: int
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    random: Random

    async def send(self, index: int, mode: Mode, tokens: int) -> Row:
        """From the first sending to the last attempt's end. Only cancelling raises."""
        row = Row(index, mode, sent=self.clock(), ended=0.0, loss=None)
        for number in range(1, self.retries + 2):
            attempt = _Attempt()
            wrong = await self._attempt(attempt, mode, tokens)
            row = replace(
                row,
                ended=self.clock(),
                loss=None if wrong is None else str(wrong.loss),
                error=None if wrong is None else wrong.error,
                first_token=attempt.first_token,
                attempts=number,
                reused=attempt.reused,
                got=attempt.got,
            )
            if wrong is None or not attempt.may_retry or number > self.retries:
                break
            await self.sleep(self._pause(number, attempt.retry_after))
        return row

    async def _attempt(self, attempt: _Attempt, mode: Mode, tokens: int) -> Wrong | None:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._ask(attempt, mode, tokens)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            attempt.may_retry = True
            return Wrong(Loss.NOT_CONNECTED, _words(error))
        except TimeoutError:
            attempt.may_retry = not attempt.has_answer
            return Wrong(Loss.TIMEOUT, f"no whole answer within {self.timeout:g} s")
        except httpx.HTTPError as error:
            # The OpenAI client reads an answer of one piece inside its retries; a stream is its caller's.
            attempt.may_retry = not (attempt.has_answer and mode.is_streamed)
            return Wrong(Loss.CUT if attempt.has_answer else Loss.DISCONNECTED, _words(error))

    async def _ask(self, attempt: _Attempt, mode: Mode, tokens: int) -> Wrong | None:
        client = self.clients.of(mode)
        body = self.question.body(tokens, mode.is_streamed)
        async with client.stream(
            "POST", self.question.path, json=body, extensions={"trace": attempt.trace}
        ) as response:
            attempt.has_answer = True
            if response.status_code != 200:
                return await self._refused(attempt, response)
            if mode.is_streamed:
                return await self._read_stream(attempt, response, tokens)
            whole = bytearray()
            async for piece in response.aiter_bytes():
                whole += piece
                attempt.got = len(whole)
            return check_body(bytes(whole), tokens)

    async def _read_stream(self, attempt: _Attempt, response: httpx.Response, tokens: int) -> Wrong | None:
        events = Events(tokens)
        async for line in response.aiter_lines():
            events.take(line)
            attempt.got = response.num_bytes_downloaded
            if events.has_begun and attempt.first_token is None:
                attempt.first_token = self.clock()
        return events.check()

    async def _refused(self, attempt: _Attempt, response: httpx.Response) -> Wrong:
        status = response.status_code
        attempt.retry_after = _seconds(response.headers.get("retry-after"))
        asks_for_more = response.headers.get("x-should-retry")
        attempt.may_retry = status in RETRIED_STATUSES or status >= 500
        if asks_for_more in ("true", "false"):
            attempt.may_retry = asks_for_more == "true"
        if attempt.retry_after is not None and attempt.retry_after > LONGEST_RETRY_AFTER:
            attempt.may_retry = False
        body = await response.aread()
        attempt.got = len(body)
        return Wrong(status_loss(status), error_text(body))

    def _pause(self, number: int, retry_after: float | None) -> float:
        """What the server asked for; else twice as long each time, less a random quarter at most."""
        if retry_after:
            return retry_after
        longest = min(FIRST_RETRY_SECONDS * 2.0 ** (number - 1), LONGEST_RETRY_SECONDS)
        return longest * (1 - 0.25 * self.random.random())


def _words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _seconds(text: str | None) -> float | None:
    try:
        seconds = math.nan if text is None else float(text)
    except ValueError:  # a date; the OpenAI client reads it, servers of models do not send it
        return None
    return seconds if seconds >= 0 else None
