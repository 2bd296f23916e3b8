"""Lists LLMServices for one viewer, and keeps the rows for some seconds: not the objects, which are larger."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kubeloop.errors import Forbidden, KubeError, Refused, Unauthorized
from kubeloop.resources import DEPLOYMENT
from llmservice_api.kinds import LLMSERVICE
from llmservice_cli.api import Api
from llmservice_runtime.bounded_json import Reader

from .fleet import Row, row_of

FRESH_SECONDS = 3.0
SHARE = 10
"""A list is kept for so many times the seconds that it took: a large fleet costs the API server a tenth of one
connection, however many pages are asked for."""
MOST_ROWS = 20_000
A_TIME = 100
"""Objects of one answer, which is bounded in bytes, too."""
KEPT = 3
"""Lists: of tabs that show several namespaces."""


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
    operator: str = ""
    """Why the states may be old; empty: the operator runs, or the viewer may not read its Deployment."""


class FleetReader:
    """One list at a time, of the namespaces that were asked for lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[float, Fleet]] = OrderedDict()

    async def read(
        self, kube: Api, namespace: str, own_namespace: str, operator: tuple[str, str] | None = None
    ) -> Fleet:
        """Of a namespace; of all where it is empty, or of the viewer's own where that is refused. KubeError."""
        asked = (namespace, own_namespace)
        async with self._lock:
            until, kept = self._kept.pop(asked, (0.0, None))
            if kept is not None and self._clock() < until:
                self._kept[asked] = until, kept
                return kept
            began = self._clock()
            state, found = await asyncio.gather(
                _operator_problem(kube, operator), _read(kube, namespace, own_namespace)
            )
            found = replace(found, operator=state)
            now = self._clock()
            self._kept[asked] = now + max(FRESH_SECONDS, SHARE * (now - began)), found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found

    def forget(self) -> None:
        """Keeps nothing."""
        self._kept.clear()


async def _read(kube: Api, namespace: str, own_namespace: str) -> Fleet:
    try:
        rows, is_cut = await _rows(kube, namespace or None)
    except Forbidden as error:
        if namespace or not own_namespace or isinstance(error, Refused):
            raise
        rows, is_cut = await _rows(kube, own_namespace)
        return Fleet(rows, own_namespace, is_narrowed=True, is_cut=is_cut)
    return Fleet(rows, namespace or None, is_cut=is_cut)


async def _operator_problem(kube: Api, operator: tuple[str, str] | None) -> str:
    if operator is None:
        return ""
    try:
        found = await kube.get(DEPLOYMENT, *operator)
    except Unauthorized:
        raise
    except KubeError:  # no right, or no answer: the list of services says what is wrong with the API server
        return ""
    where = "/".join(operator)
    if found is None:
        return f"There is no operator: no Deployment {where}."
    ready = Reader(found.get("status") or {}, "status").integer("readyReplicas", default=0)
    return "" if ready else f"No process of the operator {where} is ready."


async def _rows(kube: Api, namespace: str | None) -> tuple[Sequence[Row], bool]:
    rows: list[Row] = []
    async for page in kube.list_pages(LLMSERVICE, namespace, limit=A_TIME):
        rows += map(row_of, page.get("items") or ())
        if len(rows) > MOST_ROWS:
            return rows[:MOST_ROWS], True
    return rows, False
