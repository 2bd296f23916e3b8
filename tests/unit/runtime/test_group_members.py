"""Members of a group over real connections: they start together, end together, and strangers are none."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import Failure
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.group.course import Limits
from llmservice_runtime.group.members import STRANGERS, Group, Leader, Member, Timing, member
from llmservice_runtime.group.protocol import LINE_BYTES, Channel, Order, Report, Step, bounded

from tests.support.patience import PATIENCE
from tests.support.ports import free_port

QUICK = Timing(beat=0.05, look=0.02, prove=PATIENCE, connect=PATIENCE, again=0.02)
LIMITS = Limits(silent=PATIENCE, lost=PATIENCE, settle=0.1, first_delay=0.01)
GROUP = Group(0, 2, "127.0.0.1", 0, "token", "r", pod="pod", node="node")


@asynccontextmanager
async def members(
    *groups: Group, limits: Limits = LIMITS, timing: Timing = QUICK
) -> AsyncIterator[tuple[list[Member], list[str]]]:
    """One member for each, of a group with a port of its own."""
    log, port = list[str](), free_port()
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(member(replace(each, port=port), log.append, limits=limits, timing=timing))
            for each in groups
        ]
        yield made, log


def ranks(size: int = 2) -> tuple[Group, ...]:
    return tuple(replace(GROUP, rank=rank, size=size, pod=f"pod-{rank}") for rank in range(size))


async def all_begin(made: list[Member]) -> int:
    numbers: set[int] = set(await within(asyncio.gather(*(each.begins() for each in made))))
    return numbers.pop()


async def within(work: asyncio.Future[Any]) -> Any:
    return await asyncio.wait_for(work, PATIENCE)


async def ready(leader: Member) -> None:
    async with asyncio.timeout(PATIENCE):
        while not leader.order.ready:  # noqa: ASYNC110 - as a supervisor looks at it
            await asyncio.sleep(0.01)


async def test_they_begin_together_and_serve() -> None:
    async with members(*ranks(3)) as (made, _):
        assert await all_begin(made) == 1
        for each in made:
            each.report(Step.RUNNING, started=True)
        await ready(made[0])
        assert {rank: seen.report.pod for rank, seen in made[0].members.items()} == {0: "pod-0", 1: "pod-1", 2: "pod-2"}


async def test_one_fails_and_all_end_and_begin_again() -> None:
    async with members(*ranks()) as (made, _):
        number = await all_begin(made)
        for each in made:
            each.report(Step.RUNNING, started=True)
        await ready(made[0])
        made[1].report(Step.FAILED, failure=Failure(R.GPU_OUT_OF_MEMORY, "m", "r"))
        await within(asyncio.gather(*(each.recalled(number) for each in made)))
        assert await all_begin(made) == 2
        cause = cast(Leader, made[0]).course.cause
        assert cause is not None
        assert (cause.rank, cause.failure.reason) == (1, R.GPU_OUT_OF_MEMORY)


async def test_a_worker_without_its_leader_ends() -> None:
    limits = replace(LIMITS, silent=0.2, lost=0.5)
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(AsyncExitStack())
        port, log = free_port(), list[str]()
        made = [
            await (stack if each.rank else leading).enter_async_context(
                member(replace(each, port=port), log.append, limits=limits, timing=QUICK)
            )
            for each in ranks()
        ]
        number = await all_begin(made)
        made[1].report(Step.RUNNING)
        await leading.aclose()
        await within(asyncio.ensure_future(made[1].recalled(number)))
        assert "the leader has been silent for 0.5 s: vLLM ends" in log
        again = await stack.enter_async_context(
            member(replace(ranks()[0], port=port), log.append, limits=limits, timing=QUICK)
        )
        assert await all_begin([again, made[1]]) > number


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"token": "another"}, ""),
        ({"revision": "s"}, "pod-1 is no member of this group: its revision is s, the group's is r"),
        ({"size": 3}, "pod-1 is no member of this group: its size is 3, the group's is 2"),
    ],
)
async def test_who_is_no_member_never_begins(changed: dict[str, Any], says: str) -> None:
    leader, worker = ranks()
    async with members(leader, replace(worker, **changed)) as (made, log):
        begun = [asyncio.ensure_future(each.begins()) for each in made]
        async with asyncio.timeout(PATIENCE):
            while not (says in log if says else any("no order from the leader" in line for line in log)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not any(each.done() for each in begun)
        assert 1 not in made[0].members
        for each in begun:
            each.cancel()


async def test_strangers_keep_no_member_out() -> None:
    async with members(ranks()[0]) as ((leader,), _):
        port = leader._group.port
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * STRANGERS)]
        async with member(replace(ranks()[1], port=port), lambda _: None, limits=LIMITS, timing=QUICK) as worker:
            assert await all_begin([leader, worker]) == 1
        for _, writer in held:
            writer.close()


class Pipe:
    """Both ends of a connection in memory."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=LINE_BYTES)

    def write(self, data: bytes) -> None:
        self.reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)


async def channels(*tokens: str) -> tuple[Channel, Channel, Pipe, Pipe]:
    to_leader, to_worker = Pipe(), Pipe()
    leader, worker = await asyncio.gather(
        Channel.opened(to_leader.reader, to_worker, tokens[0], is_leader=True),  # type: ignore[arg-type]
        Channel.opened(to_worker.reader, to_leader, tokens[-1], is_leader=False),  # type: ignore[arg-type]
    )
    return leader, worker, to_leader, to_worker


async def test_what_is_sent_arrives() -> None:
    leader, worker, _, _ = await channels("t")
    report = bounded(Report(1, 2, "r", 3, Step.FAILED, failure=Failure(R.ENGINE_DIED, "m" * 9000, "r", ("e",) * 200)))
    await worker.send(report)
    assert await leader.receive(Report) == report
    await leader.send(Order(4, run=True))
    assert await worker.receive(Order) == Order(4, run=True)


async def test_a_line_that_is_sent_again_or_back_or_with_another_token_is_refused() -> None:
    leader, worker, to_leader, to_worker = await channels("t")
    await worker.send(Report(1, 2, "r", 3, Step.WAITING))
    line = bytes(to_leader.reader._buffer)  # type: ignore[attr-defined]
    await leader.receive(Report)
    to_leader.write(line)
    with pytest.raises(Refused, match="token"):
        await leader.receive(Report)
    to_worker.write(line)
    with pytest.raises(Refused, match="token"):
        await worker.receive(Order)
    leader, worker, *_ = await channels("t", "other")
    await worker.send(Report(1, 2, "r", 3, Step.WAITING))
    with pytest.raises(Refused, match="token"):
        await leader.receive(Report)


@given(st.binary(max_size=300) | st.just(b"a" * (2 * LINE_BYTES)))
@settings(deadline=None)
def test_whatever_a_stranger_sends(said: bytes) -> None:
    async def hear() -> None:
        reader, own = Pipe(), Pipe()
        reader.write(said)
        reader.reader.feed_eof()
        with suppress(Refused, OSError):
            channel = await Channel.opened(reader.reader, own, secrets.token_hex(4), is_leader=True)  # type: ignore[arg-type]
            await channel.receive(Report)
            raise AssertionError("taken for a member's")

    asyncio.run(hear())
