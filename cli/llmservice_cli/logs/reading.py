"""Reads logs: of chosen containers, each as a stream of lines, and several in the order of time.

Whatever a pod prints is bounded and cleaned.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from kubeloop.errors import KubeError
from llmservice_api.constants import RANK_LABEL, SERVICE_LABEL
from llmservice_runtime.bounded_json import clean
from llmservice_runtime.contract import FETCH_CONTAINER, SERVER_CONTAINER
from llmservice_runtime.failures.reasons import FailureReason
from llmservice_runtime.supervisor.log_reader import LINE_LIMIT, parse_line

from llmservice_cli.api import PAUSE, Api, Json, Objects, container_statuses, labels_of
from llmservice_cli.errors import CliError

SUPERVISOR, VLLM = "supervisor", "vllm"
OWN = "[llmservice] "
"""Before each line of the supervisor and of what else is the operator's."""
MOST_BYTES = 4 * LINE_LIMIT
"""Of a line; what is beyond them is dropped."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FAILURES = tuple(f"{word}: " for word in ("Failed", *FailureReason))

Moment = tuple[int, str]
"""Seconds since 1970, and nine digits of their fraction."""
NEVER: Moment = (0, "")


@dataclass(frozen=True, slots=True)
class Origin:
    """A container of a pod."""

    pod: str
    container: str
    end: str = ""
    """Of the pod's name: what differs from pod to pod."""

    @classmethod
    def of(cls, pod: Json, container: str) -> Self:
        return cls(pod["metadata"]["name"], container, short(pod))


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `level` is empty where its writer gave none."""

    origin: Origin
    time: str
    moment: Moment
    source: str
    """SUPERVISOR or VLLM in the server's container, else the container."""
    level: str
    text: str

    def is_at_least(self, level: str) -> bool:
        """Whether it is as serious as `level`, or of no known level."""
        return not self.level or LEVELS.index(self.level) >= LEVELS.index(level)


class Splitter:
    """Cuts bytes into lines. Of a longer line the first MOST_BYTES are kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that end in this chunk."""
        first, *others = chunk.split(b"\n")
        self._rest += first[: MOST_BYTES - len(self._rest)]
        for other in others:
            yield self._rest
            self._rest = other[:MOST_BYTES]

    def end(self) -> Iterator[bytes]:
        """The last line, where it has no newline."""
        if self._rest:
            yield self._rest
        self._rest = b""


def read(raw: bytes, origin: Origin) -> Line:
    """A line as the API server sends it with `timestamps`."""
    time, moment, rest = _stamped(raw)
    text = _COLOURS.sub("", rest.decode(errors="replace")).rstrip()[:LINE_LIMIT]
    source, level = origin.container, parse_line(text).level
    if text.startswith(OWN):
        text = text.removeprefix(OWN)
        level = "ERROR" if text.startswith(_FAILURES) else "INFO"
        source = SUPERVISOR if origin.container == SERVER_CONTAINER else source
    elif origin.container == SERVER_CONTAINER:
        source = VLLM
    return Line(origin, time, moment, source, level, " ".join(clean(text).splitlines()))


def _stamped(raw: bytes) -> tuple[str, Moment, bytes]:
    """The time, which is empty for a line without one, and what follows it."""
    found = _STAMP.match(raw)
    if found is None:
        return "", NEVER, raw
    base, fraction, offset = (part.decode() for part in found.groups(b""))
    try:
        seconds = int(datetime.fromisoformat(base + offset).timestamp())
    except (ValueError, OverflowError):
        return "", NEVER, raw
    return found[0].decode().rstrip(), (seconds, fraction.ljust(9, "0")), raw[found.end() :]


# Which containers of which pods are read, and what tells them apart.

_ALWAYS = (SERVER_CONTAINER, FETCH_CONTAINER)


def short(pod: Json) -> str:
    """The end of its name, which differs from pod to pod. Those of a replica over several nodes are called after their
    replica and, but the leader, their rank: NAME-0, NAME-0-1."""
    name, labels = str(pod["metadata"]["name"]), labels_of(pod)
    return name.removeprefix(f"{labels.get(SERVICE_LABEL)}-") if RANK_LABEL in labels else name.rpartition("-")[2]


def chosen(pods: Iterable[Json], wanted: str | None, rank: int | None) -> list[Json]:
    """All, or those that are meant, by name and by rank."""
    found = sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
    named = (pod for pod in found if wanted in (None, pod["metadata"]["name"], short(pod)))
    return [pod for pod in named if rank is None or labels_of(pod).get(RANK_LABEL) == str(rank)]


def containers(pod: Json, wanted: str | None) -> list[str]:
    """Names of those that are read: the one that is meant; else the server, the one that fetches and those that failed,
    as far as they have run."""
    return [
        status["name"]
        for status in container_statuses(pod)
        if (wanted == status["name"] if wanted else status["name"] in _ALWAYS or _has_failed(status))
    ]


def origins(pods: Sequence[Json], container: str | None, *, previous: bool) -> list[Origin]:
    """Every container that has a log, of the present run or of the one before. CliError where none of the pods has the
    container that was named."""
    names = sorted({each["name"] for pod in pods for each in _specified(pod)})
    if pods and container is not None and container not in names:
        raise CliError(f"no pod has a container {container!r}", f"choose one of: {', '.join(names)}")
    found = []
    for pod in pods:
        by_name = {status["name"]: status for status in container_statuses(pod)}
        for name in containers(pod, container):
            if run_of(by_name[name]) if not previous else by_name[name].get("restartCount"):
                found.append(Origin.of(pod, name))
    return found


def run_of(status: Json) -> str:
    """Names the present or last run of a container; empty before the first."""
    return str(status.get("containerID") or "")


