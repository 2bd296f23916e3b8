"""A member's connection to its group: the leader receives reports of the workers and sends them orders.

`Leader` and `Worker` are one interface for the supervisor: it reports what it does, waits until it is to start vLLM,
and learns when vLLM is to end. A worker that does not hear its leader for `Limits.lost` ends vLLM: without its leader
it would hold GPUs and ports, and never end by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import MAX_NODES, MAX_TEXT, Failure, GroupState
from llmservice_runtime.failures import failures
from llmservice_runtime.group import course
from llmservice_runtime.group.connections import ENDS, Connections
from llmservice_runtime.group.course import LEAP, Course, Limits, Seen
from llmservice_runtime.group.protocol import LINE_BYTES, MOST_REQUESTS, Channel, Hello, Order, Report, Step, bounded
from llmservice_runtime.supervisor.tasks import cancel_and_wait, first_done, together

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Seconds."""

    beat: float = 1.0
    """Between two reports or orders without a change."""
    pause: float = 0.05
    """Between two reports of one member: further ones wait until then."""
    look: float = 0.25
    """Between two looks at when others were last heard of."""
    prove: float = 3.0
    """For a new connection to prove that it is a member's."""
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
    vllm_version: str = ""
    """Empty where it is not known, as is `build`."""
    build: str = ""
    """Digest of the installed packages."""
    address: str = ""
    """Of this pod."""
    pod: str = ""
    node: str = ""
    is_hybrid: bool = False
    """Each member answers requests, and not only the leader."""

    @property
    def is_headless(self) -> bool:
        """Whether vLLM of this rank has no API."""
        return self.rank > 0 and not self.is_hybrid

    @property
    def hello(self) -> Hello:
        """Of one supervisor, which is another instance each time."""
        instance = secrets.token_hex(8)
        pod = (self.pod, self.node, self.vllm_version, self.build)
        return Hello(self.rank, self.size, self.leader, self.revision, instance, *pod)


@dataclass(frozen=True)
class Own:
    """What a member's supervisor knows of itself."""

    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    progress: Callable[[], str] = str
    """Of the start that is under way; empty without one."""
    in_flight: Callable[[], int] = int
    """Requests that are answered now."""


