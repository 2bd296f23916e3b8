"""The engine behind the server: a process of its own that can die, requests that run, and counters that move."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.stand_in.behaviour import Behaviour
from tests.support.stand_in.fates import HELD, fate_of, prefill_seconds
from tests.support.stand_in.prefixes import TOKENS, Prefixes

# What it says, a token at a time.
WORDS = ("The", " answer", " has", " as", " many", " tokens", " as", " were", " asked", " for", ".", " ")


TOKENS_PER_GIB = 524_288
"""In the KV cache, as the tiny model has it."""
FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Seconds, as vLLM's histograms have them."""


class RequestEnded(Exception):
    """A request cannot go on."""


class EngineDead(RequestEnded):
    """The engine's process is gone."""


class Aborted(RequestEnded):
    """The server ends, and this request with it."""


@dataclass(frozen=True)
class Limits:
    """What the command line says about size."""

    max_model_len: int = 2048
    max_num_seqs: int = 128
    max_num_queued_reqs: int | None = None
    kv_cache_tokens: int = TOKENS_PER_GIB


@dataclass(eq=False)
class Running:
    """A request that has its turn."""

    prompt_tokens: int
    prefill_seconds: float
    began: float
    generated: int = 0

    def cached(self, now: float) -> float:
        """Tokens in the cache: the prompt's come bit by bit."""
        share = 1.0 if self.prefill_seconds <= 0 else min(1.0, (now - self.began) / self.prefill_seconds)
        return share * self.prompt_tokens + self.generated


