"""Members of a group over real connections: they start together, end together, and strangers are none."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmservice_runtime.bounded_json import LARGEST, Refused
from llmservice_runtime.contract import Failure
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.group.connections import STRANGERS
from llmservice_runtime.group.course import Limits
from llmservice_runtime.group.members import Group, Leader, Member, Own, Timing, Worker, member
from llmservice_runtime.group.protocol import HELLO_BYTES, LINE_BYTES, Channel, Order, Report, Step, bounded

from tests.support.patience import PATIENCE, until
from tests.support.ports import free_port

QUICK = Timing(beat=0.05, pause=0.01, look=0.02, prove=PATIENCE, connect=PATIENCE, again=0.02)
LIMITS = Limits(silent=PATIENCE, lost=PATIENCE, settle=0.1, first_delay=0.01)
GROUP = Group(0, 2, "127.0.0.1", 0, "token", "r", pod="pod", node="node")


@asynccontextmanager
async def members(
    *groups: Group,
    limits: Limits = LIMITS,
    timing: Timing = QUICK,
    clock: Callable[[], float] = time.monotonic,
    in_flight: Callable[[], int] = int,
) -> AsyncIterator[tuple[list[Member], list[str]]]:
    """One member for each, of a group with a port of its own."""
    log, port = list[str](), free_port()
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(
                member(
                    replace(each, port=port), Own(log.append, clock, in_flight=in_flight), limits=limits, timing=timing
                )
            )
            for each in groups
        ]
        yield made, log


def led(made: list[Member]) -> Leader:
    return cast(Leader, made[0])


def ranks(size: int = 2) -> tuple[Group, ...]:
    return tuple(replace(GROUP, rank=rank, size=size, pod=f"pod-{rank}") for rank in range(size))


async def all_begin(made: list[Member]) -> int:
    numbers: set[int] = set(await within(asyncio.gather(*(each.begins() for each in made))))
    return numbers.pop()


async def all_run(made: list[Member]) -> int:
    """The number of their start."""
    number = await all_begin(made)
    for each in made:
        each.report(Step.RUNNING, started=True)
    await ready(made[0])
    return number


async def within(work: asyncio.Future[Any]) -> Any:
    return await asyncio.wait_for(work, PATIENCE)


async def ready(leader: Member) -> None:
    await until(lambda: leader.order.ready)


async def test_they_begin_together_and_serve() -> None:
    async with members(*ranks(3)) as (made, _):
        assert await all_begin(made) == 1
        for each in made:
            each.report(Step.RUNNING, started=True)
        await ready(made[0])
        assert {rank: seen.hello.pod for rank, seen in led(made).members.items()} == {
            0: "pod-0",
            1: "pod-1",
            2: "pod-2",
        }


async def test_one_fails_and_all_end_and_begin_again() -> None:
    async with members(*ranks()) as (made, _):
        number = await all_run(made)
        made[1].report(Step.FAILED, failure=Failure(R.GPU_OUT_OF_MEMORY, "m", "r"))
        await within(asyncio.gather(*(each.recalled(number) for each in made)))
        assert await all_begin(made) == 2
        cause = led(made).course.cause
        assert cause is not None
        assert (cause.rank, cause.failure.reason) == (1, R.GPU_OUT_OF_MEMORY)


async def test_the_requests_of_all_members_count() -> None:
    async with members(*ranks(3), in_flight=lambda: 2) as (made, _):
        await all_run(made)
        made[1].report(Step.FAILED, failure=Failure(R.GPU_OUT_OF_MEMORY, "m", "r"))
        await until(lambda: led(made).course.cause is not None)
        cause = led(made).course.cause
        assert cause is not None
        assert cause.lost_requests == 6


@pytest.mark.parametrize("leaving", [0, 1], ids=["the leader", "a worker"])
async def test_with_an_api_each_all_end_once_all_have_answered(leaving: int) -> None:
    async with members(*(replace(each, is_hybrid=True) for each in ranks(3))) as (made, _):
        number = await all_run(made)
        made[leaving].report(Step.LEAVING, started=True)
        await until(lambda: not any(each.order.ready for each in made))
        await until(lambda: all(each.order.drain for each in made))
        assert all(each.is_leaving for each in made[1:])
        drains = [asyncio.ensure_future(each.drained()) for each in made[:2]]
        await until(lambda: led(made).members[1].report.drained)
        assert not any(each.done() for each in drains), "rank 2 answers still"
        drains.append(asyncio.ensure_future(made[2].drained()))
        await within(drains[0])
        led(made).recall(number)
        await within(asyncio.gather(*drains))
        assert led(made).course.cause is None


async def test_without_an_api_a_worker_goes_on_until_its_leader_has_answered() -> None:
    async with members(*ranks()) as (made, _):
        number = await all_run(made)
        made[1].report(Step.LEAVING)
        await within(asyncio.ensure_future(made[0].recalled(number)))
        assert made[0].is_leaving
        assert made[1].is_to_run(number)
        assert not made[1].is_leaving


async def test_a_worker_without_its_leader_ends() -> None:
    limits = replace(LIMITS, silent=0.2, lost=0.5)
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(AsyncExitStack())
        port, log = free_port(), list[str]()
        made = [
            await (stack if each.rank else leading).enter_async_context(
                member(replace(each, port=port), Own(log.append), limits=limits, timing=QUICK)
            )
            for each in ranks()
        ]
        number = await all_begin(made)
        made[1].report(Step.RUNNING)
        led(made)._channels.clear()  # as one that is killed, it says nothing of its end
        await leading.aclose()
        await within(asyncio.ensure_future(made[1].recalled(number)))
        assert "the leader has been silent for 0.5 s: vLLM ends" in log
        again = await stack.enter_async_context(
            member(replace(ranks()[0], port=port), Own(log.append), limits=limits, timing=QUICK)
        )
        assert await all_begin([again, made[1]]) > number


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"token": "another"}, "connections that are no member's: 1, the last from 127.0.0.1: it does not know the "),
        ({"revision": "s"}, "pod-1 is no member of this group: rank 1 has revision s, and the leader has r"),
        ({"size": 3}, "pod-1 is no member of this group: rank 1 has size 3, and the leader has 2"),
        (
            {"vllm_version": "0.33.0"},
            "pod-1 is no member of this group: rank 1 has vLLM 0.33.0, and the leader has 0.32",
        ),
        ({"build": "f00d"}, "pod-1 is no member of this group: rank 1 has packages f00d, and the leader has beef"),
    ],
)
async def test_who_is_no_member_never_begins(changed: dict[str, Any], says: str) -> None:
    leader, worker = (replace(each, vllm_version="0.32.0", build="beef") for each in ranks())
    async with members(leader, replace(worker, **changed)) as (made, log):
        begun = [asyncio.ensure_future(each.begins()) for each in made]
        why = says.partition("group: ")[2]
        await until(lambda: any(line.startswith(says) for line in log) and why in made[1].awaits)
        assert why in made[0].awaits
        assert not any(each.done() for each in begun)
        assert 1 not in led(made).members
        for each in begun:
            each.cancel()


async def test_a_leader_that_ends_tells_its_workers_so_and_waits_for_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wait_closed(server: object) -> None:
        raise AssertionError("since Python 3.12.1 this waits until no connection is open")

    monkeypatch.setattr(asyncio.base_events.Server, "wait_closed", wait_closed)
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(AsyncExitStack())
        leader, worker = (replace(each, port=port) for port in [free_port()] for each in ranks())
        made: list[Member] = [
            await leading.enter_async_context(member(leader, Own(print), LIMITS, QUICK)),
            await stack.enter_async_context(member(worker, Own(print), LIMITS, QUICK)),
        ]
        number = await all_begin(made)
        await within(asyncio.ensure_future(leading.aclose()))
        await within(asyncio.ensure_future(made[1].recalled(number)))


class OtherTimeout(Exception):
    """As asyncio's before Python 3.11: neither the builtin one nor an OSError."""


