"""One streamed completion of a bench, and its row in the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

import httpx
from llmservice_runtime.bounded_json import clean

from llmservice_cli.load.answer import Failure, Loss
from llmservice_cli.load.exchange import Exchange, Request

# The requests of a bench: who arrives when and asks for how much; the same options give the same load.

# Short and common, so that most tokenizers make one token of each; byte-level ones make one of each letter.
WORDS: Sequence[str] = (
    "the", "of", "and", "to", "in", "is", "it", "that", "was", "for", "on", "are", "with", "as", "his", "they",
    "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what", "all", "were",
    "we", "when",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What makes a load; lengths are drawn with equal chances, so a length named twice is twice as likely."""

    requests: int
    rate: float | None  # arrivals a second, on average; None: each is sent when a client is free
    seed: int
    prompt_words: tuple[int, ...]
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One request before anybody sends it."""

    index: int
    arrival: float  # seconds after the first one
    prompt: str
    output_tokens: int


def make_load(options: LoadOptions) -> tuple[Planned, ...]:
    """A Poisson process of arrivals with mixed lengths.

    Arrivals, lengths and texts have a random stream each: another mix of lengths arrives at the same times.
    """
    gaps, lengths, texts = (Random(f"{options.seed} {stream}") for stream in ("arrivals", "lengths", "texts"))
    planned: list[Planned] = []
    arrival = 0.0
    for index in range(options.requests):
        words = lengths.choice(options.prompt_words)
        planned.append(
            Planned(
                index=index,
                arrival=arrival,
                prompt=" ".join(texts.choices(WORDS, k=words)),
                output_tokens=lengths.choice(options.output_tokens),
            )
        )
        arrival += 0.0 if options.rate is None else gaps.expovariate(options.rate)
    return tuple(planned)


# When a client that makes batches sends the next one. Pure: the arrivals of a load are known beforehand.


class Discipline(StrEnum):
    """How a client sends what arrives."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests `first` up to, not including, `end`, all sent at `start` (seconds after the first arrival)."""

    first: int
    end: int
    start: float


def next_batch(arrivals: Sequence[float], first: int, free_at: float, size: int, window: float | None) -> Batch:
    """The batch that begins with request `first`, for a client whose last batch ended at `free_at`.

    Without a window (static) it is sent when it is full. With one (dynamic) it is sent when it is full or when its
    oldest request has waited for `window` seconds, whichever is first. Neither waits for more than there is: the last
    batch goes when the last request has arrived.
    """
    end = min(first + size, len(arrivals))
    full_at = arrivals[end - 1]
    due = full_at if window is None else min(full_at, arrivals[first] + window)
    start = max(free_at, due)
    there = sum(1 for arrival in arrivals[first:end] if arrival <= start)
    return Batch(first, first + there, start)


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
