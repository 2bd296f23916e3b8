"""Reads logs: one container's as a stream of lines, and several in the order of time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

from kubeloop.errors import KubeError

from llmservice_cli.api import PAUSE, Api, Json, Objects, container_statuses

from .lines import NEVER, Line, Moment, Origin, Splitter, read
from .targets import chosen, containers, run_of

# Follows the logs of a service's pods, across restarts of containers and pods that come and go.

MOST_WAITING = 1000
"""Lines that were read and are not printed yet; then reading waits."""


@dataclass
class Follower:
    """Puts lines into `queue`. One task for each container that has run, for as long as its pod is there."""

    reader: Reader
    pod: str | None
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
                selected = {str(pod["metadata"]["uid"]): pod for pod in chosen(pods.values(), self.pod)}
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
                            tasks.create_task(self._container(uid, Origin(pod["metadata"]["name"], name), params))
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
