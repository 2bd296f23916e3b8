"""Who is signed in: with a token in a form, or with a code that `llmservice ui` got for one.

Sessions are in memory only: a token is in the body of one request, never in an address, a cookie or a log nor on a
disk, and a restart signs everybody out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from typing import Final, Unpack
from urllib.parse import urlencode

from jinja2 import Environment
from kubeloop.credentials import Credentials, Token
from kubeloop.errors import KubeError, Unauthorized
from kubeloop.resources import Resource
from kubeloop.transport import Options, Transport
from llmservice_cli.api import USER_AGENT, Api
from llmservice_runtime.bounded_json import Reader, Refused, parse
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from llmservice_ui.fleet import Meter

from .fleet import FleetReader
from .guard import PROGRAM_PATH, body_of, form_of, name_of

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Hosts that are accepted always: a port-forward's."""


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """The API server, without credentials: this process has none of its own."""

    server: str
    ca: bytes | None = None

    def as_viewer(self, token: str) -> Credentials:
        """Requests carry this token, and nothing else that says who asks."""
        return Credentials(self.server, "default", Token.fixed(token), ca=self.ca)


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds, and what an administrator decides."""

    api: ApiAddress
    hosts: frozenset[str] = LOOPBACK
    """Names, without ports, under which the page answers."""
    operator: tuple[str, str] | None = None
    """Namespace and name of the operator's Deployment, to say when nobody keeps the states up to date."""
    can_reach_hub: bool = False
    """Whether the sizing page reads the config.json of ORG/NAME from a hub."""
    longest_session: float = 8 * 3600.0
    """Seconds; a session ends with its token where that is sooner."""
    most_sessions: int = 500
    most_sessions_of_one: int = 20


# Whose token it is, and when it ends.

LONGEST_TOKEN = 32 * 1024
"""Characters; tokens of identity providers name every group of a user."""
LONGEST_NAME = 512
SELF = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user of the cluster, as the API server calls them."""

    name: str

    @property
    def as_subject(self) -> str:
        """For `kubectl create rolebinding`."""
        parts = self.name.split(":")
        if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"]:
            return f"--serviceaccount={parts[2]}:{parts[3]}"
        return f"--user={self.name}"

    @property
    def namespace(self) -> str:
        """Where its service account is; empty for others."""
        parts = self.name.split(":")
        return parts[2] if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] else ""


async def viewer(kube: Api) -> Viewer:
    """The user of the token that `kube` sends. Every user may ask that. KubeError; Unauthorized where it is none's."""
    answer = await kube.review(SELF, {})
    try:
        name = Reader(answer).within("status").within("userInfo").text("username", LONGEST_NAME)
    except Refused as refused:
        raise Unauthorized(f"the API server does not say whose token it is: {refused}") from None
    if name == "system:anonymous":
        raise Unauthorized("the API server takes it for nobody's token")
    return Viewer(name)


def ends_at(token: str) -> float | None:
    """Seconds of the epoch after which a JSON Web Token is not accepted; None for one that is opaque or does not end.

    Nothing is trusted that it says: the API server checks it with each request.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return Reader(parse(claims)).number("exp")
    except (Refused, binascii.Error, ValueError):
        return None


def is_token(text: str) -> bool:
    """Whether it can stand in an Authorization header at all."""
    return 0 < len(text) <= LONGEST_TOKEN and all("!" <= letter <= "~" for letter in text)


CODE_SECONDS = 120.0
"""For which the code in the browser's address is accepted, once."""
MOST_CODES = 100
MOST_CODES_OF_ONE = 5
MOST_USED_CODES = 1_000
SIGNING_IN_AT_ONCE = 8
READ_AT_ONCE = 16
"""Pods' /metrics, for all viewers together."""
MOST_METERS = 4
"""Of one session: several tabs show different services."""
MOST_BYTES = 32 * 2**20
"""Of one answer of the API server."""
SWEEP_SECONDS = 30.0
KEEP_SECONDS = 300.0
"""Rows and figures of a session that nobody uses are kept for so long."""

