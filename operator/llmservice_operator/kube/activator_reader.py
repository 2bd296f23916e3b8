"""Asks an activator whether it can hold the requests of one service. Its answer is bounded as that of any pod."""

from __future__ import annotations

from urllib.parse import quote

from llmservice_runtime.bounded_json import Reader, Refused, parse

from llmservice_operator.api.holding import INTERNAL_PORT, HoldingReport
from llmservice_operator.api.service import Key
from llmservice_operator.kube.pod_port import PodPort, Unreadable

__all__ = ["ActivatorReader", "Unreadable"]

VERSION = 1
LARGEST = 4096
LONGEST_PROBLEM = 512
_DEEPEST, _MOST_ITEMS = 3, 32


class ActivatorReader(PodPort):
    """Reads reports over connections to activators; use it as a context manager."""

    def __init__(self, *, port: int = INTERNAL_PORT) -> None:
        super().__init__(port=port, limit=LARGEST, of="an activator")

    async def read(self, address: str, key: Key, uid: str, port: int) -> HoldingReport:
        """About the service with this uid, on this port of the activators. Unreadable without a valid answer."""
        where = "/".join(quote(name, safe="") for name in key)
        return parsed(await self.get(address, f"/services/{where}?uid={quote(uid, safe='')}&port={port}"), self.port)


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
