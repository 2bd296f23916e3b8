"""Whether a service is in use: by what is held, in flight, on its way, or was counted since the last look."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from llmservice_activator.answers import ActivityTracker
from llmservice_activator.demand import Load, ReplicaBounds, desired
from llmservice_activator.services import Service, service_of

from tests.unit.scaler_zero_world import NOON, at_zero

IDLE = 600
LOAD = Load(replicas=1, existing=1, ready=1, starting=0, in_flight=0, unread=0, concurrency=16)
AT_ZERO = Load(replicas=0, existing=0, ready=0, starting=0, in_flight=0, unread=0, concurrency=16)


def chat(uid: str = "u") -> Service:
    return service_of(at_zero(idle=IDLE, uid=uid), NOON)


class Looks:
    """Looks at one service at given times."""

    def __init__(self) -> None:
        self.activities = ActivityTracker()

    def at(self, time: float, load: Load = LOAD, min_replicas: int = 0, uid: str = "u", **begun: int) -> bool:
        return self.activities.update(chat(uid), load, begun, min_replicas, time).is_active


@pytest.mark.parametrize(
    ("changes", "at_one", "none"),
    [
        ({}, False, False),
        ({"held": 1}, True, True),
        ({"in_flight": 1}, True, True),
        ({"starting": 1}, True, False),
        ({"ready": 0}, False, False),
        ({"unread": 1}, True, False),
        ({"unanswered_activators": 1}, True, False),
        ({"uncounted_pods": 1}, True, False),
    ],
)
def test_what_keeps_the_last_replica_and_what_starts_the_first(
    changes: dict[str, Any], at_one: bool, none: bool
) -> None:
    for load, expected in ((LOAD, at_one), (AT_ZERO, none)):
        looks = Looks()
        looks.at(0, load, a=5)
        assert looks.at(IDLE + 1, dataclasses.replace(load, **changes), a=5) is expected


def test_idle_seconds_count_from_the_last_request_by_the_counters() -> None:
    looks = Looks()
    looks.at(0, a=5)
    assert looks.at(500, a=6), "a request came and went between two looks"
    assert looks.at(500 + IDLE - 1, a=6)
    assert not looks.at(500 + IDLE, a=6)
    assert looks.at(2000, a=2), "a counter that fell is that of another start of the container"
    assert looks.at(2000 + IDLE, a=2, b=1), "a pod that was not there before has had a request"
    assert not looks.at(2000 + 2 * IDLE, a=2, b=1)


def test_a_process_that_has_just_started_knows_of_no_request_before() -> None:
    looks = Looks()
    assert looks.at(1000, a=5)
    assert looks.at(1000 + IDLE - 1, a=5)
    assert not looks.at(1000 + IDLE, a=5)
    assert not Looks().at(1000, AT_ZERO), "but starts no replica for it"
    assert not Looks().at(1000, AT_ZERO, a=5), "neither where the last one still ends"


def test_a_start_is_use_so_that_a_replica_stays_for_idle_seconds_after_it() -> None:
    looks = Looks()
    looks.at(0, AT_ZERO)
    assert looks.at(5000, dataclasses.replace(LOAD, ready=0))
    assert looks.at(5000 + IDLE - 1)
    assert not looks.at(5000 + IDLE)


def test_a_pod_that_is_new_to_this_process_was_started_since() -> None:
    """Another activator was asked while it started."""
    looks = Looks()
    looks.at(0, AT_ZERO)
    assert not looks.at(4999, AT_ZERO, a=0), "it ends: nobody is woken for it"
    looks.at(4999, AT_ZERO)
    assert looks.at(5000, a=0)
    assert looks.at(5000 + IDLE - 1, a=0)
    assert not looks.at(5000 + IDLE, a=0)
    assert looks.at(6000, b=0), "one that took its place"


def test_what_is_not_known_is_no_use() -> None:
    """It keeps the replica while it lasts; idleSeconds count on."""
    looks = Looks()
    looks.at(0, a=5)
    assert looks.at(IDLE, dataclasses.replace(LOAD, unread=1))
    assert not looks.at(IDLE + 1, a=5), "and the counter is compared with the one before"


def test_a_request_while_a_pod_did_not_answer_is_seen_after_it() -> None:
    looks = Looks()
    looks.at(0, a=5)
    looks.at(IDLE, dataclasses.replace(LOAD, unread=1))
    assert looks.at(IDLE + 1, a=6)


def test_a_time_with_a_minimum_is_active_and_its_requests_count_after_it() -> None:
    looks = Looks()
    looks.at(0, a=5)
    assert looks.at(1000, min_replicas=1, a=5)
    assert looks.at(1500, min_replicas=1, a=6)
    assert looks.at(1500 + IDLE - 1, a=6)
    assert not looks.at(1500 + IDLE, a=6)
    assert looks.at(9000, AT_ZERO, min_replicas=1)


def test_another_service_of_the_name_begins_anew() -> None:
    looks = Looks()
    looks.at(0, a=5)
    assert not looks.at(IDLE, a=5)
    assert looks.at(IDLE, uid="v", a=5)
    looks.activities.forget(chat().key)
    assert looks.at(IDLE, a=5)


@pytest.mark.parametrize(
    ("changes", "idle", "replicas"),
    [
        ({}, None, 1),  # in use within idleSeconds
        ({}, "no request for 600 s", 0),
        ({"in_flight": 20}, None, 2),
        ({"in_flight": 10, "held": 10}, None, 2),
        ({"held": 33, "replicas": 0, "ready": 0}, None, 3),
        ({"replicas": 3, "ready": 3, "unanswered_activators": 1}, None, 3),
    ],
)
def test_held_requests_count_and_one_replica_stays_unless_it_is_idle(
    changes: dict[str, Any], idle: str | None, replicas: int
) -> None:
    found = desired(dataclasses.replace(LOAD, **changes), ReplicaBounds(0, 8, 8), idle)
    assert found.replicas == replicas
    assert idle is None or idle in found.reason


def test_a_replica_that_never_gets_ready_is_given_back() -> None:
    """It crashes, or no node has a GPU for it: nobody can be served by it, whatever a start costs."""
    looks, failing = Looks(), dataclasses.replace(LOAD, ready=0, starting=0)
    looks.at(0, AT_ZERO)
    assert looks.at(10, dataclasses.replace(AT_ZERO, held=1)), "a request wakes it"
    assert looks.at(20, dataclasses.replace(failing, held=1))
    assert looks.at(60, dataclasses.replace(failing, starting=1)), "it loads"
    assert looks.at(60 + IDLE - 1, failing)
    assert not looks.at(60 + IDLE, failing)
    assert looks.at(7000, dataclasses.replace(failing, held=1)), "and the next request tries again"
