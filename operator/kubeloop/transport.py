"""One request to the API server: credentials, timeout, retries where the server asks for them, errors as exceptions.

Raw aiohttp, because a server-side apply costs 0.6 ms of CPU here and more than twice that in the official client. It is
imported when it is used: a subclass may have other connections (`answer`).

`parsed` accepts anything that users can store in unchecked fields. The API server stores the `data` of a
ControllerRevision as sent: numbers beyond a double, half of a surrogate pair, nesting 10,000 deep. orjson then refuses
the whole response, such as a list of 250 objects. Such values become null or a replacement character; all others are
unchanged. This runs in a thread, since it takes up to 100 times as long.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import orjson

from kubeloop.credentials import Credentials
from kubeloop.errors import ApiError, ServerError, SilentStream, TooManyRequests, Unauthorized, Unreachable, from_status
from kubeloop.resources import Resource

if TYPE_CHECKING:
    import aiohttp

MAX_DEPTH = 100
"""Levels that are kept. orjson writes 254 levels, and no object of Kubernetes needs 40."""
_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_LONE_SURROGATE = re.compile(
    rb"(\\\\)|(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


async def parsed(raw: bytes) -> Any:
    """The value; orjson.JSONDecodeError, a ValueError, for text that is not JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return await asyncio.to_thread(lenient, raw)


def lenient(raw: bytes) -> Any:
    """The value of a text that orjson refuses. Each step runs only if the one before was not enough."""
    whole = _LONE_SURROGATE.sub(lambda half: half[0] if half[1] or half[2] else b"\\ufffd", raw)
    try:
        return orjson.loads(whole)
    except orjson.JSONDecodeError as error:
        refused = error
    shallow = b"".join(_without_deep_values(whole))
    try:
        return orjson.loads(shallow)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(shallow, parse_int=_number, parse_float=_number, parse_constant=lambda _: None)
    except ValueError:
        raise refused from None


def _without_deep_values(raw: bytes) -> Iterator[bytes]:
    """The text with null for everything deeper than MAX_DEPTH. One pass, without recursion."""
    depth = kept = 0
    for found in _BRACKET.finditer(raw):
        first = raw[found.start()]
        if first in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                yield raw[kept : found.start()] + b"null"
        elif first in b"]}":
            depth -= 1
            if depth == MAX_DEPTH:
                kept = found.end()
    if depth <= MAX_DEPTH:
        yield raw[kept:]


