"""One attempt to forward a request, with its body, to a pod."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
from aiohttp import hdrs, web
from llmservice_runtime.contract import DRAINING_HEADER
from multidict import CIMultiDict
from yarl import URL

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answer, Answered
from llmservice_activator.holding.client import EVENT_STREAM, Client
from llmservice_activator.holding.interface import Reason
from llmservice_activator.holding.limits import Entry, Limits
from llmservice_activator.holding.service import FAILURES, Pods

REPLAY_BYTES = 64 << 10
"""Bytes: most prompts are smaller, and requests in all slots keep at most 32 MiB."""
Data = io.BytesIO | AsyncIterator[bytes]
"""Accepted by aiohttp's client."""


class BufferedBody:
    """A complete body, for any number of attempts until a pod has received it."""

    states_length = False
    """Whether to send the client's Content-Length; aiohttp states that of a complete body."""
    answered: Answered | None = None

    def __init__(self, body: bytes, entry: Entry) -> None:
        self._body, self.entry = body, entry

    may_repeat = True
    """Whether another pod can get the body."""

    def data(self) -> Data:
        return io.BytesIO(self._body)

    def sent(self) -> None:
        """A pod has received the body: release it."""
        self._body = b""
        self.entry.close()


class StreamedBody:
    """A body that is forwarded as it arrives. It is read once a pod is connected, so that a failed connect can be
    repeated; up to REPLAY_BYTES bytes are kept for another attempt."""

    states_length = True

    def __init__(self, body: AsyncIterator[bytes], *, is_empty: bool) -> None:
        self._body, self._is_whole = body, is_empty
        self._kept: list[bytes] | None = []
        self.answered: Answered | None = None
        """Why the body ended early."""

    def data(self) -> Data:
        """The body; raises Answered where it does not arrive."""
        return self._pieces()

    @property
    def may_repeat(self) -> bool:
        return self._is_whole and self._kept is not None

    def sent(self) -> None:
        """A pod has received the body: keep nothing."""
        self._kept = None

    async def whole(self) -> AsyncIterator[bytes]:
        """The bytes read so far and those to come, after failed attempts."""
        kept, self._kept = self._kept or [], None
        for piece in kept:
            yield piece
        async for piece in self._body:
            yield piece

    async def _pieces(self) -> AsyncIterator[bytes]:
        for piece in tuple(self._kept or ()):
            yield piece
        try:
            async for piece in self._body:
                if self._kept is not None:
                    self._kept.append(piece)
                    if sum(map(len, self._kept)) > REPLAY_BYTES:
                        self._kept = None
                yield piece
            self._is_whole = True
        except Answered as answered:
            self.answered = answered
            raise


Upload = BufferedBody | StreamedBody


HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "http2-settings"}
)
OWN_HEADERS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add; a pod gets what the client sent."""
NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Errors before any byte of the request was sent."""
LARGEST_EVENT: Final = 1 << 20
"""Bytes of a non-streamed response that is sent as an event."""


class NotConnected(Exception):
    """No pod accepted the request, which can be repeated."""


class _Draining(Exception):
    """A draining pod received the whole request and did not process it."""


class PodFailed(Exception):
    """A pod received at least a part of the request and did not answer completely."""


def new_session(limits: Limits) -> aiohttp.ClientSession:
    """For pods: one connection per request, so that failed connects are distinguished from failed requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=OWN_HEADERS,
    )


async def forward(session: aiohttp.ClientSession, pods: Pods, client: Client, upload: Upload) -> web.StreamResponse:
    """Send the client the response of a pod. Raises NotConnected, PodFailed, and the errors of Client and Upload; a
    response that has begun is then incomplete."""
    refused: set[str] = set()
    while True:
        with pods.choose(refused) as base:
            if base is None:
                raise NotConnected
            try:
                return await _to_pod(session, base, client, upload)
            except NOT_CONNECTED:
                refused.add(base)
                pods.mark_failed(base)
            except _Draining:
                refused.add(base)
                pods.mark_draining(base)


async def _to_pod(session: aiohttp.ClientSession, base: str, client: Client, upload: Upload) -> web.StreamResponse:
    try:
        upstream = await session.request(
            client.request.method,
            URL(base + client.request.rel_url.raw_path_qs, encoded=True),
            headers=request_headers(client, upload),
            data=upload.data() if client.request.body_exists else None,
            allow_redirects=False,
        )
    except NOT_CONNECTED:
        raise
    except FAILURES as error:
        if upload.answered is not None:
            raise upload.answered from None
        raise PodFailed(str(error)) from error
    async with upstream:
        if upload.may_repeat and upstream.status == 503 and DRAINING_HEADER in upstream.headers:
            raise _Draining
        upload.sent()
        if client.response is not None and not _is_stream(upstream):
            return await client.answer(await _event(upstream))
        await client.begin(upstream.status, upstream.reason, response_headers(upstream.headers))
        async for piece in _pieces(upstream):
            await client.write(piece)
        return await client.end()


def request_headers(client: Client, upload: Upload) -> CIMultiDict[str]:
    """The client's headers without those of its connection."""
    headers = _end_to_end(client.request.headers)
    headers.popall(hdrs.EXPECT, None)
    if not upload.states_length:
        headers.popall(hdrs.CONTENT_LENGTH, None)
    if client.response is not None:  # a started stream has no content encoding
        headers.popall(hdrs.ACCEPT_ENCODING, None)
    return headers


def response_headers(received: Mapping[str, str]) -> CIMultiDict[str]:
    """The pod's headers without those of its connection."""
    return _end_to_end(received)


def _end_to_end(received: Mapping[str, str]) -> CIMultiDict[str]:
    headers = CIMultiDict(received)
    named = {name.strip().lower() for value in headers.getall(hdrs.CONNECTION, ()) for name in value.split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP | named)


def _is_stream(upstream: aiohttp.ClientResponse) -> bool:
    return upstream.status == 200 and upstream.content_type == EVENT_STREAM


async def _pieces(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while True:
        try:
            piece = await upstream.content.readany()
        except FAILURES as error:
            raise PodFailed(str(error)) from error
        if not piece:
            return
        yield piece


async def _event(upstream: aiohttp.ClientResponse) -> Answer:
    """A pod's response for a client that already reads a stream. PodFailed where it cannot be an event."""
    body = bytearray()
    async for piece in _pieces(upstream):
        body += piece
        if len(body) > LARGEST_EVENT:
            raise PodFailed("its answer is no stream")
    document = answer.json_object(bytes(body))
    if document is None:
        raise PodFailed("its answer is neither a stream nor a JSON object")
    return Answer(upstream.status, Reason.POD_FAILED, document)
