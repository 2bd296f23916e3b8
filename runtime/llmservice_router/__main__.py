"""python -m llmservice_router: routes prompts to the replica that has computed their beginning.

One process of three: Envoy has the port of the clients; vllm-router chooses the replica where a prompt's beginning
decides; this one gives both the list of replicas, answers the kubelet's probes, and ends the other two once nothing
is in progress. Where one of them ends by itself it is started again: Envoy is away for a moment, and without
vllm-router prompts go where all other paths go. The container ends where that happens too often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
from aiohttp import web
from llmservice_runtime.contract import HTTP_PORT, LIVE_PATH, PROPAGATION_SECONDS, READY_PATH, STATE_PORT

from llmservice_router import envoy
from llmservice_router.replicas import ASK_SECONDS, Replicas, Resolve, absolute, resolve

logger = logging.getLogger("llmservice_router")

EXAMPLES = """\
examples:
  # as a pod does: the replicas are those of the Service NAME-direct
  python -m llmservice_router --replicas=chat-direct --policy=cache_aware

  # sessions by a header, and longer streams at the end
  python -m llmservice_router --replicas=chat-direct --policy=consistent_hash --drain-seconds=600
"""
STILL_SECONDS = 10.0
"""For which the loop may not have looked at the replicas, before the container counts as hanging."""
TIMEOUT_SECONDS = 5.0
"""For an answer on the loopback."""
END_SECONDS = 5.0
"""For Envoy and vllm-router, which have nothing left to do."""
PAST_SECONDS = 30.0
"""For which prompts go past vllm-router while it starts, before this counts as a fault."""
MOST_ENDS, ENDS_WITHIN = 3, 60.0
"""How often, in seconds, a program may end by itself before the container does: the kubelet then waits between starts,
and the pod's status says so."""
_ENVOYS_SHARE = {True: 0.35, False: 0.8}
"""Of the container's memory, with vllm-router and without. Measured with 120 MiB of prompts in progress: Envoy took 1.5
bytes for each of theirs, vllm-router 2.5."""
_LONGEST_REQUEST = 7 * 24 * 3600
"""Seconds. vllm-router has no "without limit"; its default, half an hour, would cut long streams."""
_IN_PROGRESS = "http.clients.downstream_rq_active"
_METRICS = "http\\.clients\\.downstream_(rq|cx)|cluster\\.(router|replicas|sessions)\\.(membership|upstream_(rq|cx))"
"""Of Envoy, by its own names: what clients and replicas see."""


@dataclass(frozen=True, slots=True)
class Options:
    replicas: str
    replica_port: int
    policy: str
    port: int
    state_port: int
    router_port: int
    workers_port: int
    metrics_port: int
    drain_seconds: float
    propagation_seconds: float
    concurrency: int
    folder: Path
    programs: Path

    @property
    def has_router(self) -> bool:
        """vllm-router chooses the replica."""
        return self.policy == envoy.CACHE_AWARE


def options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m llmservice_router",
        description="Routes prompts to the replica that has computed their beginning.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--replicas", required=True, metavar="NAME", help="headless Service of the replicas")
    add("--replica-port", type=int, default=HTTP_PORT, help="of each replica; default: %(default)s")
    add(
        "--policy",
        choices=envoy.OF_POLICY,
        default=envoy.CACHE_AWARE,
        help="how a replica is chosen; default: %(default)s",
    )
    add("--port", type=int, default=HTTP_PORT, help="of the clients; default: %(default)s")
    add("--state-port", type=int, default=STATE_PORT, help="of the probes and metrics; default: %(default)s")
    add("--router-port", type=int, default=8082, help="of vllm-router, on the loopback; default: %(default)s")
    add("--workers-port", type=int, default=8083, help="of vllm-router's way to replicas; default: %(default)s")
    add(
        "--metrics-port", type=int, default=9090, help="of vllm-router's metrics, on the loopback; default: %(default)s"
    )
    add("--drain-seconds", type=float, default=120, help="for requests in progress at the end; default: %(default)s")
    add(
        "--propagation-seconds",
        type=float,
        default=PROPAGATION_SECONDS,
        help="until no client is sent here any more; default: %(default)s",
    )
    add("--concurrency", type=int, default=2, help="threads of Envoy; default: %(default)s")
    add("--folder", type=Path, default=Path("/run/llmservice-router"), help="for files; default: %(default)s")
    add("--programs", type=Path, default=Path(sys.prefix, "bin"), help="folder with envoy and vllm-router")
    return Options(**vars(parser.parse_args(arguments)))


