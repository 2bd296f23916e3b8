"""Asks a pod's supervisor how it is doing. Pods are strangers: what they answer is short, soon there, and only read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from types import TracebackType
from typing import Self

import aiohttp
from llmservice_runtime.contract import STATE_PATH, STATE_PORT, State

TIMEOUT = 2.0
LIMIT = 64 * 1024
ADAPTERS = 64
WORD = 1024
GREATEST = 2**53


class Unreadable(Exception):
    """There is no state to be had of this pod; says why, in words that stay the same while the cause does."""


class StateReader:
    """Connections to pods; use it as a context manager. None is kept open: a pod is asked every few seconds at most."""

    def __init__(self, *, port: int = STATE_PORT, timeout: float = TIMEOUT, limit: int = LIMIT) -> None:
        self._port, self._timeout, self._limit = port, timeout, limit
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "llmservice-operator"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(self, address: str) -> State:
        """GET /state of the pod at an IP address. Unreadable where there is no answer, or one that is none."""
        if self._session is None:
            raise RuntimeError("the reader is not open: use `async with`")
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{self._port}{STATE_PATH}", allow_redirects=False) as response:
                body = await response.content.read(self._limit + 1)
                while len(body) <= self._limit and (more := await response.content.read(self._limit)):
                    body += more
                code = response.status
        except TimeoutError:
            raise Unreadable(f"its port {self._port} does not answer; a NetworkPolicy may be in the way") from None
        except aiohttp.ClientError as error:
            raise Unreadable(f"its port {self._port} cannot be reached ({type(error).__name__})") from None
        if code != 200 or len(body) > self._limit:
            raise Unreadable(f"its port {self._port} is not that of a supervisor")
        state = _parsed(body)
        if state is None:
            raise Unreadable("its supervisor is of another version")
        return state


def _parsed(body: bytes) -> State | None:
    """None where it is no state, or says things that no supervisor says: what is read here ends in a status."""
    try:
        state = State.from_json(body.decode(errors="replace"))
    except RecursionError:
        return None
    return state if state is not None and all(_is_sane(*fact) for fact in _facts(state)) else None


def _facts(state: State) -> Iterator[tuple[object, str]]:
    """Each value that JSON leaves open, with the type that it is declared with."""
    parts = [state.measured, *([state.transfer] if state.transfer else ())]
    for part in parts:
        yield from ((getattr(part, each.name), str(each.type)) for each in fields(part))
    yield len(state.adapters) <= ADAPTERS, "bool"


def _is_sane(value: object, declared: str) -> bool:
    if declared == "bool":
        return value is True
    if value is None:
        return "None" in declared
    if isinstance(value, str):
        return declared.startswith(("str", "TransferStep")) and len(value) <= WORD
    kinds = (int, float) if declared.startswith("float") else (int,)
    is_number = isinstance(value, kinds) and not isinstance(value, bool) and not declared.startswith("str")
    return is_number and isinstance(value, int | float) and 0 <= value < GREATEST
