"""Requests to a server: mixed lengths by three disciplines, a chat of several turns, samples, and streams."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import httpx
from llmservice_cli.bench.result import summarize
from llmservice_cli.bench.traffic import (
    Batching,
    Discipline,
    Gathered,
    LoadOptions,
    Player,
    Point,
    make_load,
)
from llmservice_cli.load.client import Exchange, Request

from benchmarks.gpu.served.cases import NAME
from benchmarks.gpu.served.server import Server, StepFailed

TIMEOUT = 120.0
POLL_SECONDS = 0.05
T = TypeVar("T")
Values = dict[str, Any]


def text(tokens: int) -> str:
    """A prompt of so many tokens, unlike any other: each character is a token of the models' tokenizer."""
    return (secrets.token_hex(8) + "the quick brown fox jumps over a lazy dog. " * (tokens // 43 + 1))[:tokens]


async def one(server: Server, prompt: str, tokens: int, **more: Any) -> Exchange:
    """One streamed completion of exactly so many tokens; StepFailed where it is not answered whole."""
    exchange = Exchange(Request.of(NAME, prompt, tokens, **more), time.monotonic)
    await exchange.run(server.http, TIMEOUT)
    if exchange.failure is not None:
        raise StepFailed(f"a request failed: {exchange.failure.error}", server.process.last_lines)
    return exchange


def first_token(exchange: Exchange) -> float:
    """Seconds from the sending."""
    assert exchange.first_token is not None  # it was answered whole
    return exchange.first_token - exchange.sent


async def by_discipline(server: Server, load: LoadOptions, batch: int, window: float) -> Values:
    """The same load sent as it arrives, in full batches, and in batches that a time window closes."""
    planned, found = make_load(load), Values()
    await asyncio.gather(*(one(server, text(32), 8) for _ in range(batch)))  # the first of each kernel compiles it
    for discipline in reversed(Discipline):  # the most valuable first
        batching, salt = Batching(batch, window), secrets.token_hex(4)
        player = Player(server.http, NAME, TIMEOUT, time.monotonic, salt, batching, is_chunked=False)
        gathered = Gathered(Point(discipline, rate=load.rate), len(planned))
        await player.play(planned, gathered)
        summary = summarize(len(planned), gathered.rows)
        if summary.answered < len(planned) or summary.latency is None or summary.time_to_first_token is None:
            raise StepFailed(f"{discipline}: {dict(summary.failures)}", server.process.last_lines)
        found[str(discipline)] = {
            "tokens_per_second": round(summary.output_tokens_per_second, 1),
            "latency_p50": round(summary.latency.p50, 3),
            "latency_p99": round(summary.latency.p99, 3),
            "first_token_p50": round(summary.time_to_first_token.p50, 3),
            "makespan": round(summary.makespan, 2),
        }
    return found | {"requests": load.requests, "rate": load.rate, "batch": batch, "window": window}


async def throughput(server: Server, clients: int, prompt_tokens: int, tokens: int) -> Values:
    """So many requests at once, then one alone: tokens a second, and the time between the tokens of one."""
    began = time.monotonic()
    await asyncio.gather(*(one(server, text(prompt_tokens), tokens) for _ in range(clients)))
    together = time.monotonic() - began
    alone = await one(server, text(prompt_tokens), tokens)
    assert alone.first_token is not None
    assert alone.last_token is not None
    return {
        "clients": clients,
        "tokens_per_second": round(clients * tokens / together, 1),
        "first_token_ms": round(1000 * first_token(alone), 2),
        "between_tokens_ms": round(1000 * (alone.last_token - alone.first_token) / max(1, tokens - 1), 3),
    }


async def chat(server: Server, turns: int, turn_tokens: int) -> Values:
    """The first token of each turn of a chat, with what came before in the prefix cache, and without."""
    found = Values()
    await one(server, "", 8, is_chat=True, messages=[{"role": "user", "content": text(turn_tokens)}])
    for is_cached in (True, False):
        messages: list[dict[str, str]] = []
        firsts = []
        for _ in range(turns):
            messages.append({"role": "user", "content": text(turn_tokens)})
            # Another salt each time finds nothing of the turns before.
            salt = {} if is_cached else {"cache_salt": secrets.token_hex(8)}
            exchange = await one(server, "", 8, is_chat=True, messages=list(messages), **salt)
            firsts.append(round(1000 * first_token(exchange), 2))
            messages.append({"role": "assistant", "content": text(32)})
        found["cached_ms" if is_cached else "uncached_ms"] = firsts
    hits = await server.metrics("vllm:prefix_cache_hits_total")
    return found | {"turn_tokens": turn_tokens, "prefix_cache_hits": hits}


async def samples(server: Server, count: int, prompt_tokens: int, tokens: int) -> Values:
    """The largest share of the KV cache with `count` samples of one prompt, and with as many prompts."""
    body = {"n": count, "temperature": 1.0, "seed": 1, "stream": False}
    together = await _peak(server, _samples(server, text(prompt_tokens), tokens, body))
    prompts = [text(prompt_tokens) for _ in range(count)]
    apart = await _peak(server, asyncio.gather(*(one(server, prompt, tokens) for prompt in prompts)))
    return {"count": count, "prompt_tokens": prompt_tokens, "samples_share": together, "requests_share": apart}


async def _samples(server: Server, prompt: str, tokens: int, more: Values) -> None:
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
    answer = await server.http.post("/v1/completions", json=body, timeout=TIMEOUT)
    answer.raise_for_status()


async def _peak(server: Server, work: Awaitable[T]) -> float:
    task, most = asyncio.ensure_future(work), 0.0
    while not task.done():
        most = max(most, await server.metrics("vllm:kv_cache_usage_perc"))
        await asyncio.wait([task], timeout=POLL_SECONDS)
    await task
    return round(most, 5)


async def drain(server: Server, streams: int, tokens: int, grace_seconds: float) -> Values:
    """SIGTERM to the supervisor while streams run: how many end whole, and what newcomers get meanwhile."""
    running = [asyncio.create_task(one(server, text(64), tokens)) for _ in range(streams)]
    await until_running(server, streams)
    server.process.popen.terminate()
    began = time.monotonic()
    answers: dict[str, int] = {}
    newcomers = asyncio.create_task(_newcomers(server, answers))
    ends = await asyncio.gather(*running, return_exceptions=True)
    streamed = time.monotonic() - began
    newcomers.cancel()
    code = await server.process.ended(grace_seconds)
    return {
        "streams": streams,
        "whole": sum(isinstance(end, Exchange) for end in ends),
        "streams_seconds": round(streamed, 2),
        "exit_code": code,
        "exit_seconds": round(time.monotonic() - began, 2),
        "newcomers": answers,
    }


async def _newcomers(server: Server, answers: dict[str, int]) -> None:
    """One after the other, each with a connection of its own, as clients whose Service still names the pod."""
    while True:
        async with httpx.AsyncClient(base_url=server.http.base_url, trust_env=False) as http:
            exchange = Exchange(Request.of(NAME, text(16), 1), time.monotonic)
            await exchange.run(http, TIMEOUT)
        kind = "answered" if exchange.failure is None else exchange.failure.loss
        answers[kind] = answers.get(kind, 0) + 1
        await asyncio.sleep(POLL_SECONDS)


async def until_running(server: Server, count: int) -> None:
    """Waits until so many requests are in the engine; StepFailed where they do not get there."""
    ends = time.monotonic() + TIMEOUT
    while (running := await server.metrics("vllm:num_requests_running")) < count:
        if time.monotonic() > ends:
            raise StepFailed(f"{running:g} of {count} requests run after {TIMEOUT:g} s", server.process.last_lines)
        await asyncio.sleep(POLL_SECONDS)


async def answer_ids(server: Server, prompt: str, tokens: int) -> Sequence[str]:
    """The tokens of a greedy answer."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    answer = await server.http.post("/v1/completions", json=body, timeout=TIMEOUT)
    found: Sequence[str] = answer.raise_for_status().json()["choices"][0]["logprobs"]["tokens"]
    return found


async def quietly(work: Awaitable[Any]) -> None:
    """For requests whose server is taken away under them."""
    with contextlib.suppress(StepFailed, httpx.HTTPError):
        await work
