"""Continuous batching on a real engine: who runs, who waits, who is turned away and who overtakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.serving import Completion, Sampled, Server, sampled, serving

MAX_NUM_SEQS = 4
# vLLM counts what runs and what waits together.
MAX_QUEUED, BEYOND = 40, 8
LONG, SHORT, MIDDLE = 900, 8, 200
ARRIVAL_SECONDS = 0.03


pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def server(cluster: Cluster, shared_namespace: str) -> Iterator[Server]:
    batching = {
        "maxNumSeqs": MAX_NUM_SEQS,
        "maxNumQueuedRequests": MAX_QUEUED,
        "schedulingPolicy": "priority",
        "maxModelLen": 1024,
    }
    with serving(cluster, shared_namespace, "batching", batching=batching) as ready:
        yield ready


def prompt(number: int) -> str:
    return f"Request number {number} asks for something of its own."


async def arrive(server: Server, lengths: list[int], gap: float) -> tuple[list[Completion], Sampled]:
    """Requests that come one after the other, however far the earlier ones are."""
    async with server.client() as client:
        began, load = time.monotonic(), []
        watch: asyncio.Task[Sampled] | None = None
        for number, length in enumerate(lengths):
            wish = server.send(client, began, prompt(number), max_tokens=length, ignore_eos=True)
            load.append(asyncio.create_task(wish))
            watch = watch or asyncio.create_task(sampled(server, client, load))
            await asyncio.sleep(gap)
        assert watch is not None
        return list(await asyncio.gather(*load)), await watch


def test_requests_join_and_leave_a_batch_that_never_grows_beyond_its_limit(server: Server, record: Record) -> None:
    lengths = [LONG, *([SHORT, MIDDLE, SHORT, MIDDLE, MIDDLE] * 7)][:32]
    done, peaks = asyncio.run(arrive(server, lengths, ARRIVAL_SECONDS))
    assert [answer.status for answer in done] == [200] * 32
    assert [answer.tokens for answer in done] == lengths
    assert peaks.running == MAX_NUM_SEQS
    overtaking = [a for a in done if a.sent > done[0].sent and a.ended < done[0].ended]
    late = [a for a, length in zip(done, lengths, strict=True) if length == SHORT and a in overtaking]
    assert late, "every short request waited for the long one that came first"
    record(
        requests=len(done),
        max_num_seqs=MAX_NUM_SEQS,
        peak_running=peaks.running,
        peak_waiting=peaks.waiting,
        readings=peaks.readings,
        ended_before_the_first=len(overtaking),
        seconds=round(max(a.ended for a in done), 2),
        output_tokens_per_second=round(sum(lengths) / max(a.ended for a in done), 1),
    )


async def overflow(server: Server) -> list[Completion]:
    """More than may be in the server, at once."""
    async with server.client() as client:
        began = time.monotonic()
        wishes = [
            server.send(client, began, prompt(number), max_tokens=MIDDLE, ignore_eos=True)
            for number in range(MAX_QUEUED + BEYOND)
        ]
        return list(await asyncio.gather(*wishes))


def test_requests_beyond_the_queue_are_answered_503_at_once(server: Server, record: Record) -> None:
    """And the counter says that it was the queue's length."""
    name = "vllm:admission_rejections_total"
    before = server.metrics().by_label(name, "reason")
    crowd = asyncio.run(overflow(server))
    refused = [answer for answer in crowd if answer.status == 503]
    served = [answer for answer in crowd if answer.status == 200]
    assert (len(served), len(refused)) == (MAX_QUEUED, BEYOND)
    assert max(a.ended for a in refused) < min(a.ended for a in served), "a refusal had to wait"
    counted = {reason: count - before[reason] for reason, count in server.metrics().by_label(name, "reason").items()}
    assert counted == {"max_num_queued_reqs": BEYOND, "max_num_queued_tokens": 0}
    record(
        served=len(served),
        refused=len(refused),
        slowest_refusal_seconds=round(max(a.ended - a.sent for a in refused), 3),
        fastest_answer_seconds=round(min(a.ended - a.sent for a in served), 3),
        rejections=counted,
    )


async def overtake(server: Server) -> tuple[list[Completion], Completion]:
    """In one burst: as many as there are seats, some that have to wait, and last one of a higher priority.

    A lower number is a higher priority. Nothing is awaited in between: on a busy machine the first might be done.
    """
    async with server.client() as client:
        began = time.monotonic()

        def ask(number: int, priority: int, length: int) -> asyncio.Task[Completion]:
            wish = server.send(client, began, prompt(number), max_tokens=length, ignore_eos=True, priority=priority)
            return asyncio.create_task(wish)

        seated = [ask(number, 0, LONG) for number in range(MAX_NUM_SEQS)]
        waiting = [ask(10 + number, 10, MIDDLE) for number in range(8)]
        urgent = ask(99, 1, MIDDLE)
        await asyncio.gather(*seated, *waiting, urgent)
        return [task.result() for task in waiting], urgent.result()


def test_an_urgent_request_overtakes_those_that_wait(server: Server, record: Record) -> None:
    waiting, urgent = asyncio.run(overtake(server))
    assert {answer.status for answer in [*waiting, urgent]} == {200}
    assert all(urgent.sent > answer.sent for answer in waiting)
    overtaken = [answer for answer in waiting if answer.ended > urgent.ended]
    # It takes the first seat that becomes free; the others of that step may be as fast.
    assert len(overtaken) >= len(waiting) - (MAX_NUM_SEQS - 1), "it waited for its turn"
    record(
        waiting=len(waiting),
        overtaken=len(overtaken),
        urgent_seconds=round(urgent.ended - urgent.sent, 2),
        median_waiting_seconds=round(sorted(a.ended - a.sent for a in waiting)[len(waiting) // 2], 2),
    )
