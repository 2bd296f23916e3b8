"""Reads logs: one container's as a stream of lines, and several in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

import httpx
from llmservice_operator.kube.errors import ApiError
from llmservice_operator.kube.resources import POD
from llmservice_operator.kube.transport import failure

from llmservice_cli.cluster import Connection

from .lines import Line, Moment, Origin, Splitter, read

PATIENCE = httpx.Timeout(30.0, connect=5.0)
FOLLOWING = httpx.Timeout(5.0, read=None)
MOST_ERROR = 4096
"""Bytes of an error's answer."""


class Unread(Exception):
    """Why a log, or the rest of it, cannot be read."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Reader:
    """The logs of pods in one namespace. `http` is of the API server, and without a limit of connections: one that is
    followed keeps its own."""

    http: httpx.AsyncClient
    namespace: str

    async def lines(self, origin: Origin, params: Mapping[str, str], *, follow: bool) -> AsyncGenerator[Line]:
        """Unread where the API server refuses, or the connection breaks."""
        path = f"{POD.path(self.namespace, origin.pod)}/log"
        query = {**params, "container": origin.container, "timestamps": "true", "follow": str(follow).lower()}
        splitter = Splitter()
        async with self._stream(path, query, FOLLOWING if follow else PATIENCE) as chunks:
            async for chunk in chunks:
                for raw in splitter.feed(chunk):
                    yield read(raw, origin)
            for raw in splitter.end():
                yield read(raw, origin)

    @asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, str], timeout: httpx.Timeout
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with self.http.stream("GET", path, params=dict(query), timeout=timeout) as response:
                if response.is_error:
                    raise Unread((await _refusal(response)).message)
                yield response.aiter_bytes()
        except httpx.HTTPError as error:
            raise Unread(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def reading(connection: Connection, namespace: str) -> AsyncIterator[Reader]:
    """With one client, which all logs of a command share."""
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with connection.http(limits=unlimited) as http:
        yield Reader(http, namespace)


async def _refusal(response: httpx.Response) -> ApiError:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk[: MOST_ERROR - len(body)]
        if len(body) >= MOST_ERROR:
            break
    return failure(response.status_code, body, right="get pods/log", retry_after=None)


async def merged(
    streams: Mapping[Origin, AsyncGenerator[Line]], unread: Callable[[Origin, str], None]
) -> AsyncGenerator[Line]:
    """The lines of all in the order of time, with one line of each in memory; what ends a stream early goes to
    `unread`."""
    waiting: list[tuple[Moment, int, Line]] = []
    numbered = tuple(streams.items())

    async def take(number: int) -> None:
        origin, stream = numbered[number]
        try:
            line = await anext(stream, None)
        except Unread as error:
            unread(origin, error.why)
            return
        if line is not None:
            heapq.heappush(waiting, (line.moment, number, line))

    async with AsyncExitStack() as opened:
        for _, stream in numbered:
            await opened.enter_async_context(aclosing(stream))
        for number in range(len(numbered)):
            await take(number)
        while waiting:
            _, number, line = heapq.heappop(waiting)
            yield line
            await take(number)
