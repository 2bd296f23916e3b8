"""What the rest of the process says about a service, and what it learns of the requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from kubeloop.resources import Key
from llmservice_api.network_peers import Peer
from llmservice_runtime.str_enum import StrEnum


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to every request of a service, held ones included."""

    status: int
    reason: str
    """CamelCase, the error's `type`."""
    message: str


@dataclass(frozen=True, slots=True)
class Target:
    """A service whose requests may come here."""

    key: Key
    uid: str
    port: int
    """Where its requests come in, whatever their Host header says."""
    model_names: frozenset[str]
    """Served names and adapters."""
    max_requests: int
    """spec.scaling.holding, like the two below."""
    max_bytes: int
    timeout_seconds: int
    at_once: int
    """Requests that this process may have at the pods."""
    pods: tuple[str, ...]
    """Base URLs (`http://10.0.0.1:8000`) of pods that are ready by their endpoint."""
    keys: frozenset[str] | None
    """API keys; none are valid where it is empty. None: no key is needed."""
    refusal: Refusal | None
    clients: tuple[Peer, ...] = ()
    """Who may send requests (spec.scaling.holding.from); empty: everybody."""
    is_shut: bool = False
    """Nobody may: what says who may cannot be read."""
    is_routed: bool = True
    """Whether its Service may lead requests here; else those that come are refused, and what is in progress goes on."""
    root_path: str = ""
    """vLLM's --root-path: clients' paths may begin with it."""
    any_origin: bool = True
    """Whether pages of every origin may read answers, as vLLM has it by default. Else nothing is said of origins."""


Admits = Callable[[Target, str], Awaitable[Refusal | None]]
"""Whether an address may send requests to a service; 403 or 503 where not. It must end soon."""
Renews = Callable[[Key], Awaitable[frozenset[str]]]
"""API keys of a service, read again where they may be old; none are valid where it is empty. It must end soon."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is held of one service: complete requests that wait for a pod."""

    requests: int = 0
    bytes: int = 0
    """Of their bodies."""
    since: float | None = None
    """time.monotonic() of the arrival of the oldest one."""


class Reason(StrEnum):
    """Why a request was answered here or lost; a label of metrics."""

    PROBED = "probed"
    """ACTIVATOR_PATH, /health, /ping, /v1/models, CORS preflights."""
    FORBIDDEN = "forbidden"
    """403: the address is none that may send requests."""
    UNIDENTIFIED = "unidentified"
    """503: it could not be found out whose the address is."""
    UNAUTHORIZED = "unauthorized"
    INVALID = "invalid"
    """400, 404, 405, 417: path, method, content or model name."""
    TOO_LARGE = "too_large"
    SLOW_BODY = "slow_body"
    FULL = "full"
    """429."""
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """Target.refusal; the service is gone; this process ends."""
    UNSUPPORTED = "unsupported"
    """CONNECT, websockets."""
    INTERNAL = "internal"
    """An error of this process; its log has it."""
    CLIENT_GONE = "client_gone"
    POD_FAILED = "pod_failed"
    """The connection to the pod ended before the answer did."""
    CLIENT_STALLED = "client_stalled"
    """The client does not read its answer."""


class Count(Protocol):
    """Metrics of requests. Each request is answered, forwarded or lost, and may be held before."""

    def held(self, key: Key) -> None:
        """A request begins to be held."""

    def answered(self, key: Key, reason: Reason) -> None:
        """This process wrote the answer."""

    def forwarded(self, key: Key, held_seconds: float) -> None:
        """A pod's answer reached the client whole; 0 seconds where the request was not held."""

    def lost(self, key: Key, reason: Reason) -> None:
        """The client has no whole answer."""
