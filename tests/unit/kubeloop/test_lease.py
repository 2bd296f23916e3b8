"""The Lease: who may write, and when, on a simulated clock; whatever becomes of the processes."""

from __future__ import annotations

import random

import pytest
from kubeloop.lease import LeaseTiming
from kubeloop.resources import LEASE

from tests.unit.kubeloop.lease_world import SECOND_LEASE, Cluster, Former, Process


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


async def leader(cluster: Cluster) -> Process:
    first = Process(cluster, "first")
    await cluster.run_until(lambda: first.works, 1)
    return first


async def pair(cluster: Cluster) -> tuple[Process, Process]:
    first, second = await leader(cluster), Process(cluster, "second")
    await cluster.pass_time(7)
    assert (first.works, second.works) == (True, False)
    return first, second


async def test_the_first_creates_the_lease_and_a_second_one_waits(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await cluster.pass_time(300)
    assert (first.works, second.works, first.gains, second.gains) == (True, False, 1, 0)
    spec = cluster.lease()["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("first", 0)


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.7, 1.3, 1.9])
async def test_takeover_after_a_kill_within_15_seconds(cluster: Cluster, phase: float) -> None:
    first, second = await pair(cluster)
    await cluster.pass_time(phase)
    await first.kill()
    assert await cluster.run_until(lambda: second.works, 15) <= 12.5
    assert cluster.lease()["spec"]["leaseTransitions"] == 1


