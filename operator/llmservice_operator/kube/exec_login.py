"""Logins by a program that a kubeconfig names: what cloud providers' clusters use.

Shapes: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/ (ExecCredential).
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError

PLUGIN_SECONDS = 60.0
EARLY = datetime.timedelta(seconds=30)
"""A token is renewed so long before it ends: a request under way should not outlive it."""


@dataclass(frozen=True)
class Login:
    """What the program answered; a token, a client certificate, or both."""

    token: str | None = None
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires: datetime.datetime | None = None

    def is_over(self, now: datetime.datetime) -> bool:
        """Whether another one is needed."""
        return self.expires is not None and now >= self.expires - EARLY


class ExecToken:
    """The program's token; it is run again when its token ends, or when the server did not accept it."""

    def __init__(self, run: Callable[[], Login], now: Callable[[], datetime.datetime], first: Login) -> None:
        self._run, self._now = run, now
        self._login: Login | None = first

    def __call__(self) -> str | None:
        """The token to send now."""
        if self._login is None or self._login.is_over(self._now()):
            self._login = self._run()
        return self._login.token

    def forget(self) -> None:
        """Ask the program again at the next use."""
        self._login = None


def log_in(plugin: Mapping[str, Any], kubeconfig: Path, environ: Mapping[str, str] = os.environ) -> Login:
    """Run the program of a kubeconfig's `exec`; ConfigError says what it printed, or how to install it."""
    command, version = str(plugin.get("command", "")), str(plugin.get("apiVersion", ""))
    if os.sep in command:
        command = str(kubeconfig.parent / command)
    # Only what may be printed goes in: the program itself asks whoever it needs to.
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    added = {str(item["name"]): str(item["value"]) for item in plugin.get("env") or ()}
    environment = {**environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        done = subprocess.run(
            [command, *map(str, plugin.get("args") or ())],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PLUGIN_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = str(plugin.get("installHint") or "").strip()
        raise ConfigError(
            f"the login program {command!r} of {kubeconfig} cannot be run: {error}",
            remedy=hint or "install it, or use a kubeconfig with a token or a client certificate",
        ) from error
    if done.returncode != 0:
        raise ConfigError(
            f"the login program {command!r} of {kubeconfig} ended with {done.returncode}: {done.stderr.strip()[-500:]}",
            remedy="log in with it first, as `kubectl get namespaces` would need too",
        )
    return _login(done.stdout, command)


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
