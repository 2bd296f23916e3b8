"""Logins by a program that a kubeconfig names: what cloud providers' clusters use.

`kubernetes.config` reads what is to be run. Running it is ours: the package's own way has no time limit, leaves a
program behind that hangs, reads any amount, and goes on without credentials where the program fails.
Shapes: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/ (ExecCredential).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import signal
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError

PLUGIN_SECONDS = 60.0
KILLED_SECONDS = 2.0
"""Until a killed program is gone."""
MOST_BYTES = 2**20
"""Of what the program prints: a token and a chain of certificates have some kilobytes."""
CLUSTER_CONFIG = "client.authentication.k8s.io/exec"
"""The cluster's extension that a program with `provideClusterInfo` gets."""


@dataclass(frozen=True)
class Login:
    """What the program answered; a token, a client certificate, or both."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires: datetime.datetime | None = None


class Program:
    """The program of a kubeconfig's `exec`; ConfigError has its output, or how to install it.

    `provider` is the package's ExecProvider.
    """

    def __init__(self, provider: Any, kubeconfig: str, hint: str = "") -> None:
        spec: dict[str, Any] = {"interactive": False}
        if provider.cluster is not None:
            cluster = provider.cluster.value
            extensions = {each.get("name"): each.get("extension") for each in cluster.get("extensions") or ()}
            spec["cluster"] = {**cluster, "config": extensions.get(CLUSTER_CONFIG)}
        # Only what may be printed goes in: the program itself asks whoever it needs to.
        info = {"apiVersion": provider.api_version, "kind": "ExecCredential", "spec": spec}
        variables = {str(name): str(value) for name, value in provider.env.items()}
        self._environment = {**variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        command, *arguments = map(str, provider.args)
        self._command = os.path.join(provider.cwd or "", command) if os.sep in command else command  # noqa: PTH118
        self._arguments, self._hint, self._kubeconfig = arguments, hint, kubeconfig

    async def run(self) -> Login:
        """Its process group is killed when this is cancelled or takes too long."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._command, *self._arguments, env=self._environment, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise self._not_run(error) from error
        try:
            async with asyncio.timeout(PLUGIN_SECONDS):
                out, err = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                code = await process.wait()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # What it started outside its group may hold its output open, which is part of its end to asyncio.
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


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """To its end; a byte more than MOST_BYTES is kept of what is longer."""
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
        # Its output may hold a token, so neither it nor the cause that quotes it is shown.
        raise ConfigError(f"what the login program {command!r} printed is no ExecCredential") from error
    if login.token is None and login.certificate is None:
        raise ConfigError(f"the login program {command!r} gave neither a token nor a client certificate")
    return login
