"""Serves /healthz, /readyz and /metrics, from the stage of the process: it acts, or would as soon as it gets the Lease.

/metrics may require a bearer token that the API server accepts, of a user who may `get` that path. As in
controller-runtime's WithAuthenticationAndAuthorization: a TokenReview identifies the user, a SubjectAccessReview checks
the path. Results are cached for a bounded time and number of tokens, and few reviews run at a time, so that invalid
tokens cannot flood the API server.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import ssl
import time
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # CPython's own reader of certificates, not in typeshed
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from kubeloop.errors import ConfigError, KubeError
from kubeloop.informer import SyncState
from kubeloop.resources import Resource
from kubeloop.transport import Transport

TOKEN_REVIEW = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEW = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview")

ALLOWED_SECONDS, REFUSED_SECONDS = 60.0, 10.0
"""Seconds that a result is cached. A revoked permission takes effect after the first at the latest."""
CACHE_SIZE = 64
"""Accepted tokens in the cache; refused ones have as many entries of their own."""
CONCURRENT_REVIEWS, MAX_WAITING = 2, 16
"""Concurrent reviews, and tokens that may wait for one; further tokens get 429."""
REVIEW_TIMEOUT = 5.0


class Refusal(NamedTuple):
    status: int
    text: str


Guard = Callable[[str | None], Awaitable[Refusal | None]]
"""Takes the Authorization header of a request; returns None where access is granted."""

NO_TOKEN = Refusal(401, "send a bearer token of the cluster: Authorization: Bearer TOKEN")
UNKNOWN_TOKEN = Refusal(401, "the cluster does not know this token")
BUSY = Refusal(429, "too many unknown tokens at a time; try again")


async def unguarded(_: str | None) -> None:
    """Grants every request."""


class Access:
    """A guard for one path."""

    def __init__(
        self, transport: Transport, path: str = "/metrics", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport, self._path, self._clock = transport, path, clock
        # Two caches, so that invalid tokens evict no valid one.
        self._allowed: OrderedDict[bytes, float] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, Refusal]] = OrderedDict()
        self._asking = asyncio.Semaphore(CONCURRENT_REVIEWS)
        self._waiting = 0
        self._failure = ""

    async def __call__(self, header: str | None) -> Refusal | None:
        kind, _, token = (header or "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return NO_TOKEN
        token_hash = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        if self._is_known(token_hash):
            return self._answer(token_hash)
        if self._waiting >= MAX_WAITING and token_hash not in self._allowed:
            return BUSY
        self._waiting += 1
        try:
            async with self._asking:
                # Another request may have received the result meanwhile.
                return (
                    self._answer(token_hash)
                    if self._is_known(token_hash)
                    else await self._ask(token_hash, token.strip())
                )
        finally:
            self._waiting -= 1

    def _is_known(self, token_hash: bytes) -> bool:
        until = self._allowed.get(token_hash) or self._refused.get(token_hash, (0.0, None))[0]
        return self._clock() < until

    def _answer(self, token_hash: bytes) -> Refusal | None:
        return None if token_hash in self._allowed else self._refused[token_hash][1]

    async def _ask(self, token_hash: bytes, token: str) -> Refusal | None:
        try:
            answer = await self._review(token)
        except KubeError as error:
            if str(error) != self._failure:
                logger.warning("cannot find out who may read %s: %s", self._path, error)
            self._failure = str(error)
            return Refusal(503, "the API server cannot be asked whose token this is; see the operator's log")
        self._failure = ""
        self._allowed.pop(token_hash, None)
        self._refused.pop(token_hash, None)
        if answer is None:
            self._allowed[token_hash] = self._clock() + ALLOWED_SECONDS
        else:
            self._refused[token_hash] = (self._clock() + REFUSED_SECONDS, answer)
        for kept in (self._allowed, self._refused):
            while len(kept) > CACHE_SIZE:
                kept.popitem(last=False)
        return answer

    async def _review(self, token: str) -> Refusal | None:
        status = await self._create(TOKEN_REVIEW, {"token": token})
        user: Mapping[str, Any] = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return UNKNOWN_TOKEN
        spec = {
            "user": user["username"],
            "uid": user.get("uid") or "",
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        if (await self._create(ACCESS_REVIEW, spec)).get("allowed") is True:
            return None
        return Refusal(403, f"{user['username']} may not get {self._path}: grant it by a role with that nonResourceURL")

    async def _create(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        made = await self._transport.request("create", resource, resource.path(None), body=body, timeout=REVIEW_TIMEOUT)
        return made.get("status") or {}


# The certificate for /metrics, from a mounted Secret: tls.crt and tls.key.

logger = logging.getLogger(__name__)

RELOAD_SECONDS = 60.0
"""Seconds between checks for a renewed certificate."""


def expires_at(certificate: Path) -> float:
    """Expiry of the first certificate in a PEM file, in Unix time; OSError or ssl.SSLError where it cannot be read."""
    return float(ssl.cert_time_to_seconds(_test_decode_cert(str(certificate))["notAfter"]))


class Certificate:
    """A server context whose new connections use the renewed certificate."""

    def __init__(self, folder: Path) -> None:
        self._certificate, self._key = folder / "tls.crt", folder / "tls.key"
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = b""
        self.expires_at = 0.0
        """Expiry of the certificate in use, in Unix time."""
        try:
            self.refresh()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read the certificate in {folder}: {error}", remedy="a Secret of type kubernetes.io/tls has it"
            ) from error

    def refresh(self) -> bool:
        """Load the files; returns whether they changed."""
        found = self._certificate.read_bytes() + self._key.read_bytes()
        if found == self._loaded:
            return False
        self.context.load_cert_chain(self._certificate, self._key)
        self.expires_at = expires_at(self._certificate)
        self._loaded = found
        return True

    async def keep_fresh(self) -> None:
        """Reload once a minute; never returns. An unreadable renewal leaves the earlier certificate in use."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                if await asyncio.to_thread(self.refresh):
                    logger.info("the certificate of /metrics was renewed")
            except (OSError, ssl.SSLError) as error:
                logger.warning("cannot read the renewed certificate of /metrics: %s", error)


