"""Address of the API server and credentials for it, from a pod's service account or a kubeconfig.

Files are read in threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Self

from kubeloop.errors import ConfigError, KubeError

logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE = 60.0
"""Seconds after which a token file is read again: the kubelet renews it."""
RETRY_SECONDS = 5.0
"""Seconds after a failed fetch without another attempt; requests that wait get the same error."""


@dataclass(frozen=True)
class IssuedToken:
    """A bearer token and its times, in seconds since the epoch."""

    token: str | None = field(repr=False)
    renew_at: float = inf
    """From here on the next token is fetched, while this one is still used."""
    expires_at: float = inf
    """From here on it is not used any more."""


class Token:
    """The bearer token to send; `fetch` returns the next one.

    At most one fetch runs, in the background. Requests wait for it only where no valid token is left.
    """

    def __init__(
        self, first: IssuedToken, fetch: Callable[[], Awaitable[IssuedToken]], clock: Callable[[], float] = time.time
    ) -> None:
        self._issued: IssuedToken | None = first
        self._next, self._clock = fetch, clock
        self._task: asyncio.Task[None] | None = None
        self._failed_at = -inf
        self._failure: KubeError | None = None

    @classmethod
    def fixed(cls, token: str | None) -> Self:
        issued = IssuedToken(token)

        async def same() -> IssuedToken:
            return issued

        return cls(issued, same)

    async def __call__(self) -> str | None:
        """The current token; ConfigError where none can be obtained."""
        issued, now = self._issued, self._clock()
        if issued is None or now >= issued.expires_at:
            await self.renewed()
        elif now >= issued.renew_at:
            self._renew()
        return self._issued.token if self._issued is not None else None

    def forget(self) -> None:
        """Fetch another token before the next use: the server rejected this one.

        Where the fetch fails, this one is sent once more: without a token the error would look like a missing
        permission.
        """
        if self._issued is not None:
            self._issued = replace(self._issued, expires_at=-inf)

    async def renewed(self) -> None:
        """Fetch another token, or wait for the running fetch; KubeError where it fails."""
        self._renew()
        if self._task is not None:
            await asyncio.shield(asyncio.wait({self._task}))
        if self._failure is not None:
            raise self._failure

    def _renew(self) -> None:
        is_free = self._task is None or self._task.done()
        if is_free and asyncio.get_running_loop().time() - self._failed_at >= RETRY_SECONDS:
            self._task = asyncio.create_task(self._fetch(), name="refresh of credentials")

    async def _fetch(self) -> None:
        try:
            self._issued = await self._next()
            self._failure = None
        except KubeError as error:
            self._failure, self._failed_at = error, asyncio.get_running_loop().time()
            logger.warning("%s", error)


class NamedContext(ssl.SSLContext):
    """A TLS context for a certificate with another name than the server's address: `tls-server-name` of a kubeconfig.

    kopf and httpx have no setting for it.
    """

    server_name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Called by asyncio and uvloop at the start of each connection."""
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


@dataclass(frozen=True)
class Credentials:
    """Address, identity and TLS settings for one cluster."""

    server: str
    namespace: str
    token: Token
    ca: bytes | None = None
    client_certificate: bytes | None = field(default=None, repr=False)
    client_key: bytes | None = field(default=None, repr=False)
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = None
    """`proxy-url` of the kubeconfig. Proxies in the environment are not used."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """The context for an https server; None for plain http (kubectl proxy, tests)."""
        if not self.server.startswith("https:"):
            return None
        context = NamedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = self.tls_server_name
        if self.ca:
            context.load_verify_locations(cadata=self.ca.decode())
        else:
            context.load_default_certs()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate and self.client_key:
            # OpenSSL reads key pairs from files only.
            with tempfile.NamedTemporaryFile(prefix="kubeloop-") as pair:
                pair.write(self.client_certificate + b"\n" + self.client_key)
                pair.flush()
                context.load_cert_chain(pair.name)
        return context


async def load(
    *,
    clock: Callable[[], float] = time.time,
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Credentials:
    """A named kubeconfig, else the pod's service account, else $KUBECONFIG or ~/.kube/config."""
    if kubeconfig is None and context is None and (service_account / "token").exists():
        return await in_cluster(clock=clock, environ=environ, service_account=service_account)
    from kubeloop.kubeconfig import from_kubeconfig

    found = kubeconfig or environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return await from_kubeconfig(found, context=context, clock=clock)


async def in_cluster(*, clock: Callable[[], float], environ: Mapping[str, str], service_account: Path) -> Credentials:
    """What the kubelet mounts into every pod: three files and two variables."""

    def read(name: str) -> str:
        try:
            content = (service_account / name).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(service_account, str(error)) from error
        if not content:
            raise _unusable(service_account, f"{name} is empty")
        return content

    async def issued() -> IssuedToken:
        return IssuedToken(await asyncio.to_thread(read, "token"), renew_at=clock() + TOKEN_MAX_AGE)

    host, port = (environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        raise _unusable(service_account, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    return Credentials(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=await asyncio.to_thread(read, "namespace"),
        token=Token(await issued(), issued, clock),
        ca=(await asyncio.to_thread(read, "ca.crt")).encode(),
    )


def _unusable(service_account: Path, why: str) -> ConfigError:
    return ConfigError(
        f"cannot use the pod's service account in {service_account}: {why}",
        remedy="run in a pod with a service account, or name a kubeconfig with --kubeconfig",
    )
