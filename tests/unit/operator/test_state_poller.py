"""Asking pods: how often, how many at once, what is passed on when, and that nobody is asked for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kubeloop.resources import Key
from llmservice_operator.observe.observed import Ask
from llmservice_operator.readers.pod_port import Unreadable
from llmservice_operator.service.metrics import Metrics
from llmservice_operator.service.state_poller import (
    CONCURRENCY,
    INTERVAL,
    LONGEST_INTERVAL,
    PATIENCE,
    REPORT_SECONDS,
    StatePoller,
)
from llmservice_runtime.contract import (
    AdapterState,
    Cause,
    Failure,
    FailureReason,
    GroupState,
    MemberState,
    Phase,
    State,
    Transfer,
    TransferStep,
)

KEY = Key("team-a", "x")
LISTING = State(Phase.FETCHING, transfer=Transfer("model", TransferStep.LISTING))
LOADING = State(Phase.LOADING, progress="loading")
SERVING = State(Phase.SERVING, started=True)


def downloading(percent: int) -> State:
    return replace(LISTING, transfer=Transfer("model", TransferStep.DOWNLOADING, percent, 100), phase_seconds=percent)


def ask(name: str = "x-0", *, is_starting: bool = True, restarts: int = 0) -> Ask:
    return Ask(name, f"uid-{name}", restarts, name, is_starting)


class World:
    """Pods with given answers, on a clock that only tests move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.answers: dict[str, State | Unreadable] = {}
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.changed: list[Key] = []
        self.metrics = Metrics()
        self.state_poller = StatePoller(
            self.read, self.changed.append, self.metrics, clock=lambda: self.now, rng=lambda: 0.5
        )

    async def read(self, address: str) -> State:
        self.asked.append(address)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.hold.wait()
        self.at_once -= 1
        answer = self.answers.get(address, LOADING)
        if isinstance(answer, Unreadable):
            raise answer
        return answer

    def want(self, *asks: Ask, key: Key = KEY, pods: Sequence[str] | None = None) -> None:
        self.state_poller.poll(key, asks, [one.pod for one in asks] if pods is None else pods)

    async def after(self, seconds: float = 0.0) -> int:
        """How many questions were asked by then."""
        before, self.now = len(self.asked), self.now + seconds
        self.state_poller._queue._ring()
        for _ in range(60):
            await asyncio.sleep(0)
        return len(self.asked) - before

    def woken(self) -> int:
        """How often decisions were made necessary since the last time."""
        count = len(self.changed)
        self.changed.clear()
        return count

    def phase(self, pod: str = "x-0") -> Phase | None:
        report = self.state_poller.reports(KEY).get(pod)
        return report.state.phase if report is not None and report.state is not None else None


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    world = World()
    task = asyncio.create_task(world.state_poller.run())
    yield world
    task.cancel()
    await asyncio.wait([task])


async def test_a_starting_pod_is_asked_every_few_seconds() -> None:
    async with running() as world:
        world.want(ask())
        assert await world.after() == 1
        assert await world.after(INTERVAL / 2) == 0
        assert await world.after(INTERVAL / 2) == 1
        world.want(ask())
        assert await world.after() == 0, "wanting it again is no reason to ask at once"
        world.want()
        assert await world.after(LONGEST_INTERVAL) == 0


async def test_a_change_of_phase_step_or_adapters_is_reported_at_once_and_the_same_is_not_reported_again() -> None:
    async with running() as world:
        world.want(ask())
        with_adapters = replace(SERVING, adapters=(AdapterState("a", loaded=True),), adapters_hash="h")
        for state in (LISTING, downloading(0), LOADING, SERVING, with_adapters):
            world.answers["x-0"] = state
            await world.after(INTERVAL)
            assert (world.woken(), world.phase()) == (1, state.phase)
            for seconds in range(6):
                world.answers["x-0"] = replace(state, phase_seconds=float(seconds))
                await world.after(INTERVAL)
            assert world.woken() == 0, "only the clock of the phase moved"


def group(leader: str, worker: str, cause: Cause | None = None, silent: float = 0.0, *, ended: bool = False) -> State:
    members = (MemberState(0, leader, silent_seconds=silent), MemberState(1, worker, silent_seconds=silent))
    return replace(LOADING, group=GroupState(2, 1, members, cause, is_exhausted=ended))


async def test_why_a_group_ended_is_reported_at_once_and_not_how_long_ago_a_member_was_heard() -> None:
    """A group that starts again soon has forgotten it before the next report that is due."""
    killed = Cause(0, "x-0", "node-a", Failure(FailureReason.ENGINE_DIED, "killed", ""))
    states = [
        ("Running", "Running", None, False),
        ("Failed", "Running", None, False),
        ("Failed", "Running", killed, False),
        ("Waiting", "Waiting", killed, False),
        ("Waiting", "Waiting", killed, True),
    ]
    async with running() as world:
        world.want(ask())
        for leader, worker, cause, ended in states:
            world.answers["x-0"] = group(leader, worker, cause, ended=ended)
            await world.after(INTERVAL)
            assert world.woken() == 1
            world.answers["x-0"] = group(leader, worker, cause, 1.5, ended=ended)
            await world.after(INTERVAL)
            assert world.woken() == 0