class Member(ABC):
    """A member, as its supervisor sees it."""

    def __init__(self, group: Group, own: Own, limits: Limits, timing: Timing) -> None:
        self._group, self._own, self._limits, self._timing = group, own, limits, timing
        self._log, self._clock = own.log, own.clock
        self._hello = group.hello
        self._report = Report(0, Step.PREPARING)
        self.begun = 0
        """The last incarnation for which this member started vLLM."""
        self._changed: dict[asyncio.Event, None] = {}
        self._running: asyncio.Future[None] | None = None
        self.has_leader = True
        """Whether the leader was ever heard."""

    @abstractmethod
    async def _run(self) -> None:
        """Hear and tell the others. Raises what is none of ENDS."""

    def start(self) -> None:
        """Hear and tell the others until `close`."""
        self._running = asyncio.ensure_future(self._run())

    async def alongside(self, work: Awaitable[T]) -> T:
        """The result of `work`. An unforeseen error of the connections ends it, and is raised."""
        assert self._running is not None
        done = await first_done(work, self._running)
        if self._running.done():
            self._running.result()
        return done.result()

    async def close(self) -> None:
        """End all connections."""
        assert self._running is not None
        await cancel_and_wait(self._running)

    @property
    @abstractmethod
    def order(self) -> Order:
        """What the leader wants now."""

    @property
    @abstractmethod
    def leader_address(self) -> str:
        """The leader's IP address."""

    def report(self, step: Step, *, failure: Failure | None = None, **changed: Any) -> None:
        """Say what this member does, about the incarnation that it last began."""
        of_step = {"incarnation": self.begun, "started": False, "drained": False, "failure": failure, **changed}
        self._report = bounded(replace(self._report, step=step, **of_step))
        self._wake()

    @property
    def reported(self) -> Report:
        """What this member says now."""
        in_flight = min(self._own.in_flight(), MOST_REQUESTS)
        return replace(self._report, progress=self._own.progress()[:MAX_TEXT], in_flight=in_flight)

    async def begins(self) -> int:
        """Wait until vLLM is to start; the number of the incarnation.

        Reports that this member waits, for an incarnation that does not run yet: one that began without it is lost.
        """
        async with self._changes() as changed:
            while True:
                order = self.order
                if order.incarnation > self.begun:
                    is_waiting = (self._report.step, self._report.incarnation) == (Step.WAITING, order.incarnation)
                    if order.run and is_waiting:
                        self.begun = order.incarnation
                        return self.begun
                    if not (order.run or is_waiting):
                        self.report(Step.WAITING, incarnation=order.incarnation)
                elif self._report.step not in (Step.FAILED, Step.PREPARING):
                    self.report(Step.FAILED, failure=failures.group_member_lost(0, "", self._limits.lost))
                await _next(changed)

    async def ready(self) -> None:
        """Wait until the group takes requests."""
        async with self._changes() as changed:
            while not self.order.ready:
                await _next(changed)

    async def recalled(self, incarnation: int) -> None:
        """Wait until vLLM of this incarnation is to end."""
        async with self._changes() as changed:
            while self.is_to_run(incarnation) and not self.is_leaving:
                await _next(changed)

    async def drained(self) -> None:
        """Wait until no member answers requests any more, or vLLM is to end. Says that this one does not."""
        self.report(self._report.step, started=True, drained=True)
        async with self._changes() as changed:
            while self.is_to_run(self.begun) and not self._are_others_drained:
                await _next(changed)

    def is_to_run(self, incarnation: int) -> bool:
        """Whether the leader wants vLLM of this incarnation to run."""
        return self.order.run and self.order.incarnation == incarnation

    @property
    @abstractmethod
    def is_leaving(self) -> bool:
        """Whether it answers requests, and is to end that since a pod of the group is to end."""

    @property
    def _are_others_drained(self) -> bool:
        """As far as it knows."""
        return False

    def told(self) -> GroupState | None:
        """The group, as the leader knows it."""
        return None

    @property
    def slowest(self) -> str:
        """Which worker is behind while vLLM starts, as the leader knows it; empty where none is."""
        return ""

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
    """Rank 0."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._course = Course()
        self._seen = course.heard(None, self._hello, self._report, self._clock())
        self._workers: dict[int, Seen] = {}
        self._channels: dict[int, Channel] = {}
        """Of the workers, by rank."""
        self._replaced: deque[str] = deque(maxlen=MAX_NODES)
        """Instances of supervisors whose rank another one has by now."""
        self._refused: dict[int, str] = {}
        """Why the last one that wanted to be this rank is no member."""
        self._news = asyncio.Event()
        self._in_flight = 0
        self.connections = Connections(self._group.token, self._hear, self._log, self._clock, self._timing.prove)

    async def _run(self) -> None:
        await together(self._look(), self.connections.broken)

    async def close(self) -> None:
        for channel in self._channels.values():
            channel.write(replace(self.order, run=False, ready=False))  # its own vLLM is gone
        await self.connections.close()
        await super().close()

    @property
    def order(self) -> Order:
        """Not ready once a member is silent, also where nobody looked since."""
        is_heard = course.all_heard(self.members, self._group.size, self._clock(), self._limits)
        order = self._course.order()
        drain = self._group.is_hybrid and course.is_leaving(self.members)
        return replace(order, ready=order.ready and is_heard, drain=drain)

    @property
    def leader_address(self) -> str:
        return self._group.address

    @property
    def is_leaving(self) -> bool:
        return course.is_leaving(self._workers)

    @property
    def _are_others_drained(self) -> bool:
        return course.are_drained(self._workers, self._course)

    @property
    def awaits(self) -> str:
        waits = course.awaits(self._course, self.members, self._group.size, self._clock(), self._limits)
        return "; ".join(filter(None, [waits, *self._refused.values()]))[:MAX_TEXT]

    @property
    def slowest(self) -> str:
        return "" if self._course.ready else course.slowest(self._course, self.members)

    def told(self) -> GroupState:
        return course.told(self._course, self.members, self._group.size, self._clock(), self._limits)

    @property
    def course(self) -> Course:
        return self._course

    @property
    def members(self) -> Mapping[int, Seen]:
        """What is known of each member, by rank."""
        own = replace(self._seen, report=self.reported, at=self._clock())
        return MappingProxyType({0: own, **self._workers})

    def report(self, step: Step, **changed: Any) -> None:
        super().report(step, **changed)
        self._seen = course.heard(self._seen, self._hello, self._report, self._clock())
        self._news.set()

    def recall(self, incarnation: int) -> None:
        """All end vLLM of this incarnation without a failure, and start it again once all can."""
        if self.is_to_run(incarnation):
            self._take(course.recalled(self._course))

    def _take(self, new: Course) -> None:
        if new == self._course:
            return
        if (cause := new.cause) is not None and cause is not self._course.cause:
            where = " on ".join(filter(None, (cause.pod, cause.node))) or "never heard of"
            why = f"rank {cause.rank} ({where}): {cause.failure.reason}: {cause.failure.message}"
            lost = f"; requests in flight: {cause.lost_requests}"
            self._log(f"incarnation {self._course.incarnation} of the group failed: {_line(why)}{lost}")
        self._course = new
        self._wake()

    def advance(self) -> None:
        """Decide by what is known now."""
        before, self._in_flight = self._in_flight, sum(seen.report.in_flight for seen in self.members.values())
        # Those that vLLM gave up with its last breath were there a moment ago.
        lost = max(before, self._in_flight)
        now = self._clock()
        self._take(course.advanced(self._course, self.members, self._group.size, now, self._limits, lost))

    async def _look(self) -> None:
        while True:
            self._news.clear()
            self.advance()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._timing.look)

    async def _hear(self, channel: Channel, hello: Hello) -> None:
        """A member's connection, until its end; one that is no member of this group is told so."""
        rank = hello.rank
        if refused := self._refusal(hello):
            self._refuse(hello, refused)
            await channel.send(Order(refused=refused))
            return
        self._refused.pop(rank, None)
        if older := self._channels.get(rank):
            older.abort()
        if (before := self._workers.get(rank)) is not None and before.hello.instance != hello.instance:
            self._replaced.append(before.hello.instance)
        self._channels[rank] = channel
        try:
            await together(self._tell(channel), self._listen(channel, hello))
        except Refused as refused_line:
            self._refuse(hello, str(refused_line))
        finally:
            if self._channels.get(rank) is channel:
                del self._channels[rank]
                if seen := self._workers.get(rank):
                    self._workers[rank] = replace(seen, closed_at=self._clock())
                    self._wake()

    def _refusal(self, hello: Hello) -> str:
        if hello.instance in self._replaced:
            return f"rank {hello.rank} is another supervisor by now"
        return course.refusal(hello, self._hello)

    def _refuse(self, hello: Hello, why: str) -> None:
        if self._refused.get(hello.rank) != why:
            self._log(_line(f"{hello.pod or 'a pod'} is no member of this group: {why}"))
        self._refused[hello.rank] = why

    async def _listen(self, channel: Channel, hello: Hello) -> None:
        while True:
            report = await asyncio.wait_for(channel.receive(Report), self._limits.lost)
            _check_number(report.incarnation, self._course.incarnation)
            self._take_report(hello, report)
            await asyncio.sleep(self._timing.pause)

    def _take_report(self, hello: Hello, report: Report) -> None:
        before = self._workers.get(hello.rank)
        self._workers[hello.rank] = course.heard(before, hello, report, self._clock())
        if before is None or _deed(before.report) != _deed(report):
            self._news.set()
            self._wake()

    async def _tell(self, channel: Channel) -> None:
        """Orders, each second and at each change."""
        async with self._changes() as changed:
            while True:
                await channel.send(order := self.order)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._orders_otherwise(order, changed), self._timing.beat)

    async def _orders_otherwise(self, order: Order, changed: asyncio.Event) -> None:
        while self.order == order:
            await _next(changed)


