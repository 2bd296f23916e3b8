"""The load of a bench: who arrives when and asks for how much, how a client sends it, and a row of each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from random import Random
from typing import NamedTuple

import httpx
from llmservice_runtime.bounded_json import clean

from llmservice_cli.bench import Options
from llmservice_cli.errors import WrongUsage
from llmservice_cli.load.answer import Failure, Loss
from llmservice_cli.load.client import Exchange, Pace, Request

DEFAULT_RATE = 20.0
ALL = "all"
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
    """A Poisson process of arrivals with mixed lengths; the same options give the same load.

    Arrivals, lengths and texts have a random stream each: another mix of lengths arrives at the same times.
    """
    gaps, lengths, texts = (Random(f"{options.seed} {stream}") for stream in ("arrivals", "lengths", "texts"))
    planned: list[Planned] = []
    arrival = 0.0
    for index in range(options.requests):
        prompt = " ".join(texts.choices(WORDS, k=lengths.choice(options.prompt_words)))
        planned.append(Planned(index, arrival, prompt, lengths.choice(options.output_tokens)))
        arrival += 0.0 if options.rate is None else gaps.expovariate(options.rate)
    return tuple(planned)


class Discipline(StrEnum):
    """How a client sends what arrives."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, slots=True)
class Point:
    """One run of the load. It has a rate (open loop) or a concurrency (closed loop)."""

    discipline: Discipline
    rate: float | None = None  # arrivals a second, on average
    concurrency: int | None = None  # clients

    @property
    def load(self) -> str:
        """In words."""
        return f"{self.rate:g}/s" if self.concurrency is None else f"{self.concurrency} clients"

    @property
    def amount(self) -> float:
        """By which points of a sweep are ordered."""
        return float(self.concurrency or self.rate or 0)


def points_of(options: Options) -> Sequence[Point]:
    """In the order in which they run. WrongUsage where the options exclude each other."""
    if options.concurrency is not None:
        if options.rate is not None:
            raise WrongUsage("--rate and --concurrency exclude each other", "leave one of them out")
        if options.discipline not in (None, Discipline.CONTINUOUS):
            raise WrongUsage(
                f"--concurrency does not go with --discipline {options.discipline}: its clients send one by one",
                "leave one of them out",
            )
        return [Point(Discipline.CONTINUOUS, concurrency=clients) for clients in dict.fromkeys(options.concurrency)]
    rates = tuple(dict.fromkeys(options.rate or (DEFAULT_RATE,)))
    chosen = options.discipline or (ALL if len(rates) == 1 else Discipline.CONTINUOUS)
    disciplines = list(Discipline) if chosen == ALL else [Discipline(chosen)]
    return [Point(discipline, rate=rate) for discipline in disciplines for rate in rates]


class Batching(NamedTuple):
    """Of the clients that make batches."""

    size: int
    window: float  # seconds; of the dynamic one


class Batch(NamedTuple):
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
class RequestRecord:
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


@dataclass
class Gathered:
    """What is known so far: it grows while a load runs, and holds what there is when that is interrupted."""

    point: Point
    planned: int
    sent: int = 0
    rows: list[RequestRecord] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return self.sent - len(self.rows)

    @property
    def failed(self) -> int:
        return sum(1 for row in self.rows if not row.is_answered)


@dataclass(frozen=True)
class Player:
    """Plays loads with one model; `clock` counts seconds, `salt` keeps requests out of the prefix cache."""

    http: httpx.AsyncClient
    model: str
    timeout: float
    clock: Callable[[], float]
    salt: str
    batching: Batching
    is_chunked: bool = True
    """As the API server's proxy needs it."""
    describe: Callable[[Failure], str] = lambda failure: failure.error
    """Why a request failed, without the API key."""

    async def play(self, load: Sequence[Planned], gathered: Gathered) -> None:
        """At the point of `gathered`, which gets a row of every request, also of one that is interrupted."""
        began, point = self.clock(), gathered.point
        pace = Pace(lambda: self.clock() - began)

        async def send(requests: Sequence[Planned], batch: int | None, number: int) -> None:
            await self._send(requests[number], pace.clock, gathered, batch)

        async def send_as_it_arrives(number: int) -> None:
            """When a client is free for it, without a pause: the load ends even if all are refused."""
            await send([replace(load[number], arrival=pace.clock())], None, 0)

        arrivals = [planned.arrival for planned in load]
        if point.concurrency is not None:
            await pace.in_turn(point.concurrency, range(len(load)), send_as_it_arrives)
        elif point.discipline is Discipline.CONTINUOUS:
            await pace.at(arrivals, partial(send, load, None))
        else:
            window = self.batching.window if point.discipline is Discipline.DYNAMIC else None
            first = number = 0
            while first < len(load):
                batch = next_batch(arrivals, first, pace.clock(), self.batching.size, window)
                members = load[batch.first : batch.end]
                await pace.at([batch.start] * len(members), partial(send, members, number))  # until its longest ends
                first, number = batch.end, number + 1

    async def _send(self, planned: Planned, clock: Callable[[], float], gathered: Gathered, batch: int | None) -> None:
        gathered.sent += 1
        # cache_salt is vLLM's own field: no discipline profits from the prefix cache that another one filled.
        salt = f"{self.salt}-{planned.index}"
        request = Request.of(self.model, planned.prompt, planned.output_tokens, cache_salt=salt)
        exchange = Exchange(replace(request, must_be_exact=False, is_chunked=self.is_chunked), clock)
        try:
            await exchange.run(self.http, self.timeout)
        finally:
            gathered.rows.append(self._row(planned, exchange, batch))

    def _row(self, planned: Planned, exchange: Exchange, batch: int | None) -> RequestRecord:
        failure, answer = exchange.failure, exchange.answer
        outcome = INTERRUPTED if exchange.ended is None else ANSWERED
        if failure is not None:
            outcome = OUTCOMES.get(failure.loss, failure.loss.removeprefix("http-"))
        return RequestRecord(
            index=planned.index,
            arrival=planned.arrival,
            sent=exchange.sent,
            outcome=outcome,
            batch=batch,
            first_token=exchange.first_token,
            last_token=exchange.last_token,
            ended=exchange.ended,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            asked_tokens=planned.output_tokens,
            finish_reason=answer.finish_reason,
            error=None if failure is None else clean(self.describe(failure)),
            pieces=exchange.piece_times,
        )
