"""Which pods start, and until when: while one does, no replica is removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeloop.resources import POD, Key
from llmservice_activator.services import Services, pod_of
from llmservice_api.constants import LLMSERVICE
from llmservice_runtime.contract import START_CEILING_SECONDS

from tests.unit.activator.test_scaler_answers import World
from tests.unit.scaler_world import pod, service

CHAT = Key("ns", "chat")
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
CREATING = {"name": "server", "state": {"waiting": {"reason": "ContainerCreating"}}}
EARLIER = "2026-11-23T00:00:00Z"


def starting(
    *, created: Any = None, scheduled: Any = None, started: Any = None, unready: Any = None, is_started: bool = False
) -> dict[str, Any]:
    """A pod that is not ready, with the times that are given; its server runs where it has `started`."""
    running = {"name": "server", "state": {"running": {"startedAt": started}}, "started": is_started}
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled},
        {"type": "Ready", "status": "False", "lastTransitionTime": unready},
    ]
    status: dict[str, Any] = {"conditions": conditions, "containerStatuses": [CREATING if started is None else running]}
    obj = pod("a", ready=False, **status)
    obj["metadata"]["creationTimestamp"] = created
    return obj


NOW, SOON = "2026-11-23T12:00:00Z", "2026-11-23T12:01:00Z"
FROM_NOW: dict[str, dict[str, Any]] = {
    "created": starting(created=NOW),
    "without a node until now": starting(created=EARLIER, scheduled=NOW),
    "its image was pulled until now": starting(created=EARLIER, scheduled=EARLIER, started=NOW),
    "it answers, and was not asked yet whether it is ready": starting(
        created=EARLIER, started=NOW, unready=EARLIER, is_started=True
    ),
    "it was ready before its server ended and started anew": starting(
        created=EARLIER, started=NOW, unready=NOW, is_started=True
    ),
    "by a clock that is ahead": starting(created=SOON),
}


@pytest.mark.parametrize("case", FROM_NOW)
def test_a_pod_starts_for_as_long_as_a_start_may_take(case: str) -> None:
    moment = [NOON]
    known = Services(now=lambda: moment[0])
    known.updated(POD, FROM_NOW[case])
    for passed, expected in ((0, True), (START_CEILING_SECONDS - 1, True), (START_CEILING_SECONDS + 60, False)):
        moment[0] = NOON + timedelta(seconds=passed)
        assert [each.is_starting for each in known.pods(CHAT)] == [expected], f"after {passed} s"


def test_a_pod_that_was_ready_since_its_server_started_does_not_start() -> None:
    was_ready = starting(created=EARLIER, started=EARLIER, unready=NOW, is_started=True)
    found = pod_of(was_ready)
    assert found is not None
    assert not found.is_starting


async def test_a_container_that_is_never_created_keeps_no_other_replica_for_ever() -> None:
    stuck = starting(created=NOW)
    stuck["metadata"]["name"] = "stuck"
    world = World(service(replicas=3), pod("a"), pod("b", address="10.0.0.2"), stuck)
    world.wall = NOON
    world.requests |= {"10.0.0.1": 1, "10.0.0.2": 0}
    assert await world.replicas() == 3
    world.wall += timedelta(seconds=START_CEILING_SECONDS)
    world.time += START_CEILING_SECONDS
    assert await world.replicas() == 1


async def test_a_pod_between_its_start_and_its_first_probe_is_not_removed() -> None:
    answering = starting(created=EARLIER, started=NOW, unready=EARLIER, is_started=True)
    answering["metadata"]["name"] = "b"
    world = World(service(replicas=2), pod("a"), answering)
    world.wall = NOON
    world.requests["10.0.0.1"] = 1
    assert await world.replicas() == 2


TIMES = (
    st.none()
    | st.integers()
    | st.text(max_size=40)
    | st.lists(st.text(max_size=5), max_size=2)
    | st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-11-23", NOW, "2026-11-23T12:00"])
)


@given(TIMES, TIMES, TIMES, TIMES, st.booleans())
def test_whatever_its_times_are_a_pod_is_read(created: Any, scheduled: Any, at: Any, unready: Any, up: bool) -> None:
    known = Services(now=lambda: NOON)
    known.updated(LLMSERVICE, service())
    obj = starting(created=created, scheduled=scheduled, started=at, unready=unready, is_started=up)
    known.updated(POD, obj)
    assert [each.name for each in known.pods(CHAT)] == ["a"]
