"""A load played by each discipline against a real server: who is sent when, by what the server saw."""

import time
from collections.abc import Sequence

import httpx
import pytest
from llmservice_cli.bench.traffic import Batching, Discipline, Gathered, Planned, Player, Point

from tests.unit.cli.fake_vllm import FakeVllm, refuses, serving

# Request 0 is the long one: in a batch the others wait for it, or those after them do.
LENGTHS = (60, 2, 2, 2, 2, 2)
AT_ONCE = tuple(Planned(index, 0.0, "of the", tokens) for index, tokens in enumerate(LENGTHS))


async def play(
    fake: FakeVllm,
    discipline: Discipline,
    load: Sequence[Planned],
    *,
    size: int = 3,
    window: float = 0.01,
    clients: int | None = None,
) -> Gathered:
    gathered = Gathered(Point(discipline, concurrency=clients), len(load))
    async with httpx.AsyncClient(base_url=fake.url, timeout=None, trust_env=False) as http:
        await Player(http, "chat", 10.0, time.monotonic, "salt", Batching(size, window)).play(load, gathered)
    return gathered


def places(fake: FakeVllm, what: str) -> dict[int, int]:
    """Where in the server's log the beginning or the end of each request stands."""
    return {index: place for place, (kind, index) in enumerate(fake.log) if kind == what}


@pytest.mark.parametrize("discipline", [Discipline.STATIC, Discipline.DYNAMIC])
async def test_a_batch_begins_when_the_longest_member_of_the_one_before_has_ended(discipline: Discipline) -> None:
    async with serving(FakeVllm()) as fake:
        gathered = await play(fake, discipline, AT_ONCE)
    begins, ends = places(fake, "begin"), places(fake, "end")
    assert min(begins[index] for index in (3, 4, 5)) > max(ends[index] for index in (0, 1, 2))
    batches = {row.index: row.batch for row in gathered.rows}
    assert batches == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}


async def test_continuous_waits_for_nobody() -> None:
    async with serving(FakeVllm()) as fake:
        gathered = await play(fake, Discipline.CONTINUOUS, AT_ONCE)
    begins, ends = places(fake, "begin"), places(fake, "end")
    assert max(begins.values()) < ends[0], "all were sent while the long one ran"
    assert max(ends[index] for index in range(1, 6)) < ends[0], "the short ones overtook the long one"
    assert {row.batch for row in gathered.rows} == {None}


async def test_static_holds_back_the_first_until_the_last_of_its_batch_arrives() -> None:
    load = [Planned(0, 0.0, "a", 1), Planned(1, 1.0, "b", 1)]
    async with serving(FakeVllm()) as fake:
        static = await play(fake, Discipline.STATIC, load, size=2)
        dynamic = await play(fake, Discipline.DYNAMIC, load, size=2, window=0.01)
    assert all(row.sent >= 1.0 for row in static.rows)
    first, second = sorted(dynamic.rows, key=lambda row: row.index)
    assert first.sent >= 0.01
    assert (first.batch, second.batch) == (0, 1), "the window ended before the batch was full"


@pytest.mark.parametrize("discipline", list(Discipline))
async def test_everything_is_sent_once_also_after_a_refusal(discipline: Discipline) -> None:
    load = [Planned(index, index * 0.01, "a", 2) for index in range(10)]
    async with serving(FakeVllm(misbehaves={1: refuses(503, "full")})) as fake:
        gathered = await play(fake, discipline, load)
    assert sorted(row.index for row in gathered.rows) == list(range(10))
    assert all(row.sent >= row.arrival for row in gathered.rows)
    assert {row.index: row.outcome for row in gathered.rows if not row.is_answered} == {1: "503"}
    assert (gathered.sent, gathered.under_way, gathered.failed) == (10, 0, 1)


async def test_as_many_clients_as_were_asked_for_send_one_after_the_other() -> None:
    load = [Planned(index, 99.0, "a", 3) for index in range(9)]
    async with serving(FakeVllm()) as fake:
        gathered = await play(fake, Discipline.CONTINUOUS, load, clients=3)
    running, most = 0, 0
    for kind, _ in fake.log:
        running += 1 if kind == "begin" else -1
        most = max(most, running)
    assert most == 3
    assert sorted(row.index for row in gathered.rows) == list(range(9))
    rows = sorted(gathered.rows, key=lambda row: row.index)
    ends = sorted(row.ended for row in rows if row.ended is not None)
    assert all(row.arrival <= row.sent for row in rows)
    assert max(row.arrival for row in rows[:3]) < ends[0], "a request arrives when its client is free"
    assert all(end <= row.arrival < 99.0 for row, end in zip(rows[3:], ends, strict=False))


async def test_a_closed_loop_ends_although_everything_is_refused() -> None:
    load = [Planned(index, 0.0, "a", 2) for index in range(6)]
    async with serving(FakeVllm(misbehaves=dict.fromkeys(range(6), refuses(503, "full")))) as fake:
        gathered = await play(fake, Discipline.CONTINUOUS, load, clients=2)
    assert [row.outcome for row in gathered.rows] == ["503"] * 6
