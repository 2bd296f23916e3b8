"""One context of a kubeconfig, or of several merged as kubectl merges them; and logins by a program that it names.

Shapes: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ (Config),
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/ (ExecCredential).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import datetime
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubeloop.bounded_yaml import NoYaml, load
from kubeloop.credentials import TOKEN_MAX_AGE, Credentials, IssuedToken, Token
from kubeloop.errors import ConfigError

Json = Mapping[str, Any]

PLUGIN_SECONDS = 60.0
KILLED_SECONDS = 2.0
"""Seconds in which a killed program has to end."""
MOST_BYTES = 2**20
"""Of the program's output: a token and a certificate chain have some kilobytes."""
CLUSTER_CONFIG = "client.authentication.k8s.io/exec"
"""The extension of the cluster that a program with `provideClusterInfo` receives."""


@dataclass(frozen=True)
class Login:
    """A token, a client certificate, or both, from the program."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires: datetime.datetime | None = None


class Program:
    """The program of a kubeconfig's `exec`; ConfigError contains its output, or how to install it."""

    def __init__(self, given: Json, folder: Path, cluster: Json, kubeconfig: str) -> None:
        """`folder` is what its path is relative to. ConfigError, or one of _BROKEN, where `given` is no `exec`."""
        for key in ("command", "apiVersion"):
            if not given.get(key):
                why = f"exec: malformed request. missing key {key!r}"
                raise ConfigError(f"cannot read the kubeconfig {kubeconfig}: {why}", remedy=NAME_ONE)
        spec: dict[str, Any] = {"interactive": False}
        if given.get("provideClusterInfo"):
            extensions = {each.get("name"): each.get("extension") for each in cluster.get("extensions") or ()}
            spec["cluster"] = {**cluster, "config": extensions.get(CLUSTER_CONFIG)}
        # Only what may be printed goes in: the program itself asks whoever it needs to.
        info = {"apiVersion": given["apiVersion"], "kind": "ExecCredential", "spec": spec}
        variables = {str(each["name"]): str(each["value"]) for each in given.get("env") or ()}
        self._environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        command = str(given["command"])
        self._command = str(folder / command) if os.sep in command else command
        self._arguments = [str(each) for each in given.get("args") or ()]
        self._hint, self._kubeconfig = str(given.get("installHint") or "").strip(), kubeconfig

    async def run(self) -> Login:
        """Run the program. Its process group is killed on cancellation and on timeout."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._command, *self._arguments, env=self._environment, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise self._not_run(error) from error
        try:
            async with asyncio.timeout(PLUGIN_SECONDS):
                out, err = await asyncio.gather(_read_output(process.stdout), _read_output(process.stderr))
                code = await process.wait()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # Descendants outside the group may keep the output open, and asyncio waits for that too.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), KILLED_SECONDS)
            if isinstance(error, TimeoutError):
                raise self._not_run(f"no answer within {PLUGIN_SECONDS:.0f} s") from error
            raise
        if len(out) > MOST_BYTES:
            raise self._not_run(f"it prints more than {MOST_BYTES} bytes")
        return self._login(code, out, err)

    def _not_run(self, why: object) -> ConfigError:
        return ConfigError(
            f"the login program {self._command!r} of {self._kubeconfig} cannot be run: {why}",
            remedy=self._hint or "install it, or use a kubeconfig with a token or a client certificate",
        )

    def _login(self, code: int, out: bytes, err: bytes) -> Login:
        if code != 0:
            said = err.decode(errors="replace").strip()[-500:]
            raise ConfigError(
                f"the login program {self._command!r} of {self._kubeconfig} ended with {code}: {said}",
                remedy="log in with it first, as `kubectl get namespaces` would need too",
            )
        return _login(out.decode(errors="replace"), self._command)


async def _read_output(stream: asyncio.StreamReader | None) -> bytes:
    """Read to the end; keeps at most MOST_BYTES + 1 bytes."""
    kept = b""
    while stream is not None and (part := await stream.read(2**16)):
        kept += part[: MOST_BYTES + 1 - len(kept)]
    return kept


def _login(text: str, command: str) -> Login:
    try:
        status = json.loads(text)["status"]
        certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
        expires = status.get("expirationTimestamp")
        login = Login(
            token=status.get("token"),
            certificate=certificate.encode() if certificate else None,
            key=key.encode() if key else None,
            expires=datetime.datetime.fromisoformat(expires) if expires else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The output may contain a token, so neither it nor the cause that quotes it is shown.
        raise ConfigError(f"what the login program {command!r} printed is no ExecCredential") from error
    if login.token is None and login.certificate is None:
        raise ConfigError(f"the login program {command!r} gave neither a token nor a client certificate")
    return login


RENEW_BEFORE = 30.0
"""Seconds before a program's token expires at which it is renewed."""
EXPIRE_BEFORE = 5.0
"""Seconds before its expiry after which it is not sent: a running request should not outlast it."""
NAME_ONE = "name one with --kubeconfig or $KUBECONFIG"
NOT_SUPPORTED = ("auth-provider", "username", "as", "as-uid", "as-groups", "as-user-extra")
"""Keys of a user. Without impersonation requests would have rights that were to be left aside."""
_BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError)