log = logging.getLogger(__name__)


class Bounded(Transport):
    """No answer has more than MOST_BYTES: objects are of others. Unreachable where one does."""

    async def read(self, verb: str, resource: Resource, path: str, **options: Unpack[Options]) -> bytes:
        """The same."""
        if options.get("max_bytes") is None:
            options["max_bytes"] = MOST_BYTES
        return await super().read(verb, resource, path, **options)


@dataclass
class Session:
    """A viewer, with connections that send their token, and what was read for them lately."""

    viewer: Viewer
    namespace: str
    """Whose services are shown where those of all namespaces may not be."""
    until: float
    """Seconds of the clock."""
    transport: Transport = field(repr=False)
    used: float
    """When its browser asked last, in seconds of the clock."""
    reads: asyncio.Semaphore = field(repr=False)
    """How many pods are read at a time."""
    fleet: FleetReader
    _meters: OrderedDict[Hashable, Meter] = field(default_factory=OrderedDict)

    @property
    def kube(self) -> Api:
        return Api(self.transport)

    def meter(self, of: Hashable) -> Meter:
        """What measures one page, such as a filter of the fleet; of several pages those that were asked for lately."""
        found = self._meters.pop(of, None)
        if found is None:
            found = Meter(self.reads)
            if self._meters:
                found.begin_as(next(reversed(self._meters.values())))
        self._meters[of] = found
        while len(self._meters) > MOST_METERS:
            self._meters.popitem(last=False)[1].cancel()
        return found

    def forget(self) -> None:
        """Keeps nothing of what was read."""
        self.fleet.forget()
        while self._meters:
            self._meters.popitem()[1].cancel()

    async def close(self) -> None:
        """For good: no cookie that it still gets opens it."""
        self.until = float("-inf")
        meters = tuple(self._meters.values())
        self._meters.clear()
        for meter in meters:
            await meter.close()
        await self.transport.__aexit__(None, None, None)


