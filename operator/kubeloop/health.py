"""What the kubelet and Prometheus ask: /healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import logging
import ssl
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # CPython's own reader of certificates, not in typeshed
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from kubeloop.access import Guard, open_to_all
from kubeloop.errors import ConfigError

# The certificate that /metrics is served with, from a folder as a Secret is mounted: tls.crt and tls.key.

logger = logging.getLogger(__name__)

LOOK_AGAIN = 60.0
"""Seconds between looks for a renewed certificate."""


def expires_at(certificate: Path) -> float:
    """When the first certificate of a PEM file ends, in Unix time; OSError or ssl.SSLError where it cannot be read."""
    return float(ssl.cert_time_to_seconds(_test_decode_cert(str(certificate))["notAfter"]))


class Certificate:
    """A context for a server; connections that begin after a renewal get the new certificate."""

    def __init__(self, folder: Path) -> None:
        self._certificate, self._key = folder / "tls.crt", folder / "tls.key"
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = b""
        self.expires_at = 0.0
        """When the certificate in use ends, in Unix time."""
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
        """Reload it once a minute; never returns. Where a renewal cannot be read, the earlier one stays in use."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                if await asyncio.to_thread(self.refresh):
                    logger.info("the certificate of /metrics was renewed")
            except (OSError, ssl.SSLError) as error:
                logger.warning("cannot read the renewed certificate of /metrics: %s", error)


Check = Callable[[], str | None]
"""What is wrong, or None."""


class Readiness(NamedTuple):
    """What /readyz answers."""

    is_ready: bool
    lines: tuple[str, ...] = ()
    """What is missing, one problem a line, or what is worth knowing where it is ready; the operator's stage first."""

    def text(self) -> str:
        """The body of the answer."""
        return "\n".join(("ok" if self.is_ready else "not ready", *self.lines, ""))


class PortTaken(Exception):
    """A port cannot be listened on; the message says which, why, and how to choose another."""


class HealthServer:
    """Answers from the same event loop that does the work: when that is blocked, so are the answers."""

    def __init__(
        self,
        *,
        alive: Check,
        ready: Callable[[], Readiness],
        metrics: Callable[[], bytes],
        refresh: Callable[[], None] = lambda: None,
        health_port: int,
        metrics_port: int,
        guard: Guard = open_to_all,
        metrics_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`refresh` brings the metrics up to date; `metrics` renders them, in a thread: thousands of services take half
        a second of CPU, in which the event loop goes on.

        `metrics_tls` needs a port of its own for the metrics: the kubelet's probes speak plain HTTP.
        """
        self._alive = alive
        self._ready = ready
        self._metrics, self._refresh = metrics, refresh
        self._ports = (health_port, metrics_port)
        self._guard, self._metrics_tls = guard, metrics_tls
        self._rendering = asyncio.Lock()
        """What one request refreshes is not changed while the page of another is rendered."""
        self._runners: list[web.AppRunner] = []

    async def start(self, host: str | None = None) -> None:
        """Listen; both ports may be the same. PortTaken where one cannot be had, and then none is open."""
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
        """Stop listening."""
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
        # Not 503, of which kubectl says "the server is currently unable" in the place of the text.
        return web.Response(status=200 if found.is_ready else 500, text=found.text())

    async def _exposition(self, request: web.Request) -> web.Response:
        refusal = await self._guard(request.headers.get("Authorization"))
        if refusal is not None:
            asks = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
            return web.Response(status=refusal.status, text=f"{refusal.text}\n", headers=asks)
        async with self._rendering:
            self._refresh()
            body = await asyncio.to_thread(self._metrics)
        # aiohttp takes a charset only in a header of one's own.
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=body, headers=headers)


def _verdict(wrong: str | None) -> web.Response:
    return web.Response(text="ok\n") if wrong is None else web.Response(status=503, text=f"{wrong}\n")