async def from_kubeconfig(paths: str, *, context: str | None, clock: Callable[[], float]) -> Credentials:
    """`paths` as in $KUBECONFIG. Supports a client certificate, a token, a token file, or a program that supplies them.

    The files are read again when the token expires or is rejected.
    """

    async def read() -> tuple[Callable[[Token], Credentials], IssuedToken]:
        chosen = await asyncio.to_thread(_read, paths, context)
        login = Login() if chosen.program is None else await chosen.program.run()
        return await asyncio.to_thread(chosen.load, login, clock)

    async def again() -> IssuedToken:
        _, issued = await read()
        return issued

    made, issued = await read()
    return made(Token(issued, again, clock))


@dataclass(frozen=True)
class _Entry:
    """A context, cluster or user, and the folder of its file: what it names is relative to that."""

    value: Any
    folder: Path

    def file(self, key: str) -> bytes | None:
        """The content of a file."""
        name = self.value.get(key)
        return (self.folder / name).read_bytes() if name else None

    def pem(self, key: str) -> bytes | None:
        """A certificate or a key; data wins over a file."""
        data = self.value.get(f"{key}-data")
        return base64.b64decode(data) if data else self.file(key)


class _Merged:
    """Several files as kubectl merges them: the first one that sets a value wins, and an empty file sets none
    (client-go: tools/clientcmd/loader.go, `Load`). It expands no `~`."""

    def __init__(self, paths: str) -> None:
        self.paths, self.current_context = paths, ""
        self._entries: dict[str, dict[Any, _Entry]] = {"context": {}, "cluster": {}, "user": {}}
        files = [Path(path) for path in paths.split(":") if path and Path(path).exists()]
        if not files:
            raise ConfigError(f"cannot read the kubeconfig {paths}: there is no such file", remedy=NAME_ONE)
        for file in files:
            self._add(file)

    def _add(self, file: Path) -> None:
        found = load(file.read_text("utf-8"))
        config = {} if found is None else found
        self.current_context = self.current_context or config.get("current-context") or ""
        for kind, known in self._entries.items():
            for each in config.get(f"{kind}s") or ():
                # For kubectl a user that is null has no credentials.
                value = {} if kind == "user" and each.get(kind, "") is None else each.get(kind)
                known.setdefault(each["name"], _Entry(value, file.absolute().parent))

    def named(self, kind: str, name: Any) -> _Entry:
        """ConfigError where there is none, or it is no mapping."""
        known = self._entries[kind]
        if name not in known or not isinstance(known[name].value, dict):
            names = ", ".join(map(str, known)) or "none"
            raise ConfigError(f"{self.paths} has no {kind} {name!r}", remedy=f"it has: {names}")
        return known[name]


