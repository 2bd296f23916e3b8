"""HTTP requests of the supervisor to vLLM over loopback.

Standard library only, because the package runs in users' images; urllib and http.client would block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_runtime.bounded_json import Refused, clean, parse

_MOST_BYTES = 64 << 20
"""Of a response body. The longest is that of /metrics."""
_MOST_JSON_BYTES = 8 << 20
_DEPTH = 32
_LONGEST_ERROR = 2048


@dataclass(frozen=True)
class Response:
    """Status and body of a response."""

    status: int
    body: str

    @property
    def error(self) -> str:
        """The error message: from the OpenAI error object, else the start of the body."""
        try:
            document = self.json()
            error = document["error"] if isinstance(document, dict) else None
            text = error.get("message") if isinstance(error, dict) else error
            if isinstance(text, str):
                return clean(text[:_LONGEST_ERROR])
        except (Refused, KeyError):
            pass
        return clean(self.body.strip()[:500])

    def json(self) -> Any:
        """The body's JSON value. Refused where it exceeds the bounds or is not JSON."""
        return parse(self.body, _MOST_JSON_BYTES, _DEPTH, drops_numbers=True)


async def http_request(
    port: int,
    path: str,
    *,
    timeout: float,
    method: str = "GET",
    body: str = "",
    headers: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> Response:
    """Send one request on a new connection. `timeout` is in seconds. OSError on no response, timeouts included."""
    try:
        return await asyncio.wait_for(_exchange(host, port, path, method, body, headers or {}), timeout)
    except asyncio.TimeoutError as error:  # noqa: UP041 - another class before Python 3.11
        raise OSError(f"no answer to {method} {path} within {timeout:g} s") from error


async def _exchange(host: str, port: int, path: str, method: str, body: str, headers: Mapping[str, str]) -> Response:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        payload = body.encode()
        named = f"[{host}]" if ":" in host else host
        lines = [f"{method} {path} HTTP/1.1", f"Host: {named}:{port}", "Connection: close", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if payload:
            lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + payload)
        await writer.drain()
        return await _read(reader)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Response:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _read_chunks(reader)
        elif "content-length" in headers:
            body = await reader.readexactly(_bounded(int(headers["content-length"])))
        else:
            body = await reader.read()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise OSError(f"not an HTTP answer: {error}") from error
    return Response(status, body.decode(errors="replace"))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        _bounded(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return bytes(body)


def _bounded(size: int) -> int:
    if size > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    return size
