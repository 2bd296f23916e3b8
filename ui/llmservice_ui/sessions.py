"""Who is signed in. In memory only: a token is in no cookie and on no disk, and a restart signs everybody out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from llmservice_cli.api import USER_AGENT, Api
from llmservice_operator.kube.errors import Unauthorized
from llmservice_operator.kube.transport import Transport

from .fleet_reading import FleetReader
from .meter import Meter
from .settings import Settings
from .viewer import Viewer, ends_at, viewer

CODE_SECONDS = 120.0
"""For which the code in the browser's address is accepted, once."""
MOST_CODES = 100
MOST_CODES_OF_ONE = 5
SIGNING_IN_AT_ONCE = 8


@dataclass
class Session:
    """A viewer, with connections that send their token, and what was read for them lately."""

    viewer: Viewer
    namespace: str
    """Whose services are shown where those of all namespaces may not be."""
    until: float
    """Seconds of the clock."""
    transport: Transport = field(repr=False)
    fleet: FleetReader = field(default_factory=FleetReader)
    meters: dict[str, Meter] = field(default_factory=lambda: {"fleet": Meter(), "service": Meter()})
    sizing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def kube(self) -> Api:
        return Api(self.transport)

    async def close(self) -> None:
        for meter in self.meters.values():
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
        self._signing_in = asyncio.Semaphore(SIGNING_IN_AT_ONCE)

    async def admit(self, token: str, namespace: str = "") -> Session:
        """A session for a token that the API server accepts, not yet in any browser. KubeError."""
        left = self._settings.longest_session
        if (end := ends_at(token)) is not None:
            left = min(left, end - self._now())
        if left <= 0:
            raise Unauthorized("the token has expired")
        transport = Transport(self._settings.api.as_viewer(token), user_agent=f"{USER_AGENT}-ui")
        await transport.__aenter__()
        try:
            async with self._signing_in:
                found = await viewer(Api(transport))
        except BaseException:
            await transport.__aexit__(None, None, None)
            raise
        return Session(found, namespace or found.namespace, self._clock() + left, transport)

    async def cookie_for(self, session: Session) -> str:
        """The session begins; the cookie's value."""
        value = secrets.token_urlsafe(32)
        mine = [key for key, each in self._sessions.items() if each.viewer == session.viewer]
        if len(mine) >= self._settings.most_sessions_of_one:
            await self._end(mine[0])
        while len(self._sessions) >= self._settings.most_sessions:
            await self._end(next(iter(self._sessions)))
        self._sessions[_key(value)] = session
        return value

    async def code_for(self, session: Session) -> str:
        """What a browser may begin the session with, once."""
        await self._drop_codes()
        mine = [key for key, (_, each) in self._codes.items() if each.viewer == session.viewer]
        if len(mine) >= MOST_CODES_OF_ONE or len(self._codes) >= MOST_CODES:
            _, oldest = self._codes.pop(mine[0] if mine else next(iter(self._codes)))
            await oldest.close()
        code = secrets.token_urlsafe(24)
        self._codes[_key(code)] = (self._clock() + CODE_SECONDS, session)
        return code

    async def redeem(self, code: str) -> Session | None:
        """The session of a code; None for one that was used, is too old, or never was."""
        await self._drop_codes()
        _, session = self._codes.pop(_key(code), (0.0, None))
        return session

    async def find(self, cookie: str | None) -> Session | None:
        """The session of a cookie; one that is over ends here."""
        if not cookie:
            return None
        key = _key(cookie)
        session = self._sessions.get(key)
        if session is not None and self._clock() >= session.until:
            await self._end(key)
            return None
        return session

    async def end(self, cookie: str | None) -> None:
        if cookie:
            await self._end(_key(cookie))

    async def close(self) -> None:
        for session in (*self._sessions.values(), *(session for _, session in self._codes.values())):
            await session.close()
        self._sessions.clear()
        self._codes.clear()

    def __len__(self) -> int:
        return len(self._sessions)

    async def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    async def _drop_codes(self) -> None:
        over = [key for key, (until, _) in self._codes.items() if self._clock() >= until]
        for key in over:
            _, session = self._codes.pop(key)
            await session.close()


def _key(value: str) -> bytes:
    return sha256(value.encode(errors="surrogatepass")).digest()
