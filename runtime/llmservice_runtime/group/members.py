"""A member's connection to its group: the leader hears the workers and tells them what to do.

`Leader` and `Worker` are one interface for the supervisor: it reports what it does, waits until it is to start vLLM,
and learns when vLLM is to end. A worker that does not hear its leader for `Limits.lost` ends vLLM: without its leader
it would hold GPUs and ports, and never end by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import Failure, GroupState
from llmservice_runtime.failures import failures
from llmservice_runtime.group import course
from llmservice_runtime.group.course import Course, Limits, Seen
from llmservice_runtime.group.protocol import LINE_BYTES, Channel, Order, Report, Step, bounded
from llmservice_runtime.supervisor.tasks import cancel_and_wait

STRANGERS = 32
"""Connections that have not proved to be a member's; a further one takes the place of the oldest."""


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    beat: float = 1.0
    """Between two reports or orders without a change."""
    look: float = 0.25
    """Between two looks of the leader at the members' ages."""
    prove: float = 3.0
    """For the first line of a new connection that is a member's."""
    connect: float = 5.0
    again: float = 1.0
    """Before the next try to connect."""


@dataclass(frozen=True)
class Group:
    """What all members know."""

    rank: int
    size: int
    leader: str
    """Host of the leader."""
    port: int
    token: str = field(repr=False)
    revision: str = ""
    address: str = ""
    """Of this pod."""
    pod: str = ""
    node: str = ""


class Member(ABC):
    """A member, as its supervisor sees it."""

    def __init__(
        self, group: Group, log: Callable[[str], None], clock: Callable[[], float], limits: Limits, timing: Timing
    ) -> None:
        self._group, self._log, self._clock, self._limits, self._timing = group, log, clock, limits, timing
        self._report = Report(group.rank, group.size, group.revision, 0, Step.PREPARING, pod=group.pod, node=group.node)
        self._begun = 0
        """The last incarnation for which this member started vLLM."""
        self._changed: dict[asyncio.Event, None] = {}
        self.has_leader = True
        """Whether the leader was ever heard."""

    @property
    @abstractmethod
    def order(self) -> Order:
        """What the leader wants now."""

    @property
    @abstractmethod
    def leader_address(self) -> str:
        """The leader's IP address."""

    @property
    @abstractmethod
    def members(self) -> Mapping[int, Seen]:
        """What is known of each member, by rank."""

    def report(self, step: Step, *, progress: str = "", failure: Failure | None = None, **changed: Any) -> None:
        """Say what this member does, about the incarnation that it last began."""
        of_step = {"incarnation": self._begun, "started": False, "progress": progress, "failure": failure, **changed}
        self._report = bounded(replace(self._report, step=step, **of_step))
        self._wake()

    async def begins(self) -> int:
        """Wait until vLLM is to start; the number of the incarnation.

        Reports that this member waits, for an incarnation that does not run yet: one that began without it is lost.
        """
        async with self._changes() as changed:
            while True:
                order = self.order
                if order.incarnation > self._begun:
                    is_waiting = (self._report.step, self._report.incarnation) == (Step.WAITING, order.incarnation)
                    if order.run and is_waiting:
                        self._begun = order.incarnation
                        return self._begun
                    if not (order.run or is_waiting):
                        self.report(Step.WAITING, incarnation=order.incarnation)
                elif self._report.step not in (Step.FAILED, Step.PREPARING):
                    self.report(Step.FAILED, failure=failures.group_member_lost(0, "", self._limits.lost))
                await _next(changed)

    async def recalled(self, incarnation: int) -> None:
        """Wait until vLLM of this incarnation is to end."""
        async with self._changes() as changed:
            while self.order.run and self.order.incarnation == incarnation and not self.is_leaving:
                await _next(changed)

    @property
    def is_leaving(self) -> bool:
        """Whether it leads, and another pod of the group is to end."""
        return False

    def told(self) -> GroupState | None:
        """The group, as the leader knows it."""
        return None

    @property
    @abstractmethod
    def awaits(self) -> str:
        """What keeps vLLM from starting, for people; empty while nothing does."""

    def _wake(self) -> None:
        """What was reported or ordered changed."""
        for event in self._changed:
            event.set()

    @asynccontextmanager
    async def _changes(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set at each change."""
        event = asyncio.Event()
        self._changed[event] = None
        try:
            yield event
        finally:
            del self._changed[event]


async def _next(changed: asyncio.Event) -> None:
    await changed.wait()
    changed.clear()


class Leader(Member):
    """Rank 0. Use `leading`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._course = Course()
        self._workers: dict[int, Seen] = {}
        self._connections: set[asyncio.Task[Any]] = set()
        self._strangers: dict[asyncio.Task[Any], None] = {}
        """Those of the connections that have not proved to be a member's, oldest first."""
        self._said: dict[int, str] = {}

    @property
    def order(self) -> Order:
        return self._course.order()

    @property
    def leader_address(self) -> str:
        return self._group.address

    @property
    def is_leaving(self) -> bool:
        return course.is_leaving(self._workers)

    @property
    def awaits(self) -> str:
        return course.awaits(self._course, self.members, self._group.size, self._clock(), self._limits)

    def told(self) -> GroupState:
        return course.told(self._course, self.members, self._group.size, self._clock(), self._limits)

    @property
    def course(self) -> Course:
        return self._course

    @property
    def members(self) -> Mapping[int, Seen]:
        return MappingProxyType({0: Seen(self._report, self._clock()), **self._workers})

    def recall(self) -> None:
        """All end vLLM without a failure, and start it again once all can."""
        self._take(course.recalled(self._course))

    def _take(self, new: Course) -> None:
        if new != self._course:
            self._course = new
            self._wake()

    def advance(self) -> None:
        """Decide by what is known now."""
        self._take(course.advanced(self._course, self.members, self._group.size, self._clock(), self._limits))

    async def _look(self) -> None:
        async with self._changes() as changed:
            while True:
                self.advance()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_next(changed), self._timing.look)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new connection, until its end."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._strangers[task] = None
        if len(self._strangers) > STRANGERS:
            next(iter(self._strangers)).cancel()
        try:
            await self._hear(reader, writer, task)
        except (TimeoutError, OSError, Refused):
            pass  # a stranger, or a worker that connects again
        finally:
            self._connections.discard(task)
            self._strangers.pop(task, None)
            writer.close()

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*map(cancel_and_wait, list(self._connections)))

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[Any]) -> None:
        opening = Channel.opened(reader, writer, self._group.token, is_leader=True)
        channel = await asyncio.wait_for(opening, self._timing.prove)
        report = await asyncio.wait_for(channel.receive(Report), self._timing.prove)
        self._strangers.pop(task, None)
        telling = asyncio.ensure_future(self._tell(channel, report))
        try:
            while True:
                self._heard(report)
                report = await asyncio.wait_for(channel.receive(Report), self._limits.lost)
        finally:
            await cancel_and_wait(telling)

    def _heard(self, report: Report) -> None:
        if refused := course.refusal(report, self._report):
            if self._said.get(report.rank) != refused:
                self._log(f"{report.pod or 'a pod'} is no member of this group: {refused}")
            self._said[report.rank] = refused
            return
        self._said.pop(report.rank, None)
        self._workers[report.rank] = Seen(report, self._clock())
        self._wake()

    async def _tell(self, channel: Channel, first: Report) -> None:
        """Orders, each second and at each change."""
        async with self._changes() as changed:
            while True:
                await channel.send(self._course.order(self._said.get(first.rank, "")))
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_next(changed), self._timing.beat)