async def test_more_of_the_same_is_reported_every_fifteen_seconds() -> None:
    async with running() as world:
        world.want(ask())
        world.answers["x-0"] = downloading(1)
        await world.after()
        assert world.woken() == 1
        for number in range(2, 42):
            world.answers["x-0"] = downloading(number)
            await world.after(INTERVAL)
        assert world.woken() == pytest.approx(40 * INTERVAL / REPORT_SECONDS, abs=1)


async def test_a_serving_pod_that_does_not_change_is_asked_less_and_less() -> None:
    async with running() as world:
        world.want(ask(is_starting=False))
        for _ in range(200):
            await world.after(3.0)
        assert 10 <= len(world.asked) <= 20


async def test_a_pod_that_says_nothing_is_left_alone_and_reported_once() -> None:
    async with running() as world:
        world.answers["x-0"] = Unreadable("it is shy")
        world.want(ask())
        for number in range(PATIENCE):
            assert world.woken() == 0
            await world.after(INTERVAL * 2.0**number)
        assert world.woken() == 1
        assert world.state_poller.reports(KEY)["x-0"].state is None
        for _ in range(10):
            assert await world.after(LONGEST_INTERVAL) == 1
        assert world.woken() == 0
        world.answers["x-0"] = LOADING
        await world.after(LONGEST_INTERVAL)
        assert (world.woken(), world.phase()) == (1, Phase.LOADING)
        assert await world.after(INTERVAL) == 1


@pytest.mark.parametrize(
    ("is_starting", "at_first", "questions"), [(True, 4, 30), (False, 2, 3)], ids=["starting", "serving"]
)
async def test_of_silent_pods_those_that_serve_are_asked_seldom(
    is_starting: bool, at_first: int, questions: int
) -> None:
    async with running() as world:
        world.answers["x-0"] = Unreadable("nobody there")
        world.want(ask(is_starting=is_starting))
        for _ in range(60):
            await world.after(1.0)
        assert len(world.asked) == at_first
        for _ in range(30):
            await world.after(LONGEST_INTERVAL)
        began = len(world.asked)
        for _ in range(30):
            await world.after(LONGEST_INTERVAL)
        assert len(world.asked) - began == questions


async def test_only_so_many_are_asked_at_once() -> None:
    async with running() as world:
        world.hold.clear()
        for number in range(3 * CONCURRENCY):
            world.want(ask(f"p-{number}"), key=Key("n", f"s-{number}"))
        await world.after()
        assert world.most_at_once == CONCURRENCY
        world.hold.set()
        await world.after()
        assert len(world.asked) == 3 * CONCURRENCY


async def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    async with running() as world:
        world.hold.clear()
        world.want(ask())
        await world.after()
        world.want(ask(restarts=1))
        world.hold.set()
        await world.after()
        assert world.state_poller.reports(KEY)["x-0"].restarts == 1
        assert len(world.asked) == 2
        assert world.woken() == 1


async def test_what_was_heard_stays_as_long_as_the_pod() -> None:
    async with running() as world:
        world.want(ask())
        await world.after()
        world.want(pods=["x-0"])
        assert world.phase() is Phase.LOADING
        world.want(pods=[])
        assert world.state_poller.reports(KEY) == {}
        assert world.state_poller._services == {}


async def test_what_was_held_back_of_a_pod_that_is_asked_no_more_is_reported() -> None:
    async with running() as world:
        world.want(ask())
        for number in range(100):
            world.answers["x-0"] = replace(LOADING, phase=Phase.LOADING if number % 2 else Phase.SMOKE)
            await world.after(INTERVAL / 10)
            await world.after(INTERVAL)
            if world.state_poller._services[KEY].unpublished:
                break
        unpublished = world.state_poller._services[KEY].unpublished["x-0"]
        assert world.state_poller.reports(KEY)["x-0"] != unpublished
        world.woken()
        world.want(pods=["x-0"])
        assert (world.state_poller.reports(KEY)["x-0"], world.woken()) == (unpublished, 1)
        world.want(pods=["x-0"])
        assert world.woken() == 0


async def test_fetches_are_in_the_metrics_while_they_last() -> None:
    async with running() as world:
        world.want(ask())
        world.answers["x-0"] = downloading(40)
        await world.after()
        line = 'llmservice_fetch_bytes{namespace="team-a",pod="x-0",service="x"} 40.0'
        assert line in world.metrics.exposition().decode()
        world.answers["x-0"] = LOADING
        await world.after(INTERVAL)
        assert 'pod="x-0"' not in world.metrics.exposition().decode()
        world.answers["x-0"] = downloading(60)
        await world.after(INTERVAL)
        world.state_poller.forget(KEY)
        assert 'pod="x-0"' not in world.metrics.exposition().decode()
        assert 'llmservice_state_reads_total{result="answered"} 3.0' in world.metrics.exposition().decode()
