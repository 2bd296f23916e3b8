"""The work queue: every key once, one worker a key, failures later and later."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from kubeloop.queue import LOWEST_PRIORITY_TURN, Backoff, Priority, Schedule, WorkQueue

from tests.support.patience import PATIENCE


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drain(schedule: Schedule[str], now: float) -> list[str]:
    taken = []
    while (key := schedule.take(now)) is not None:
        taken.append(key)
    return taken


@pytest.mark.parametrize(
    ("added", "at", "expected"),
    [
        pytest.param([("a", None), ("b", None), ("a", None)], 0, "ab", id="a key waits once, in order"),
        pytest.param([("a", 5)], 4.9, "", id="not before its time"),
        pytest.param([("a", 5)], 5, "a", id="at its time"),
        pytest.param([("a", 9), ("a", 5)], 5, "a", id="the sooner time wins"),
        pytest.param([("a", 5), ("a", 9)], 5, "a", id="a later time changes nothing"),
        pytest.param([("a", 5), ("a", None)], 0, "a", id="now is sooner than later"),
        pytest.param([("b", 2), ("a", 1)], 3, "ab", id="due keys in order of time"),
    ],
)
def test_what_is_handed_out(added: list[tuple[str, float | None]], at: float, expected: str) -> None:
    schedule: Schedule[str] = Schedule()
    for key, due in added:
        if due is None:
            schedule.add(key, 0)
        else:
            schedule.add_at(key, due)
    assert "".join(drain(schedule, at)) == expected


EDITED, SERVES, NEW, REST = Priority


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        pytest.param(
            [(k, r) for k, r in zip("abcd", reversed(Priority), strict=True)], "dcba", id="whoever waits for it first"
        ),
        pytest.param([("a", NEW), ("b", EDITED), ("c", NEW), ("d", EDITED)], "bdac", id="in order within a priority"),
        pytest.param([("a", REST), ("b", REST), ("b", EDITED)], "ba", id="an edit of what waits moves it up"),
        pytest.param([("a", EDITED), ("b", EDITED), ("a", REST)], "ab", id="its children do not move it down"),
    ],
)
def test_what_comes_first(added: list[tuple[str, Priority]], expected: str) -> None:
    schedule: Schedule[str] = Schedule()
    for key, priority in added:
        schedule.add(key, 0, priority)
    assert schedule.depth == len(expected)
    assert "".join(drain(schedule, 0)) == expected


def test_priorities_of_keys_in_work_and_of_delayed_keys_are_kept() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0)
    schedule.take(0)
    schedule.add("b", 0, NEW)
    schedule.add("a", 0, EDITED)
    schedule.add("a", 0, REST)
    schedule.add_at("c", 1, SERVES)
    schedule.add_at("d", 1)
    schedule.done("a", 1)
    assert drain(schedule, 1) == ["a", "c", "b", "d"]


TURNS: dict[str, tuple[str, str]] = {
    "one tenant, in order": ("a1 a2 a3", "a1 a2 a3"),
    "many of one, then one of another": ("a1 a2 a3 a4 b1", "a1 b1 a2 a3 a4"),
    "three in turn": ("a1 a2 b1 c1 b2 a3 c2", "a1 b1 c1 a2 b2 c2 a3"),
}


@pytest.mark.parametrize("case", TURNS)
def test_tenants_take_turns_within_a_priority(case: str) -> None:
    added, expected = TURNS[case]
    schedule: Schedule[str] = Schedule(lambda key: key[0])
    for key in added.split():
        schedule.add(key, 0.0)
    assert drain(schedule, 0.0) == expected.split()


def test_who_changes_everything_all_the_time_delays_others_by_one_key() -> None:
    schedule: Schedule[str] = Schedule(lambda key: key[0])
    flood = [f"a{number}" for number in range(100)]
    for round_ in range(20):
        for key in flood:
            schedule.add(key, 0.0)
        schedule.add(f"b{round_}", 0.0)
        taken = schedule.take(0.0), schedule.take(0.0)
        assert f"b{round_}" in taken
        for each in taken:
            assert each is not None
            schedule.done(each, 0.0)


def test_a_key_that_came_to_a_better_priority_is_skipped_in_the_line_of_its_tenant() -> None:
    schedule: Schedule[str] = Schedule(lambda key: key[0])
    for key in ("a1", "b1", "a2"):
        schedule.add(key, 0.0)
    schedule.add("b1", 0.0, Priority.EDITED)
    assert drain(schedule, 0.0) == ["b1", "a1", "a2"]


def test_the_last_priority_does_not_wait_for_ever() -> None:
    """Thousands of new services arrive; those that are on their way have their turns meanwhile."""
    schedule: Schedule[str] = Schedule()
    for number in range(100):
        schedule.add(f"new {number}", 0, NEW)
        schedule.add(f"rest {number}", 0, REST)
    taken = [schedule.take(0) for _ in range(4 * LOWEST_PRIORITY_TURN)]
    assert [key for key in taken if key and key.startswith("rest")] == ["rest 0", "rest 1", "rest 2", "rest 3"]


def test_which_priorities_wait() -> None:
    """One was taken, one moved up and was taken, one is not due yet."""
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0, NEW)
    schedule.add("b", 0, NEW)
    schedule.add("b", 0, EDITED)
    schedule.add_at("c", 5, SERVES)
    schedule.add("d", 0)
    assert [schedule.take(0), schedule.take(0)] == ["b", "a"]
    assert [priority for priority in Priority if schedule.waits(priority)] == [REST]


def test_a_key_in_work_is_not_handed_out_again_before_it_is_done() -> None:
    schedule: Schedule[str] = Schedule()
    for due in (None, 2):
        schedule.add("a", 0)
        assert schedule.take(0) == "a"
        if due is None:
            schedule.add("a", 0)
            schedule.add("a", 0)
        else:
            schedule.add_at("a", due)
        assert schedule.take(3) is None
        schedule.done("a", 3)
        assert drain(schedule, 3) == ["a"]
        schedule.done("a", 3)


def test_a_delayed_visit_is_dropped_when_the_key_is_worked_on_before() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add_at("a", 5)
    schedule.add("a", 0)
    assert schedule.take(0) == "a"
    schedule.done("a", 0)
    assert schedule.next_due() is None
    assert drain(schedule, 10) == []


@pytest.mark.parametrize(
    ("failures", "random", "expected"),
    [
        pytest.param(1, 1.0, 0.5, id="first, longest"),
        pytest.param(1, 0.0, 0.25, id="first, shortest"),
        pytest.param(4, 1.0, 4.0, id="doubled three times"),
        pytest.param(8, 1.0, 60.0, id="capped"),
        pytest.param(5000, 1.0, 60.0, id="no overflow"),
    ],
)
def test_backoff(failures: int, random: float, expected: float) -> None:
    assert Backoff(base=0.5, cap=60).delay(failures, lambda: random) == expected


async def test_failures_are_spaced_and_events_do_not_outrun_them() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock, rng=lambda: 1.0)
    queue.add("a")
    for expected in (0.5, 1.0, 2.0):
        assert await queue.get() == "a"
        assert queue.failed("a") == expected
        queue.done("a")
        clock.now += expected
    assert await queue.get() == "a"
    queue.failed("a")
    queue.done("a")
    for _ in range(100):
        queue.add("a")
    assert (queue.depth, queue.delayed) == (0, 1)
    clock.now += 0.5
    assert await queue.get() == "a"
    queue.succeeded("a")
    queue.done("a")
    queue.add("a")
    assert queue.depth == 1, "after success an event is worked on at once"


async def woken_and_cancelled(queue: WorkQueue[str]) -> None:
    """The worker that was woken for it ends before it can take it."""
    first = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    await asyncio.wait([first])


async def cancelled_before(queue: WorkQueue[str]) -> None:
    """The only worker ends while it waits for the delay; the next one waits for it in turn."""
    queue.add_after("a", 0.02)
    first = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])


async def soon(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 0.02)


async def sooner(queue: WorkQueue[str]) -> None:
    queue.add_after("b", 60)
    await asyncio.sleep(0)
    queue.add_after("a", 0.02)


async def at_once(queue: WorkQueue[str]) -> None:
    queue.add("a")


WAKES = [
    pytest.param(at_once, id="a key that is added"),
    pytest.param(soon, id="a delay that ends"),
    pytest.param(sooner, id="a delay that ends before the one that is waited for"),
    pytest.param(woken_and_cancelled, id="a key whose worker was cancelled"),
    pytest.param(cancelled_before, id="a delay whose worker was cancelled"),
]


@pytest.mark.parametrize("waits", [0, 3], ids=["nobody waits yet", "three wait"])
@pytest.mark.parametrize("happens", WAKES)
async def test_what_wakes_a_worker(happens: Callable[[WorkQueue[str]], Awaitable[None]], waits: int) -> None:
    queue: WorkQueue[str] = WorkQueue()
    getting = [asyncio.create_task(queue.get()) for _ in range(waits)]
    await asyncio.sleep(0)
    await happens(queue)
    getting = getting or [asyncio.create_task(queue.get())]
    done, rest = await asyncio.wait(getting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == ["a"]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def test_work_that_ends_on_a_key_that_changed_meanwhile_wakes_a_worker() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not getting.done()
    queue.done("a")
    assert await asyncio.wait_for(getting, PATIENCE) == "a"


async def test_a_delay_that_came_to_nothing_does_not_hide_the_next() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.02)
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await asyncio.wait_for(getting, PATIENCE) == "a"
    queue.done("a")
    queue.add_after("b", 0.04)
    while (key := await asyncio.wait_for(queue.get(), PATIENCE)) != "b":
        assert key == "a", "its delay was over before it was added: the machine is slow"
        queue.done(key)


async def test_a_key_wakes_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight that wake for each of a service's fifteen events, to find nothing, are work too."""
    takes: list[float] = []
    take = Schedule.take

    def counted(self: Schedule[str], now: float) -> str | None:
        takes.append(now)
        return take(self, now)

    monkeypatch.setattr(Schedule, "take", counted)
    queue: WorkQueue[str] = WorkQueue()
    worked, ended = [], asyncio.Event()

    async def work() -> None:
        while True:
            worked.append(await queue.get())
            queue.done(worked[-1])
            if len(worked) == 3:
                ended.set()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(8)]
        await asyncio.sleep(0)
        for key in "abc":
            queue.add(key)
            queue.add_after(f"{key} later", 60)
        await ended.wait()
        for worker in workers:
            worker.cancel()
    assert len(takes) == 3


@pytest.mark.parametrize(
    ("take", "passed", "word"), [(False, 59, ""), (False, 61, "no worker"), (True, 299, ""), (True, 301, "busy")]
)
async def test_a_stalled_queue_says_so(take: bool, passed: float, word: str) -> None:
    """A key waits for a worker, or is in work, for too long."""
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("a")
    if take:
        await queue.get()
    clock.now += passed
    stalled = queue.stalled()
    assert (stalled is None) is not bool(word)
    assert word in (stalled or "")


async def test_a_long_queue_that_moves_is_not_stalled() -> None:
    """Five thousand services of a first start wait for minutes; the kubelet must not end the operator for that."""
    clock = Clock()
    queue: WorkQueue[int] = WorkQueue(clock=clock)
    for key in range(10):
        queue.add(key)
    for _ in range(9):
        clock.now += 50
        queue.done(await queue.get())
        assert queue.stalled() is None
    clock.now += 61
    assert queue.stalled() is not None
