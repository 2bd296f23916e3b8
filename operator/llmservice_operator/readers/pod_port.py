"""GET requests to the port of a supervisor (`/state`, `/metrics`) or of an activator (whether it can hold a service's
requests).

Pods are untrusted: size, time and form of a response are bounded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
from kubeloop.resources import Key
from llmservice_api.constants import OPERATOR
from llmservice_api.holding import INTERNAL_PORT, METHOD, PATH, HoldingReport, LastUse
from llmservice_runtime.bounded_json import Reader, Refused, parse
from llmservice_runtime.contract import (
    LAST_REQUEST,
    METRICS_PATH,
    REQUESTS_BEGUN,
    REQUESTS_IN_FLIGHT,
    STATE_PATH,
    STATE_PORT,
    OtherVersion,
    State,
)

TIMEOUT = 2.0
LIMIT = 64 * 1024


class Unreadable(Exception):
    """A pod gave no valid response; equal causes have equal messages."""

    def __init__(self, why: str, *, is_invalid: bool = False) -> None:
        super().__init__(why)
        self.is_invalid = is_invalid
        """There was a response, which is not a supervisor's."""


class PodPort:
    """Connections to pods; an asynchronous context manager. None is kept open: a pod is asked every few seconds at
    most."""

    def __init__(
        self,
        *,
        port: int = STATE_PORT,
        timeout: float = TIMEOUT,
        limit: int = LIMIT,
        connections: int = 0,
        of: str = "a supervisor",
    ) -> None:
        """`timeout` in seconds, `limit` in bytes of a body, `connections` at once (0: unlimited); `of`: the server, for
        messages."""
        self.port, self._timeout, self._limit, self._connections = port, timeout, limit, connections
        self._of = of
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": OPERATOR, "Accept-Encoding": "identity"},
            # A few compressed bytes may become gigabytes; supervisors do not compress.
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, address: str, path: str) -> bytes:
        """The body of a 200 response from the pod at an IP address. Unreadable otherwise, and beyond the limit."""
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


class StateReader(PodPort):
    """Reads states of supervisors; an asynchronous context manager."""

    async def read(self, address: str) -> State:
        """GET /state of the pod at an IP address. Unreadable without a valid response."""
        return _parsed(await self.get(address, STATE_PATH), self.port)


def _parsed(body: bytes, port: int) -> State:
    """The state, which goes into a status and metrics: `State.read` refuses invalid values."""
    try:
        return State.read(body.decode())
    except UnicodeDecodeError:
        why = "it is not valid Unicode"
    except OtherVersion:
        raise Unreadable("its supervisor is of another version") from None
    except Refused as refused:
        why = str(refused)
    raise Unreadable(f"what its port {port} answers is no state: {why}", is_invalid=True)


MOST_REQUESTS = 9_999_999
"""In flight in one pod; a supervisor reports no more."""
MAX_STARTED = 999_999_999_999_999
"""As many digits as the supervisor writes."""

_LAST = re.compile(f'^{LAST_REQUEST}{{method="({METHOD})",path="({PATH})"}} ([0-9]{{1,15}})$'.encode(), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Requests:
    in_flight: int
    """Including waiting ones; 0 to MOST_REQUESTS."""
    started: int | None
    """Since the container's start, 0 to MAX_STARTED; None: the pod's version does not count them."""
    last: LastUse | None = None
    """The last request; None: none came, or unknown."""


class RequestsReader(PodPort):
    """Reads request counts of pods; an asynchronous context manager."""

    async def read(self, address: str) -> Requests:
        """Counts of the pod at an address. Unreadable without a valid response."""
        return parsed_requests(await self.get(address, METRICS_PATH), self.port)


def parsed_requests(body: bytes, port: int) -> Requests:
    """The samples of a supervisor: `NAME VALUE`, each once and without labels. Unreadable otherwise."""
    in_flight = _value(body, REQUESTS_IN_FLIGHT, MOST_REQUESTS, port)
    if in_flight is None:
        raise _unreadable(REQUESTS_IN_FLIGHT, port)
    return Requests(in_flight, _value(body, REQUESTS_BEGUN, MAX_STARTED, port), _last(body))


def _last(body: bytes) -> LastUse | None:
    """Informational only: None for anything that a supervisor does not write."""
    found = _LAST.findall(body)
    if len(found) != 1:
        return None
    method, path, seconds = found[0]
    return LastUse.parsed(int(seconds), method.decode(), path.decode())


def _value(body: bytes, name: str, most: int, port: int) -> int | None:
    """None without a sample of this name."""
    samples = re.findall(rb"^%s(?=[ {\t\r]|$)([^\n]*)$" % name.encode(), body, re.MULTILINE)
    if not samples:
        return None
    value = re.fullmatch(rb" ([0-9]{1,15})", samples[0]) if len(samples) == 1 else None
    if value is None or int(value[1]) > most:
        raise _unreadable(name, port)
    return int(value[1])


def _unreadable(name: str, port: int) -> Unreadable:
    return Unreadable(f"what its port {port} answers has no single integer {name}", is_invalid=True)


VERSION = 1
SILENT_SECONDS = 5.0
"""Seconds for which an activator without a response about one service is not asked about others: each question would
occupy a worker for seconds, and all services at zero ask."""
LARGEST_REPORT = 4096
LONGEST_PROBLEM = 512
_DEEPEST, _MOST_ITEMS = 3, 32


class ActivatorReader(PodPort):
    """Reads reports of activators; an asynchronous context manager."""

    def __init__(self, *, port: int = INTERNAL_PORT, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(port=port, limit=LARGEST_REPORT, of="an activator")
        self._clock = clock
        self._silent: dict[str, tuple[float, str]] = {}
        """By address: until when, and why, it is not asked."""

    async def read(self, address: str, key: Key, uid: str, port: int) -> HoldingReport:
        """The report about the service with this uid, on this port. Unreadable without a valid response."""
        now = self._clock()
        self._silent = {each: silent for each, silent in self._silent.items() if silent[0] > now}
        if address in self._silent:
            raise Unreadable(self._silent[address][1])
        where = "/".join(quote(name, safe="") for name in key)
        try:
            body = await self.get(address, f"/services/{where}?uid={quote(uid, safe='')}&port={port}")
        except Unreadable as unreadable:
            if not unreadable.is_invalid:
                self._silent[address] = self._clock() + SILENT_SECONDS, str(unreadable)
            raise
        return parsed_report(body, self.port)


def parsed_report(body: bytes, port: int) -> HoldingReport:
    """The report in a JSON body; other fields are ignored. Unreadable otherwise."""
    try:
        report = Reader(parse(body, LARGEST_REPORT, _DEEPEST, _MOST_ITEMS), "the report")
        if report.integer("version") != VERSION:
            raise Refused("it is of another version")
        return HoldingReport(
            is_listening=report.flag("listening"),
            is_reachable=report.flag("reachable"),
            problem=" ".join(report.text("problem", LONGEST_PROBLEM, "").split()),
        )
    except Refused as refused:
        raise Unreadable(f"what its port {port} answers is no report: {refused}", is_invalid=True) from None