class Worker(Member):
    """Any other rank."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._order, self._heard_at = Order(), self._clock()
        self._leader_address = ""
        self.why = "the leader has not been reached yet"
        """Why there is no order; empty while there is."""
        self.has_leader = False

    async def _run(self) -> None:
        await together(self._follow(), self._look())

    @property
    def awaits(self) -> str:
        if self.why:
            return f"waiting for the leader: {self.why}"[:MAX_TEXT]
        waits = "waiting until all pods of the group are there"
        return "the group has used up its restarts" if self._order.is_exhausted else waits

    @property
    def order(self) -> Order:
        """The leader's last one; not ready once the leader is silent."""
        is_heard = self._clock() - self._heard_at < self._limits.silent
        return replace(self._order, ready=self._order.ready and is_heard)

    @property
    def leader_address(self) -> str:
        return self._leader_address

    @property
    def is_leaving(self) -> bool:
        return self._order.drain

    async def _follow(self) -> None:
        while True:
            try:
                await self._connection()
            except ENDS as error:
                self._unheard(f"{self._group.leader}: {str(error) or 'it says nothing'}")
            await asyncio.sleep(self._timing.again)

    def _unheard(self, why: str) -> None:
        if why != self.why:
            self._log(_line(f"no order from the leader: {why}"))
            self.why = why

    async def _look(self) -> None:
        while True:
            if self._order.run and self._clock() - self._heard_at >= self._limits.lost:
                self._log(f"the leader has been silent for {self._limits.lost:g} s: vLLM ends")
                self._obey(replace(self._order, run=False, ready=False))
            await asyncio.sleep(self._timing.look)

    def _obey(self, order: Order) -> None:
        self._order = order
        self._wake()

    async def _connection(self) -> None:
        opening = asyncio.open_connection(self._group.leader, self._group.port, limit=LINE_BYTES)
        reader, writer = await asyncio.wait_for(opening, self._timing.connect)
        try:
            opened = Channel.opened(reader, writer, self._group.token, is_leader=False)
            channel = await asyncio.wait_for(opened, self._timing.prove)
            await channel.send(self._hello)
            await together(self._tell(channel), self._listen(channel, writer.get_extra_info("peername")[0]))
        finally:
            writer.close()

    async def _listen(self, channel: Channel, address: str) -> None:
        while True:
            order = await asyncio.wait_for(channel.receive(Order), self._limits.silent)
            _check_number(order.incarnation, self._order.incarnation)
            self.has_leader = True
            if order.refused:
                self._obey(replace(self._order, run=False, ready=False))
                raise Refused(order.refused)
            before = self.order
            self._heard_at, self._leader_address, self.why = self._clock(), address, ""
            if order != before:
                self._obey(order)

    async def _tell(self, channel: Channel) -> None:
        """Reports, each second and at each change."""
        async with self._changes() as changed:
            while True:
                await channel.send(self.reported)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(_next(changed), self._timing.beat)


def _deed(report: Report) -> Report:
    """What may change the course; the rest may wait until the leader looks again."""
    return replace(report, progress="", in_flight=0)


def _check_number(incarnation: int, own: int) -> None:
    """Refused for one that no group of this age has."""
    if incarnation > own + LEAP:
        raise Refused(f"its incarnation is {incarnation}, and the own is {own}")


def _line(text: str) -> str:
    """What another pod said, as one line of the log."""
    return " ".join(text.split())


@asynccontextmanager
async def member(
    group: Group,
    own: Own,
    limits: Limits = Limits(),  # noqa: B008
    timing: Timing = Timing(),
) -> AsyncIterator[Member]:
    """The member of this rank, connected until the end. OSError where the leader cannot listen at the port."""
    made: Member
    server = None
    if group.rank:
        made = Worker(group, own, limits, timing)
    else:
        made = leader = Leader(group, own, limits, timing)
        server = await leader.connections.listening(group.port)
    made.start()
    try:
        yield made
    finally:
        if server is not None:
            server.close()  # not awaited: since Python 3.12.1 that waits for the connections, which end below
        await made.close()
