"""`python -m benchmarks.routing`: what each way to a replica finds in a cache, costs, and adds to a request.

Conversations of many users, sent at a rate, over servers on the loopback that keep prompts as vLLM's prefix cache does
and answer after some milliseconds. The ways take turns over several rounds, so that a machine whose speed drifts drifts
for all. Nothing here is a model: hits and the costs of the way are measured, and no gain in tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.support.ports import free_port
from tests.support.stand_in.prefixes import Prefixes

WAYS = ("none", "power_of_two", "consistent_hash", "cache_aware")
CHAT = "/v1/chat/completions"
BLOCKS = 50_000
"""Of each server's cache."""
ANSWER_SECONDS = 0.02
EXAMPLES = """\
examples:
  python -m benchmarks.routing                              # a table; some minutes
  python -m benchmarks.routing --rate 50 --seconds 10 -o json
"""


@dataclass
class Found:
    """Of one way, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    """Of each request."""
    asked: float = 0.0
    hits: float = 0.0
    """Characters of prompts."""
    cpu_seconds: float = 0.0
    requests: int = 0
    failed: int = 0
    peak_mib: float = 0.0

    def document(self, plain: Found) -> dict[str, float | int]:
        ours, theirs = (sorted(each.seconds) for each in (self, plain))
        return {
            "hits": round(self.hits / self.asked, 3),
            "cpuSecondsPer100Requests": round(100 * self.cpu_seconds / self.requests, 3),
            "p50AddedMs": round(1000 * (statistics.median(ours) - statistics.median(theirs)), 2),
            "p99AddedMs": round(1000 * (_p99(ours) - _p99(theirs)), 2),
            "peakMib": round(self.peak_mib),
            "requests": self.requests,
            "failed": self.failed,
        }


def _p99(ordered: Sequence[float]) -> float:
    return ordered[int(0.99 * (len(ordered) - 1))]


class Server:
    """In place of a replica."""

    def __init__(self) -> None:
        self.cache, self.asked, self.hits, self.url = Prefixes(BLOCKS), 0.0, 0.0, ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        body = json.loads(await request.content.read())
        if request.path not in (CHAT, "/tokenize"):
            return web.Response(status=403)
        text = "".join(message["content"] for message in body["messages"])
        if request.path != CHAT:  # the tokens of a prompt: one for four characters
            tokens = [hash(text[at : at + 4]) % 32_000 for at in range(0, len(text), 4)]
            return web.json_response({"count": len(tokens), "max_model_len": 1 << 20, "tokens": tokens})
        self.asked += len(text)
        self.hits += self.cache.take(text) * len(text)
        await asyncio.sleep(ANSWER_SECONDS)
        message = {"role": "assistant", "content": f"The answer to {text[-24:]}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return web.json_response(made | {"usage": usage})


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        made = [Server() for _ in range(count)]
        for each in made:
            application = web.Application()
            application.router.add_route("*", "/{path:.*}", each.answer)
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            port = free_port()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            each.url = f"http://127.0.0.1:{port}"
        yield made


@dataclass
class Router:
    process: asyncio.subprocess.Process
    url: str

    def processes(self) -> Iterator[int]:
        pid = self.process.pid
        yield pid
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def cpu_seconds(self) -> float:
        ticks = 0
        for pid in self.processes():
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        found = (Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0] for pid in self.processes())
        return sum(map(int, found)) / 1024


@asynccontextmanager
async def router(policy: str, replicas: list[Server]) -> AsyncIterator[Router]:
    with tempfile.TemporaryDirectory() as folder:
        file, port, state = Path(folder, "replicas"), free_port(), free_port()
        lines = (each.url.removeprefix("http://").replace(":", " ") for each in replicas)
        file.write_text("\n".join(lines))  # noqa: ASYNC240 - nothing runs yet
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.router_of_file", str(file), f"--folder={folder}/run"),
            *(f"--policy={policy}", f"--port={port}", f"--state-port={state}", f"--router-port={free_port()}"),
            *(f"--metrics-port={free_port()}", f"--workers-port={free_port()}", "--propagation-seconds=0"),
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            async with aiohttp.ClientSession() as session:
                await _ready(session, f"http://127.0.0.1:{state}/readyz")
            await asyncio.sleep(2)  # all replicas, where the first one makes it ready
            yield Router(process, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            await process.wait()


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass  # it starts
            await asyncio.sleep(0.1)


class Users:
    """Conversations, of which each turn brings all before it. Each turn is a connection of its own, as of a proxy."""

    def __init__(self, count: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._system = self._words(60)
        self._count = count
        self._said: dict[int, list[dict[str, str]]] = {}

    def _words(self, count: int) -> str:
        return "".join(f"{self._random.randrange(10**6)} " for _ in range(count))

    async def turn(self, number: int, url: str, found: Found) -> None:
        user = number % self._count
        said = self._said.setdefault(user, [{"role": "system", "content": self._system}])
        if len(said) > 16:
            said[1:] = []
        messages = [*said, {"role": "user", "content": self._words(self._random.randrange(40, 200))}]
        began = time.perf_counter()
        body, headers = {"model": "m", "messages": messages}, {"X-Session-ID": f"user-{user}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}{CHAT}", json=body, headers=headers) as answer,
        ):
            if answer.status != 200:
                found.failed += 1
                return
            said[:] = [*messages, (await answer.json())["choices"][0]["message"]]
        found.seconds.append(time.perf_counter() - began)


async def measure(way: str, options: argparse.Namespace, seed: int, found: Found) -> None:
    async with AsyncExitStack() as stack:
        replicas = await stack.enter_async_context(servers(options.replicas))
        pods = 0 if way == "none" else options.routers
        through = [await stack.enter_async_context(router(way, replicas)) for _ in range(pods)]
        users, chance = Users(options.users, seed), random.Random(seed)
        urls = [each.url for each in through or replicas]
        before = sum(each.cpu_seconds() for each in through)
        began, total = time.perf_counter(), options.rate * options.seconds
        async with asyncio.TaskGroup() as group:
            for number in range(total):
                await asyncio.sleep(began + number / options.rate - time.perf_counter())
                group.create_task(users.turn(number, chance.choice(urls), found))
        found.cpu_seconds += sum(each.cpu_seconds() for each in through) - before
        found.peak_mib = max((found.peak_mib, *(each.peak_mib() for each in through)))
        found.requests += total
        found.asked += sum(each.asked for each in replicas)
        found.hits += sum(each.hits for each in replicas)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--rate", type=int, default=100, help="requests per second; default: %(default)s")
    parser.add_argument("--seconds", type=int, default=15, help="of each round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--users", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--replicas", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--routers", type=int, default=2, help="pods of the router; default: %(default)s")
    parser.add_argument("-o", dest="output", choices=("table", "json"), default="table")
    return parser.parse_args(arguments)


async def run(asked: argparse.Namespace) -> dict[str, dict[str, float | int]]:
    found = {way: Found() for way in WAYS}
    for number in range(asked.rounds):
        for way in WAYS:
            print(f"round {number + 1} of {asked.rounds}: {way}", file=sys.stderr)
            await measure(way, asked, number, found[way])
    return {way: each.document(found["none"]) for way, each in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options(sys.argv[1:] if arguments is None else arguments)
    results = asyncio.run(run(asked))
    if asked.output == "json":
        print(json.dumps(results, indent=2))
        return 0
    columns = list(results["none"])
    print("| way |", " | ".join(columns), "|")
    print("|-|", "-|" * len(columns), sep="")
    for way, row in results.items():
        print(f"| {way} |", " | ".join(str(row[column]) for column in columns), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