class Worker(Member):
    """Any other rank. Use `following`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._order, self._heard_at = Order(), self._clock()
        self._leader_address = ""
        self.why = "the leader has not been reached yet"
        """Why there is no order; empty while there is."""
        self.has_leader = False

    @property
    def awaits(self) -> str:
        return f"waiting for the leader: {self.why}" if self.why else "waiting until all pods of the group are there"

    @property
    def order(self) -> Order:
        return self._order

    @property
    def members(self) -> Mapping[int, Seen]:
        return {self._group.rank: Seen(self._report, self._clock())}

    @property
    def leader_address(self) -> str:
        return self._leader_address

    async def _follow(self) -> None:
        while True:
            try:
                await self._connection()
            except (TimeoutError, OSError, Refused) as error:
                self._unheard(f"{self._group.leader}: {error or type(error).__name__}")
            await asyncio.sleep(self._timing.again)

    def _unheard(self, why: str) -> None:
        if why != self.why:
            self._log(f"no order from the leader: {why}")
            self.why = why
        if self._order.run and self._clock() - self._heard_at >= self._limits.lost:
            self._log(f"the leader has been silent for {self._limits.lost:g} s: vLLM ends")
            self._obey(replace(self._order, run=False, ready=False))

    def _obey(self, order: Order) -> None:
        if order != self._order:
            self._order = order
            self._wake()

    async def _connection(self) -> None:
        opening = asyncio.open_connection(self._group.leader, self._group.port, limit=LINE_BYTES)
        reader, writer = await asyncio.wait_for(opening, self._timing.connect)
        try:
            channel = await asyncio.wait_for(
                Channel.opened(reader, writer, self._group.token, is_leader=False), self._timing.prove
            )
            telling = asyncio.ensure_future(self._tell(channel))
            try:
                while True:
                    order = await asyncio.wait_for(channel.receive(Order), self._limits.silent)
                    self._heard_at, self.why = self._clock(), order.refused
                    self.has_leader = True
                    self._leader_address = writer.get_extra_info("peername")[0]
                    self._obey(order)
            finally:
                await cancel_and_wait(telling)
        finally:
            writer.close()

    async def _tell(self, channel: Channel) -> None:
        async with self._changes() as changed:
            while True:
                await channel.send(self._report)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_next(changed), self._timing.beat)


@asynccontextmanager
async def member(
    group: Group,
    log: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    limits: Limits = Limits(),  # noqa: B008
    timing: Timing = Timing(),
) -> AsyncIterator[Member]:
    """The member of this rank, connected until the end. OSError where the leader cannot listen at the port."""
    if group.rank:
        worker = Worker(group, log, clock, limits, timing)
        async with _running(worker._follow()):
            yield worker
        return
    leader = Leader(group, log, clock, limits, timing)
    server = await asyncio.start_server(leader.connected, None, group.port, limit=LINE_BYTES)
    try:
        async with server, _running(leader._look()):
            yield leader
    finally:
        await leader.close()


@asynccontextmanager
async def _running(work: Any) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        await cancel_and_wait(task)
