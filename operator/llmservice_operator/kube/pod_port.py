"""GET requests to the port of a supervisor or an activator.

Pods are untrusted: size, time and form of an answer are bounded.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import aiohttp
from llmservice_runtime.contract import STATE_PORT

from llmservice_operator.api.constants import OPERATOR

TIMEOUT = 2.0
LIMIT = 64 * 1024


class Unreadable(Exception):
    """A pod gave no valid answer; the message is the same while the cause is."""

    def __init__(self, why: str, *, is_invalid: bool = False) -> None:
        super().__init__(why)
        self.is_invalid = is_invalid
        """There is an answer, which is not a supervisor's."""


class PodPort:
    """Connections to pods; use it as a context manager. None is kept open: a pod is asked every few seconds at most."""

    def __init__(
        self,
        *,
        port: int = STATE_PORT,
        timeout: float = TIMEOUT,
        limit: int = LIMIT,
        connections: int = 0,
        of: str = "a supervisor",
    ) -> None:
        """`timeout` in seconds, `limit` in bytes of a body, `connections` at once (0: any number); `of`: whose port."""
        self.port, self._timeout, self._limit, self._connections = port, timeout, limit, connections
        self._of = of
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": OPERATOR, "Accept-Encoding": "identity"},
            # A few compressed bytes may become gigabytes; a supervisor compresses nothing.
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, address: str, path: str) -> bytes:
        """The body that the pod at an IP address answers with 200. Unreadable without one, or with a larger one."""
        if self._session is None:
            raise RuntimeError("the reader is not open: use `async with`")
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{self.port}{path}", allow_redirects=False) as response:
                body = await response.content.read(self._limit + 1)
                while len(body) <= self._limit and (more := await response.content.read(self._limit)):
                    body += more
                code = response.status
        except TimeoutError:
            raise Unreadable(f"its port {self.port} does not answer; a NetworkPolicy may be in the way") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreadable(f"its port {self.port} cannot be reached ({type(error).__name__})") from None
        if code != 200 or len(body) > self._limit:
            raise Unreadable(f"its port {self.port} is not that of {self._of}", is_invalid=True)
        return body
