"""What the process is started with."""

from __future__ import annotations

from dataclasses import dataclass

from kubeloop.credentials import Credentials, Token

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Hosts that are accepted always: a port-forward's."""


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """The API server, without credentials: this process has none of its own."""

    server: str
    ca: bytes | None = None

    def as_viewer(self, token: str) -> Credentials:
        """Requests carry this token, and nothing else that says who asks."""
        return Credentials(self.server, "default", Token.fixed(token), ca=self.ca)


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds, and what an administrator decides."""

    api: ApiAddress
    hosts: frozenset[str] = LOOPBACK
    """Names, without ports, under which the page answers."""
    operator: tuple[str, str] | None = None
    """Namespace and name of the operator's Deployment, to say when nobody keeps the states up to date."""
    can_reach_hub: bool = False
    """Whether the sizing page reads the config.json of ORG/NAME from a hub."""
    longest_session: float = 8 * 3600.0
    """Seconds; a session ends with its token where that is sooner."""
    most_sessions: int = 500
    most_sessions_of_one: int = 20