@dataclass
class Observed:
    """A histogram: how many seconds something took."""

    bounds: tuple[float, ...]
    total: float = 0.0
    below: Counter[int] = field(default_factory=Counter)
    """By the index of the smallest bound that is not below the value; the last is of all others."""

    def add(self, seconds: float) -> None:
        self.below[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass
class Counts:
    """What the metrics count, from the start on."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    iterations: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    first_token: Observed = field(default_factory=lambda: Observed(FIRST_TOKEN_BOUNDS))
    inter_token: Observed = field(default_factory=lambda: Observed(INTER_TOKEN_BOUNDS))
    queued: Observed = field(default_factory=lambda: Observed(REQUEST_BOUNDS))
    whole: Observed = field(default_factory=lambda: Observed(REQUEST_BOUNDS))
    prefix_hits: int = 0
    """Tokens of prompts that were in the cache."""


class Engine:
    """Everything that happens between a request and its tokens."""

    def __init__(self, behaviour: Behaviour, limits: Limits, process: int) -> None:
        self.limits, self.process, self.counts = limits, process, Counts()
        self.running: set[Running] = set()
        self.dead, self._is_released = asyncio.Event(), False
        self.is_short = False
        """Another rank is gone, and the next request finds it out."""
        self._behaviour = behaviour
        self._prefixes = Prefixes(limits.kv_cache_tokens // TOKENS)
        self._end: RequestEnded | None = None
        self._frozen_at: float | None = None
        self._answered = 0
        self._is_closed = False
        self._finished = asyncio.Event()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    # Life and death

    def watch(self) -> None:
        """Notice the end of its process at once."""
        descriptor = os.pidfd_open(self.process)

        def gone() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            with suppress(ChildProcessError):
                os.waitpid(self.process, 0)
            self._finish(EngineDead())
            self.dead.set()

        self._loop.add_reader(descriptor, gone)

    def abort(self) -> None:
        """Every request ends here; later ones too."""
        self._finish(Aborted())

    def refuse(self) -> None:
        """Newcomers are turned away."""
        self._is_closed = True

    async def idle(self) -> None:
        """When nothing runs or waits any more."""
        while self.running or self._queue:
            self._finished.clear()
            await self._finished.wait()

    def kill(self) -> None:
        """Its process, as a fault in it would."""
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)

    def freeze(self) -> None:
        """No counter moves any more, and no request ends."""
        self._frozen_at = self._frozen_at or time.monotonic()

    def _finish(self, end: RequestEnded) -> None:
        self._end = self._end or end
        for waiter in [*self._waiters, *self._queue]:
            if not waiter.done():
                waiter.set_exception(self._end)

    # What the metrics say

    @property
    def reported_running(self) -> int:
        """Of a request that the engine hangs on after an idle time, it never says that it runs."""
        return len(self.running)

    @property
    def waiting(self) -> int:
        """Requests without a turn."""
        return len(self._queue)

    def cache_usage(self) -> float:
        """From 0 to 1."""
        now = self._frozen_at or time.monotonic()
        return sum(request.cached(now) for request in self.running) / self.limits.kv_cache_tokens

    # Requests

    async def generate(self, prompt: str, prompt_tokens: int, tokens: int) -> AsyncIterator[str]:
        """The tokens of an answer, at their pace. RequestEnded where it cannot go on."""
        arrived = latest = time.monotonic()
        if self._is_closed and self._end is None:
            raise RequestEnded("cannot schedule new futures after shutdown")
        await self._meet_fate(prompt)
        if self.is_short:
            self.kill()
            await self._pass(3600)
        await self._turn()
        seconds = self._behaviour.prefill_seconds + prefill_seconds(prompt)
        request = Running(prompt_tokens, seconds, time.monotonic())
        self.running.add(request)
        reason = "abort"
        try:
            if seconds:
                await self._pass(seconds)
            self.counts.prompt_tokens += prompt_tokens
            self.counts.prefix_hits += int(self._prefixes.take(prompt) * prompt_tokens)
            due = time.monotonic()
            for number in range(tokens):
                due += 1 / self._behaviour.tokens_per_second
                await self._pass(due - time.monotonic())
                request.generated += 1
                self.counts.generation_tokens += 1
                self.counts.iterations += 1
                now = time.monotonic()
                (self.counts.inter_token if number else self.counts.first_token).add(now - latest)
                latest = now
                reason = "length" if number == tokens - 1 else reason
                yield WORDS[number % len(WORDS)]
                while HELD in prompt and not self._is_released:
                    await self._pass(0.02)
        finally:
            self.running.discard(request)
            if self._frozen_at is None:
                self.counts.finished[reason] += 1
                self.counts.queued.add(request.began - arrived)
                self.counts.whole.add(time.monotonic() - arrived)
                self._next()
            self._finished.set()

    async def _turn(self) -> None:
        """Wait until fewer run than may."""
        if self._end is not None:
            raise self._end
        if len(self.running) < self.limits.max_num_seqs and self._frozen_at is None:
            return
        waiter = self._loop.create_future()
        self._queue.append(waiter)
        try:
            await waiter
        finally:
            with suppress(ValueError):
                self._queue.remove(waiter)

    def _next(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def release(self) -> None:
        """The answers that are held."""
        self._is_released = True

    async def _pass(self, seconds: float) -> None:
        """Let time pass, but not beyond the engine's end; a frozen engine's time does not pass at all."""
        if self._end is not None:
            raise self._end
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        timer = self._loop.call_later(max(0.0, seconds), self._wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        if self._frozen_at is None and not waiter.done():
            waiter.set_result(None)

    async def _meet_fate(self, prompt: str) -> None:
        """What this request does to the engine."""
        self._answered += 1
        fate = fate_of(prompt, self._behaviour.first_request if self._answered == 1 else "answer")
        doomed: dict[str, Callable[[], None]] = {
            "hang": self.freeze,
            "memory": exhaust_memory,
            **dict.fromkeys(("die", "sigill", "no-compiler"), self.kill),
        }
        if fate.words:
            print("\n".join(fate.words), flush=True)
        if fate.name == "exit0":
            self.kill()
            os._exit(0)
        if fate.name == "error":
            raise RequestEnded("the engine is unwell")
        if fate.name in doomed:
            doomed[fate.name]()
            await self._pass(3600)


def exhaust_memory() -> None:
    """Until the kernel ends this process for its container's limit; where there is none, 4 GiB are enough."""
    hoard = [bytearray(b"x") * (32 << 20) for _ in range(128)]
    raise MemoryError(f"no limit was met with {len(hoard)} pieces of 32 MiB")
