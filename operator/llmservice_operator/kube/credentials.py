"""Where the API server is and who we are: in a pod, or from a kubeconfig."""

from __future__ import annotations

import asyncio
import base64
import datetime
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError
from .exec_login import ExecToken, Program
from .single_flight import SingleFlight

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE = 60.0


class TokenSource:
    """A bearer token; one from a file is read again every minute, since the kubelet renews it.

    The file is read by a thread, for a disk may be slow, and nobody waits for it while there is a token.
    """

    def __init__(self, token: str | None, path: Path | None, clock: Callable[[], float]) -> None:
        self._token = token
        self._path = path
        self._clock = clock
        self._read_at: float | None = None
        self._flight = SingleFlight(self._fetch)

    async def __call__(self) -> str | None:
        """The token to send now."""
        if self._path is not None:
            if self._read_at is None:
                await self._flight.wait()
            elif self._clock() - self._read_at >= TOKEN_MAX_AGE:
                self._flight.start()
        return self._token

    async def _fetch(self) -> None:
        now = self._clock()
        if self._path is not None:
            try:
                self._token = (await asyncio.to_thread(self._path.read_text)).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read the token: {error}") from error
            self._read_at = now

    def forget(self) -> None:
        """Have the file read again at the next use: the server did not accept what we sent."""
        self._read_at = None


@dataclass(frozen=True)
class Credentials:
    """All that a client needs to know about one cluster."""

    server: str
    namespace: str
    token: TokenSource | ExecToken
    ca: bytes | None = None
    client_certificate: bytes | None = field(default=None, repr=False)
    client_key: bytes | None = field(default=None, repr=False)
    insecure: bool = False

    def ssl_context(self) -> ssl.SSLContext | None:
        """For https servers; None for plain http (kubectl proxy, tests)."""
        if not self.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cadata=self.ca.decode() if self.ca else None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate and self.client_key:
            # OpenSSL reads key pairs from files only.
            with tempfile.NamedTemporaryFile(prefix="llmservice-") as pair:
                pair.write(self.client_certificate + b"\n" + self.client_key)
                pair.flush()
                context.load_cert_chain(pair.name)
        return context


def load(
    *,
    clock: Callable[[], float],
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Credentials:
    """A named kubeconfig wins; else the pod's service account; else $KUBECONFIG or ~/.kube/config."""
    if kubeconfig is None and context is None and (service_account / "token").exists():
        return in_cluster(clock=clock, environ=environ, service_account=service_account)
    found = kubeconfig or environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return from_kubeconfig(Path(found.split(os.pathsep)[0]), context=context, clock=clock)


def in_cluster(*, clock: Callable[[], float], environ: Mapping[str, str], service_account: Path) -> Credentials:
    """What the kubelet mounts into every pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            "KUBERNETES_SERVICE_HOST is not set although there is a service account",
            remedy="run in a pod, or name a kubeconfig with --kubeconfig",
        )
    ca = service_account / "ca.crt"
    return Credentials(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(service_account / "namespace").read_text().strip(),
        token=TokenSource(None, service_account / "token", clock),
        ca=ca.read_bytes() if ca.exists() else None,
    )


def from_kubeconfig(path: Path, *, context: str | None, clock: Callable[[], float]) -> Credentials:
    """One context of a kubeconfig: client certificate, token, token file, or a program that gives them."""
    try:
        config = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"cannot read the kubeconfig {path}: {error}", remedy="name one with --kubeconfig or $KUBECONFIG"
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is no kubeconfig", remedy="name one with --kubeconfig or $KUBECONFIG")
    chosen = context or config.get("current-context")
    if not chosen:
        raise ConfigError(f"{path} has no current-context", remedy="name one with --context")
    scope = _named(config, "contexts", "context", chosen, path)
    cluster = _named(config, "clusters", "cluster", scope.get("cluster"), path)
    user = _named(config, "users", "user", scope.get("user"), path) if scope.get("user") else {}
    if unsupported := {"auth-provider", "username"} & user.keys():
        raise ConfigError(
            f"user {scope['user']!r} of {path} authenticates by {', '.join(sorted(unsupported))}, not supported here",
            remedy="use a kubeconfig with a token or a client certificate (kubectl create token)",
        )
    program = Program(user["exec"], path) if user.get("exec") else None
    login = program.run() if program else None
    return Credentials(
        server=str(cluster["server"]).rstrip("/"),
        namespace=str(scope.get("namespace") or "default"),
        token=ExecToken(program.run_beside, _utc_now, login) if program and login else _token(user, path, clock),
        ca=_material(cluster, "certificate-authority", path),
        client_certificate=login.certificate if login else _material(user, "client-certificate", path),
        client_key=login.key if login else _material(user, "client-key", path),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
    )


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _token(user: Mapping[str, Any], path: Path, clock: Callable[[], float]) -> TokenSource:
    token_file = user.get("tokenFile")
    return TokenSource(user.get("token"), path.parent / token_file if token_file else None, clock)


def _named(config: Mapping[str, Any], section: str, inner: str, name: Any, path: Path) -> Mapping[str, Any]:
    for entry in config.get(section) or ():
        if entry.get("name") == name:
            return entry.get(inner) or {}
    names = ", ".join(str(entry.get("name")) for entry in config.get(section) or ()) or "none"
    raise ConfigError(f"{path} has no {inner} {name!r}", remedy=f"it has: {names}")


def _material(section: Mapping[str, Any], name: str, path: Path) -> bytes | None:
    """PEM bytes, inline or from a file beside the kubeconfig."""
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data)
    if file := section.get(name):
        return (path.parent / str(file)).read_bytes()
    return None
