"""The other activators: which there are, what they hold, and the port on which this one reports.

They are found by the EndpointSlices of their Service. The port also tells the operator whether a service's requests
arrive here. Plain HTTP, GET only; the chart's NetworkPolicy limits access. No content of requests is exposed.

Whether they do is tested by connections to the service's ClusterIP, as clients make them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Self

import aiohttp
import orjson
from aiohttp import web
from kubeloop.errors import KubeError
from kubeloop.health import PortTaken
from kubeloop.resources import Key, Resource
from llmservice_operator.readers.pod_port import PodPort, Unreadable
from llmservice_runtime.contract import ACTIVATOR_PATH

from llmservice_activator.answers import HeldTotal
from llmservice_activator.services import Services

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]

LIMIT_CACHE_SECONDS = 0.1
"""Seconds: of a hundred requests at once, half go to another activator."""
CACHE_SECONDS = 1.0
"""Seconds: many services are asked for at about the same time."""
PEER_TIMEOUT = 1.5
"""Seconds for a response; KEDA waits for 3 in all."""
MAX_PEER_BYTES = 4 * 2**20
"""Bytes of a response."""
MOST_PEERS = 16
"""Further ones are not asked and count as unanswered."""
MOST_SERVICES = 32_768
MOST_REQUESTS = 1_000_000
MOST_BYTES = 2**50
VERSION = 1
HELD_PATH = "/held"

_KEY = re.compile(r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)")


class PeerReader(PodPort):
    """Reads what another activator holds; an asynchronous context manager."""

    async def read(self, address: str) -> dict[Key, int]:
        """Held requests by service. Unreadable without a valid response."""
        return parsed(await self.get(address, HELD_PATH))


def exposed(held: Mapping[Key, tuple[int, int]]) -> bytes:
    """Body of HELD_PATH from requests and bytes by service."""
    services = {str(key): {"held": requests, "bytes": size} for key, (requests, size) in held.items() if requests}
    return orjson.dumps({"version": VERSION, "services": services})


def parsed(body: bytes) -> dict[Key, int]:
    """Requests by service, from 1 to MOST_REQUESTS each. Unreadable for an invalid body."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        answer = None
    services = answer.get("services") if isinstance(answer, dict) and answer.get("version") == VERSION else None
    if not isinstance(services, dict) or len(services) > MOST_SERVICES:
        raise Unreadable("its answer is not that of an activator", is_invalid=True)
    found: dict[Key, int] = {}
    for name, value in services.items():
        key = _KEY.fullmatch(name)
        if key is None or not isinstance(value, dict):
            raise Unreadable("its answer names no services", is_invalid=True)
        _count(value.get("bytes"), 0, MOST_BYTES)
        found[Key(key[1], key[2])] = _count(value.get("held"), 1, MOST_REQUESTS)
    return found


