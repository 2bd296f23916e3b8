"""Desired replicas: a table, properties, and the HPA's own rule applied to the answers until nothing changes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_activator.demand import Desired, Load, ReplicaBounds, desired
from llmservice_api.lifecycle import MOST_REPLICAS

WIDE = ReplicaBounds(1, MOST_REPLICAS, MOST_REPLICAS)


def load(replicas: int, in_flight: int, **changes: int | None) -> Load:
    """All replicas ready and answering; ten requests for each."""
    known = {"existing": replicas, "ready": replicas, "starting": 0, "unread": 0, "concurrency": 10}
    return Load(replicas=replicas, in_flight=in_flight, **{**known, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_", "bounds", "replicas", "reason"),
    [
        (load(1, 0), WIDE, 1, "0 requests in flight, 10 for each; minReplicas 1 in force"),
        (load(3, 30), WIDE, 3, "30 requests in flight, 10 for each"),
        (load(3, 31), WIDE, 4, "31 requests in flight, 10 for each"),
        (load(3, 5), WIDE, 1, "5 requests in flight, 10 for each"),
        # Replicas that are on their way count as capacity.
        (load(3, 45, ready=1), WIDE, 3, "45 requests in flight, 10 for each; not ready yet: 2"),
        (load(3, 75, ready=2), WIDE, 7, "75 requests in flight, 10 for each; not ready yet: 1"),
        # What starts is not scaled away, nor anything while it is not known what a pod has.
        (load(3, 0, ready=0), WIDE, 3, "0 requests in flight, 10 for each"),
        (load(3, 5, ready=2, starting=1), WIDE, 3, "5 requests in flight, 10 for each; starting: 1"),
        (load(3, 5, ready=2), WIDE, 1, "5 requests in flight, 10 for each"),
        (load(3, 5, unread=1), WIDE, 3, "5 requests in flight, 10 for each; ready without an answer: 1"),
        (load(3, 35, unread=1), WIDE, 4, "35 requests in flight, 10 for each; ready without an answer: 1"),
        (load(3, 5, concurrency=None), WIDE, 3, "how many requests a replica holds is not known"),
        # The bounds win.
        (load(3, 0), ReplicaBounds(2, 4, 4), 2, "0 requests in flight, 10 for each; minReplicas 2 in force"),
        (load(3, 99), ReplicaBounds(2, 4, 4), 4, "99 requests in flight, 10 for each; maxReplicas 4 in force"),
        (load(1, 0, concurrency=None), ReplicaBounds(2, 4, 4), 2, None),
        (load(6, 0, starting=1), ReplicaBounds(2, 4, 4), 4, None),
    ],
)  # fmt: skip
def test_desired_replicas(given_: Load, bounds: ReplicaBounds, replicas: int, reason: str | None) -> None:
    found = desired(given_, bounds)
    assert found.replicas == replicas
    assert reason in (None, found.reason)


@pytest.mark.parametrize(
    ("replicas", "existing", "in_flight", "bounds", "metric"),
    [
        (10, 11, 100, WIDE, 9.899),  # a rollout's eleventh pod, or one that is to go: 10/11 is within 10%
        (12, 12, 110, WIDE, 10.799),
        (18, 19, 180, WIDE, 17.099),
        (20, 21, 200, WIDE, 20),  # what is below 18.9 would be 19
        (1, 1, 20, WIDE, 2),
        (9, 9, 100, WIDE, 10),
        (10, 10, 110, WIDE, 12),  # 11/10 is within 10%
        (10, 10, 130, WIDE, 13),
        (11, 11, 120, WIDE, 13),
        (20, 20, 210, WIDE, 23),
        (10, 10, 110, ReplicaBounds(1, 11, 11), 12),  # the HPA cuts it to 11
        (10, 10, 110, ReplicaBounds(1, 11, 20), 11),  # it would not cut it here
        (1, 2, 20, WIDE, 2),  # a rollout's second pod: the HPA keeps what is there
        (10, 0, 110, WIDE, 12),
        (10, 10, 100, WIDE, 10),
        (10, 10, 90, WIDE, 8.999),  # 9/10 is within 10% too
    ],
)
def test_the_metric_exceeds_the_tolerance_where_more_is_desired(
    replicas: int, existing: int, in_flight: int, bounds: ReplicaBounds, metric: float
) -> None:
    assert desired(load(replicas, in_flight, existing=existing), bounds).metric == pytest.approx(metric)


def hpa(found: Desired, replicas: int, bounds: ReplicaBounds, tolerance: float = 0.1) -> int:
    """The replicas that an HPA sets: AverageValue 1, as in replica_calculator.go (GetExternalPerPodMetricReplicas)."""
    usage, target = int(found.metric * 1000), 1000  # KEDA's milli quantity
    ratio = usage / (target * replicas)
    is_within = 1.0 - tolerance <= ratio <= 1.0 + tolerance
    proposed = replicas if is_within else math.ceil(usage / target)
    return max(1, min(proposed, bounds.overall_max))


@pytest.mark.parametrize("tolerance", [0.1, 0.0])
def test_one_more_is_always_set_where_one_more_is_desired(tolerance: float) -> None:
    for replicas in range(1, MOST_REPLICAS):
        found = desired(load(replicas, replicas * 10 + 1), WIDE)
        assert found.replicas == replicas + 1
        assert replicas < hpa(found, replicas, WIDE, tolerance) <= replicas * 1.1 + 1


def test_one_fewer_is_set_where_one_fewer_is_desired_of_less_than_twenty() -> None:
    for replicas in range(2, 20):
        found = desired(load(replicas, (replicas - 1) * 10), WIDE)
        assert (found.replicas, hpa(found, replicas, WIDE)) == (replicas - 1, replicas - 1)


def test_the_last_replica_of_the_maximum_is_set() -> None:
    for most in range(2, MOST_REPLICAS + 1):
        bounds = ReplicaBounds(1, most, most)
        assert hpa(desired(load(most - 1, most * 10), bounds), most - 1, bounds) == most


counts = st.integers(1, MOST_REPLICAS)
numbers = st.integers(0, 60)
bounds_ = st.tuples(counts, counts, counts).map(lambda drawn: ReplicaBounds(*sorted(drawn)))


@st.composite
def loads(draw: st.DrawFn) -> Load:
    replicas = draw(counts)
    return Load(
        replicas=replicas,
        existing=draw(st.integers(0, 2 * MOST_REPLICAS)),
        ready=draw(st.integers(0, replicas)),
        starting=draw(numbers),
        in_flight=draw(st.integers(0, 10**10)),
        unread=draw(st.integers(0, 3)),
        concurrency=draw(st.none() | st.integers(1, 10_000)),
    )


@given(loads(), bounds_)
def test_always_within_the_bounds_and_never_down_without_knowledge(given_: Load, bounds: ReplicaBounds) -> None:
    found = desired(given_, bounds)
    assert bounds.min_replicas <= found.replicas <= bounds.max_replicas
    if given_.starting or given_.unread or not given_.ready or given_.concurrency is None:
        assert found.replicas >= min(given_.replicas, bounds.max_replicas)
    if bounds.max_replicas < bounds.overall_max:
        assert found.metric <= bounds.max_replicas
    assert found.replicas <= math.ceil(found.metric) <= found.replicas + max(given_.replicas, given_.existing) // 10 + 1


@given(loads(), bounds_, st.integers(0, 10**9))
def test_more_requests_never_ask_for_fewer(given_: Load, bounds: ReplicaBounds, more: int) -> None:
    few, many = desired(given_, bounds), desired(replace(given_, in_flight=given_.in_flight + more), bounds)
    assert few.replicas <= many.replicas
    assert few.metric <= many.metric


@given(counts, st.integers(0, 20_000), st.integers(1, 64), bounds_, st.sampled_from([0.1, 0.0]))
def test_a_steady_load_settles_within_three_steps_and_turns_at_most_once(
    replicas: int, in_flight: int, concurrency: int, bounds: ReplicaBounds, tolerance: float
) -> None:
    """The HPA's rule fed with the answers, all pods ready at once: no flap."""
    steps = [replicas]
    for _ in range(6):
        found = desired(load(steps[-1], in_flight, concurrency=concurrency), bounds)
        steps.append(hpa(found, steps[-1], bounds, tolerance))
    assert steps[3] == steps[4] == steps[5] == steps[6], steps
    moves = [after - before for before, after in itertools.pairwise(steps) if after != before]
    assert sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves)) <= 1
    demand = -(-in_flight // concurrency)
    assert steps[-1] >= min(demand, bounds.max_replicas) * 0.9