def router_command(asked: Options) -> list[str]:
    """No prompt is sent to a second replica: one that ends an engine would end them all, and one that fails everywhere
    would open the circuit of each. A replica that does not answer is left out within a second."""
    flags = {
        "--host": "127.0.0.1",
        "--port": asked.router_port,
        "--policy": asked.policy,
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": asked.metrics_port,
        "--request-timeout-secs": _LONGEST_REQUEST,
        "--worker-startup-timeout-secs": 10,
        "--worker-startup-check-interval": 1,
        "--health-check-interval-secs": 1,
        "--health-check-timeout-secs": 2,
        "--health-failure-threshold": 1,
        "--health-success-threshold": 1,
        "--log-level": "warning",
    }
    words = (str(word) for flag in flags.items() for word in flag)
    return [str(asked.programs / "vllm-router"), *words, "--disable-retries", "--disable-circuit-breaker"]


def envoy_command(asked: Options, limit: int | None) -> list[str]:
    """`limit`: bytes of memory that the container may use."""
    made = envoy.bootstrap(
        policy=asked.policy,
        host=any_host(),
        port=asked.port,
        workers_port=asked.workers_port,
        folder=str(asked.folder.absolute()),
        heap_bytes=None if limit is None else int(limit * _ENVOYS_SHARE[asked.has_router]),
    )
    flags = ("--disable-hot-restart", "--log-level", "warning", "--concurrency", str(asked.concurrency))
    return [str(asked.programs / "envoy"), *flags, "--config-yaml", json.dumps(made)]


def any_host() -> str:
    """All addresses, also where IPv6 is off."""
    with suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::", 0))
        return "::"
    return "0.0.0.0"


class Router:
    """The two programs, and what is known of them."""

    def __init__(
        self, asked: Options, replicas: Replicas, session: aiohttp.ClientSession, admin: aiohttp.ClientSession
    ):
        self._asked, self._replicas, self._session, self._admin = asked, replicas, session, admin
        self.is_ending = False
        self._looked_at = self._was_by_router = asyncio.get_running_loop().time()

    async def why_unready(self) -> str:
        """Empty: a request would be answered."""
        if self.is_ending:
            return "it ends"
        if self._replicas.known is None:
            return "the DNS has not answered yet"
        if not self._replicas.known or self._replicas.is_empty:
            return "no replica is ready"
        try:
            if not await (self._has_workers() if self._replicas.is_by_router else self._replicas.answer()):
                return "no replica answers"
            if self._asked.has_router and self._looked_at - self._was_by_router > PAST_SECONDS:
                return "vllm-router has no worker"
            async with self._admin.get("http://envoy/ready") as answer:
                return "" if answer.status == 200 else "Envoy is not ready"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"a program does not answer: {error or type(error).__name__}"

    async def _has_workers(self) -> bool:
        async with self._session.get(f"http://127.0.0.1:{self._asked.router_port}/readiness") as answer:
            return answer.status == 200

    async def follow(self) -> None:
        """The replicas; never returns."""
        loop = asyncio.get_running_loop()
        while True:
            await self._replicas.follow()
            self._looked_at = loop.time()
            if self._replicas.is_by_router or not self._replicas.known:
                self._was_by_router = self._looked_at
            await asyncio.sleep(ASK_SECONDS)

    async def close_connections(self) -> None:
        """Of clients, while no request would be answered; never returns. A client that keeps one would get 503, and
        never come to what holds its requests. Apart from `follow`, which a replica that hangs is not to keep waiting.
        """
        while True:
            self._replicas.closes(bool(await self.why_unready()))
            await asyncio.sleep(ASK_SECONDS)

    def is_live(self) -> bool:
        return asyncio.get_running_loop().time() - self._looked_at < STILL_SECONDS + 2 * TIMEOUT_SECONDS

    async def in_progress(self) -> int | None:
        """Requests of clients; None where Envoy does not say."""
        with suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with self._admin.get("http://envoy/stats", params={"filter": f"^{_IN_PROGRESS}$"}) as answer:
                return int((await answer.text()).rpartition(":")[2])
        return None

    async def metrics(self) -> str:
        """In Prometheus' format: Envoy's, and vllm-router's where it runs and answers. ClientError, TimeoutError."""
        async with self._admin.get("http://envoy/stats/prometheus", params={"filter": f"^({_METRICS})"}) as answer:
            answer.raise_for_status()
            page = await answer.text()
        if self._asked.has_router:
            with suppress(aiohttp.ClientError, TimeoutError):  # Envoy's are of use without
                async with self._session.get(f"http://127.0.0.1:{self._asked.metrics_port}/metrics") as answer:
                    answer.raise_for_status()
                    page = page.rstrip("\n") + "\n" + await answer.text()
        return page

    async def drain(self) -> None:
        """Until nothing is in progress. Each answer closes its connection, so that clients connect to another pod."""
        self.is_ending = self._replicas.is_ending = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._admin.post("http://envoy/healthcheck/fail") as answer:
                answer.raise_for_status()
        await asyncio.sleep(self._asked.propagation_seconds)
        end = began + self._asked.drain_seconds
        while (left := await self.in_progress()) != 0 and loop.time() < end:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.2)
        logger.info(
            "ended after %.1f s; requests in progress: %s", loop.time() - began, "unknown" if left is None else left
        )


