"""The Lease: who may write, and when. Time is simulated; the API server is a dictionary with resourceVersions."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llmservice_operator.kube.credentials import Credentials, Token
from llmservice_operator.kube.errors import AlreadyExists, Conflict, NotFound, Unreachable
from llmservice_operator.kube.lease import Lease, LeaseTiming, Outcome
from llmservice_operator.kube.resources import Resource
from llmservice_operator.kube.transport import Transport


class World:
    """One clock, one API server, any number of candidates that sleep on that clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.requests = 0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waked = asyncio.Event()
        self._sleepers.append((self.now + seconds, waked))
        await waked.wait()

    async def run_until(self, done: Callable[[], bool], limit: float) -> float:
        """Let time pass, event by event; returns how long it took."""
        started = self.now
        await self.settle()
        while not done():
            due = min((when for when, _ in self._sleepers), default=started + limit + 1)
            assert due <= started + limit, f"not within {limit} s"
            self.now = max(self.now, due)
            await self._wake()
        return self.now - started

    async def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        await self.settle()
        while (due := min((when for when, _ in self._sleepers), default=until + 1)) <= until:
            self.now = max(self.now, due)
            await self._wake()
        self.now = until

    async def _wake(self) -> None:
        """Those whose time has come."""
        ready = [event for when, event in self._sleepers if when <= self.now]
        self._sleepers = [(when, event) for when, event in self._sleepers if when > self.now]
        for event in ready:
            event.set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


class FakeTransport(Transport):
    """A candidate's own connection; it can hang or be refused."""

    def __init__(self, world: World) -> None:
        super().__init__(Credentials(server="http://x", namespace="ns", token=Token.fixed(None)))
        self.world = world
        self.hangs = False
        self.is_refused = False
        self.cut_after_write = False

    async def request(
        self, verb: str, resource: Resource, path: str, *, body: Any = None, timeout: Any = 10.0, **_: Any
    ) -> dict[str, Any]:
        world = self.world
        world.requests += 1
        if self.hangs:
            assert isinstance(timeout, float)
            await world.sleep(timeout)
            raise Unreachable("timed out")
        if self.is_refused:
            raise Unreachable("connection refused")
        if verb == "get":
            if world.lease is None:
                raise NotFound("no lease")
            return world.lease
        if verb == "create":
            if world.lease is not None:
                raise AlreadyExists("there is one")
        elif world.lease is None or body["metadata"]["resourceVersion"] != world.lease["metadata"]["resourceVersion"]:
            raise Conflict("it changed")
        world.version += 1
        world.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(world.version)}}
        return world.lease


class Candidate:
    def __init__(self, world: World, name: str) -> None:
        self.transport = FakeTransport(world)
        self.lease = Lease(
            self.transport, namespace="ns", name="op", identity=name, clock=world.clock, sleep=world.sleep
        )
        self.gained = 0
        self.task = asyncio.create_task(self.lease.run(self._gain))

    def _gain(self) -> None:
        self.gained += 1

    @property
    def leads(self) -> bool:
        return self.lease.is_leader

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@pytest.fixture
async def world() -> World:
    return World()


async def pair(world: World) -> tuple[Candidate, Candidate]:
    first = Candidate(world, "first")
    await world.run_until(lambda: first.leads, 1)
    second = Candidate(world, "second")
    await world.pass_time(7)
    assert first.leads
    assert not second.leads
    return first, second


async def test_the_first_creates_the_lease_and_a_second_one_waits(world: World) -> None:
    first, second = await pair(world)
    await world.pass_time(300)
    assert (first.leads, second.leads, first.gained, second.gained) == (True, False, 1, 0)
    assert world.lease is not None
    assert world.lease["spec"]["holderIdentity"] == "first"
    assert world.lease["spec"]["leaseTransitions"] == 0


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.7, 1.3, 1.9])
async def test_takeover_after_a_kill_within_15_seconds(world: World, phase: float) -> None:
    first, second = await pair(world)
    await world.pass_time(phase)
    await first.kill()
    assert await world.run_until(lambda: second.leads, 15) <= 12.5
    assert world.lease is not None
    assert world.lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_whose_api_connection_hangs_stops_before_another_starts(world: World) -> None:
    first, second = await pair(world)
    first.transport.hangs = True
    lost_after = await world.run_until(lambda: not first.leads, 7)
    assert lost_after <= 6
    assert not second.leads
    took = await world.run_until(lambda: second.leads, 15 - lost_after)
    assert took > 1
    assert not first.leads
    first.transport.hangs = False
    assert await asyncio.wait_for(first.task, 1) is Outcome.LOST


async def test_a_candidate_does_not_hammer_at_a_server_that_is_away(world: World) -> None:
    first, second = await pair(world)
    await first.kill()
    second.transport.is_refused = True
    await world.pass_time(20)  # the record that it saw has long expired
    before = world.requests
    await world.pass_time(10)
    assert world.requests - before <= 20
    second.transport.is_refused = False
    assert await world.run_until(lambda: second.leads, 15) <= 1


async def test_a_stopped_and_continued_leader_may_not_write_even_before_it_asks(world: World) -> None:
    first, _ = await pair(world)
    world.now += 20  # SIGSTOP: nothing of it ran
    assert first.lease.remaining() <= 0
    assert not first.leads


async def test_a_leader_that_slept_past_its_deadline_does_not_come_back(world: World) -> None:
    """Nobody else took the lease meanwhile, yet the work of this reign is over."""
    first = Candidate(world, "first")
    await world.run_until(lambda: first.leads, 1)
    world.now += 20
    await world.run_until(first.task.done, 5)
    assert first.task.result() is Outcome.LOST


async def test_a_leader_notices_that_another_took_its_lease(world: World) -> None:
    first, _ = await pair(world)
    assert world.lease is not None
    spec = {**world.lease["spec"], "holderIdentity": "thief"}
    world.lease = {**world.lease, "spec": spec, "metadata": {**world.lease["metadata"], "resourceVersion": "999"}}
    assert await world.run_until(lambda: not first.leads, 4) <= 3


async def test_a_touch_by_others_does_not_end_a_reign(world: World) -> None:
    first, _ = await pair(world)
    assert world.lease is not None
    world.lease = {**world.lease, "metadata": {**world.lease["metadata"], "resourceVersion": "999"}}
    await world.pass_time(30)
    assert first.leads


async def test_release_hands_over_at_once(world: World) -> None:
    first, second = await pair(world)
    await first.lease.release()
    assert not first.leads
    await first.kill()
    assert await world.run_until(lambda: second.leads, 15) <= 2.5


async def test_release_of_a_follower_takes_nothing_from_the_leader(world: World) -> None:
    first, second = await pair(world)
    await second.lease.release()
    await world.pass_time(5)
    assert first.leads


async def test_a_steady_reign_costs_one_request_a_renewal(world: World) -> None:
    first = Candidate(world, "first")
    await world.run_until(lambda: first.leads, 1)
    before = world.requests
    await world.pass_time(60)
    assert world.requests - before <= 31
    assert first.leads


async def test_two_candidates_at_the_same_instant_make_one_leader(world: World) -> None:
    candidates = [Candidate(world, str(n)) for n in range(5)]
    await world.pass_time(5)
    assert [c.leads for c in candidates].count(True) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"duration": 6.0},
        {"renew_deadline": 3.0},
        {"request_timeout": 5.0},
    ],
    ids=str,
)
def test_timings_that_could_make_two_leaders_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lease"):
        LeaseTiming(**bad)