async def test_a_leader_that_says_nothing_is_asked_again_also_before_python_3_11(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_for = asyncio.wait_for

    async def wait_for_before(work: Any, seconds: float) -> Any:
        try:
            return await wait_for(work, seconds)
        except TimeoutError:
            raise OtherTimeout from None

    monkeypatch.setattr(asyncio, "wait_for", wait_for_before)
    monkeypatch.setattr(asyncio, "TimeoutError", OtherTimeout)
    for name in ("members", "connections"):
        monkeypatch.delitem(sys.modules, f"llmservice_runtime.group.{name}")
    old = importlib.import_module("llmservice_runtime.group.members")
    met, again = list[asyncio.StreamWriter](), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Channel.opened(reader, writer, GROUP.token, is_leader=True)
        met.append(writer)
        if len(met) == 2:
            again.set()

    port = free_port()
    joining = old.member(replace(ranks()[1], port=port), old.Own(print), replace(LIMITS, silent=0.05), QUICK)
    async with await asyncio.start_server(silent, "127.0.0.1", port), joining as worker:
        await wait_for(worker.alongside(again.wait()), PATIENCE)
        for writer in met:
            writer.close()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Leader, "advance"),
        (Leader, "_take_report"),
        (Leader, "_tell"),
        (Worker, "_look"),
        (Worker, "_obey"),
        (Worker, "_tell"),
    ],
)
async def test_an_unforeseen_error_ends_the_supervisors_work(
    monkeypatch: pytest.MonkeyPatch, kind: type[Member], name: str
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def broken_later(*_: object) -> None:
        raise ZeroDivisionError

    is_async = inspect.iscoroutinefunction(getattr(kind, name))
    monkeypatch.setattr(kind, name, broken_later if is_async else broken)
    async with members(*ranks()) as (made, _):
        work = made[0 if kind is Leader else 1].alongside(asyncio.Event().wait())
        with pytest.raises(ZeroDivisionError):
            await within(asyncio.ensure_future(work))


async def test_strangers_keep_no_member_out() -> None:
    async with members(ranks()[0]) as (made, _):
        port = made[0]._group.port
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * STRANGERS)]
        worker = member(replace(ranks()[1], port=port), Own(lambda _: None), LIMITS, QUICK)
        async with worker as found:
            assert await all_begin([*made, found]) == 1
        for _, writer in held:
            writer.close()


