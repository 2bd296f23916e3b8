"""One streamed completion of a bench, and its row in the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import httpx
from llmservice_runtime.bounded_json import clean

from llmservice_cli.load.answer import Failure, Loss
from llmservice_cli.load.exchange import Exchange, Request

from .arrivals import Planned

ANSWERED = "answered"
INTERRUPTED = "interrupted"
OUTCOMES: Mapping[str, str] = {
    Loss.NOT_CONNECTED: "connection",
    Loss.DISCONNECTED: "connection",
    Loss.CUT: "connection",
    Loss.NOT_DONE: "cut",
    Loss.NOT_UNDERSTOOD: "not-a-stream",
}
"""The result file's words where they are not the loss's own; an HTTP status is its number."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request as it went. Times are seconds after the load began; None for what never happened."""

    index: int
    arrival: float
    sent: float
    outcome: str  # ANSWERED, INTERRUPTED, an HTTP status as text, one of OUTCOMES, or another loss
    batch: int | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int = 0
    asked_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    pieces: Sequence[float] = ()
    """When each piece of the answer came: a token each, unless the server bundles them."""

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
    is_chunked: bool = True
    """As the API server's proxy needs it."""
    describe: Callable[[Failure], str] = lambda failure: failure.error
    """Why a request failed, without the API key."""

    async def send(self, planned: Planned, *, began: float, batch: int | None, record: Callable[[Row], None]) -> None:
        """One request from sending to its end, given to `record` in any case, also when it is interrupted."""
        # cache_salt is vLLM's own field: no discipline profits from the prefix cache that another one filled.
        salt = f"{self.salt}-{planned.index}"
        request = Request.of(self.model, planned.prompt, planned.output_tokens, cache_salt=salt)
        exchange = Exchange(replace(request, must_be_exact=False, is_chunked=self.is_chunked), self.clock)
        try:
            await exchange.run(self.http, self.timeout)
        finally:
            record(self._row(planned, exchange, began, batch))

    def _row(self, planned: Planned, exchange: Exchange, began: float, batch: int | None) -> Row:
        failure, events = exchange.failure, exchange.events
        outcome = INTERRUPTED if exchange.ended is None else ANSWERED
        if failure is not None:
            outcome = OUTCOMES.get(failure.loss, failure.loss.removeprefix("http-"))
        return Row(
            index=planned.index,
            arrival=planned.arrival,
            sent=exchange.sent - began,
            outcome=outcome,
            batch=batch,
            first_token=_since(began, exchange.first_token),
            last_token=_since(began, exchange.last_token),
            ended=_since(began, exchange.ended),
            prompt_tokens=events.prompt_tokens,
            output_tokens=events.output_tokens,
            asked_tokens=planned.output_tokens,
            finish_reason=events.finish_reason,
            error=None if failure is None else clean(self.describe(failure)),
            pieces=exchange.piece_times,
        )


def _since(began: float, moment: float | None) -> float | None:
    return None if moment is None else moment - began
