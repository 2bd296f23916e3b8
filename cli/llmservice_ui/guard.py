"""What holds for every request and answer: accepted hosts, requests of our own pages only, and headers.

Pure ASGI, so that it covers answers of errors and files too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Bodies of requests, with a bound that holds while they are read.

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 20
BODY_SECONDS = 15.0


async def body_of(request: Request, most: int, kind: str) -> bytes:
    """HTTPException where the body is of another kind, has more than `most` bytes, or takes more than BODY_SECONDS."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Send {kind}.")
    parts, left = [], most
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                left -= len(part)
                if left < 0:
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The form has more than {most} bytes.")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"The form did not arrive within {BODY_SECONDS:g} s.") from None
    return b"".join(parts)


async def form_of(request: Request, most: int) -> Mapping[str, str]:
    """The fields of a form; of one that comes twice, the last."""
    body = await body_of(request, most, FORM)
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"The form has more than {MOST_FIELDS} fields.") from None


HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # no-referrer would take the Origin of our own forms away, too
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
PROGRAM_PATH: Final = "/sign-in/token"
"""The only address that a program, which sends no Origin, may POST to. A page elsewhere cannot: what it takes has a
content type that browsers send to their own origin only."""
HEALTH_PATH: Final = "/healthz"
AT_ONCE: Final = 200
"""Requests; more get 503, but for health: a page that is busy is not restarted."""


class Guard:
    """Refuses what no page of ours asks, before any of it is read."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app, self._hosts = app, frozenset(hosts)
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if "server" in headers:
                    del headers["server"]
            await send(message)

        refused = self._refusal(scope)
        if refused is None and self._under_way >= AT_ONCE and scope["path"] != HEALTH_PATH:
            refused = 503, f"This page answers {AT_ONCE} requests already: try again in some seconds."
        self._under_way += 1
        try:
            if refused is None:
                await self._app(scope, receive, with_headers)
            else:
                await PlainTextResponse(f"{refused[1]}\n", refused[0])(scope, receive, with_headers)
        finally:
            self._under_way -= 1

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or name_of(hosts[0]) not in self._hosts:
            return 421, "This page does not answer under that name. Add it to the chart's value ui.hosts."
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return 405, "This page only reads."
        if not is_own(headers, hosts[0], scope["path"]):
            return 403, "The request comes from another page, and is refused."
        return None


def name_of(host: str) -> str:
    """A Host header without its port."""
    name, separator, port = host.rpartition(":")
    return (name if separator and port.isdigit() else host).lower()


def is_own(headers: Headers, host: str, path: str) -> bool:
    """Whether a POST comes from a page of ours. Browsers send Origin or Sec-Fetch-Site with each."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None:
        return origin.partition("://")[2] == host
    return site is not None or path == PROGRAM_PATH
