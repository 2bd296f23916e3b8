"""The estimate of `llmservice advise routing`, against fleets whose routed hit rate is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from llmservice_cli.advise import estimate as estimates
from llmservice_cli.advise.estimate import (
    Counters,
    Estimate,
    Event,
    NotPlayed,
    Replica,
    Stored,
    from_counters,
    from_events,
)

from tests.unit.cli.fleet_world import (
    BLOCK,
    Fleet,
    Request,
    Traffic,
    by_chance,
    by_prefix,
    requests_of,
    served,
)

BY_DOCUMENTS = {"beginnings": 200, "beginning_tokens": 3000, "turns": 1, "capacity": 12_000}
KINDS: dict[str, Any] = {
    "conversations": {},
    "conversations in small caches": {"capacity": 2_500},
    "documents": BY_DOCUMENTS,
    "one prompt for all": {"beginnings": 1, "beginning_tokens": 1_500, "turns": 1},
    "nothing is shared": {"beginnings": 0, "turns": 1},
}
TRACES = [
    Traffic(number + 1, replicas=replicas, per_second=2.0 * replicas, **kind)
    for number, (replicas, kind) in enumerate((n, kind) for n in (2, 3, 4, 8) for kind in KINDS.values())
]
"""Twenty."""
FROM, SINCE, TO = 0.3, 0.55, 0.8
"""Shares of the requests: events are known from the first on, and counters between the others."""


def sampled(
    traffic: Traffic, fleet: Fleet, first: int, since: int, last: int, requests: Sequence[Request]
) -> list[Replica]:
    """As `advise` reads them: events of a part of the time, and counters of a part of that."""
    began, middle, ended = (requests[number].at for number in (first, since, last))
    found = []
    for server, (queries, hits) in zip(fleet.servers, fleet.between(since, last), strict=True):
        stored = [event for event in sorted(server.events, key=lambda each: each[0]) if len(event) == 3]
        events: list[Event] = [Stored(*event) for event in stored if began <= event[0] < ended]
        before = sum(event.at < middle for event in events)
        found.append(Replica(Counters(queries, hits), BLOCK, traffic.capacity, tuple(events), before))
    return found


def estimated(traffic: Traffic) -> tuple[float, Estimate]:
    """The true gain, and the estimate of a part of the time."""
    requests = requests_of(traffic)
    first, since, last = (int(share * len(requests)) for share in (FROM, SINCE, TO))
    plain, routed = (served(traffic, requests, choice) for choice in (by_chance(traffic.seed), by_prefix))
    gain = routed.hit_rate(since, last) - plain.hit_rate(since, last)
    estimate = from_events(sampled(traffic, plain, first, since, last, requests))
    assert estimate is not None
    return gain, estimate


def is_narrow(gain: float, estimate: Estimate) -> bool:
    """At most half the gain, and 10 points where there is none."""
    return estimate.gain.high - estimate.gain.low <= (gain / 2 if gain > 0.01 else 0.1)


@pytest.mark.full
def test_in_nineteen_of_twenty_traces_the_true_gain_is_in_a_narrow_interval() -> None:
    found = [estimated(traffic) for traffic in TRACES]
    right = [estimate.gain.low <= gain <= estimate.gain.high for gain, estimate in found]
    assert sum(right) >= 19, found
    assert all(is_narrow(gain, estimate) for gain, estimate in found), found


@pytest.mark.parametrize("kind", KINDS)
def test_the_true_gain_is_in_the_bounds_of_the_counters(kind: str) -> None:
    traffic = Traffic(8, requests=1200, **KINDS[kind])
    requests = requests_of(traffic)
    plain, routed = (served(traffic, requests, choice) for choice in (by_chance(8), by_prefix))
    filled = [any(len(event) == 2 for event in server.events) for server in plain.servers]
    whole = zip(plain.between(0, -1), filled, strict=True)
    counters = [Counters(queries, hits, is_full=is_full) for (queries, hits), is_full in whole]
    bounds = from_counters(counters, len(counters)).gain
    gain = routed.hit_rate(0, -1) - plain.hit_rate(0, -1)
    assert bounds.low - 0.005 <= gain <= bounds.high


@pytest.mark.parametrize("kind", KINDS)
def test_the_true_gain_is_in_the_interval(kind: str) -> None:
    gain, estimate = estimated(Traffic(7, requests=1200, **KINDS[kind]))
    assert estimate.gain.low - 0.02 <= gain <= estimate.gain.high + 0.02
    assert estimate.requests


def replica(*events: Event, before: int = 0) -> Replica:
    return Replica(Counters(1_000, 0), BLOCK, 100, events, before)


LONG = (Stored(0.0, None, (1, 2, 3)), *(Stored(10.0 * n, 3, (10 * n, 10 * n + 1)) for n in range(1, 5)))
"""Eleven blocks, which are 23 where each request is looked at."""
SHORTER, ROUTER = "ask for a shorter time \\(--for\\)$", "before the watch.* measure with a router$"
TOO_MUCH: dict[str, tuple[Replica, int, str]] = {
    "more blocks than are looked at": (replica(*LONG), 10, SHORTER),
    "longer requests than are looked at": (replica(*LONG), 20, SHORTER),
    "more blocks before the watch": (replica(*LONG, before=5), 10, ROUTER),
    "longer requests before the watch": (replica(*LONG, before=5), 20, ROUTER),
    "a longer chain than is looked at": (
        replica(Stored(0.0, None, tuple(range(8))), Stored(9.0, 7, (8, 9))),
        40,
        SHORTER,
    ),
    "a block before itself": (replica(Stored(0.0, 2, (1,)), Stored(9.0, 1, (2, 3))), 40, "comes before itself"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_is_told_from_too_little(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, most, says = TOO_MUCH[name]
    monkeypatch.setattr(estimates, "MOST_STEPS", most)
    monkeypatch.setattr(estimates, "MOST_CHAIN", 7)
    with pytest.raises(NotPlayed, match=says):
        from_events([given])


def test_too_many_blocks_are_refused_before_anything_is_built_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "MOST_STEPS", 10)
    monkeypatch.setattr(estimates, "traffic_of", None)
    with pytest.raises(NotPlayed):
        from_events([replica(*LONG)])


def test_too_little_is_no_estimate() -> None:
    assert from_events([replica(*LONG)]) is None
