"""Serves /healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import logging
import ssl
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # CPython's own reader of certificates, not in typeshed
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from kubeloop.access import Guard, unguarded
from kubeloop.errors import ConfigError

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
