"""Interface of this package: the services whose requests are held, and reports about requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from kubeloop.resources import Key
from llmservice_api.holding import Peer
from llmservice_runtime.str_enum import StrEnum


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to every request of a service, including held ones."""

    status: int
    reason: str
    """CamelCase; the error's `type`."""
    message: str


@dataclass(frozen=True, slots=True)
class HoldingTarget:
    """A service whose requests may arrive here."""

    key: Key
    uid: str
    port: int
    """The port for its requests, whatever their Host header."""
    model_names: frozenset[str]
    """Served names and adapters."""
    max_requests: int
    """spec.scaling.holding, like the two below."""
    max_bytes: int
    timeout_seconds: int
    at_once: int
    """Requests that this process may have at the pods."""
    pods: tuple[str, ...]
    """Base URLs (`http://10.0.0.1:8000`) of pods with a ready endpoint."""
    keys: frozenset[str] | None
    """API keys; empty: none is valid; None: no key is required."""
    refusal: Refusal | None
    clients: tuple[Peer, ...] = ()
    """Clients that may send requests (spec.scaling.holding.from); empty: all."""
    is_shut: bool = False
    """Refuses all clients, because spec.scaling.holding.from is not valid."""
    is_routed: bool = True
    """Whether its Service may lead here. If not, new requests are refused and those in progress continue."""
    root_path: str = ""
    """vLLM's --root-path: a possible prefix of clients' paths."""
    any_origin: bool = True
    """Whether pages of every origin may read responses, as in vLLM by default. If not, responses have no CORS
    headers."""


Admits = Callable[[HoldingTarget, str], Awaitable[Refusal | None]]
"""Takes a peer address; returns None where it may send requests, else 403 or 503. Must return soon."""
Renews = Callable[[Key], Awaitable[frozenset[str]]]
"""API keys of a service, read again if they may be old; empty: none is valid. Must return soon."""


@dataclass(frozen=True, slots=True)
class HeldRequests:
    """Complete requests of one service that wait for a pod."""

    requests: int = 0
    bytes: int = 0
    """Of their bodies."""
    since: float | None = None
    """time.monotonic() when the oldest arrived."""


class Reason(StrEnum):
    """Why a request was answered here or lost; a label of metrics."""

    PROBED = "probed"
    """ACTIVATOR_PATH, /health, /ping, /v1/models, CORS preflights."""
    FORBIDDEN = "forbidden"
    """403: the client's address may not send requests."""
    UNIDENTIFIED = "unidentified"
    """503: the client's address could not be identified."""
    UNAUTHORIZED = "unauthorized"
    INVALID = "invalid"
    """400, 404, 405, 417: path, method, content or model name."""
    TOO_LARGE = "too_large"
    SLOW_BODY = "slow_body"
    FULL = "full"
    """429."""
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """HoldingTarget.refusal; the service is deleted; this process stops."""
    UNSUPPORTED = "unsupported"
    """CONNECT, websockets."""
    INTERNAL = "internal"
    """An error of this process; see its log."""
    CLIENT_GONE = "client_gone"
    POD_FAILED = "pod_failed"
    """The connection to the pod ended before its response was complete."""
    CLIENT_STALLED = "client_stalled"
    """The client does not read its response."""


class RequestMetrics(Protocol):
    """Metrics of requests. Each request is answered, forwarded or lost, and may be held before."""

    def held(self, key: Key) -> None:
        """A request starts to wait."""

    def answered(self, key: Key, reason: Reason) -> None:
        """This process wrote the response."""

    def forwarded(self, key: Key, held_seconds: float) -> None:
        """A pod's response reached the client completely; 0 seconds if it was not held."""

    def lost(self, key: Key, reason: Reason) -> None:
        """The client has no complete response."""
