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

import aiohttp
from aiohttp import web

from tests.chaos.faults import Asked, Fault, Kind, Weather, chance_of, expired_event, status

# Of one connection, not of the message.
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length", "te"})


# How `struck` counts watches that ran when a storm began.
RUNNING_WATCH = "running watch"


@dataclass
class FaultyWay:
    """Hands every request on to `upstream`, or does to it what the weather says.

    Which fault a request meets follows from the seed, its method, its path and how many of these came before it; and
    each fault of a storm comes to the first request that can meet it, too. One that came to nothing (a watch ended
    before its time, or had nothing to be silent about) is due again.
    """

    upstream: str
    trusted: ssl.SSLContext
    seed: int
    struck: Counter[str] = field(default_factory=Counter)
    """What was done, once it was done."""
    passed: int = 0
    _weather: Weather = field(default_factory=lambda: Weather({}))
    _due: set[Kind] = field(default_factory=set)
    _met: dict[int, Fault] = field(default_factory=dict)
    """Faults, by identity, of requests that are being answered and that they have not befallen yet."""
    _asked_before: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    _running: dict[int, web.Request] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None
    _session: aiohttp.ClientSession | None = None

    async def opened(self, app: web.Application) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=0, ssl=self.trusted)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            yield

    def turn(self, weather: Weather) -> None:
        """Another weather from now on; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._turned, weather)

    def _turned(self, weather: Weather) -> None:
        self._weather = weather
        # What came to nothing in a storm comes in the next, if that follows at once.
        self._due = self._due | set(weather.shares) if weather.shares else set()
        if weather.hangs_up:
            for request in tuple(self._running.values()):
                hung_up(request)
                self.struck[RUNNING_WATCH] += 1

    def _fault(self, asked: Asked) -> Fault | None:
        key = (asked.method, asked.path, asked.is_watch)
        self._asked_before[key] += 1
        fault = self._weather.strike(asked, chance_of(self.seed, asked, self._asked_before[key]), self._due)
        if fault is not None:
            self._due.discard(fault.kind)
            self._met[id(fault)] = fault
        return fault

    def _over(self, fault: Fault) -> None:
        """The request was answered; what came to nothing comes to another."""
        if self._met.pop(id(fault), None) is not None and fault.kind in self._weather.shares:
            self._due.add(fault.kind)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.query, request.path)
        fault = self._fault(asked)
        try:
            return await (self._watched(request, fault) if asked.is_watch else self._asked(request, fault))
        except aiohttp.ClientError:
            # The API server is away: so would its port be.
            return hung_up(request)
        finally:
            if fault is not None:
                self._over(fault)

    def _strike(self, fault: Fault) -> None:
        """Once for each: what a watch goes on to be silent about is one silence."""
        if self._met.pop(id(fault), None) is not None:
            self.struck[fault.kind] += 1

    def _refused_or_dropped(self, request: web.Request, fault: Fault) -> web.Response:
        self._strike(fault)
        return hung_up(request) if fault.kind is Kind.DROPPED else refused(fault)

    async def _asked(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        if fault is not None and fault.kind is Kind.DELAYED:
            await asyncio.sleep(fault.seconds)
        elif fault is not None and fault.kind is not Kind.LOST_ANSWER:
            return self._refused_or_dropped(request, fault)
        async with self._forwarded(request) as answer:
            body = await answer.read()
            if fault is None:
                self.passed += 1
            else:
                self._strike(fault)
            if fault is not None and fault.kind is Kind.LOST_ANSWER:
                return hung_up(request)
            return web.Response(status=answer.status, body=body, headers=passed_on(answer.headers))

    async def _watched(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        if fault is not None and fault.is_at_once:
            return self._refused_or_dropped(request, fault)
        self._running[id(request)] = request
        try:
            async with self._forwarded(request) as answer:
                response = web.StreamResponse(status=answer.status, headers=passed_on(answer.headers))
                await response.prepare(request)
                if fault is not None:
                    return await self._broken_off(request, answer, response, fault)
                self.passed += 1
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                return response
        finally:
            del self._running[id(request)]

    async def _broken_off(
        self, request: web.Request, answer: aiohttp.ClientResponse, response: web.StreamResponse, fault: Fault
    ) -> web.StreamResponse:
        """A watch that ends as the fault says, after its time; silent, it has reported nothing since its beginning."""
        rest = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(fault.seconds):
                async for piece in answer.content.iter_any():
                    whole, newline, rest = (rest + piece).rpartition(b"\n")
                    if newline and fault.kind is Kind.SILENT_WATCH:
                        self._strike(fault)
                    elif newline:
                        await response.write(whole + newline)
                return response
        if fault.kind is not Kind.SILENT_WATCH:
            self._strike(fault)
        if fault.kind is Kind.EXPIRED:
            await response.write(expired_event())
            return response
        if fault.kind is Kind.CUT_WATCH:
            await response.write(b'{"type":"MODIFIED","object":{"kind":')
        return hung_up(request)

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