Check = Callable[[], str | None]
"""Returns a problem, or None."""


class Readiness(NamedTuple):
    """State and body of /readyz."""

    is_ready: bool
    lines: tuple[str, ...] = ()
    """One problem a line, or information where ready; the operator's stage first."""

    def text(self) -> str:
        return "\n".join(("ok" if self.is_ready else "not ready", *self.lines, ""))


class PortTaken(Exception):
    """A port cannot be listened on; the message names the port, the cause and the option to change it."""


class HealthServer:
    """Answers on the event loop of the workers, so that a blocked loop fails the liveness probe."""

    def __init__(
        self,
        *,
        alive: Check,
        ready: Callable[[], Readiness],
        metrics: Callable[[], bytes],
        refresh: Callable[[], None] = lambda: None,
        health_port: int,
        metrics_port: int,
        guard: Guard = unguarded,
        metrics_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`refresh` updates the metrics; `metrics` renders them, in a thread: thousands of services take half a second
        of CPU.

        `metrics_tls` requires a separate port for the metrics: the kubelet's probes use plain HTTP.
        """
        self._alive = alive
        self._ready = ready
        self._metrics, self._refresh = metrics, refresh
        self._ports = (health_port, metrics_port)
        self._guard, self._metrics_tls = guard, metrics_tls
        self._rendering = asyncio.Lock()
        """Held while a page is rendered, so that another request refreshes nothing meanwhile."""
        self._runners: list[web.AppRunner] = []

    async def start(self, host: str | None = None) -> None:
        """Listen; both ports may be the same. PortTaken where one is not available; then neither is open."""
        health_port, metrics_port = self._ports
        health = [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        metrics = [web.get("/metrics", self._exposition)]
        try:
            if health_port == metrics_port:
                await self._listen(host, health_port, health + metrics, "--health-port and --metrics-port")
            else:
                option = "--metrics-port (metrics.port in the settings file)"
                await self._listen(host, health_port, health, "--health-port (health.port in the settings file)")
                await self._listen(host, metrics_port, metrics, option, self._metrics_tls)
        except PortTaken:
            await self.stop()
            raise

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    async def _listen(
        self, host: str | None, port: int, routes: list[web.RouteDef], option: str, tls: ssl.SSLContext | None = None
    ) -> None:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        self._runners.append(runner)
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
        except (OSError, OverflowError) as error:
            raise PortTaken(f"cannot listen on port {port}: {error}. Choose another with {option}.") from error

    async def _healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._alive())

    async def _readyz(self, _: web.Request) -> web.Response:
        found = self._ready()
        # 500 and not 503: for 503 kubectl prints "the server is currently unable" instead of the text.
        return web.Response(status=200 if found.is_ready else 500, text=found.text())

    async def _exposition(self, request: web.Request) -> web.Response:
        refusal = await self._guard(request.headers.get("Authorization"))
        if refusal is not None:
            asks = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
            return web.Response(status=refusal.status, text=f"{refusal.text}\n", headers=asks)
        async with self._rendering:
            self._refresh()
            body = await asyncio.to_thread(self._metrics)
        # aiohttp accepts a charset only in an explicit header.
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=body, headers=headers)


def _verdict(wrong: str | None) -> web.Response:
    return web.Response(text="ok\n") if wrong is None else web.Response(status=503, text=f"{wrong}\n")


class Stage(enum.StrEnum):
    """In this order, each at most once."""

    STARTED = "started"
    SYNCED = "synced"
    """Its caches are up to date; another process may hold the Lease."""
    ACTING = "acting"
    STOPPING = "stopping"


class Life:
    """The stage of the process, with the answer of /readyz."""

    def __init__(self, sync: SyncState, lease_problem: Callable[[], str | None]) -> None:
        self.stage = Stage.STARTED
        """The last reached stage."""
        self._sync = sync
        self._lease_problem = lease_problem

    def reach(self, stage: Stage) -> None:
        """Enter a later stage; no effect if it is passed already."""
        if list(Stage).index(stage) > list(Stage).index(self.stage):
            self.stage = stage

    @property
    def is_acting(self) -> bool:
        """Whether services are reconciled."""
        return self.stage is Stage.ACTING

    def readiness(self) -> Readiness:
        """Ready: synced, at least one namespace without a lasting problem, and the Lease can be requested."""
        lease = self._lease_problem()
        is_ready = self.stage in (Stage.SYNCED, Stage.ACTING) and lease is None and bool(self._sync.working())
        found = [*self._sync.problems(), *([lease] if lease else [])]
        lines = [f"warning: {line}" for line in found] if is_ready else found
        return Readiness(is_ready, (f"stage: {self.stage}", *lines))
