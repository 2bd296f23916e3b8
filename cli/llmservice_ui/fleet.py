"""The fleet as rows: listed for one viewer, and filtered, sorted and cut into pages.

Names, models and reasons are of others: bounded when they are read, cleaned when they are shown.

Tokens/s and latencies of the services that a page shows are measured beside the page and never waited for. vLLM counts
tokens, so that a rate takes two reads. A page asks for its services and gets what is known already; a
task then reads /metrics of their ready pods through the API server's proxy: at most MOST_PODS of them, AT_ONCE at a
time of all viewers together and PATIENCE seconds each (llmservice_cli.top.sample), and not again within EVERY seconds.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from kubeloop.errors import Forbidden, KubeError, Unauthorized, lacks_right
from kubeloop.resources import DEPLOYMENT, POD
from llmservice_api.conditions import ConditionStatus, ConditionType
from llmservice_api.constants import LLMSERVICE, SERVICE_LABEL
from llmservice_cli.api import Api
from llmservice_cli.cluster import why
from llmservice_cli.top.sample import MetricsSample, Rates, ServiceKey, between, read_pages_of, together
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_runtime.bounded_json import Reader, Refused

A_TIME = 100

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

    def __init__(self, clock: Callable[[], float]) -> None:
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


MOST_PODS = 64
MOST_LISTED = 1_000
"""Pods of one answer of the API server."""
EVERY = 8.0
FIRST_INTERVAL = 2.0
"""Seconds between the two reads of pods that were not read before."""
LONGEST_INTERVAL = 60.0
"""A reading that is older says nothing of now."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)

PodKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of the services that were asked for."""

    services: Mapping[ServiceKey, Rates] = field(default_factory=dict)
    pods: Mapping[PodKey, Rates | str] = field(default_factory=dict)
    """Rates, or why there are none."""
    problem: str = ""
    """Why nothing was measured."""
    left_out: int = 0
    """Ready pods that were not read."""
    is_known: bool = False


class Meter:
    """Of one page of one viewer. `limit` is of all of them together: how many pods are read at a time."""

    def __init__(
        self,
        limit: asyncio.Semaphore,
        clock: Callable[[], float] = time.monotonic,
        interval: float = FIRST_INTERVAL,
    ) -> None:
        self._limit, self._clock, self._interval = limit, clock, interval
        self._readings: Mapping[PodKey, MetricsSample | str] = {}
        self._measured, self._of = Measured(), frozenset[ServiceKey]()
        self._at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def measure(self, kube: Api, namespace: str | None, services: Sequence[ServiceKey]) -> Measured:
        """What is known now of these services; `namespace` is where their pods are listed, None: in all."""
        wanted = frozenset(services)
        is_free = self._task is None or self._task.done()
        if is_free and wanted and (wanted != self._of or self._clock() - self._at >= EVERY):
            self._task = asyncio.create_task(self._read(kube, namespace, wanted), name="figures of a page")
        return self._measured if wanted <= self._of else Measured()

    def begin_as(self, other: Meter) -> None:
        """Knows what the other one does: a page that shows some of its services has figures at once."""
        self._readings, self._measured, self._of, self._at = other._readings, other._measured, other._of, other._at

    async def settled(self) -> None:
        """Until nothing is being read."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.cancel()
        await self.settled()

    async def _read(self, kube: Api, namespace: str | None, services: frozenset[ServiceKey]) -> None:
        try:
            pods, left_out = await _pods(kube, namespace, services)
        except KubeError as error:
            self._known(Measured(problem=f"pods are not listed: {why(error, namespace)}", is_known=True), services)
            return
        now = self._clock()
        before = {
            key: reading
            for key, reading in self._readings.items()
            if isinstance(reading, MetricsSample) and now - reading.at <= LONGEST_INTERVAL
        }
        if any((pod.namespace, pod.name) not in before for pod in pods):
            first = await read_pages_of(kube, pods, self._clock, self._limit)
            before |= {key: one for key, one in first.items() if isinstance(one, MetricsSample) and key not in before}
            await asyncio.sleep(self._interval)
        self._readings = await read_pages_of(kube, pods, self._clock, self._limit)
        rates = {key: _rates(before.get(key), after) for key, after in self._readings.items()}
        self._known(Measured(_by_service(pods, rates), rates, left_out=left_out, is_known=True), services)

    def _known(self, measured: Measured, services: frozenset[ServiceKey]) -> None:
        self._measured, self._of, self._at = measured, services, self._clock()


async def _pods(kube: Api, namespace: str | None, services: frozenset[ServiceKey]) -> tuple[Sequence[PodFacts], int]:
    """Ready ones to read, and how many are left out."""
    names = sorted({name for _, name in services if _LABEL.fullmatch(name)})
    found: list[PodFacts] = []
    selector = f"{SERVICE_LABEL} in ({','.join(names)})"
    async for page in kube.list_pages(POD, namespace, label_selector=selector, limit=A_TIME):
        found += replicas(map(PodFacts.from_object, page.get("items") or ()))
        if len(found) >= MOST_LISTED:
            break
    serving = (pod for pod in found if pod.ready and pod.has_api and not pod.deleting)
    ready = [pod for pod in serving if (pod.namespace, pod.service or "") in services]
    ready.sort(key=lambda pod: (pod.namespace, pod.name))
    return ready[:MOST_PODS], max(0, len(ready) - MOST_PODS)


def _rates(before: MetricsSample | None, after: MetricsSample | str) -> Rates | str:
    return after if isinstance(after, str) else between(before, after)


def _by_service(pods: Sequence[PodFacts], rates: Mapping[PodKey, Rates | str]) -> Mapping[ServiceKey, Rates]:
    found: dict[ServiceKey, list[Rates]] = {}
    for pod in pods:
        one = rates[(pod.namespace, pod.name)]
        if isinstance(one, Rates):
            found.setdefault((pod.namespace, pod.service or ""), []).append(one)
    return {key: together(several) for key, several in found.items()}
