"""The fleet as rows: listed for one viewer, and filtered, sorted and cut into pages.

Names, models and reasons are of others: bounded when they are read, cleaned when they are shown.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from kubeloop.errors import Forbidden, KubeError, Unauthorized, lacks_right
from kubeloop.resources import DEPLOYMENT
from llmservice_api.conditions import ConditionStatus, ConditionType
from llmservice_api.kinds import LLMSERVICE
from llmservice_cli.api import Api
from llmservice_runtime.bounded_json import Reader, Refused

PAGE_ROWS = 50
LONGEST_NAME = 253
LONGEST_MODEL = 1024
LONGEST_FILTER = 200
IDLE = "Idle"


class State(StrEnum):
    """What a service needs, the most urgent first."""

    STALLED = "stalled"
    FAILING = "failing"
    DEGRADED = "degraded"
    UNREADABLE = "unreadable"
    PROGRESS = "in progress"
    NEW = "not reconciled"
    IDLE = "idle"
    READY = "ready"


NEEDS_ATTENTION = frozenset({State.STALLED, State.FAILING, State.DEGRADED, State.UNREADABLE})
ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One service."""

    namespace: str
    name: str
    model: str = ""
    state: State = State.UNREADABLE
    reason: str = ""
    """Of the condition Ready; why an object could not be read."""
    gpus: int | None = None
    replicas: str = ""
    created: str = ""

    @property
    def ready(self) -> int:
        """Replicas that are ready, to sort by."""
        count = self.replicas.partition("/")[0]
        return int(count) if count.isdecimal() and len(count) < 10 else -1


def row_of(found: Any) -> FleetRow:
    """The row of one object; where it is not as it should be, a row that says so under the name that it has."""
    try:
        metadata = Reader(found).within("metadata")
        namespace, name = metadata.word("namespace", LONGEST_NAME), metadata.word("name", LONGEST_NAME)
    except Refused as refused:
        return FleetRow("?", "?", reason=f"the object has no name: {refused}")
    try:
        status = found.get("status")
        read = Reader({} if status is None else status, "status")
        conditions = conditions_of(read)
        # The CRD's default is -1: no operator has seen the service.
        observed = read.integer("observedGeneration", -1, default=-1)
        is_outdated = observed < metadata.integer("generation", default=0)
        return FleetRow(
            namespace,
            name,
            model=Reader(found).within("spec").within("model").text("uri", LONGEST_MODEL),
            state=state_of(conditions, has_failure=read.has("failure"), is_outdated=is_outdated),
            reason=conditions.get(ConditionType.READY, ("", ""))[1],
            gpus=read.integer("gpus") if read.has("gpus") else None,
            replicas=read.text("ready", 32, ""),
            created=metadata.text("creationTimestamp", 64, ""),
        )
    except Refused as refused:
        return FleetRow(namespace, name, reason=f"not readable: {refused}")


def conditions_of(status: Reader) -> Mapping[str, tuple[str, str]]:
    """Status and reason by type."""
    found = {}
    for item in status.items("conditions", 64):
        condition = Reader(item, "status.conditions")
        found[condition.word("type", 128)] = (condition.word("status", 16), condition.text("reason", 256, ""))
    return found


def state_of(conditions: Mapping[str, tuple[str, str]], *, has_failure: bool, is_outdated: bool) -> State:
    """One word for all conditions together. Of an outdated status what is wrong stays known, and what is well does not:
    it is of an earlier spec."""

    def is_true(kind: ConditionType) -> bool:
        return conditions.get(kind, ("", ""))[0] == ConditionStatus.TRUE

    if ConditionType.READY not in conditions:
        return State.NEW
    if is_true(ConditionType.STALLED):
        return State.STALLED
    if is_true(ConditionType.DEGRADED):
        return State.DEGRADED
    if is_outdated:
        return State.FAILING if has_failure else State.NEW
    if conditions.get(ConditionType.AVAILABLE, ("", ""))[1] == IDLE:
        return State.IDLE
    if is_true(ConditionType.READY):
        return State.READY
    return State.FAILING if has_failure else State.PROGRESS