def _count(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Unreadable("its answer has no valid numbers", is_invalid=True)
    return value


@dataclass(frozen=True, slots=True)
class OtherActivator:
    """An activator in the EndpointSlices."""

    address: str
    is_ready: bool
    """One that is not ready may be stopping, and holds requests until then."""


class OtherActivators:
    """The activators, from a watch. Its methods do not raise."""

    def __init__(
        self,
        read: Callable[[str], Awaitable[dict[Key, int]]],
        *,
        own_name: str,
        own_address: str,
        is_watched: bool = True,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._own, self._changed, self._clock = read, {own_name, own_address} - {""}, changed, clock
        self._is_known = not is_watched
        """Whether they were listed."""
        self._slices: dict[str, dict[str, OtherActivator]] = {}
        self._peers: dict[str, OtherActivator] = {}
        self._problem = ""
        self._latest: tuple[float, Mapping[Key, int], int] = (float("-inf"), MappingProxyType({}), 0)
        self._pending: asyncio.Task[None] | None = None

    @property
    def activators(self) -> int:
        """Number of activators that answer or start to, including this one."""
        return 1 + sum(peer.is_ready for peer in self._peers.values())

    async def held(self, key: Key, max_age: float = CACHE_SECONDS) -> HeldTotal:
        """Requests of a service that the others hold, at most `max_age` seconds old."""
        if self._peers and self._clock() - self._latest[0] >= max_age:
            if self._pending is None:
                self._pending = asyncio.create_task(self._ask())
                self._pending.add_done_callback(self._done)
            await asyncio.shield(self._pending)
        if not self._peers:
            return HeldTotal(0, int(not self._is_known))
        return HeldTotal(self._latest[1].get(key, 0), self._latest[2])

    def _done(self, task: asyncio.Task[None]) -> None:
        self._pending = None
        if not task.cancelled():
            task.exception()  # each caller gets it

    async def _ask(self) -> None:
        peers = list(self._peers.values())
        asked = peers[:MOST_PEERS]
        answers = await asyncio.gather(*(self._one(peer) for peer in asked))
        found: dict[Key, int] = {}
        for answer in answers:
            for key, requests in (answer or {}).items():
                found[key] = found.get(key, 0) + requests
        silent = sum(answer is None and peer.is_ready for peer, answer in zip(asked, answers, strict=True))
        self._latest = self._clock(), found, silent + len(peers) - len(asked)

    async def _one(self, peer: OtherActivator) -> dict[Key, int] | None:
        try:
            return await self._read(peer.address)
        except Unreadable as unreadable:
            logger.info("what activator %s holds is not known: %s", peer.address, unreadable)
            return None

    def report(self, error: KubeError | None) -> None:
        """Result of an attempt to watch; None: the watch runs."""
        problem = "" if error is None else " ".join(str(error).split())
        if problem and problem != self._problem:
            logger.warning("the other activators cannot be watched: %s", problem)
        self._problem = problem

    def updated(self, resource: Resource, obj: Json) -> None:
        self._slices[obj["metadata"]["name"]] = endpoints_of(obj)
        self._recount()

    def deleted(self, resource: Resource, obj: Json) -> None:
        self._slices.pop(obj["metadata"]["name"], None)
        self._recount()

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        self._is_known = True
        known = {name for _, name in uids}
        self._slices = {name: found for name, found in self._slices.items() if name in known}
        self._recount()

    def _recount(self) -> None:
        before = self.activators
        merged = {name: peer for found in self._slices.values() for name, peer in found.items()}
        self._peers = {
            name: peer for name, peer in merged.items() if name not in self._own and peer.address not in self._own
        }
        if self.activators != before:
            self._changed()


def endpoints_of(obj: Json) -> dict[str, OtherActivator]:
    """The activators of a slice by name: addresses of both families belong to one."""
    found: dict[str, OtherActivator] = {}
    for endpoint in obj.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        for text in (endpoint.get("addresses") or ())[:1]:
            try:
                address = str(ipaddress.ip_address(str(text)[:64]))
            except ValueError:
                continue
            name = (endpoint.get("targetRef") or {}).get("name") or address
            # Kubernetes: an absent `ready` counts as true.
            found[str(name)] = OtherActivator(address, conditions.get("ready") is not False)
    return found


SERVICE_PATH = "/services/{namespace}/{name}"
LARGEST_LINE = 2048
"""Bytes of a request line and of each header."""
LONGEST_PROBLEM = 512
"""Characters."""
LONGEST_UID = 64


class InternalServer:
    """The HTTP server of this port, on the process's event loop."""

    def __init__(
        self,
        services: Services,
        *,
        held: Callable[[], Mapping[Key, tuple[int, int]]],
        is_listening: Callable[[str, int], bool],
        leads_here: Callable[[Key], bool],
        is_reached: Callable[[Key, str, int], Awaitable[bool]],
        problem: Callable[[Key], str],
        asked: Callable[[Key], None],
    ) -> None:
        """`held`: requests and bytes by service. `leads_here`: whether a Service may lead here. `asked`: called with
        each service in a request."""
        self._services, self._held, self._problem, self._asked = services, held, problem, asked
        self._is_listening, self._leads_here, self._is_reached = is_listening, leads_here, is_reached
        self._runner: web.AppRunner | None = None

    async def start(self, port: int) -> None:
        """Listen; PortTaken."""
        app = web.Application()
        # Without HEAD.
        app.router.add_get(HELD_PATH, self._all_held, allow_head=False)
        app.router.add_get(SERVICE_PATH, self._service, allow_head=False)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.2, max_line_size=LARGEST_LINE, max_field_size=LARGEST_LINE
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, None, port).start()
        except (OSError, OverflowError) as error:
            await self.stop()
            raise PortTaken(f"cannot listen on port {port}: {error}. Choose another with --internal-port.") from error

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _all_held(self, _: web.Request) -> web.Response:
        return web.Response(body=exposed(self._held()), content_type="application/json")

    async def _service(self, request: web.Request) -> web.Response:
        key = Key(request.match_info["namespace"], request.match_info["name"])
        uid, port = request.query.get("uid", "")[:LONGEST_UID], request.query.get("port", "")
        if not (port.isascii() and port.isdecimal() and len(port) <= 5):
            return web.json_response({"error": "port is no number"}, status=400)
        service = self._services.find(key)
        if service is None or service.holding is None or service.uid != uid:
            return web.json_response({"error": "there is no such service that may be at zero"}, status=404)
        self._asked(key)
        # The operator points EndpointSlices at activators that listen: one with outdated watches would refuse requests.
        is_listening = self._is_listening(uid, int(port)) and self._leads_here(key)
        answer = {
            "version": VERSION,
            "listening": is_listening,
            "reachable": is_listening and await self._is_reached(key, uid, service.holding.service_port),
            "problem": self._problem(key)[:LONGEST_PROBLEM],
            "held": self._held().get(key, (0, 0))[0],
        }
        return web.json_response(answer)


REACHABLE_SECONDS = 2.0
"""Seconds that a result is cached."""
ATTEMPTS, CONCURRENT_ATTEMPTS = 8, 4
"""Connections per test: one of several may go to a pod that still serves."""
ATTEMPT_SECONDS = 0.7
"""Seconds for each connection."""
MAX_BYTES = 1024
MAX_CACHED = 4096
"""Cached results."""
MAX_CONNECTIONS = 64
"""Concurrent connections over all services."""


def url_of(key: Key, port: int) -> str:
    return f"http://{key.name}.{key.namespace}.svc:{port}"


class Reachability:
    """Tests over its own connections; an asynchronous context manager."""

    def __init__(self, url: Callable[[Key, int], str] = url_of, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._session: aiohttp.ClientSession | None = None
        self._known: dict[tuple[Key, str, int], tuple[float, asyncio.Task[bool]]] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Names are resolved each time: a Service may be recreated.
            connector=aiohttp.TCPConnector(force_close=True, limit=MAX_CONNECTIONS, use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=ATTEMPT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, task in self._known.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._known.values()), return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def is_reached(self, key: Key, uid: str, port: int) -> bool:
        """Whether an activator's listener for this uid answers behind the Service's port."""
        known, now = self._known.get((key, uid, port)), self._clock()
        if known is None or now - known[0] >= REACHABLE_SECONDS:
            self._known = {each: found for each, found in self._known.items() if now - found[0] < REACHABLE_SECONDS}
            if len(self._known) >= MAX_CACHED:
                return False
            known = self._known[key, uid, port] = now, asyncio.create_task(self._ask(self._url(key, port), uid))
        return await asyncio.shield(known[1])

    async def _ask(self, url: str, uid: str) -> bool:
        for _ in range(ATTEMPTS // CONCURRENT_ATTEMPTS):
            if any(await asyncio.gather(*(self._has_uid(url, uid) for _ in range(CONCURRENT_ATTEMPTS)))):
                return True
        return False

    async def _has_uid(self, url: str, uid: str) -> bool:
        if self._session is None:
            raise RuntimeError("it is not open: use `async with`")
        try:
            async with self._session.get(url + ACTIVATOR_PATH, allow_redirects=False) as response:
                return response.status == 200 and uid_of(await response.content.read(MAX_BYTES)) == uid
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
            return False


def uid_of(body: bytes) -> str | None:
    """The uid in a listener's response at ACTIVATOR_PATH; None for other responses."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return None
    uid = answer.get("uid") if isinstance(answer, dict) else None
    return uid if isinstance(uid, str) else None