def connection(port: int, source: str) -> socket.socket:
    """From this address; the kernel takes it before the leader does."""
    made = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
    made.setblocking(False)
    return made


def is_open(one: socket.socket) -> bool:
    try:
        while one.recv(64):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


async def test_many_strangers_at_once_take_one_anothers_place_and_that_of_no_other_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with members(ranks()[0]) as (made, _):
        port = made[0]._group.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0))
        held = [connection(port, "127.0.0.2") for _ in range(2 * STRANGERS)]
        await until(lambda: sum(map(is_open, held)) < STRANGERS)
        assert [is_open(one) for one in held] == [False] * (STRANGERS + 1) + [True] * (STRANGERS - 1)
        channel = await Channel.opened(reader, writer, GROUP.token, is_leader=False)
        await channel.send(ranks()[1].hello)
        assert await within(asyncio.ensure_future(channel.receive(Order))) == Order(1)
        for one in held:
            one.close()
        writer.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_what_strangers_say_is_short_and_told_once_a_minute() -> None:
    ahead = 0.0
    async with members(ranks()[0], clock=lambda: time.monotonic() + ahead) as (made, log):
        for number in (1, 2, 3):
            ahead += 60.0 if number == 3 else 0.0
            reader, writer = await asyncio.open_connection("127.0.0.1", made[0]._group.port)
            writer.write(b"GET / HTTP/1.1\r\n" if number < 3 else b"a" * (HELLO_BYTES + 1))
            await within(asyncio.ensure_future(reader.read()))
            writer.close()
        await until(lambda: len(log) == 2)
        says = "connections that are no member's: {}, the last from 127.0.0.1: it {}"
        assert log == [
            says.format(1, "did not begin with a nonce"),
            says.format(2, "sent a line of more than 2048 bytes"),
        ]