COLUMNS: Mapping[str, str] = {
    "namespace": "Namespace",
    "name": "Name",
    "model": "Model",
    "state": "State",
    "gpus": "GPUs",
    "ready": "Ready",
    "age": "Age",
}
_ORDER = {state: place for place, state in enumerate(State)}


def _key(row: FleetRow, column: str) -> Any:
    return {
        "namespace": row.namespace,
        "name": row.name,
        "model": row.model,
        "state": _ORDER[row.state],
        "gpus": -1 if row.gpus is None else row.gpus,
        "ready": row.ready,
        "age": row.created,
    }[column]


@dataclass(frozen=True, slots=True)
class Query:
    """What a viewer asks to see."""

    namespace: str = ""
    """Empty: all of them, or where that is refused the session's."""
    text: str = ""
    state: str = ""
    """A State, ATTENTION, or empty for all."""
    sort: str = "state"
    descending: bool = False
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """From an address; what makes no sense is left out."""
        state, sort, page = given.get("state", ""), given.get("sort", ""), given.get("page", "")
        return cls(
            namespace=given.get("namespace", "").strip()[:LONGEST_NAME],
            text=given.get("q", "").strip()[:LONGEST_FILTER],
            state=state if state in (*State, ATTENTION) else "",
            sort=sort if sort in COLUMNS else "state",
            descending=given.get("order") == "down",
            page=int(page) if page.isdecimal() and 0 < len(page) < 7 else 1,
        )

    def href(self, **changed: str) -> str:
        """An address of the fleet with other values; another order begins at the first page."""
        own = {
            "namespace": self.namespace,
            "q": self.text,
            "state": self.state,
            "sort": self.sort,
            "order": "down" if self.descending else "",
            **({"page": str(self.page)} if self.page > 1 and not changed.keys() & {"sort"} else {}),
        }
        words = {name: value for name, value in {**own, **changed}.items() if value and (name, value) != _DEFAULT_SORT}
        return f"/?{urlencode(words)}" if words else "/"

    def sorted_by(self, column: str) -> str:
        """The address of its heading: the same column again turns the order round."""
        turns = column == self.sort and not self.descending
        return self.href(sort=column, order="down" if turns else "")


_DEFAULT_SORT = ("sort", "state")


@dataclass(frozen=True, slots=True)
class Page:
    """The rows to show."""

    rows: Sequence[FleetRow]
    matched: int
    number: int
    pages: int


def page_of(rows: Iterable[FleetRow], query: Query) -> Page:
    """Filtered, sorted (equal ones by namespace and name), and cut."""
    words = query.text.casefold().split()
    found = [row for row in rows if _is_meant(row, query.state, words)]
    found.sort(key=lambda row: (row.namespace, row.name))
    found.sort(key=lambda row: _key(row, query.sort), reverse=query.descending != (query.sort == "age"))
    pages = max(1, -(-len(found) // PAGE_ROWS))
    number = min(query.page, pages)
    first = (number - 1) * PAGE_ROWS
    return Page(found[first : first + PAGE_ROWS], len(found), number, pages)


def _is_meant(row: FleetRow, state: str, words: Sequence[str]) -> bool:
    if state == ATTENTION and row.state not in NEEDS_ATTENTION:
        return False
    if state not in ("", ATTENTION, row.state):
        return False
    text = f"{row.namespace} {row.name} {row.model} {row.state} {row.reason}".casefold()
    return all(word in text for word in words)


# What is listed is kept for some seconds: the rows, and not the objects, which are larger.

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

    rows: Sequence[FleetRow]
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
        if namespace or not own_namespace or not lacks_right(error):
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


async def _rows(kube: Api, namespace: str | None) -> tuple[Sequence[FleetRow], bool]:
    rows: list[FleetRow] = []
    async for page in kube.list_pages(LLMSERVICE, namespace, limit=A_TIME):
        rows += map(row_of, page.get("items") or ())
        if len(rows) > MOST_ROWS:
            return rows[:MOST_ROWS], True
    return rows, False