async def serve_state(router: Router, port: int) -> web.AppRunner:
    """What the kubelet and Prometheus ask for."""

    async def ready(_: web.Request) -> web.Response:
        why = await router.why_unready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ready'}\n")

    async def live(_: web.Request) -> web.Response:
        return web.Response(status=200 if router.is_live() else 503)

    async def metrics(_: web.Request) -> web.Response:
        try:
            return web.Response(text=await router.metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})
        except (aiohttp.ClientError, TimeoutError) as error:
            return web.Response(status=503, text=f"a program does not answer: {error or type(error).__name__}\n")

    application = web.Application()
    application.add_routes([web.get(READY_PATH, ready), web.get(LIVE_PATH, live), web.get("/metrics", metrics)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner


async def run(asked: Options, find: Resolve) -> int:
    """The exit code. `find` finds the replicas."""
    loop = asyncio.get_running_loop()
    terminated = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, terminated.set)
    asked.folder.mkdir(parents=True, exist_ok=True)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        to_admin = aiohttp.UnixConnector(str(asked.folder / envoy.ADMIN_SOCKET))
        admin = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, connector=to_admin))
        address = ("127.0.0.1", asked.router_port) if asked.has_router else None
        replicas = Replicas(find, address, session, asked.folder)
        router = Router(asked, replicas, session, admin)
        way = {"HTTP_PROXY": f"http://127.0.0.1:{asked.workers_port}", "NO_PROXY": ""}
        kept = [_kept(router_command(asked), replicas.router_ended, way)] if asked.has_router else []
        kept.append(_kept(envoy_command(asked, memory_limit(CGROUP))))  # the first one to end, at the end
        programs = [await stack.enter_async_context(_ending(each)) for each in kept]
        runner = await serve_state(router, asked.state_port)
        stack.push_async_callback(runner.cleanup)
        following = await stack.enter_async_context(_ending(router.follow()))
        closing = await stack.enter_async_context(_ending(router.close_connections()))
        ending = asyncio.create_task(terminated.wait())
        await asyncio.wait({*programs, ending, following, closing}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            await router.drain()
            return 0
        for task in (*programs, following, closing):
            if task.done():
                task.result()
        return 1


@asynccontextmanager
async def _ending(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A task that has ended after the block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _kept(
    command: list[str], ended: Callable[[], None] = lambda: None, more: Mapping[str, str] = MappingProxyType({})
) -> None:
    """A program that is started again where it ends, until that was too often; `ended` is called each time. `more`: of
    its environment."""
    loop, name = asyncio.get_running_loop(), Path(command[0]).name
    ends: deque[float] = deque(maxlen=MOST_ENDS)
    while len(ends) < MOST_ENDS or loop.time() - ends[0] > ENDS_WITHIN:
        async with _running(command, more) as process:
            code = await process.wait()
        ends.append(loop.time())
        logger.error("%s ended by itself, with exit code %s", name, code)
        ended()
    logger.error("%s ended %d times within %.0f s", name, MOST_ENDS, ENDS_WITHIN)


@asynccontextmanager
async def _running(command: list[str], more: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that has ended after the block, with all that it started."""
    # A proxy of the cluster's is none for replicas.
    own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True, env={**own, **more})
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_SECONDS)
                break


CGROUP = Path("/sys/fs/cgroup")


def memory_limit(cgroup: Path) -> int | None:
    """Bytes that this container may use, by control groups of version 2 or 1; None: not known, or all there are."""
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limit = int((cgroup / file).read_text())
            return limit if limit < 1 << 60 else None
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="[llmservice] %(message)s", stream=sys.stdout)
    name = absolute(asked.replicas, Path("/etc/resolv.conf").read_text())
    return asyncio.run(run(asked, partial(resolve, name, asked.replica_port)))


if __name__ == "__main__":
    sys.exit(main())
