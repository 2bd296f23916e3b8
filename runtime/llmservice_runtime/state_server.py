"""The supervisor's own port: probes and /state. GET only, one answer a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

READ_SECONDS = 5.0


@dataclass(frozen=True)
class Reply:
    """What a path answers."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


Respond = Callable[[str], Reply]
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


async def serve(port: int, respond: Respond) -> asyncio.Server:
    """Listen on every address, of both families where the pod has them."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await asyncio.wait_for(_reply(reader, respond), READ_SECONDS)
            writer.write(_encode(reply))
            await asyncio.wait_for(writer.drain(), READ_SECONDS)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # noqa: UP041
            pass  # a client that left or sent nonsense gets no answer
        finally:
            writer.close()

    return await asyncio.start_server(handle, None, port, limit=16 * 1024)


async def _reply(reader: asyncio.StreamReader, respond: Respond) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, _, rest = head.partition("\r\n")[0].partition(" ")
    if method not in ("GET", "HEAD"):
        return Reply(405, "GET only\n")
    return respond(rest.partition(" ")[0].partition("?")[0])


def _encode(reply: Reply) -> bytes:
    body = reply.body.encode()
    head = (
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
