"""Reads from `/metrics` of a pod's supervisor how many requests the pod has in flight, how many it ever had, and what
the last one was."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmservice_runtime.contract import LAST_REQUEST, METRICS_PATH, REQUESTS_BEGUN, REQUESTS_IN_FLIGHT

from llmservice_operator.api.holding import METHOD, PATH, LastUse
from llmservice_operator.kube.pod_port import PodPort, Unreadable

__all__ = ["Requests", "RequestsReader", "Unreadable"]

MOST_REQUESTS = 9_999_999
"""In flight in one pod; more of them is no answer of a supervisor."""
MOST_BEGUN = 999_999_999_999_999
"""As many digits as the supervisor writes."""

_LAST = re.compile(f'^{LAST_REQUEST}{{method="({METHOD})",path="({PATH})"}} ([0-9]{{1,15}})$'.encode(), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Requests:
    """Numbers of requests of one pod."""

    in_flight: int
    """Waiting ones included, 0 to MOST_REQUESTS."""
    begun: int | None
    """Since the container's start, 0 to MOST_BEGUN; None: the pod is of a version that does not count them."""
    last: LastUse | None = None
    """The last of them; None: there was none, or it is not known."""


class RequestsReader(PodPort):
    """Reads numbers of requests over connections to pods; use it as a context manager."""

    async def read(self, address: str) -> Requests:
        """Those of the pod at an address. Unreadable without a valid answer."""
        return parsed(await self.get(address, METRICS_PATH), self.port)


def parsed(body: bytes, port: int) -> Requests:
    """The samples as the supervisor writes them: `NAME VALUE`, each once and without labels. Else Unreadable."""
    in_flight = _value(body, REQUESTS_IN_FLIGHT, MOST_REQUESTS, port)
    if in_flight is None:
        raise _unreadable(REQUESTS_IN_FLIGHT, port)
    return Requests(in_flight, _value(body, REQUESTS_BEGUN, MOST_BEGUN, port), _last(body))


def _last(body: bytes) -> LastUse | None:
    """Nothing is decided by it: what is not as a supervisor writes it is absent."""
    found = _LAST.findall(body)
    if len(found) != 1:
        return None
    method, path, seconds = found[0]
    return LastUse.parsed(int(seconds), method.decode(), path.decode())


def _value(body: bytes, name: str, most: int, port: int) -> int | None:
    """None where there is no sample of this name."""
    samples = re.findall(rb"^%s(?=[ {\t\r]|$)([^\n]*)$" % name.encode(), body, re.MULTILINE)
    if not samples:
        return None
    value = re.fullmatch(rb" ([0-9]{1,15})", samples[0]) if len(samples) == 1 else None
    if value is None or int(value[1]) > most:
        raise _unreadable(name, port)
    return int(value[1])


def _unreadable(name: str, port: int) -> Unreadable:
    return Unreadable(f"what its port {port} answers has no single integer {name}", is_invalid=True)
