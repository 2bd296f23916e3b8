"""Shards: every service has one owner at most at any moment, and one again soon, whatever becomes of the processes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from llmservice_operator.kube.partition import shard_of

from tests.unit.shards_world import NAMESPACES, Cluster, Process

SHARED_WITHIN = 30.0


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


async def whole(cluster: Cluster, *counts: int) -> list[Process]:
    """So many processes, that share the work out."""
    made = [Process(cluster, f"p{number}", count) for number, count in enumerate(counts)]
    await cluster.run_until(lambda: cluster.is_whole, SHARED_WITHIN)
    await cluster.pass_time(20)
    assert cluster.owned_twice == []
    return made


# One split, two processes


async def test_two_processes_share_two_shards(cluster: Cluster) -> None:
    first, second = await whole(cluster, 2, 2)
    assert sorted([first.held, second.held]) == [[0], [1]]
    assert cluster.split() == "2"
    assert set(cluster.leases) == {"op", "op-1"}


@pytest.mark.parametrize(("which", "phase"), [(0, 0.0), (1, 0.1), (0, 0.7), (1, 1.3), (0, 1.9)])
async def test_takeover_after_a_kill_within_15_seconds(cluster: Cluster, which: int, phase: float) -> None:
    both = await whole(cluster, 2, 2)
    await cluster.pass_time(phase)
    await both[which].kill()
    assert await cluster.run_until(lambda: cluster.is_whole, 15) <= 14.5
    assert cluster.owned_twice == []
    assert both[1 - which].held == [0, 1]


@pytest.mark.parametrize("which", [0, 1])
async def test_a_stop_hands_over_at_once(cluster: Cluster, which: int) -> None:
    both = await whole(cluster, 2, 2)
    await both[which].stop()
    assert await cluster.run_until(lambda: cluster.is_whole, 15) <= 3.2
    assert cluster.owned_twice == []


async def test_a_free_shard_goes_to_who_has_fewest(cluster: Cluster) -> None:
    processes = await whole(cluster, 2, 2, 2)
    (idle,) = [each for each in processes if not each.held]
    stopped, other = [each for each in processes if each.held]
    before = [*other.gains]
    await stopped.stop()
    await cluster.run_until(lambda: cluster.is_whole, 15)
    assert len(idle.held) == 1
    assert other.gains == before, "it did not take it first, only to be asked for it"
    assert cluster.owned_twice == []


async def test_one_that_comes_later_gets_its_share(cluster: Cluster) -> None:
    (first,) = await whole(cluster, 2)
    second = Process(cluster, "late", 2)
    assert await cluster.run_until(lambda: bool(second.held), 15) <= 8
    assert cluster.is_whole
    assert [len(first.held), len(second.held)] == [1, 1]
    before = [*first.gains], [*second.gains]
    await cluster.pass_time(120)
    assert (first.gains, second.gains) == before, "they do not swap places"
    assert cluster.owned_twice == []


@pytest.mark.parametrize(("shards", "processes"), [(4, 1), (4, 2), (3, 3), (8, 3)])
async def test_shares_end_even(cluster: Cluster, shards: int, processes: int) -> None:
    await whole(cluster, *[shards] * processes)
    await cluster.pass_time(60)
    held = [len(each.held) for each in cluster.running]
    assert sum(held) == shards
    assert max(held) - min(held) <= 1
    assert cluster.owned_twice == []


async def test_a_shard_whose_release_failed_is_left_to_the_one_who_asked(cluster: Cluster) -> None:
    """Our own name is still in its Lease, which others may take only when it has expired."""
    (first,) = await whole(cluster, 2)
    first.busy.add(1)
    second = Process(cluster, "late", 2)
    await cluster.run_until(lambda: 1 not in first.held, 15)
    first.connection.hangs_for = "op-1"
    first.busy.discard(1)
    await cluster.pass_time(2.2)
    first.connection.hangs_for = None
    await cluster.run_until(lambda: bool(second.held), 15)
    assert (first.held, second.held, first.gains.count(1)) == ([0], [1], 1)
    assert cluster.owned_twice == []


async def test_what_is_in_work_is_finished_before_a_shard_is_handed_over(cluster: Cluster) -> None:
    (first,) = await whole(cluster, 2)
    first.busy.add(1)
    second = Process(cluster, "late", 2)
    await cluster.pass_time(30)
    assert second.held == []
    in_shard = next(name for name in NAMESPACES if shard_of(name, 2) == 1)
    assert not first.shards.owns(in_shard), "nothing new begins"
    assert first.shards.remaining(in_shard) > 0, "and what has begun may end"
    first.busy.clear()
    assert await cluster.run_until(lambda: second.held == [1], 10) <= 5
    assert cluster.owned_twice == []


async def test_one_that_is_not_ready_asks_for_nothing(cluster: Cluster) -> None:
    (first,) = await whole(cluster, 2)
    second = Process(cluster, "cold", 2)
    second.shards.is_ready = False
    await cluster.pass_time(30)
    assert (first.held, second.held) == ([0, 1], [])
    second.shards.is_ready = True
    assert await cluster.run_until(lambda: bool(second.held), 15) <= 8


@pytest.mark.parametrize("phase", [0.0, 1.9])
async def test_one_that_is_not_ready_leaves_a_dead_ones_shard_to_others(cluster: Cluster, phase: float) -> None:
    both = await whole(cluster, 2, 2)
    await both[0].kill()
    await cluster.pass_time(phase)
    cold = Process(cluster, "started again", 2)
    cold.shards.is_ready = False
    assert await cluster.run_until(lambda: cluster.is_whole, 15) <= 14.5
    assert (both[1].held, cold.held) == ([0, 1], [])


async def test_one_that_is_alone_need_not_be_ready(cluster: Cluster) -> None:
    alone = Process(cluster, "alone", 2)
    alone.shards.is_ready = False
    assert await cluster.run_until(lambda: alone.held == [0, 1], 30) <= 20


async def test_the_last_one_is_not_given_away(cluster: Cluster) -> None:
    """Two newcomers may have asked for all that there was."""
    both = await whole(cluster, 2, 2)
    gains = [[*each.gains] for each in both]
    for name in cluster.leases:
        cluster.annotate(name, wanted_by="late")
    for _ in range(20):
        await cluster.pass_time(0.5)
        assert cluster.is_whole
    assert [each.gains for each in both] == gains
    for lease in cluster.leases.values():
        assert "llmservice.dev/wanted-by" not in lease["metadata"].get("annotations", {}), "it was heard"


async def test_who_asked_and_died_leaves_nothing_without_an_owner_for_long(cluster: Cluster) -> None:
    (first,) = await whole(cluster, 2)
    second = Process(cluster, "late", 2)
    await cluster.run_until(lambda: any(each[1] == "late" and each[2] == "update" for each in cluster.log), 10)
    await second.kill()
    assert await cluster.run_until(lambda: not cluster.is_whole, 10) <= 4
    assert await cluster.run_until(lambda: cluster.is_whole, 15) <= 12
    assert first.held == [0, 1]


# A single shard


async def test_a_single_shard_is_the_one_lease_that_it_was(cluster: Cluster) -> None:
    leader, follower = Process(cluster, "leader", 1), Process(cluster, "follower", 1)
    await cluster.run_until(lambda: bool(leader.held), 0.1)
    await cluster.pass_time(10)
    asked = [(verb, lease) for _, name, verb, lease in cluster.log if name == "leader"]
    assert asked == [("get", "op"), ("create", "op"), *[("update", "op")] * 5]
    assert {(verb, lease) for _, name, verb, lease in cluster.log[3:] if name == "follower"} == {("get", "op")}
    assert "annotations" not in cluster.leases["op"]["metadata"]
    assert set(cluster.leases) == {"op"}
    await leader.stop()
    assert await cluster.run_until(lambda: bool(follower.held), 15) <= 2.1
    assert "annotations" not in cluster.leases["op"]["metadata"]


async def test_a_single_shard_that_is_lost_is_taken_again(cluster: Cluster) -> None:
    """An overloaded API server ends no process: one that starts lists everything, which would be more load."""
    (alone,) = await whole(cluster, 1)
    alone.connection.hangs = True
    assert await cluster.run_until(lambda: not alone.held, 7) <= 6.5
    await cluster.pass_time(30)
    alone.connection.hangs = False
    assert await cluster.run_until(lambda: alone.held == [0], 5) <= 3
    assert not alone.task.done()
    assert cluster.owned_twice == []


# Those who cannot reach the API server


async def test_one_that_hangs_stops_before_another_begins_and_gets_a_share_again(cluster: Cluster) -> None:
    first, second = await whole(cluster, 2, 2)
    first.connection.hangs = True
    assert await cluster.run_until(lambda: not first.held, 7) <= 6
    assert await cluster.run_until(lambda: cluster.is_whole, 12) > 1
    assert second.held == [0, 1]
    first.connection.hangs = False
    assert await cluster.run_until(lambda: len(first.held) == 1, 20) <= 15
    assert not first.task.done(), "it loses its shards and works on"
    assert cluster.owned_twice == []


async def test_a_stopped_and_continued_process_may_not_write_even_before_it_asks(cluster: Cluster) -> None:
    processes = await whole(cluster, 2, 2)
    cluster.now += 20  # SIGSTOP of both: nothing of them ran
    assert [cluster.owners(namespace) for namespace in NAMESPACES] == [[]] * len(NAMESPACES)
    await cluster.run_until(lambda: cluster.is_whole, 30)
    assert sum(len(each.held) for each in processes) == 2
    assert cluster.owned_twice == []


async def test_what_is_in_work_of_a_lost_reign_is_over_before_the_next_one(cluster: Cluster) -> None:
    (alone,) = await whole(cluster, 2)
    alone.busy.add(1)
    alone.connection.hangs = True
    await cluster.run_until(lambda: not alone.held, 7)
    alone.connection.hangs = False
    await cluster.pass_time(30)
    assert alone.held == [0], "it would write what it decided in another reign"
    alone.busy.clear()
    assert await cluster.run_until(lambda: alone.held == [0, 1], 10) <= 3


async def test_who_cannot_read_the_split_gives_up_what_depends_on_it(cluster: Cluster) -> None:
    first, second = await whole(cluster, 2, 2)
    has_one = first if first.held == [1] else second
    has_one.connection.hangs_for = "op"
    assert await cluster.run_until(lambda: not has_one.held, 10) <= 6
    assert await cluster.run_until(lambda: cluster.is_whole, 20) <= 14
    assert cluster.owned_twice == []


# Another split


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([1], [2], id="1 to 2"),
        pytest.param([1, 1], [2, 2], id="1 to 2, two replicas"),
        pytest.param([2, 2], [1, 1], id="2 to 1"),
        pytest.param([3, 3, 3], [2, 2, 2], id="3 to 2"),
        pytest.param([2, 2], [4, 4], id="2 to 4"),
    ],
)
@pytest.mark.parametrize("phase", [0.0, 1.3])
async def test_a_rolling_upgrade_to_another_split(
    cluster: Cluster, before: Sequence[int], after: Sequence[int], phase: float
) -> None:
    old = await whole(cluster, *before)
    new = []
    for number, each in enumerate(old):
        await cluster.pass_time(3 + phase)
        new.append(Process(cluster, f"new{number}", after[number]))
        await cluster.pass_time(5)
        assert cluster.split() in (None, str(before[0])), "as long as one of the old is there"
        await each.stop()
    assert await cluster.run_until(lambda: cluster.is_whole, 40) <= 25
    assert cluster.owned_twice == []
    assert cluster.split() == str(after[0])
    await cluster.pass_time(40)
    held = [len(each.held) for each in new]
    assert sum(held) == after[0]
    assert max(held) - min(held) <= 1
    assert cluster.owned_twice == []


async def split_taken_over(cluster: Cluster, before: int, after: int) -> tuple[list[Process], Process]:
    """Processes of one split that go on, while another takes shard 0 from them."""
    old = await whole(cluster, *[before] * before)
    new = Process(cluster, "new", after)
    await cluster.pass_time(5)
    first = next(each for each in old if 0 in each.held)
    await first.kill()
    old.remove(first)
    for each in old:  # those who would take it first
        each.shards.may_take = lambda shard: False  # type: ignore[method-assign]
    return old, new


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 2), (3, 1), (2, 3)])
async def test_holders_of_the_old_split_stop_before_those_of_the_new_begin(
    cluster: Cluster, before: int, after: int
) -> None:
    old, new = await split_taken_over(cluster, before, after)
    await cluster.run_until(lambda: cluster.split() == f"to-{after}", 30)
    assert await cluster.run_until(lambda: not any(each.held for each in old), 10) <= 2.5
    await cluster.pass_time(2.5)
    assert new.held == []
    holders = {lease["spec"]["holderIdentity"] for name, lease in cluster.leases.items() if name != "op"}
    assert holders == {""}, "whoever has them next need not wait for them to expire"
    assert await cluster.run_until(lambda: new.held == list(range(after)), 20) >= 4
    assert cluster.owned_twice == []


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 2), (3, 1), (2, 3)])
async def test_one_that_does_not_hear_of_the_new_split_has_stopped_when_it_begins(
    cluster: Cluster, before: int, after: int
) -> None:
    old, new = await split_taken_over(cluster, before, after)
    await cluster.run_until(lambda: cluster.leases["op"]["spec"]["holderIdentity"] == "new", 30)
    for each in old:  # each heard a moment ago that all is as it was
        each.connection.hangs = True
    await cluster.run_until(lambda: 0 in new.held, 20)
    assert cluster.owned_twice == []


async def test_who_dies_in_the_pause_leaves_a_pause(cluster: Cluster) -> None:
    old, new = await split_taken_over(cluster, 2, 1)
    await cluster.run_until(lambda: cluster.split() == "to-1", 30)
    await new.kill()
    for each in old:
        del each.shards.may_take
    assert await cluster.run_until(lambda: cluster.is_whole, 60) > 15
    assert cluster.split() == "2"
    assert cluster.owned_twice == []


async def test_another_split_by_hand_ends_every_reign(cluster: Cluster) -> None:
    await whole(cluster, 2, 2)
    cluster.annotate("op", shards="3")
    await cluster.run_until(lambda: not any(each.held for each in cluster.running), 10)
    await cluster.run_until(lambda: cluster.is_whole, 60)
    assert cluster.owned_twice == []


# Whatever happens


@pytest.mark.parametrize("seed", range(16))
async def test_never_two_owners_and_always_one_again(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    counts = chance.choice([(2,), (2,), (3,), (1, 2), (2, 3), (1, 3)])
    for number in range(25):
        running = cluster.running
        event = chance.choice(["start", "kill", "stop", "hang", "hang", "busy", "time", "freeze"])
        if event == "start" or not running:
            if len(running) < 4:
                Process(cluster, f"p{number}", chance.choice(counts)).connection.takes = chance.choice([0.0, 0.3, 1.1])
        elif event in ("kill", "stop"):
            await getattr(chance.choice(running), event)()
        elif event == "hang":
            connection = chance.choice(running).connection
            connection.hangs = not connection.hangs
        elif event == "busy":
            process = chance.choice(running)
            process.busy = set() if process.busy else {0, 1}
        elif event == "freeze":
            cluster.now += chance.uniform(0, 12)
            cluster.nobody_owns_two()
        await cluster.pass_time(chance.uniform(0, 9))
        assert cluster.owned_twice == []
    for each in [*cluster.running]:
        each.connection.hangs, each.busy = False, set()
        if each.shards.count != counts[0]:
            await each.kill()
    if not cluster.running:
        Process(cluster, "last", counts[0])
    await cluster.run_until(lambda: cluster.is_whole, 60)
    assert cluster.owned_twice == []
    assert not any(each.task.done() for each in cluster.running if each.shards.count > 1)