def _number(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


Observer = Callable[[str, str, int, float], None]
"""Called after every request with verb, resource, status code (0: no answer) and seconds."""

CONNECT_TIMEOUT = 3.0
REQUEST_TIMEOUT = 10.0
MAX_ATTEMPTS = 4
MAX_PATIENCE = 5.0


class Options(TypedDict, total=False):
    """Options of a request: JSON as `body`, `timeout` in seconds (default REQUEST_TIMEOUT)."""

    params: Mapping[str, str] | None
    body: Mapping[str, Any] | list[dict[str, Any]] | None
    content_type: str
    accept: str | None
    timeout: Callable[[], float] | float
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, by a verb such as `list`. `seconds` are for all of it, `silence` for each part of the answer; None:
    no limit."""

    verb: str
    path: str
    params: Mapping[str, str] | None
    headers: Mapping[str, str]
    data: bytes | None = None
    seconds: float | None = None
    silence: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer, and its body as it comes."""

    status: int
    retry_after: str | None
    chunks: AsyncIterator[bytes]


class Transport:
    """A connection pool for one API server; an asynchronous context manager."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str = "kubeloop",
        observer: Observer = lambda verb, resource, code, seconds: None,
        login_timeout: float | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`login_timeout`: seconds that a request waits for its token (None: the request's timeout)."""
        self.credentials = credentials
        self._observer = observer
        self._login_timeout = login_timeout
        self._sleep = sleep
        self._clock = clock
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        context = self.credentials.ssl_context()
        # Workers limit concurrency; with a limit here, requests would wait for watches to end.
        connector = aiohttp.TCPConnector(limit=0, ssl=True if context is None else context)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
            proxy=self.credentials.proxy,
            cookie_jar=aiohttp.DummyCookieJar(),  # pods behind the API server's proxy may set cookies
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(self, verb: str, resource: Resource, path: str, **options: Unpack[Options]) -> dict[str, Any]:
        """Send a request; returns the JSON object. 429 and 503 are retried for MAX_PATIENCE s, where the server says
        when.

        Unreachable where the response exceeds `max_bytes`. A `timeout` function is called before each attempt and may
        raise to give up.
        """
        return await object_of(await self.read(verb, resource, path, **options), f"{verb} {path}")

    async def read(self, verb: str, resource: Resource, path: str, **options: Unpack[Options]) -> bytes:
        """As `request`, for any response body, such as a pod's through the API server's proxy."""
        body, timeout = options.get("body"), options.get("timeout", REQUEST_TIMEOUT)
        data = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"Content-Type": options.get("content_type", "application/json")}
        if accept := options.get("accept"):
            headers["Accept"] = accept

        async def send() -> bytes:
            seconds = timeout() if callable(timeout) else timeout
            signed = await self._signed(headers, seconds)
            request = Request(verb, path, options.get("params"), signed, data, seconds)
            return await self._send(resource, request, options.get("max_bytes"))

        return await with_retries(send, self.credentials.token.forget, self._sleep)

    async def lines(
        self,
        resource: Resource,
        path: str,
        *,
        params: Mapping[str, str],
        silence: float,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[bytes, None]:
        """A watch, line by line, until the server ends it; `opened` is called when it begins. Errors: as `chunks`."""
        rest: list[bytes] = []
        found = self.chunks("watch", resource, path, params=params, silence=silence, opened=opened)
        async with aclosing(found) as chunks:
            async for chunk in chunks:
                first, *others = chunk.split(b"\n")
                rest.append(first)
                if others:
                    yield b"".join(rest)
                    *whole, last = others
                    for line in whole:
                        yield line
                    rest = [last]

    async def chunks(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        params: Mapping[str, str],
        silence: float | None,
        accept: str = "application/json",
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[bytes, None]:
        """An answer that goes on, as it comes, until the server ends it.

        Unreachable where it breaks off, SilentStream where nothing comes for `silence` seconds after it began.
        """
        signed, is_open = await self._signed({"Accept": accept}, REQUEST_TIMEOUT), False
        try:
            async with self.answer(Request(verb, path, params, signed, silence=silence)) as answer:
                if answer.status >= 300:
                    if answer.status == 401:
                        self.credentials.token.forget()
                    right, raw = f"{verb} {with_subresource(resource, path)}", await _whole(answer, None, path)
                    raise failure(answer.status, raw, right=right, retry_after=None)
                is_open = True
                opened()
                async for chunk in answer.chunks:
                    yield chunk
        except TimeoutError as error:
            kind, seconds = SilentStream if is_open else Unreachable, CONNECT_TIMEOUT if silence is None else silence
            raise kind(f"nothing came for {seconds:.0f} s: {verb} {path}") from error

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[Answer]:
        """One exchange; TimeoutError, or Unreachable where it breaks off. A redirect is an answer: the API server sends
        none, and a pod behind its proxy would choose where the token goes."""
        import aiohttp

        if self._session is None:
            raise RuntimeError("the transport is not open: use `async with`")
        seconds = request.seconds
        limits = aiohttp.ClientTimeout(
            total=seconds,
            sock_connect=CONNECT_TIMEOUT if seconds is None else min(CONNECT_TIMEOUT, seconds),
            sock_read=request.silence,
        )
        try:
            async with self._session.request(
                METHODS[request.verb],
                self.credentials.server + request.path,
                params=request.params,
                data=request.data,
                headers=request.headers,
                timeout=limits,
                allow_redirects=False,
            ) as response:
                retry_after = response.headers.get("Retry-After")
                yield Answer(response.status, retry_after, response.content.iter_any())
        except TimeoutError:  # some of aiohttp's are a ClientError, too
            raise
        except aiohttp.ClientError as error:
            raise Unreachable(f"{request.verb} {request.path}: {error}") from error

    async def _signed(self, headers: Mapping[str, str], seconds: float) -> Mapping[str, str]:
        seconds = seconds if self._login_timeout is None else self._login_timeout
        try:
            async with asyncio.timeout(seconds):
                token = await self.credentials.token()
        except TimeoutError as error:
            raise Unreachable(
                f"no credentials within {seconds:.1f} s", remedy="see why the login program or the token's file hangs"
            ) from error
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers

    async def _send(self, resource: Resource, request: Request, max_bytes: int | None) -> bytes:
        """One attempt. A redirect is a failure."""
        verb, path, started, code = request.verb, request.path, self._clock(), 0
        try:
            async with self.answer(request) as answer:
                code = answer.status
                raw = await _whole(answer, max_bytes, path)
        except TimeoutError as error:
            raise Unreachable(f"no answer within {request.seconds:.1f} s: {verb} {path}") from error
        finally:
            self._observer(verb, resource.plural, code, self._clock() - started)
        if code < 300:
            return raw
        raise failure(code, raw, right=f"{verb} {with_subresource(resource, path)}", retry_after=answer.retry_after)


async def with_retries(
    send: Callable[[], Awaitable[bytes]],
    renew_token: Callable[[], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bytes:
    """The result of `send`, retried where the server says when (MAX_PATIENCE s in all), and once after a 401.

    `renew_token` makes the next attempt use another token. Raises the error of the last attempt.
    """
    patience = MAX_PATIENCE
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await send()
        except (TooManyRequests, ServerError) as error:
            pause = error.retry_after
            if pause is None or pause > patience or attempt == MAX_ATTEMPTS:
                raise
            patience -= pause
            await sleep(pause)
        except Unauthorized:
            # The kubelet may have renewed the token since it was read; a second 401 is final.
            renew_token()
            if attempt > 1:
                raise
    raise AssertionError("the last attempt returns or raises")


async def object_of(raw: bytes, what: str) -> dict[str, Any]:
    """The JSON object of a response or a watch event; Unreachable for anything else, such as a proxy's own page."""
    try:
        answer = await parsed(raw)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"the answer is no API server's: {what}")
    return answer


async def _whole(answer: Answer, max_bytes: int | None, path: str) -> bytes:
    parts, size = [], 0
    async for part in answer.chunks:
        size += len(part)
        if max_bytes is not None and size > max_bytes:
            raise Unreachable(f"the answer has more than {max_bytes} bytes: {path.partition('?')[0]}")
        parts.append(part)
    return b"".join(parts)


METHODS: Mapping[str, str] = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


def failure(code: int, raw: bytes, *, right: str, retry_after: str | None) -> ApiError:
    """The exception for an HTTP failure; the body may be anything where a proxy answered."""
    try:
        status = orjson.loads(raw)
    except ValueError:
        status = {"message": raw[:200].decode(errors="replace").strip()}
    if not isinstance(status, Mapping):
        status = {"message": str(status)[:200]}
    try:
        seconds = None if retry_after is None else max(0.0, float(retry_after))
    except ValueError:  # an HTTP date, which no component of Kubernetes sends
        seconds = None
    return from_status(code, status, right=right, retry_after=seconds)


def with_subresource(resource: Resource, path: str) -> str:
    """Name of the resource as in a role."""
    in_namespace, name = "(?:/namespaces/[^/]+)?", f"/{resource.plural}/[^/]+"
    found = re.match(f"/(?:api/[^/]+|apis/[^/]+/[^/]+){in_namespace}{name}/([^/?]+)", path)
    return f"{resource.full_name}/{found[1]}" if found else resource.full_name
