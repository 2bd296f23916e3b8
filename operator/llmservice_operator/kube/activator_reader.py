"""Asks an activator whether it can hold the requests of one service. Its answer is bounded as that of any pod."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote

from llmservice_runtime.bounded_json import Reader, Refused, parse

from llmservice_operator.api.holding import INTERNAL_PORT, HoldingReport
from llmservice_operator.api.service import Key
from llmservice_operator.kube.pod_port import PodPort, Unreadable

__all__ = ["ActivatorReader", "Unreadable"]

VERSION = 1
SILENT_SECONDS = 5.0
"""For which an activator that gave no answer about one service is not asked about another: each question would take a
worker for seconds, and all services at zero ask."""
LARGEST = 4096
LONGEST_PROBLEM = 512
_DEEPEST, _MOST_ITEMS = 3, 32


class ActivatorReader(PodPort):
    """Reads reports over connections to activators; use it as a context manager."""

    def __init__(self, *, port: int = INTERNAL_PORT, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(port=port, limit=LARGEST, of="an activator")
        self._clock = clock
        self._silent: dict[str, tuple[float, str]] = {}
        """Until when, and why, by address."""

    async def read(self, address: str, key: Key, uid: str, port: int) -> HoldingReport:
        """About the service with this uid, on this port of the activators. Unreadable without a valid answer."""
        now = self._clock()
        self._silent = {each: silent for each, silent in self._silent.items() if silent[0] > now}
        if address in self._silent:
            raise Unreadable(self._silent[address][1])
        where = "/".join(quote(name, safe="") for name in key)
        try:
            body = await self.get(address, f"/services/{where}?uid={quote(uid, safe='')}&port={port}")
        except Unreadable as unreadable:
            if not unreadable.is_invalid:
                self._silent[address] = self._clock() + SILENT_SECONDS, str(unreadable)
            raise
        return parsed(body, self.port)


def parsed(body: bytes, port: int) -> HoldingReport:
    """The report that a body of JSON states; other fields are ignored. Else Unreadable."""
    try:
        report = Reader(parse(body, LARGEST, _DEEPEST, _MOST_ITEMS), "the report")
        if report.integer("version") != VERSION:
            raise Refused("it is of another version")
        return HoldingReport(
            is_listening=report.flag("listening"),
            is_reachable=report.flag("reachable"),
            problem=" ".join(report.text("problem", LONGEST_PROBLEM, "").split()),
        )
    except Refused as refused:
        raise Unreadable(f"what its port {port} answers is no report: {refused}", is_invalid=True) from None
