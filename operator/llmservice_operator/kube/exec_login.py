"""Logins by a program that a kubeconfig names: what cloud providers' clusters use.

Shapes: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/ (ExecCredential).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .single_flight import SingleFlight

PLUGIN_SECONDS = 60.0
EARLY = datetime.timedelta(seconds=30)
"""A token is renewed so long before it ends."""
LAST = datetime.timedelta(seconds=5)
"""So long before it ends it is sent no more: a request under way should not outlive it."""


@dataclass(frozen=True)
class Login:
    """What the program answered; a token, a client certificate, or both."""

    token: str | None = None
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires: datetime.datetime | None = None

    def is_over(self, now: datetime.datetime) -> bool:
        """Whether another one is to be fetched."""
        return self.expires is not None and now >= self.expires - EARLY

    def has_ended(self, now: datetime.datetime) -> bool:
        """Whether this one is of no use any more."""
        return self.expires is not None and now >= self.expires - LAST


class ExecToken:
    """The program's token; it is run again when its token is about to end, or when the server did not accept it.

    It runs as a process of its own while the event loop goes on, one at a time, and is not waited for while the token
    that there is still holds.
    """

    def __init__(self, run: Callable[[], Awaitable[Login]], now: Callable[[], datetime.datetime], first: Login) -> None:
        self._run, self._now = run, now
        self._login: Login | None = first
        self._flight = SingleFlight(self._fetch)

    async def __call__(self) -> str | None:
        """The token to send now; ConfigError where the program gives none."""
        now, known = self._now(), self._login
        if known is None or known.has_ended(now):
            await self._flight.wait()
        elif known.is_over(now):
            self._flight.start()
        return self._login.token if self._login is not None else None

    def forget(self) -> None:
        """Ask the program again at the next use."""
        self._login = None

    async def _fetch(self) -> None:
        self._login = await self._run()


class Program:
    """The program of a kubeconfig's `exec`; ConfigError says what it printed, or how to install it."""

    def __init__(self, plugin: Mapping[str, Any], kubeconfig: Path, environ: Mapping[str, str] = os.environ) -> None:
        command, version = str(plugin.get("command", "")), str(plugin.get("apiVersion", ""))
        self._command = str(kubeconfig.parent / command) if os.sep in command else command
        # Only what may be printed goes in: the program itself asks whoever it needs to.
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        added = {str(item["name"]): str(item["value"]) for item in plugin.get("env") or ()}
        self._environment = {**environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        self._arguments = [self._command, *map(str, plugin.get("args") or ())]
        self._hint, self._kubeconfig = str(plugin.get("installHint") or "").strip(), kubeconfig

    def run(self) -> Login:
        """Wait for it: at the start, when there is nothing else to do."""
        try:
            done = subprocess.run(
                self._arguments, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=PLUGIN_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._not_run(error) from error
        return self._login(done.returncode, done.stdout, done.stderr)

    async def run_beside(self) -> Login:
        """The same while everything else goes on; its process group is killed when nobody waits for it any more."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._arguments, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise self._not_run(error) from error
        try:
            async with asyncio.timeout(PLUGIN_SECONDS):
                out, err = await process.communicate()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise self._not_run(f"no answer within {PLUGIN_SECONDS:.0f} s") from error
            raise
        return self._login(process.returncode, out, err)

    def _not_run(self, why: object) -> ConfigError:
        return ConfigError(
            f"the login program {self._command!r} of {self._kubeconfig} cannot be run: {why}",
            remedy=self._hint or "install it, or use a kubeconfig with a token or a client certificate",
        )

    def _login(self, code: int | None, out: bytes, err: bytes) -> Login:
        if code != 0:
            said = err.decode(errors="replace").strip()[-500:]
            raise ConfigError(
                f"the login program {self._command!r} of {self._kubeconfig} ended with {code}: {said}",
                remedy="log in with it first, as `kubectl get namespaces` would need too",
            )
        return _login(out.decode(errors="replace"), self._command)


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
        # Its output may hold a token, so it is not quoted.
        raise ConfigError(f"what the login program {command!r} printed is no ExecCredential") from error
    if login.token is None and login.certificate is None:
        raise ConfigError(f"the login program {command!r} gave neither a token nor a client certificate")
    return login
