"""A TLS server before the API server that has faults in it. The operator is sent there by its environment."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
from aiohttp import web

from tests.chaos.faults import Asked, Fault, Kind, Weather, expired_event, status

# Of one connection, not of the message.
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length", "te"})


@dataclass
class FaultyWay:
    """Hands every request on to `upstream`, or does to it what the weather says."""

    upstream: str
    trusted: ssl.SSLContext
    chance: Random
    weather: Weather = field(default_factory=lambda: Weather({}))
    struck: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    _session: aiohttp.ClientSession | None = None

    async def opened(self, app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, ssl=self.trusted)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            yield

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.query)
        fault = self.weather.strike(asked, self.chance)
        if fault is None:
            self.passed += 1
        else:
            self.struck[fault.kind] += 1
        try:
            return await (self._watched(request, fault) if asked.is_watch else self._asked(request, fault))
        except aiohttp.ClientError:
            # The API server is away: so would its port be.
            return hung_up(request)

    async def _asked(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        if fault is not None and fault.kind is Kind.DELAYED:
            await asyncio.sleep(fault.seconds)
        elif fault is not None and fault.kind is Kind.DROPPED:
            return hung_up(request)
        elif fault is not None and fault.kind is not Kind.LOST_ANSWER:
            return refused(fault)
        async with self._forwarded(request) as answer:
            body = await answer.read()
            if fault is not None and fault.kind is Kind.LOST_ANSWER:
                return hung_up(request)
            return web.Response(status=answer.status, body=body, headers=passed_on(answer.headers))

    async def _watched(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        if fault is not None and fault.kind is Kind.DROPPED:
            return hung_up(request)
        if fault is not None and fault.kind in (Kind.THROTTLED, Kind.SERVER_ERROR):
            return refused(fault)
        if fault is not None and fault.kind is Kind.EXPIRED and fault.seconds < 1:
            return refused(fault)
        async with self._forwarded(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=passed_on(answer.headers))
            await response.prepare(request)
            if fault is None:
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                return response
            return await _broken_off(request, answer, response, fault)

    @contextlib.asynccontextmanager
    async def _forwarded(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        async with self._session.request(
            request.method,
            f"{self.upstream}{request.raw_path}",
            # Not empty for none: that would be sent with a type of its own.
            data=await request.read() or None,
            headers=passed_on(request.headers),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            allow_redirects=False,
        ) as answer:
            yield answer


async def _broken_off(
    request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse, fault: Fault
) -> web.StreamResponse:
    """A watch that ends as the fault says, after its time; silent, it has told nothing since its beginning."""
    rest = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(fault.seconds):
            async for piece in answer.content.iter_any():
                whole, newline, rest = (rest + piece).rpartition(b"\n")
                if newline and fault.kind is not Kind.SILENT_WATCH:
                    await response.write(whole + newline)
            return response
    if fault.kind is Kind.EXPIRED:
        await response.write(expired_event())
        return response
    if fault.kind is Kind.CUT_WATCH:
        await response.write(b'{"type":"MODIFIED","object":{"kind":')
    return hung_up(request)


def refused(fault: Fault) -> web.Response:
    code, headers, body = status(fault)
    return web.json_response(body, status=code, headers=headers)


def hung_up(request: web.Request) -> web.Response:
    """The connection ends; what is returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


@contextmanager
def serving(way: FaultyWay, address: str, port: int, certificate: Path, key: Path) -> Iterator[None]:
    """The proxy in a thread with an event loop of its own, as long as the block lasts."""
    loop = asyncio.new_event_loop()
    up, problem = threading.Event(), []

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=64 << 20)
        app.cleanup_ctx.append(way.opened)
        app.router.add_route("*", "/{path:.*}", way.answer)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(certificate, key)
        await web.TCPSite(runner, address, port, ssl_context=own).start()
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            runner = loop.run_until_complete(start())
        except OSError as refused:
            problem.append(refused)
            up.set()
            return
        up.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=run, name="faulty way")
    thread.start()
    up.wait()
    try:
        if problem:
            raise problem[0]
        yield
    finally:
        if not problem:
            loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