class Sessions:
    """Bounded: the oldest sign-ins end first, a user's own before those of others.

    Cookies and codes are random, and kept as hashes: what is in this memory opens no session.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._clock, self._now = settings, clock, now
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._codes: OrderedDict[bytes, tuple[float, Session]] = OrderedDict()
        self._used: OrderedDict[bytes, tuple[float, Session]] = OrderedDict()
        self._ended: list[Session] = []
        """Their connections are to be closed."""
        self._reads = asyncio.Semaphore(READ_AT_ONCE)
        self._signing_in = asyncio.Semaphore(SIGNING_IN_AT_ONCE)

    async def admit(self, token: str, namespace: str = "") -> Session:
        """A session for a token that the API server accepts, not yet in any browser. KubeError."""
        left = self._settings.longest_session
        if (end := ends_at(token)) is not None:
            left = min(left, end - self._now())
        if left <= 0:
            raise Unauthorized("the token has expired")
        transport = Bounded(self._settings.api.as_viewer(token), user_agent=f"{USER_AGENT}-ui")
        await transport.__aenter__()
        try:
            async with self._signing_in:
                found = await viewer(Api(transport))
        except BaseException:
            await transport.__aexit__(None, None, None)
            raise
        now = self._clock()
        own, fleet = namespace or found.namespace, FleetReader(self._clock)
        return Session(found, own, now + left, transport, now, self._reads, fleet)

    async def cookie_for(self, session: Session, instead_of: str | None = None) -> str:
        """The session begins, and that of the cookie `instead_of` ends; the cookie's value."""
        value = secrets.token_urlsafe(32)
        if instead_of:
            self._end(_key(instead_of))
        mine = [key for key, each in self._sessions.items() if each.viewer == session.viewer]
        if len(mine) >= self._settings.most_sessions_of_one:
            self._end(mine[0])
        while len(self._sessions) >= self._settings.most_sessions:
            self._end(next(iter(self._sessions)))
        self._sessions[_key(value)] = session
        await self._close_ended()
        return value

    async def code_for(self, session: Session) -> str:
        """What a browser may begin the session with, once."""
        self._drop_codes()
        mine = [key for key, (_, each) in self._codes.items() if each.viewer == session.viewer]
        if len(mine) >= MOST_CODES_OF_ONE or len(self._codes) >= MOST_CODES:
            _, oldest = self._codes.pop(mine[0] if mine else next(iter(self._codes)))
            self._ended.append(oldest)
        code = secrets.token_urlsafe(24)
        self._codes[_key(code)] = (self._clock() + CODE_SECONDS, session)
        await self._close_ended()
        return code

    async def redeem(self, code: str) -> Session | None:
        """The session of a code; None for one that was used, is too old, or never was.

        A code that comes again ends the session that it began: two have it, and the first one may have been the thief.
        """
        self._drop_codes()
        await self._close_ended()
        key = _key(code)
        until, session = self._codes.pop(key, (0.0, None))
        if session is None:
            _, begun = self._used.pop(key, (0.0, None))
            if begun is not None:
                await self._end_session(begun)
            return None
        self._used[key] = until, session
        if len(self._used) > MOST_USED_CODES:
            self._used.popitem(last=False)
        return session

    async def find(self, cookie: str | None) -> Session | None:
        """The session of a cookie; one that is over ends here."""
        if not cookie:
            return None
        key = _key(cookie)
        session = self._sessions.get(key)
        if session is not None and self._clock() >= session.until:
            self._end(key)
            await self._close_ended()
            return None
        if session is not None:
            session.used = self._clock()
        return session

    async def end(self, cookie: str | None) -> None:
        if cookie:
            self._end(_key(cookie))
            await self._close_ended()

    async def sweep(self) -> None:
        """Ends what is over, and keeps no rows for those who look at none."""
        now = self._clock()
        over = [key for key, session in self._sessions.items() if now >= session.until]
        for session in self._sessions.values():
            if now - session.used >= KEEP_SECONDS:
                session.forget()
        self._drop_codes()
        for key in over:
            self._end(key)
        await self._close_ended()

    async def sweep_for_ever(self) -> None:
        """Every SWEEP_SECONDS."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except Exception:
                log.exception("sessions that are over were not ended; tried again in %g s", SWEEP_SECONDS)

    async def close(self) -> None:
        """All of them."""
        self._ended += (*self._sessions.values(), *(session for _, session in self._codes.values()))
        self._sessions.clear()
        self._codes.clear()
        self._used.clear()
        await self._close_ended()

    def __len__(self) -> int:
        return len(self._sessions)

    def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._ended.append(session)

    async def _end_session(self, session: Session) -> None:
        for key in [key for key, each in self._sessions.items() if each is session]:
            del self._sessions[key]
        self._ended.append(session)
        await self._close_ended()

    def _drop_codes(self) -> None:
        now = self._clock()
        for key in [key for key, (until, _) in self._codes.items() if now >= until]:
            self._ended.append(self._codes.pop(key)[1])
        for key in [key for key, (until, _) in self._used.items() if now >= until]:
            del self._used[key]

    async def _close_ended(self) -> None:
        """Close the connections of those that are over. Where a caller is cancelled meanwhile, the next one goes on."""
        while self._ended:
            session = self._ended.pop()
            try:
                await session.close()
            except asyncio.CancelledError:
                self._ended.append(session)
                raise


def _key(value: str) -> bytes:
    return sha256(value.encode(errors="surrogatepass")).digest()


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
        return await self._session_begins(request, session, address)

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
        return await self._session_begins(request, session, "/")

    async def out(self, request: Request) -> Response:
        name = cookie_of(request)
        await self.sessions.end(request.cookies.get(name))
        answer = RedirectResponse(sign_in_address("/", "out"), HTTPStatus.SEE_OTHER)
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=name.startswith(WITH_TLS))
        return answer

    async def _session_begins(self, request: Request, session: Session, address: str) -> Response:
        name = cookie_of(request)
        answer = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        value = await self.sessions.cookie_for(session, instead_of=request.cookies.get(name))
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
