"""Credentials from one context of one or several kubeconfigs, read by `kubernetes.config`, with logins by a program.

The program is run here: the package's own code has no timeout, leaves a hanging program behind, reads any amount, and
continues without credentials after a failure. Documents:
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
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger

from kubeloop.credentials import TOKEN_MAX_AGE, Credentials, IssuedToken, Token
from kubeloop.errors import ConfigError

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
    """The program of a kubeconfig's `exec`; ConfigError contains its output, or how to install it.

    `provider` is the package's ExecProvider.
    """

    def __init__(self, provider: Any, kubeconfig: str, hint: str = "") -> None:
        spec: dict[str, Any] = {"interactive": False}
        if provider.cluster is not None:
            cluster = provider.cluster.value
            extensions = {each.get("name"): each.get("extension") for each in cluster.get("extensions") or ()}
            spec["cluster"] = {**cluster, "config": extensions.get(CLUSTER_CONFIG)}
        # Only text that may be printed: the program asks its user itself.
        info = {"apiVersion": provider.api_version, "kind": "ExecCredential", "spec": spec}
        variables = {str(name): str(value) for name, value in provider.env.items()}
        self._environment = {**variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        command, *arguments = map(str, provider.args)
        self._command = os.path.join(provider.cwd or "", command) if os.sep in command else command  # noqa: PTH118
        self._arguments, self._hint, self._kubeconfig = arguments, hint, kubeconfig

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
"""Keys of a user that are refused. The package would ask an auth-provider without checking its certificate, and ignores
impersonation: requests would have permissions that the user excluded."""
_BROKEN = (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)


async def from_kubeconfig(paths: str, *, context: str | None, clock: Callable[[], float]) -> Credentials:
    """`paths` as in $KUBECONFIG. Supports a client certificate, a token, a token file, or a program that supplies them.

    The files are read again when the token expires or is rejected.
    """

    async def read() -> tuple[_Scope, Login | None]:
        scope = await asyncio.to_thread(_read, paths, context)
        return scope, await scope.program.run() if scope.program is not None else None

    async def again() -> IssuedToken:
        scope, login = await read()
        _, issued = await asyncio.to_thread(scope.load, login, clock)
        return issued

    scope, login = await read()
    made, issued = await asyncio.to_thread(scope.load, login, clock)
    return made(Token(issued, again, clock))


@dataclass(frozen=True)
class _Scope:
    """One context. `config`, `cluster` and `user` are nodes of the package, read once and modified here."""

    paths: str
    config: Any
    context: str
    namespace: str
    cluster: Any
    user: Any
    program: Program | None

    def load(
        self, login: Login | None, clock: Callable[[], float]
    ) -> tuple[Callable[[Token], Credentials], IssuedToken]:
        """The package's result, with the program's answer in place of its own login."""
        if login is not None:
            del self.user.value["exec"]
            for key, data in (("client-certificate-data", login.certificate), ("client-key-data", login.key)):
                if data is not None:
                    self.user.value[key] = base64.b64encode(data).decode()
            if login.token is not None:
                self.user.value["token"] = login.token
        configuration = Configuration()
        # The package returns certificates as files.
        with tempfile.TemporaryDirectory(prefix="kubeloop-") as folder:
            try:
                KubeConfigLoader(self.config, self.context, temp_file_path=folder, config_base_path=None).load_and_set(
                    configuration
                )
                files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
                ca, client, secret = (Path(file).read_bytes() if file else None for file in files)
            except _BROKEN as error:
                raise _unreadable(self.paths, error) from None
        made = partial(
            Credentials,
            configuration.host,
            self.namespace,
            ca=ca,
            client_certificate=client,
            client_key=secret,
            insecure=not configuration.verify_ssl,
            tls_server_name=configuration.tls_server_name,
            proxy=self.cluster.safe_get("proxy-url"),
        )
        return made, self._issued(bearer(configuration), login, clock)

    def _issued(self, token: str | None, login: Login | None, clock: Callable[[], float]) -> IssuedToken:
        if login is not None and login.token is not None and login.expires is not None:
            ends = login.expires.timestamp()
            return IssuedToken(token, renew_at=ends - RENEW_BEFORE, expires_at=ends - EXPIRE_BEFORE)
        if self.user is not None and self.user.safe_get("tokenFile"):
            return IssuedToken(token, renew_at=clock() + TOKEN_MAX_AGE)
        return IssuedToken(token)


def bearer(configuration: Configuration) -> str | None:
    """The token in a Configuration, which stores the whole header, including the file's last newline."""
    _, _, token = configuration.api_key.get("BearerToken", "").partition(" ")
    return token.strip() or None


