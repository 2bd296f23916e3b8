"""Reads from `/metrics` of a pod's supervisor how many requests the pod has in flight."""

from __future__ import annotations

import re

from llmservice_runtime.contract import METRICS_PATH, REQUESTS_IN_FLIGHT

from llmservice_operator.kube.pod_port import PodPort, Unreadable

__all__ = ["RequestsReader", "Unreadable"]

MOST_REQUESTS = 9_999_999
"""In flight in one pod; more of them is no answer of a supervisor."""

_SAMPLE = re.compile(rb"^" + REQUESTS_IN_FLIGHT.encode() + rb"(?=[ {\t])([^\n]*)$", re.MULTILINE)
_VALUE = re.compile(rb" ([0-9]{1,7})")


class RequestsReader(PodPort):
    """Reads numbers of requests over connections to pods; use it as a context manager."""

    async def read(self, address: str) -> int:
        """Requests in flight, waiting ones included, 0 to MOST_REQUESTS. Unreadable without a valid answer."""
        return parsed(await self.get(address, METRICS_PATH), self.port)


def parsed(body: bytes, port: int) -> int:
    """The one sample of the metric, as the supervisor writes it: `NAME VALUE`, without labels. Else Unreadable."""
    samples = _SAMPLE.findall(body)
    value = _VALUE.fullmatch(samples[0]) if len(samples) == 1 else None
    if value is None:
        why = f"what its port {port} answers has no single integer {REQUESTS_IN_FLIGHT}"
        raise Unreadable(why, is_invalid=True)
    return int(value[1])
