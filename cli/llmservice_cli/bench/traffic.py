"""One streamed completion, timed. Everything that a server may do to it has a name in `outcome`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
from llmservice_runtime.bounded_json import Refused

from llmservice_cli.completion import Usage, completion_of, error_text

from .load import Planned

ANSWERED = "answered"
INTERRUPTED = "interrupted"
TIMEOUT = "timeout"
CONNECTION = "connection"
ABORTED = "aborted"
CUT = "cut"
STREAM_ERROR = "stream-error"
NOT_A_STREAM = "not-a-stream"


@dataclass(frozen=True, slots=True)
class Row:
    """One request as it went. Times are seconds after the load began; None for what never happened."""

    index: int
    arrival: float
    sent: float
    outcome: str  # ANSWERED, INTERRUPTED, an HTTP status as text, or one of the other words above
    batch: int | None = None
    first_token: float | None = None
    ended: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int = 0
    asked_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def is_answered(self) -> bool:
        return self.outcome == ANSWERED

    @property
    def latency(self) -> float | None:
        """From arrival, not from sending: what the client's batching costs is part of it."""
        return None if self.ended is None else self.ended - self.arrival

    @property
    def ttft(self) -> float | None:
        """From arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival


@dataclass(frozen=True)
class Completions:
    """Sends requests of a load to one model; `clock` counts seconds, `salt` keeps them out of the prefix cache."""

    http: httpx.AsyncClient
    model: str
    timeout: float
    clock: Callable[[], float]
    salt: str

    async def send(self, planned: Planned, *, began: float, batch: int | None, record: Callable[[Row], None]) -> None:
        """One request from sending to its end, given to `record` in any case, also when it is interrupted."""
        stream = _Stream(
            Row(
                index=planned.index,
                arrival=planned.arrival,
                sent=self.clock() - began,
                outcome=INTERRUPTED,
                batch=batch,
                asked_tokens=planned.output_tokens,
            )
        )
        try:
            async with asyncio.timeout(self.timeout):
                outcome, error = await self._ask(planned, stream, began)
        except TimeoutError:
            outcome, error = TIMEOUT, f"no end within {self.timeout:g} s"
        except httpx.RequestError as failed:
            outcome, error = CONNECTION, f"{type(failed).__name__}: {failed}".rstrip(": ")
        except Refused as why:
            outcome, error = NOT_A_STREAM, f"an event that is no completion: {why}"
        except asyncio.CancelledError:
            record(stream.row)
            raise
        record(replace(stream.row, outcome=outcome, error=error, ended=self.clock() - began))

    async def _ask(self, planned: Planned, stream: _Stream, began: float) -> tuple[str, str | None]:
        body = {
            "model": self.model,
            "prompt": planned.prompt,
            "max_tokens": planned.output_tokens,
            # vLLM's own fields: every discipline gets answers of the same lengths, and none profits from the cache
            # that another one filled.
            "ignore_eos": True,
            "cache_salt": f"{self.salt}-{planned.index}",
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Content-Type": "application/json"}
        async with self.http.stream("POST", "/v1/completions", content=_chunked(body), headers=headers) as response:
            if response.status_code != 200:
                return str(response.status_code), error_text(await response.aread())
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    stream.take(line[5:].strip(), self.clock() - began)
        return stream.outcome()


async def _chunked(body: dict[str, Any]) -> AsyncIterator[bytes]:
    """Without a Content-Length.

    A Go reverse proxy, such as the API server, cuts an answer off when it begins before the proxy has seen the end of
    a request with a length (1 to 10 % of those on a busy machine); it sends the end of a chunked one only after that.
    """
    yield json.dumps(body).encode()


@dataclass
class _Stream:
    """Reads the events of one answer into its row."""

    row: Row
    is_done: bool = False
    error: str | None = None
    _pieces: int = 0

    def take(self, data: str, now: float) -> None:
        if data == "[DONE]":
            self.is_done = True
            return
        event = completion_of(data)
        if event.is_error:
            self.error = error_text(data)
            return
        for reason in event.finish_reasons or ():
            self._pieces += 1
            if self.row.first_token is None:
                self.row = replace(self.row, first_token=now)
            if reason:
                self.row = replace(self.row, finish_reason=reason)
        self._count(event.usage or Usage())

    def _count(self, usage: Usage) -> None:
        """The server's own count where it gives one; else one token for each piece."""
        self.row = replace(
            self.row,
            output_tokens=self._pieces if usage.completion is None else usage.completion,
            prompt_tokens=self.row.prompt_tokens if usage.prompt is None else usage.prompt,
        )

    def outcome(self) -> tuple[str, str | None]:
        if self.error is not None:
            return STREAM_ERROR, self.error
        if self.row.finish_reason == "abort":
            return ABORTED, "the server ended the answer before it was whole: it was being stopped"
        if not self.is_done:
            return CUT, "the stream ended without [DONE]"
        if self.row.first_token is None:
            return NOT_A_STREAM, "no token came"
        return ANSWERED, None
