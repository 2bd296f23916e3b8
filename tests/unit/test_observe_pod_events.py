"""What only Events tell: whose are read and when, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from llmservice_operator.observe.failures.failure import FailureContext, failure_of
from llmservice_operator.observe.failures.pod_events import PodEvents, event_query
from llmservice_operator.observe.failures.status_failure import StatusFailure
from llmservice_operator.observe.reports import Report
from llmservice_runtime.contract import Phase, State

from tests.unit import failing_pods as pods
from tests.unit.failing_pods import REVISION, facts

Json = dict[str, Any]

READY = State(Phase.SERVING, started=True, ready=True)
HUNG = State(Phase.SERVING, started=True, ready=False)
LOADING = State(Phase.LOADING)
TIMEOUT = 'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": context deadline exceeded'
DROPPED = 'Startup probe failed: Get "http://10.244.0.9:8081/startupz": dial tcp 10.244.0.9:8081: i/o timeout'
REFUSED = 'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": dial tcp 10.244.0.9:8081: connection refused'
STATUS = "Readiness probe failed: HTTP probe failed with statuscode: 503"
MOUNT = 'MountVolume.SetUp failed for volume "settings" : configmap "nobody-made-it" not found'
SUMMARY = "Unable to attach or mount volumes: unmounted volumes=[settings], unattached volumes=[settings tmp]"
NOT_YET = (
    "Unable to attach or mount volumes: unmounted volumes=[models], unattached volumes=[], failed to process "
    'volumes=[models]: error processing PVC ns/disk: failed to fetch PVC from API server: PVC "disk" '
    'is forbidden: User "system:node:node-a" cannot get resource "persistentvolumeclaims" in API group "" in the '
    "namespace \"ns\": no relationship found between node 'node-a' and this object"
)
SANDBOX = "Failed to create pod sandbox: plugin type=bridge failed (add): no addresses left"

WAS_READY = pods.running(started=True, unready_since="2026-01-02T03:03:00Z")


def event(reason: str, message: str, last: str = "2026-01-02T03:03:00Z") -> Json:
    return {"reason": reason, "message": message, "lastTimestamp": last}


def heard(state: State | None) -> dict[str, Report]:
    return {"x-0": Report("uid-x-0", 0, state)}


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-02T{time}").replace(tzinfo=UTC)


def look(
    status: Mapping[str, Any],
    *events: Json,
    reports: dict[str, Report] | None = None,
    before: StatusFailure | None = None,
) -> StatusFailure | None:
    seen = PodEvents.of({"x-0": events})
    told = before.to_object() if before is not None else None
    now = "2026-01-02T03:04:00Z"
    return failure_of(None, facts(pods.pod(status=status)), REVISION, told, now, FailureContext(reports or {}, seen))


CASES: dict[str, tuple[Mapping[str, Any], tuple[Json, ...], dict[str, Report], str | None]] = {
    "a volume that cannot be mounted": (
        pods.setting_up(),
        (event("FailedMount", SUMMARY), event("FailedMount", MOUNT)),
        {},
        "VolumeUnavailable",
    ),
    "keys in a Secret that is not there": (
        pods.setting_up(),
        (event("FailedMount", 'MountVolume.SetUp failed for volume "endpoint-keys" : secret "keys" not found'),),
        {},
        "VolumeUnavailable",
    ),
    "keys in a Secret that lacks them": (
        pods.setting_up(),
        (
            event(
                "FailedMount",
                'MountVolume.SetUp failed for volume "endpoint-keys" : references non-existent secret key: api-key',
            ),
        ),
        {},
        "VolumeUnavailable",
    ),
    "a mount that worked at last": (
        pods.setting_up(),
        (
            event("FailedMount", MOUNT, "2026-01-02T03:00:02Z"),
            event("Pulling", "Pulling image", "2026-01-02T03:00:04Z"),
        ),
        {},
        None,
    ),
    "a claim that the node may not see yet": (pods.setting_up(), (event("FailedMount", NOT_YET),), {}, None),
    "no network": (pods.setting_up(), (event("FailedCreatePodSandBox", SANDBOX),), {}, "PodSandboxFailed"),
    "a large image": (pods.setting_up(), (event("Pulling", "Pulling image"),), {}, None),
    "probes time out, and the supervisor says that it is ready": (
        WAS_READY,
        (event("Unhealthy", TIMEOUT),),
        heard(READY),
        "ProbeBlocked",
    ),
    "probes are refused, and the supervisor says that it is ready": (
        WAS_READY,
        (event("Unhealthy", REFUSED),),
        heard(READY),
        "ProbeBlocked",
    ),
    "nobody gets through": (WAS_READY, (event("Unhealthy", TIMEOUT),), heard(None), "ProbeBlocked"),
    "nobody gets through, and nobody listens": (WAS_READY, (event("Unhealthy", REFUSED),), heard(None), None),
    "blocked from the start": (
        pods.running(started=False),
        (event("Unhealthy", DROPPED),),
        heard(READY),
        "ProbeBlocked",
    ),
    "the operator alone is kept off": (WAS_READY, (event("Unhealthy", STATUS),), heard(None), None),
    "the supervisor itself says no": (WAS_READY, (event("Unhealthy", TIMEOUT),), heard(HUNG), None),
    "hung, by its status code": (WAS_READY, (event("Unhealthy", STATUS),), heard(READY), None),
    "an answer after a time-out": (
        WAS_READY,
        (event("Unhealthy", TIMEOUT), event("Unhealthy", STATUS, "2026-01-02T03:03:02Z")),
        heard(READY),
        None,
    ),
    "a time-out of long before": (
        WAS_READY,
        (event("Unhealthy", TIMEOUT, "2026-01-02T03:01:00Z"),),
        heard(READY),
        None,
    ),
    "it only loads": (pods.running(started=False), (event("Unhealthy", DROPPED),), heard(LOADING), None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_made_of_events(case: str) -> None:
    status, events, reports, reason = CASES[case]
    found = look(status, *events, reports=reports)
    assert (str(found.reason) if found is not None else None) == reason
    if found is not None:
        assert found.evidence
        assert found.pod == "x-0"
        assert look(status, *events, reports=reports, before=found) == found


def test_the_volume_s_own_error_is_reported() -> None:
    found = look(pods.setting_up(), event("FailedMount", SUMMARY), event("FailedMount", MOUNT))
    assert found is not None
    assert "nobody-made-it" in found.message


def test_it_is_over_when_events_say_so_and_not_because_nobody_looked() -> None:
    found = look(pods.setting_up(), event("FailedMount", MOUNT))
    assert found is not None
    unseen = failure_of(
        None, facts(pods.pod(status=pods.setting_up())), REVISION, found.to_object(), "2026-01-02T03:05:00Z"
    )
    assert unseen == found
    assert look(pods.setting_up(), before=found) is None


DOUBTS: dict[str, tuple[Mapping[str, Any], dict[str, Report], str, tuple[str, ...], float | None]] = {
    "just placed": (pods.setting_up(), {}, "03:00:01", (), 2.0),
    "still without a container": (pods.setting_up(), {}, "03:00:05", ("x-0",), 2.0),
    "for long": (pods.setting_up(), {}, "03:01:03", ("x-0",), 30.0),
    "for very long": (pods.setting_up(), {}, "05:00:00", ("x-0",), 60.0),
    "loading": (pods.running(started=False), heard(LOADING), "03:10:00", (), None),
    "not heard of yet": (pods.running(started=False), {}, "03:10:00", (), None),
    "up, and not started": (pods.running(started=False), heard(READY), "03:00:30", ("x-0",), 5.0),
    "up, and about to be seen": (pods.running(started=False), heard(READY), "03:00:06", (), 14.0),
    "no longer ready": (WAS_READY, {}, "03:03:00", ("x-0",), 2.0),
    "not ready yet": (pods.running(started=True), heard(READY), "03:03:00", (), None),
    "its node is lost": (pods.lost(), heard(None), "03:03:30", (), None),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_whose_events_are_read(case: str) -> None:
    status, reports, now, names, again = DOUBTS[case]
    found = event_query(facts(pods.pod(status=status)), reports, REVISION, at(now))
    assert (found.pods, found.again) == (names, again)


def test_few_pods_of_a_service_are_looked_at() -> None:
    many = facts(*(pods.pod(f"x-{n:02}", status=pods.setting_up()) for n in range(20)))
    assert event_query(many, {}, REVISION, at("03:10:00")).pods == ("x-00", "x-01", "x-02")


def test_an_event_without_a_time_says_nothing() -> None:
    """Anybody in the namespace may write one."""
    assert look(WAS_READY, {"reason": "Unhealthy", "message": TIMEOUT, "lastTimestamp": None}) is None
    assert look(WAS_READY, {"reason": "Unhealthy", "message": TIMEOUT}, event("Unhealthy", TIMEOUT)) is not None
