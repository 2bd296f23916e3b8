"""The Lease: who may write, and when, on a simulated clock."""

import asyncio

import pytest
from llmservice_operator.kube.lease import Lease, LeaseTiming, Outcome

from tests.support.patience import PATIENCE
from tests.unit.shards_world import Cluster, Connection


class Candidate:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.transport = Connection(cluster, name)
        self.lease = Lease(
            self.transport, namespace="ns", name="op", identity=name, clock=cluster.clock, sleep=cluster.sleep
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
async def cluster() -> Cluster:
    return Cluster()


async def leader(cluster: Cluster) -> Candidate:
    first = Candidate(cluster, "first")
    await cluster.run_until(lambda: first.leads, 1)
    return first


async def pair(cluster: Cluster) -> tuple[Candidate, Candidate]:
    first, second = await leader(cluster), Candidate(cluster, "second")
    await cluster.pass_time(7)
    assert (first.leads, second.leads) == (True, False)
    return first, second


async def test_the_first_creates_the_lease_and_a_second_one_waits(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await cluster.pass_time(300)
    assert (first.leads, second.leads, first.gained, second.gained) == (True, False, 1, 0)
    spec = cluster.leases["op"]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("first", 0)


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.7, 1.3, 1.9])
async def test_takeover_after_a_kill_within_15_seconds(cluster: Cluster, phase: float) -> None:
    first, second = await pair(cluster)
    await cluster.pass_time(phase)
    await first.kill()
    assert await cluster.run_until(lambda: second.leads, 15) <= 12.5
    assert cluster.leases["op"]["spec"]["leaseTransitions"] == 1


async def test_a_leader_whose_api_connection_hangs_stops_before_another_starts(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    first.transport.hangs = True
    lost_after = await cluster.run_until(lambda: not first.leads, 7)
    assert lost_after <= 6
    assert not second.leads
    took = await cluster.run_until(lambda: second.leads, 15 - lost_after)
    assert took > 1
    assert not first.leads
    first.transport.hangs = False
    assert await asyncio.wait_for(first.task, PATIENCE) is Outcome.LOST


async def test_a_candidate_does_not_hammer_at_a_server_that_is_away(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await first.kill()
    second.transport.is_refused = True
    await cluster.pass_time(20)  # the record that it saw has long expired
    before = len(cluster.log)
    await cluster.pass_time(10)
    assert len(cluster.log) - before <= 20
    second.transport.is_refused = False
    assert await cluster.run_until(lambda: second.leads, 15) <= 1


async def test_a_stopped_and_continued_leader_may_not_write_even_before_it_asks(cluster: Cluster) -> None:
    first, _ = await pair(cluster)
    cluster.now += 20  # SIGSTOP: nothing of it ran
    assert first.lease.remaining() <= 0
    assert not first.leads


async def test_a_leader_that_slept_past_its_deadline_does_not_come_back(cluster: Cluster) -> None:
    """No other process took the lease meanwhile; its own work is over nevertheless."""
    first = await leader(cluster)
    cluster.now += 20
    await cluster.run_until(first.task.done, 5)
    assert first.task.result() is Outcome.LOST


@pytest.mark.parametrize("holder", ["thief", "first"])
async def test_a_change_by_others_ends_a_reign_only_with_another_holder(cluster: Cluster, holder: str) -> None:
    first, _ = await pair(cluster)
    live = cluster.leases["op"]
    metadata = live["metadata"] | {"resourceVersion": "999"}
    cluster.leases["op"] = {**live, "spec": live["spec"] | {"holderIdentity": holder}, "metadata": metadata}
    await cluster.pass_time(3 if holder == "thief" else 30)
    assert first.leads is (holder == "first")


async def test_release_hands_over_at_once(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await first.lease.release()
    assert not first.leads
    await first.kill()
    assert await cluster.run_until(lambda: second.leads, 15) <= 2.5


async def test_release_of_a_follower_takes_nothing_from_the_leader(cluster: Cluster) -> None:
    first, second = await pair(cluster)
    await second.lease.release()
    await cluster.pass_time(5)
    assert first.leads


async def test_a_steady_reign_costs_one_request_a_renewal(cluster: Cluster) -> None:
    first = await leader(cluster)
    before = len(cluster.log)
    await cluster.pass_time(60)
    assert len(cluster.log) - before <= 31
    assert first.leads


async def test_two_candidates_at_the_same_instant_make_one_leader(cluster: Cluster) -> None:
    candidates = [Candidate(cluster, str(n)) for n in range(5)]
    await cluster.pass_time(5)
    assert [c.leads for c in candidates].count(True) == 1


@pytest.mark.parametrize("bad", [{"duration": 6.0}, {"renew_deadline": 3.0}, {"request_timeout": 5.0}], ids=str)
def test_timings_that_could_make_two_leaders_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lease"):
        LeaseTiming(**bad)