@asynccontextmanager
async def raw(leader: Member, rank: int = 1) -> AsyncIterator[Channel]:
    """A worker's connection, over which a test says what it likes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", leader._group.port)
    try:
        channel = await Channel.opened(reader, writer, GROUP.token, is_leader=False)
        await channel.send(replace(leader._group, rank=rank).hello)
        yield channel
    finally:
        writer.close()


async def test_a_rank_is_one_supervisors_and_the_newer_ones() -> None:
    async with members(*ranks()) as (made, log):
        await until(lambda: 1 in led(made).members)
        first = led(made).members[1].hello.instance
        async with member(replace(made[1]._group, pod="new"), Own(log.append), LIMITS, QUICK) as newer:
            await until(lambda: "rank 1 is another supervisor by now" in made[1].awaits)
            assert await all_begin([made[0], newer]) == 1
            seen = led(made).members[1].hello
            assert (seen.pod, seen.instance != first) == ("new", True)


async def test_a_number_that_no_group_reaches_is_refused() -> None:
    async with members(ranks()[0]) as (made, log):
        async with raw(made[0]) as channel:
            await channel.send(Report(LARGEST, Step.RUNNING))
            with suppress(OSError):  # it ends
                while True:
                    await within(asyncio.ensure_future(channel.receive(Order)))
        assert made[0].order.incarnation == 1
        assert log == [f"pod-0 is no member of this group: its incarnation is {LARGEST}, and the own is 1"]


async def test_a_leaders_number_that_no_group_reaches_is_refused() -> None:
    ends = asyncio.Event()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await Channel.opened(reader, writer, GROUP.token, is_leader=True)
        with suppress(OSError):
            await channel.send(Order(LARGEST, run=True))
            await reader.read()
        writer.close()
        ends.set()

    port = free_port()
    joining = member(replace(ranks()[1], port=port), Own(print), LIMITS, QUICK)
    async with await asyncio.start_server(lead, "127.0.0.1", port), joining as worker:
        await asyncio.wait_for(ends.wait(), PATIENCE)
        assert (worker.order.incarnation, worker.order.run) == (0, False)


async def test_what_one_reports_is_no_line_to_the_others() -> None:
    timing = replace(QUICK, beat=PATIENCE)
    async with members(ranks(3)[0], timing=timing) as (made, _), raw(made[0], 1) as one, raw(made[0], 2) as other:
        assert await within(asyncio.ensure_future(other.receive(Order))) == Order(1)
        for number in range(20):
            await one.send(Report(number, Step.PREPARING))
        await until(lambda: (seen := led(made).members.get(1)) is not None and seen.report.incarnation == 19)
        await other.send(Report(7, Step.RUNNING))
        assert await within(asyncio.ensure_future(other.receive(Order))) == Order(8)


async def test_reports_of_one_member_are_taken_one_after_another() -> None:
    """Here there is more time between them than the test takes."""
    timing = replace(QUICK, pause=PATIENCE)
    async with members(ranks(3)[0], timing=timing) as (made, _), raw(made[0], 1) as one, raw(made[0], 2) as other:
        for number in range(20):
            await one.send(Report(number, Step.PREPARING))
        await until(lambda: 1 in led(made).members)
        await other.send(Report(0, Step.PREPARING))
        await until(lambda: 2 in led(made).members)
        assert led(made).members[1].report.incarnation == 0


async def test_readiness_is_a_matter_of_when_it_is_asked_for() -> None:
    """Also where nothing ran that could have noticed the silence."""
    ahead = 0.0
    async with members(*ranks(), clock=lambda: time.monotonic() + ahead) as (made, _):
        await all_begin(made)
        for each in made:
            each.report(Step.RUNNING, started=True)
        await until(lambda: all(each.order.ready for each in made))
        ahead = LIMITS.silent
        assert [each.order.ready for each in made] == [False, False]


async def test_what_a_start_is_at_is_told() -> None:
    async with members(ranks()[0]) as (made, _):
        own = Own(print, progress=lambda: "loading the weights: 7%")
        async with member(replace(ranks()[1], port=made[0]._group.port), own, LIMITS, QUICK):
            await until(lambda: 1 in led(made).members)
            assert led(made).told().members[1].progress == "loading the weights: 7%"


class Pipe:
    """Both ends of a connection in memory."""

    def __init__(self, limit: int) -> None:
        self.reader = asyncio.StreamReader(limit=limit)

    def write(self, data: bytes) -> None:
        self.reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)


async def channels(*tokens: str, limit: int = HELLO_BYTES) -> tuple[Channel, Channel, Pipe, Pipe]:
    to_leader, to_worker = Pipe(limit), Pipe(limit)
    leader, worker = await asyncio.gather(
        Channel.opened(to_leader.reader, to_worker, tokens[0], is_leader=True),  # type: ignore[arg-type]
        Channel.opened(to_worker.reader, to_leader, tokens[-1], is_leader=False),  # type: ignore[arg-type]
    )
    return leader, worker, to_leader, to_worker


@pytest.mark.parametrize("limit", [LINE_BYTES, HELLO_BYTES, 100])
async def test_what_is_sent_arrives(limit: int) -> None:
    leader, worker, _, _ = await channels("t", limit=limit)
    report = bounded(Report(3, Step.FAILED, failure=Failure(R.ENGINE_DIED, "m" * 9000, "r", ("e",) * 200)))
    await worker.send(report)
    assert await leader.receive(Report) == report
    await leader.send(Order(4, run=True))
    assert await worker.receive(Order) == Order(4, run=True)


async def test_a_line_that_is_sent_again_or_back_or_with_another_token_is_refused() -> None:
    leader, worker, to_leader, to_worker = await channels("t")
    await worker.send(Report(3, Step.WAITING))
    line = bytes(to_leader.reader._buffer)  # type: ignore[attr-defined]
    await leader.receive(Report)
    to_leader.write(line)
    with pytest.raises(Refused, match="token"):
        await leader.receive(Report)
    to_worker.write(line)
    with pytest.raises(Refused, match="token"):
        await worker.receive(Order)
    leader, worker, *_ = await channels("t", "other")
    await worker.send(Report(3, Step.WAITING))
    with pytest.raises(Refused, match="token"):
        await leader.receive(Report)


@given(st.binary(max_size=300) | st.just(b"a" * (2 * LINE_BYTES)))
@settings(deadline=None)
def test_whatever_a_stranger_sends(said: bytes) -> None:
    async def hear() -> None:
        reader, own = Pipe(HELLO_BYTES), Pipe(HELLO_BYTES)
        reader.write(said)
        reader.reader.feed_eof()
        with suppress(Refused, OSError):
            channel = await Channel.opened(reader.reader, own, secrets.token_hex(4), is_leader=True)  # type: ignore[arg-type]
            await channel.receive(Report)
            raise AssertionError("taken for a member's")

    asyncio.run(hear())