async def test_a_leader_whose_api_connection_hangs_stops_before_another_starts(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    first.connection.hangs = True
    lost_after = await cluster.run_until(lambda: not first.works, 7)
    assert lost_after <= 6
    assert not second.works
    took = await cluster.run_until(lambda: second.works, 15 - lost_after)
    assert took > 1
    assert not first.works
    first.connection.hangs = False
    await cluster.pass_time(10)
    assert (first.is_working, first.task.done(), cluster.owned_twice) == (False, False, [])


async def test_a_candidate_does_not_hammer_at_a_server_that_is_away(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await first.kill()
    second.connection.is_refused = True
    await cluster.pass_time(20)  # the record that it saw has long expired
    before = len(cluster.log)
    await cluster.pass_time(10)
    assert len(cluster.log) - before <= 20
    second.connection.is_refused = False
    assert await cluster.run_until(lambda: second.works, 15) <= 1


async def test_a_stopped_and_continued_leader_may_not_write_even_before_it_asks(cluster: Cluster) -> None:
    first, _ = await pair(cluster)
    cluster.now += 20  # SIGSTOP: nothing of it ran
    assert first.remaining() <= 0
    assert not first.works


async def test_a_leader_that_slept_past_its_deadline_does_not_come_back(cluster: Cluster) -> None:
    """No other process took the lease meanwhile; its own work is over nevertheless, and begins anew."""
    first = await leader(cluster)
    cluster.now += 20
    await cluster.run_until(lambda: first.gains == 2, 5)
    assert cluster.lease()["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("holder", ["thief", "first"])
async def test_a_change_by_others_ends_a_reign_only_with_another_holder(cluster: Cluster, holder: str) -> None:
    first, _ = await pair(cluster)
    live = cluster.lease()
    cluster.api.put({**live, "spec": live["spec"] | {"holderIdentity": holder}}, resourceVersion="999")
    await cluster.pass_time(3 if holder == "thief" else 30)
    assert first.works is (holder == "first")


async def test_release_hands_over_at_once(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await first.lease.release()
    assert not first.works
    await first.kill()
    assert await cluster.run_until(lambda: second.works, 15) <= 2.5


async def test_release_of_a_follower_takes_nothing_from_the_leader(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await second.lease.release()
    await cluster.pass_time(5)
    assert first.works


async def test_a_steady_reign_costs_one_request_a_renewal(cluster: Cluster) -> None:
    first = await leader(cluster)
    before = len(cluster.log)
    await cluster.pass_time(60)
    assert len(cluster.log) - before <= 31
    assert first.works


async def test_two_candidates_at_the_same_instant_make_one_leader(cluster: Cluster) -> None:
    candidates = [Process(cluster, str(n)) for n in range(5)]
    await cluster.pass_time(5)
    assert [c.works for c in candidates].count(True) == 1
    assert cluster.owned_twice == []


@pytest.mark.parametrize("bad", [{"duration": 6.0}, {"renew_deadline": 3.0}, {"request_timeout": 5.0}], ids=str)
def test_timings_that_could_make_two_leaders_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lease"):
        LeaseTiming(**bad)


async def test_one_that_was_never_split_has_no_annotation_and_makes_no_pause(cluster: Cluster) -> None:
    first, second = Process(cluster, "first"), Process(cluster, "second")
    await cluster.run_until(lambda: first.works, 0.1)
    await cluster.pass_time(10)
    asked = [(verb, lease) for _, name, verb, lease in cluster.log if name == "first"]
    assert asked == [("get", "op"), ("create", "op"), *[("update", "op")] * 5]
    assert {(verb, lease) for _, name, verb, lease in cluster.log[3:] if name == "second"} == {("get", "op")}
    await first.stop()
    assert await cluster.run_until(lambda: second.works, 15) <= 2.1
    assert "annotations" not in cluster.lease()["metadata"]
    assert [lease["metadata"]["name"] for lease in cluster.api.all_of(LEASE)] == ["op"]


async def test_one_that_is_lost_is_taken_again_once_nothing_is_in_work(cluster: Cluster) -> None:
    """An overloaded API server ends no process: one that starts lists everything, which would be more load."""
    alone = await leader(cluster)
    alone.busy = alone.connection.hangs = True
    assert await cluster.run_until(lambda: not alone.works, 7) <= 6.5
    alone.connection.hangs = False
    await cluster.pass_time(30)
    assert not alone.works, "it would write what it decided in another reign"
    alone.busy = False
    assert await cluster.run_until(lambda: alone.works, 5) <= 3
    assert (alone.gains, alone.task.done()) == (2, False)


async def upgraded(cluster: Cluster) -> tuple[Former, Process]:
    """From two shards: the one with the first Lease has ended, the one with the second goes on."""
    cluster.put("op", "", split="2")
    former = Former(cluster)
    await cluster.pass_time(0.5)
    new = Process(cluster, "new")
    await cluster.pass_time(0)
    return former, new


@pytest.mark.parametrize("hears", [True, False], ids=["it hears of the upgrade", "it hears nothing"])
async def test_nobody_writes_beside_the_last_of_two_shards(cluster: Cluster, hears: bool) -> None:
    former, new = await upgraded(cluster)
    assert (cluster.split(), former.remaining() > 0) == ("to-1", True)
    former.hears = hears
    assert await cluster.run_until(lambda: former.remaining() <= 0, 7) <= (2.5 if hears else 6.5)
    assert not new.works
    assert await cluster.run_until(lambda: new.works, 15) >= 4
    assert (cluster.split(), cluster.owned_twice) == ("1", [])
    assert cluster.lease(SECOND_LEASE)["spec"]["holderIdentity"] == "former", "nobody asks for it any more"


async def test_who_dies_in_the_pause_leaves_a_pause(cluster: Cluster) -> None:
    _, new = await upgraded(cluster)
    await new.kill()
    assert cluster.split() == "to-1"
    later = Process(cluster, "later")
    assert await cluster.run_until(lambda: later.works, 40) > 15
    assert (cluster.split(), cluster.owned_twice) == ("1", [])


async def test_another_number_by_hand_ends_the_reign(cluster: Cluster) -> None:
    first = await leader(cluster)
    cluster.put("op", "first", split="2")
    assert await cluster.run_until(lambda: not first.works, 7) <= 5
    assert await cluster.run_until(lambda: first.works, 30) >= 10
    assert cluster.split() == "1"


@pytest.mark.parametrize("seed", range(16))
async def test_never_two_owners_and_always_one_again(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    if chance.random() < 0.5:
        await upgraded(cluster)
    for number in range(25):
        running = [each for each in cluster.running if isinstance(each, Process)]
        event = chance.choice(["start", "kill", "stop", "hang", "hang", "busy", "time", "freeze"])
        if event == "start" or not running:
            if len(running) < 4:
                Process(cluster, f"p{number}").connection.takes = chance.choice([0.0, 0.3, 1.1])
        elif event in ("kill", "stop"):
            await getattr(chance.choice(running), event)()
        elif event == "hang":
            connection = chance.choice(running).connection
            connection.hangs = not connection.hangs
        elif event == "busy":
            process = chance.choice(running)
            process.busy = not process.busy
        elif event == "freeze":
            cluster.now += chance.uniform(0, 12)
            cluster.nobody_owns_two()
        await cluster.pass_time(chance.uniform(0, 9))
        assert cluster.owned_twice == []
    running = [each for each in cluster.running if isinstance(each, Process)]
    for each in running or [Process(cluster, "last")]:
        each.connection.hangs = each.busy = False
    await cluster.run_until(lambda: cluster.is_whole, 60)
    assert cluster.owned_twice == []
    assert not any(each.task.done() for each in running)