@dataclass(frozen=True)
class _Chosen:
    """One context; `program` is to be run before `load`."""

    paths: str
    namespace: str
    cluster: _Entry
    user: _Entry
    program: Program | None

    def load(self, login: Login, clock: Callable[[], float]) -> tuple[Callable[[Token], Credentials], IssuedToken]:
        """What the program answered wins over what the files have."""
        cluster, user = self.cluster, self.user
        try:
            server = cluster.value["server"].rstrip("/")
            is_tls = server.startswith("https")
            made = partial(
                Credentials,
                server,
                self.namespace,
                ca=cluster.pem("certificate-authority") if is_tls else None,
                client_certificate=login.certificate or (user.pem("client-certificate") if is_tls else None),
                client_key=login.key or (user.pem("client-key") if is_tls else None),
                insecure=bool(cluster.value.get("insecure-skip-tls-verify")),
                tls_server_name=cluster.value.get("tls-server-name"),
                proxy=cluster.value.get("proxy-url"),
            )
            return made, self._issued(login, clock)
        except _BROKEN as error:
            raise _unreadable(self.paths, error) from None

    def _issued(self, login: Login, clock: Callable[[], float]) -> IssuedToken:
        """A token's file wins over a token."""
        if login.token is not None:
            ends = inf if login.expires is None else login.expires.timestamp()
            return IssuedToken(
                login.token.strip() or None, renew_at=ends - RENEW_BEFORE, expires_at=ends - EXPIRE_BEFORE
            )
        content = self.user.file("tokenFile")
        if content is not None:
            return IssuedToken(content.decode().strip() or None, renew_at=clock() + TOKEN_MAX_AGE)
        return IssuedToken(str(self.user.value.get("token") or "").strip() or None)


def _read(paths: str, context: str | None) -> _Chosen:
    try:
        merged = _Merged(paths)
        name = context or merged.current_context
        if not name:
            raise ConfigError(f"{paths} has no current-context", remedy="name one with --context")
        scope = merged.named("context", name).value
        cluster = merged.named("cluster", scope.get("cluster"))
        if not cluster.value.get("server"):
            raise ConfigError(f"the cluster {scope.get('cluster')!r} of {paths} has no server", remedy=NAME_ONE)
        _check_proxy(cluster.value.get("proxy-url"), paths)
        user = merged.named("user", scope["user"]) if scope.get("user") else _Entry({}, Path())
        unsupported = [key for key in NOT_SUPPORTED if user.value.get(key) not in (None, "", [])]
        if unsupported:
            raise ConfigError(
                f"user {scope['user']!r} of {paths} has {', '.join(unsupported)}, not supported here",
                remedy="use a kubeconfig with a token or a client certificate (kubectl create token)",
            )
        program = None
        if user.value.get("exec") and not user.value.get("token") and not user.value.get("tokenFile"):
            program = Program(user.value["exec"], user.folder, cluster.value, paths)
        return _Chosen(paths, str(scope.get("namespace") or "default"), cluster, user, program)
    except _BROKEN as error:
        raise _unreadable(paths, error) from None


def _check_proxy(proxy: Any, paths: str) -> None:
    """Refuses a proxy address with a password: aiohttp and kopf quote the whole address in errors."""
    try:
        parts = urlsplit(proxy or "http://none")
        known = parts.scheme in ("http", "https") and not parts.password
    except (ValueError, TypeError, AttributeError):
        known = False
    if not known:
        raise ConfigError(
            f"the cluster's proxy-url in {paths} cannot be used",
            remedy="give one such as http://proxy:3128: SOCKS proxies and passwords are not supported",
        )


def _unreadable(paths: str, error: Exception) -> ConfigError:
    """Errors of other classes may quote whole users of the file, with their tokens."""
    match error:
        case NoYaml(line=int() as line):
            why = f"line {line} is no YAML"
        case OSError() | UnicodeError() | binascii.Error():
            why = str(error)
        case _:
            why = "it is no kubeconfig"
    return ConfigError(f"cannot read the kubeconfig {paths}: {why}", remedy=NAME_ONE)