def _specified(pod: Json) -> Iterator[Json]:
    spec = pod.get("spec") or {}
    for kind in ("initContainers", "containers"):
        yield from spec.get(kind) or ()


def _has_failed(status: Json) -> bool:
    ends = [(status.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
    return any(end.get("exitCode") for end in ends)


# Follows the logs of a service's pods, across restarts of containers and pods that come and go.

MOST_WAITING = 1000
"""Lines that were read and are not printed yet; then reading waits."""


@dataclass
class Follower:
    """Puts lines into `queue`. One task for each container that has run, for as long as its pod is there."""

    reader: Reader
    pod: str | None
    rank: int | None
    container: str | None
    first: Mapping[str, str]
    """Parameters for what was logged before: --tail and --since. Of pods that come later all is read."""
    note: Callable[[str], None]
    """Takes the reasons why a log cannot be read, each once."""
    none: Callable[[], None]
    """Called when there is no pod, or none any more."""
    queue: asyncio.Queue[Line] = field(default_factory=lambda: asyncio.Queue(MOST_WAITING))
    pods: Objects = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, versions: AsyncGenerator[Objects]) -> None:
        """Until it is cancelled. KubeError where pods can never be listed."""
        begun: set[tuple[str, str]] = set()
        is_first = True
        async with asyncio.TaskGroup() as tasks, aclosing(versions) as found:
            async for pods in found:
                selected = {str(pod["metadata"]["uid"]): pod for pod in chosen(pods.values(), self.pod, self.rank)}
                if not selected and (is_first or self.pods):
                    self.none()
                async with self._changed:
                    self.pods = selected
                    self._changed.notify_all()
                for uid, pod in self.pods.items():
                    for name in containers(pod, self.container):
                        if (uid, name) not in begun:
                            begun.add((uid, name))
                            params = self.first if is_first else {}
                            tasks.create_task(self._container(uid, Origin.of(pod, name), params))
                is_first = False

    async def _container(self, uid: str, origin: Origin, params: Mapping[str, str]) -> None:
        done, last, told = "", NEVER, set[str]()
        while (run := await self._next_run(uid, origin.container, done)) is not None:
            try:
                last, params = await self._copy(origin, params, last)
            except Unread as error:
                if error.why not in told:
                    told.add(error.why)
                    self.note(f"{origin.pod}, {origin.container}: {error.why}")
                await asyncio.sleep(PAUSE)
                continue
            if self._is_running(uid, origin.container, run):
                await asyncio.sleep(PAUSE)  # the connection ended, or the end of the container is not known yet
            else:
                done = run

    async def _copy(self, origin: Origin, params: Mapping[str, str], last: Moment) -> tuple[Moment, Mapping[str, str]]:
        """Until the log ends; where the next reading begins. The API server knows whole seconds only, so that lines
        come twice."""
        async with aclosing(self.reader.lines(origin, params, follow=True)) as lines:
            async for line in lines:
                if line.moment == NEVER or line.moment > last:
                    last = max(last, line.moment)
                    params = {"sinceTime": line.time} if line.time else params
                    await self.queue.put(line)
        return last, params

    async def _next_run(self, uid: str, container: str, done: str) -> str | None:
        """Names the next run of a container, when it has begun; None when its pod is gone."""

        def is_known() -> bool:
            return uid not in self.pods or self._run(uid, container) not in ("", done)

        async with self._changed:
            await self._changed.wait_for(is_known)
        return self._run(uid, container) or None

    def _run(self, uid: str, container: str) -> str:
        return run_of(self._status(uid, container))

    def _is_running(self, uid: str, container: str, run: str) -> bool:
        status = self._status(uid, container)
        return run_of(status) == run and "running" in (status.get("state") or {})

    def _status(self, uid: str, container: str) -> Json:
        found = container_statuses(self.pods.get(uid) or {})
        return next((status for status in found if status.get("name") == container), {})


PATIENCE = 30.0
"""Seconds without a byte of a log that is not followed."""


class Unread(Exception):
    """Why a log, or the rest of it, cannot be read."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Reader:
    """The logs of pods in one namespace."""

    kube: Api
    namespace: str

    async def lines(self, origin: Origin, params: Mapping[str, str], *, follow: bool) -> AsyncGenerator[Line]:
        """Unread where the API server refuses, or the connection breaks."""
        query = {**params, "container": origin.container, "timestamps": "true", "follow": str(follow).lower()}
        found = self.kube.log_chunks(self.namespace, origin.pod, query, silence=None if follow else PATIENCE)
        splitter = Splitter()
        try:
            async with aclosing(found) as chunks:
                async for chunk in chunks:
                    for raw in splitter.feed(chunk):
                        yield read(raw, origin)
        except KubeError as error:
            raise Unread(error.message) from error
        for raw in splitter.end():
            yield read(raw, origin)


async def merged(
    streams: Mapping[Origin, AsyncGenerator[Line]], unread: Callable[[Origin, str], None]
) -> AsyncGenerator[Line]:
    """The lines of all in the order of time, with one line of each in memory; what ends a stream early goes to
    `unread`."""
    waiting: list[tuple[Moment, int, Line]] = []
    numbered = tuple(streams.items())

    async def take(number: int) -> None:
        origin, stream = numbered[number]
        try:
            line = await anext(stream, None)
        except Unread as error:
            unread(origin, error.why)
            return
        if line is not None:
            heapq.heappush(waiting, (line.moment, number, line))

    async with AsyncExitStack() as opened:
        for _, stream in numbered:
            await opened.enter_async_context(aclosing(stream))
        for number in range(len(numbered)):
            await take(number)
        while waiting:
            _, number, line = heapq.heappop(waiting)
            yield line
            await take(number)
