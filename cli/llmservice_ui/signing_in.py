"""Signing in and out: with a token in a form, or with a code that `llmservice ui` got for one.

The token is in the body of one request, never in an address, a cookie or a log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from jinja2 import Environment
from kubeloop.errors import KubeError, Unauthorized
from llmservice_runtime.bounded_json import Reader, Refused, parse
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from .guard import PROGRAM_PATH, body_of, form_of, name_of
from .sessions import CODE_SECONDS, LONGEST_TOKEN, LOOPBACK, Session, Sessions, is_token

COOKIE: Final = "llmservice-ui"
WITH_TLS: Final = "__Host-"
"""Browsers take a cookie of such a name only with TLS, and from this host alone."""
PATH, CODE_PATH, OUT_PATH = "/sign-in", "/sign-in/code", "/sign-out"
MOST_BODY = 4 * LONGEST_TOKEN
LONGEST_ADDRESS = 2048
_NAME = "[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_PAGE: Final = re.compile(rf"/(sizing|services/{_NAME}/{_NAME})?(\?[!-~]*)?", re.ASCII)
"""The addresses of pages that show something. Others do something: the code of somebody else would sign one in as
them."""
SAID: Final = {
    "": "",
    "expired": "The API server does not accept your token any more: it has expired or was revoked.",
    "code": "This address is too old, or was used before: then its session has ended. Run llmservice ui again, "
    "or paste a token.",
    "out": "You are signed out.",
}


@dataclass(frozen=True)
class SignIn:
    """Everything for who is not signed in."""

    sessions: Sessions
    templates: Environment

    @property
    def routes(self) -> list[Route]:
        return [
            Route(PATH, self.form, methods=["GET"]),
            Route(PATH, self.with_token, methods=["POST"]),
            Route(PROGRAM_PATH, self.for_program, methods=["POST"]),
            Route(CODE_PATH, self.with_code, methods=["GET"]),
            Route(OUT_PATH, self.out, methods=["POST"]),
        ]

    async def form(self, request: Request) -> Response:
        said = SAID.get(request.query_params.get("said", ""), "")
        return self._form(local(request.query_params.get("next", "")), said)

    async def with_token(self, request: Request) -> Response:
        """A token that somebody pasted."""
        given = await form_of(request, MOST_BODY)
        address, token = local(given.get("next", "")), given.get("token", "").strip()
        token = token.removeprefix("Bearer ").strip()
        if not is_token(token):
            return self._form(address, "Paste a token: one word, as `kubectl create token` prints it.", 422)
        try:
            session = await self.sessions.admit(token)
        except Unauthorized as error:
            return self._form(address, f"The API server does not accept this token: {error.message}", 401)
        except KubeError as error:
            return self._form(address, f"The token could not be checked: {error.message}", 502)
        return await self._begun(request, session, address)

    async def for_program(self, request: Request) -> Response:
        """`llmservice ui`: a token and a namespace for a code."""
        try:
            read = Reader(parse(await body_of(request, MOST_BODY, "application/json"), MOST_BODY))
            token, namespace = read.word("token", LONGEST_TOKEN), read.word("namespace", 253, "")
        except Refused as refused:
            return JSONResponse({"message": str(refused)}, HTTPStatus.BAD_REQUEST)
        if not is_token(token):
            return JSONResponse({"message": "the token is none"}, HTTPStatus.BAD_REQUEST)
        try:
            session = await self.sessions.admit(token, namespace)
        except Unauthorized as error:
            return JSONResponse({"message": error.message}, HTTPStatus.UNAUTHORIZED)
        except KubeError as error:
            return JSONResponse({"message": error.message}, HTTPStatus.BAD_GATEWAY)
        code = await self.sessions.code_for(session)
        path = f"{CODE_PATH}?{urlencode({'code': code})}"
        return JSONResponse({"path": path, "seconds": CODE_SECONDS, "user": session.viewer.name})

    async def with_code(self, request: Request) -> Response:
        """The browser that `llmservice ui` opens. Another page may not send somebody here: they would be signed in as
        whoever made that page."""
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Open the address that llmservice ui prints.\n", HTTPStatus.FORBIDDEN)
        session = await self.sessions.redeem(request.query_params.get("code", ""))
        if session is None:
            return RedirectResponse(sign_in_address("/", "code"), HTTPStatus.SEE_OTHER)
        return await self._begun(request, session, "/")

    async def out(self, request: Request) -> Response:
        name = cookie_of(request)
        await self.sessions.end(request.cookies.get(name))
        answer = RedirectResponse(sign_in_address("/", "out"), HTTPStatus.SEE_OTHER)
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=name.startswith(WITH_TLS))
        return answer

    async def _begun(self, request: Request, session: Session, address: str) -> Response:
        name = cookie_of(request)
        await self.sessions.end(request.cookies.get(name))
        answer = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        value = await self.sessions.cookie_for(session)
        answer.set_cookie(name, value, httponly=True, samesite="strict", secure=name.startswith(WITH_TLS))
        return answer

    def _form(self, address: str, said: str, code: int = 200) -> Response:
        text = self.templates.get_template("sign_in.html").render(viewer=None, next=address, said=said)
        return HTMLResponse(text, code)


def cookie_of(request: Request) -> str:
    """The cookie's name. Only a port-forward may go without TLS; browsers send the cookies of one to all ports, so that
    each has a name of its own."""
    host = request.headers["host"]
    if name_of(host) not in LOOPBACK:
        return f"{WITH_TLS}{COOKIE}"
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdigit() else COOKIE


def sign_in_address(address: str, said: str) -> str:
    """The form that leads on to `address`."""
    words = {"next": address if address != "/" else "", "said": said}
    chosen = {name: value for name, value in words.items() if value}
    return f"{PATH}?{urlencode(chosen)}" if chosen else PATH


def local(address: str) -> str:
    """The address where it is one of a page that shows something, else that of the fleet."""
    return address if len(address) <= LONGEST_ADDRESS and _PAGE.fullmatch(address) else "/"