class _Merged(KubeConfigMerger):  # type: ignore[misc]  # the package has no types
    """Several files merged as kubectl does: the first file that sets a value wins; an empty file sets none.

    The package, and kubernetes.aio.config, uses the last current-context and refuses empty files (client-go:
    tools/clientcmd/loader.go, `Load`).
    """

    config_merged: ConfigNode | None

    def __init__(self, paths: str) -> None:
        # kubectl expands no `~`, so that another file than kubectl's would be read.
        super().__init__(os.pathsep.join(f"./{path}" if path.startswith("~") else path for path in paths.split(":")))

    def load_config(self, path: str) -> None:
        config = yaml.safe_load(Path(path).read_text("utf-8"))
        if config is None:
            config = {}
        if not isinstance(config, dict):
            raise ConfigException("it is no kubeconfig")
        if self.config_merged is None:
            self.config_merged = ConfigNode(path, {"clusters": [], "contexts": [], "users": []}, path)
        for kind in ("clusters", "contexts", "users"):
            self._merge(kind, config.get(kind) or [], path)
        chosen = self.config_merged.value.get("current-context") or config.get("current-context")
        self.config_merged.value["current-context"] = chosen
        self.config_files[path] = config


def _read(paths: str, context: str | None) -> _Scope:
    try:
        config = _Merged(paths).config
    except _BROKEN as error:
        raise _unreadable(paths, error) from None
    if config is None:
        raise ConfigError(f"cannot read the kubeconfig {paths}: there is no such file", remedy=NAME_ONE)
    chosen = context or config.safe_get("current-context")
    if not chosen:
        raise ConfigError(f"{paths} has no current-context", remedy="name one with --context")
    scope = _named(config, "context", chosen, paths)
    cluster = _named(config, "cluster", scope.safe_get("cluster"), paths)
    if not cluster.safe_get("server"):
        raise ConfigError(f"the cluster {scope.safe_get('cluster')!r} of {paths} has no server", remedy=NAME_ONE)
    _check_proxy(cluster.safe_get("proxy-url"), paths)
    user, program = None, None
    if name := scope.safe_get("user"):
        user = _named(config, "user", name, paths)
        program = _prepared(user, cluster, name, paths)
    return _Scope(paths, config, chosen, str(scope.safe_get("namespace") or "default"), cluster, user, program)


def _named(config: Any, kind: str, name: Any, paths: str) -> Any:
    """The package's node of a context, cluster or user."""
    try:
        entry = config[f"{kind}s"].get_with_name(name)
        if kind == "user" and entry.value.get("user", {}) is None:
            entry.value["user"] = {}  # kubectl takes it as a user without credentials.
        node = entry[kind]
        node.value.keys()
    except _BROKEN:
        entries = config.safe_get(f"{kind}s") or ()
        names = ", ".join(str(entry.safe_get("name")) for entry in entries) or "none"
        raise ConfigError(f"{paths} has no {kind} {name!r}", remedy=f"it has: {names}") from None
    return node


def _prepared(user: Any, cluster: Any, name: str, paths: str) -> Program | None:
    """The program to run, if any. Sets the user's files and keys as kubectl reads them, which differs from the
    package."""
    unsupported = [key for key in NOT_SUPPORTED if user.value.get(key) not in (None, "", [])]
    if unsupported:
        raise ConfigError(
            f"user {name!r} of {paths} has {', '.join(unsupported)}, not supported here",
            remedy="use a kubeconfig with a token or a client certificate (kubectl create token)",
        )
    folder = Path(user.path).absolute().parent
    for key in ("client-certificate", "client-key"):
        if file := user.value.get(key):
            # The package looks for them beside the file that has the cluster.
            user.value[key] = str(folder / file)
    if user.value.get("tokenFile"):
        user.value.pop("token", None)
    if not user.value.get("exec") or user.value.get("token") or user.value.get("tokenFile"):
        return None
    try:
        provider = ExecProvider(user["exec"], str(folder), cluster)
        return Program(provider, paths, str(user["exec"].safe_get("installHint") or "").strip())
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
    """An error without the package's message, which may quote a user with tokens."""
    match error:
        case yaml.MarkedYAMLError(problem_mark=mark) if mark is not None:
            why = f"line {mark.line + 1} is no YAML"
        case ConfigException():
            why = str(error).partition("{")[0].strip()
        case OSError() | UnicodeError() | binascii.Error():
            why = str(error)
        case _:
            why = "it is no kubeconfig"
    return ConfigError(f"cannot read the kubeconfig {paths}: {why}", remedy=NAME_ONE)
