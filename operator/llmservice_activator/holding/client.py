"""The client's connection of one request: reads the body, writes the response. Every response closes the connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answer, Answered
from llmservice_activator.holding.check import RequestHead, routed
from llmservice_activator.holding.limits import Limits

INVALID_BODY = (web.RequestPayloadError, HttpProcessingError)
"""Raised by reads of a body with invalid chunked encoding."""
EVENT_STREAM = "text/event-stream"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 seconds."""
COMMENT = b": waiting for a replica\n\n"


class Stalled(Exception):
    """The client does not read its response."""


class Client:
    """One request and its response."""

    def __init__(self, request: web.BaseRequest, limits: Limits, *, any_origin: bool, root_path: str) -> None:
        self.request, self._limits = request, limits
        self._origin_headers = answer.ANY_ORIGIN if any_origin and hdrs.ORIGIN in request.headers else {}
        self.head = RequestHead(request.method, routed(request.rel_url.raw_path, root_path), request.headers)
        self.response: web.StreamResponse | None = None
        """Set once the head is sent."""
        self.is_relayed = False
        """Whether the client may have a part of a pod's response."""
        if not request.body_exists:
            self._ignore_what_follows()

    async def body(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Answered with 408 or 400 where it stops or is malformed."""
        request = self.request
        if self.head.expects_continue and request.version >= HttpVersion11 and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            try:
                async with asyncio.timeout(self._limits.body_seconds):
                    chunk = await request.content.readany()
            except TimeoutError:
                raise Answered(answer.SLOW_BODY) from None
            except INVALID_BODY as error:
                raise Answered(answer.invalid(f"The body is malformed: {error}"[:200])) from None
            if not chunk:
                break
            yield chunk
        self._ignore_what_follows()

    async def answer(self, given: Answer) -> web.StreamResponse:
        """Write a complete response; after the head of a stream, an error event that ends the stream."""
        if self.response is not None:
            await self.write(b"data: " + given.body + b"\n\n")
            return await self.end()
        response = web.Response(status=given.status, body=given.body, headers={**given.headers, **self._origin_headers})
        if given.document is not None:
            response.content_type = "application/json"
        response.force_close()
        await response.prepare(self.request)
        await response.write_eof()
        return response

    async def begin(self, status: int, reason: str | None, headers: Mapping[str, str]) -> None:
        """Send the head of a pod's response; the body follows in pieces. Does nothing where comments were sent
        before."""
        self.is_relayed = True
        if self.response is None:
            await self._begin(status, reason, headers)

    async def _begin(self, status: int, reason: str | None, headers: Mapping[str, str]) -> None:
        response = web.StreamResponse(status=status, reason=reason, headers=CIMultiDict(headers))
        response.force_close()
        self.response = response
        await response.prepare(self.request)

    async def comment(self) -> None:
        """Send an SSE comment to keep a waiting stream alive; sends its head first."""
        if self.response is None:
            fields: dict[str, str] = {hdrs.CONTENT_TYPE: EVENT_STREAM, hdrs.CACHE_CONTROL: "no-cache"}
            await self._begin(200, None, fields | self._origin_headers)
        await self.write(COMMENT)

    async def write(self, piece: bytes) -> None:
        """Write a piece of the body. Stalled where the client reads nothing; ConnectionError where it is gone."""
        assert self.response is not None
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await self.response.write(piece)
        except TimeoutError:
            raise Stalled from None

    async def end(self) -> web.StreamResponse:
        """Complete the response."""
        assert self.response is not None
        await self.response.write_eof()
        return self.response

    def cut(self) -> web.StreamResponse:
        """End the connection in a way that shows the client an incomplete response."""
        transport, response = self.request.transport, self.response
        assert response is not None
        if transport is not None:
            if response.content_length is None and self.request.version < HttpVersion11:
                # Closing the connection would look like the end of the response: reset it.
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                transport.abort()
            else:
                transport.close()
        return response

    def abort(self) -> None:
        """Reset the connection, with what the client has not read."""
        if self.request.transport is not None:
            self.request.transport.abort()

    def _ignore_what_follows(self) -> None:
        """Drop further requests on the connection: every response closes it."""
        self.request.protocol.close()
