"""Lists LLMServices for one viewer, and keeps the rows for some seconds: not the objects, which are larger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmservice_cli.api import Api
from llmservice_operator.kube.errors import Forbidden, Refused
from llmservice_operator.kube.resources import LLMSERVICE

from .fleet import Row, row_of

FRESH_SECONDS = 3.0
SHARE = 10
"""A list is kept for so many times the seconds that it took: a large fleet costs the API server a tenth of one
connection, however many pages are asked for."""
MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """What was listed."""

    rows: Sequence[Row]
    namespace: str | None
    """None: all."""
    is_narrowed: bool = False
    """All were asked for, and may not be listed: these are the session's namespace's."""
    is_cut: bool = False
    """There are more than MOST_ROWS."""


class FleetReader:
    """One list at a time, of the namespace that was asked for last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: tuple[float, tuple[str, str], Fleet] | None = None

    async def read(self, kube: Api, namespace: str, own_namespace: str) -> Fleet:
        """Of a namespace; of all where it is empty, or of the viewer's own where that is refused. KubeError."""
        asked = (namespace, own_namespace)
        async with self._lock:
            if self._kept is not None and self._kept[1] == asked and self._clock() < self._kept[0]:
                return self._kept[2]
            began = self._clock()
            found = await _read(kube, namespace, own_namespace)
            now = self._clock()
            self._kept = (now + max(FRESH_SECONDS, SHARE * (now - began)), asked, found)
            return found


async def _read(kube: Api, namespace: str, own_namespace: str) -> Fleet:
    try:
        rows, is_cut = await _rows(kube, namespace or None)
    except Forbidden as error:
        if namespace or not own_namespace or isinstance(error, Refused):
            raise
        rows, is_cut = await _rows(kube, own_namespace)
        return Fleet(rows, own_namespace, is_narrowed=True, is_cut=is_cut)
    return Fleet(rows, namespace or None, is_cut=is_cut)


async def _rows(kube: Api, namespace: str | None) -> tuple[Sequence[Row], bool]:
    rows: list[Row] = []
    async for page in kube.list_pages(LLMSERVICE, namespace):
        rows += map(row_of, page.get("items") or ())
        if len(rows) > MOST_ROWS:
            return rows[:MOST_ROWS], True
    return rows, False
