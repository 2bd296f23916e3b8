"""Failures that only Events show: of which pods they are read and when, and what is derived of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from llmservice_operator.observe.failures.failure import FailureContext
from llmservice_operator.observe.failures.pod_events import PodEvents, event_query
from llmservice_operator.observe.observed import Report
from llmservice_runtime.contract import Phase, State

from tests.unit.operator import failing_pods as pods
from tests.unit.operator.failing_pods import REVISION, facts, failure, must_fail, reports

Json = dict[str, Any]

READY = State(Phase.SERVING, started=True, ready=True)
UNPROBED = State(Phase.SERVING, started=True, ready=True, unprobed=True)
HUNG = State(Phase.SERVING, started=True, ready=False)
LOADING = State(Phase.LOADING)
TIMEOUT = 'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": context deadline exceeded'
DROPPED = 'Startup probe failed: Get "http://10.244.0.9:8081/startupz": dial tcp 10.244.0.9:8081: i/o timeout'
REFUSED = 'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": dial tcp 10.244.0.9:8081: connection refused'
STATUS = "Readiness probe failed: HTTP probe failed with statuscode: 503"
MOUNT = 'MountVolume.SetUp failed for volume "settings" : configmap "nobody-made-it" not found'
ABOUT_KEYS = 'MountVolume.SetUp failed for volume "endpoint-keys" : '
SUMMARY = "Unable to attach or mount volumes: unmounted volumes=[settings], unattached volumes=[settings tmp]"
NOT_YET = (
    "Unable to attach or mount volumes: unmounted volumes=[models], unattached volumes=[], failed to process "
    'volumes=[models]: error processing PVC ns/disk: failed to fetch PVC from API server: PVC "disk" '
    'is forbidden: User "system:node:node-a" cannot get resource "persistentvolumeclaims" in API group "" in the '
    "namespace \"ns\": no relationship found between node 'node-a' and this object"
)
NOT_SYNCED = ABOUT_KEYS + "failed to sync secret cache: timed out waiting for the condition"
SANDBOX = "Failed to create pod sandbox: plugin type=bridge failed (add): no addresses left"

WAS_READY = pods.running(started=True, unready_since="2026-01-02T03:03:00Z")


SET_UP, STARTING = pods.setting_up(), pods.running(started=False)


def event(message: str, last: str | None = "03:03:00", reason: str = "Unhealthy") -> Json:
    return {"reason": reason, "message": message, "lastTimestamp": last and f"2026-01-02T{last}Z"}


def mount(message: str, last: str = "03:03:00") -> Json:
    return event(message, last, "FailedMount")


def context(*events: Json, asked: bool = False, state: State | None = None) -> FailureContext:
    """`asked`: the pod was asked for its state, and gave this one or none."""
    return FailureContext(reports(state) if asked else {}, PodEvents.of({"x-0": events}))


CASES: dict[str, tuple[Json, FailureContext, str | None]] = {
    "a volume that cannot be mounted": (SET_UP, context(mount(SUMMARY), mount(MOUNT)), "VolumeUnavailable"),
    "no Secret of keys": (SET_UP, context(mount(ABOUT_KEYS + 'secret "keys" not found')), "VolumeUnavailable"),
    "no key in it": (SET_UP, context(mount(ABOUT_KEYS + "references non-existent secret key: k")), "VolumeUnavailable"),
    "a mount that worked at last": (
        SET_UP,
        context(mount(MOUNT, "03:00:02"), event("Pulling image", "03:00:04", "Pulling")),
        None,
    ),
    "a claim that the node may not see yet": (SET_UP, context(mount(NOT_YET)), None),
    "a Secret that the kubelet has not read yet": (SET_UP, context(mount(NOT_SYNCED)), None),
    "one that it cannot read": (SET_UP, context(mount(NOT_SYNCED) | {"count": 4}), "VolumeUnavailable"),
    "a count that is none": (
        SET_UP,
        context(mount(MOUNT) | {"count": "4", "series": {"count": [4]}}),
        "VolumeUnavailable",
    ),
    "no network": (SET_UP, context(event(SANDBOX, reason="FailedCreatePodSandBox")), "PodSandboxFailed"),
    "a large image": (SET_UP, context(event("Pulling image", reason="Pulling")), None),
    "ready, and probes time out": (WAS_READY, context(event(TIMEOUT), asked=True, state=READY), "ProbeBlocked"),
    "ready, and probes are refused": (WAS_READY, context(event(REFUSED), asked=True, state=READY), "ProbeBlocked"),
    "no request gets through": (WAS_READY, context(event(TIMEOUT), asked=True), "ProbeBlocked"),
    "no process listens": (WAS_READY, context(event(REFUSED), asked=True), None),
    "blocked from the start": (STARTING, context(event(DROPPED), asked=True, state=READY), "ProbeBlocked"),
    "only the operator is blocked": (WAS_READY, context(event(STATUS), asked=True), None),
    "the supervisor reports that it is not ready": (WAS_READY, context(event(TIMEOUT), asked=True, state=HUNG), None),
    "hung, by its status code": (WAS_READY, context(event(STATUS), asked=True, state=READY), None),
    "an answer after a time-out": (
        WAS_READY,
        context(event(TIMEOUT), event(STATUS, "03:03:02"), asked=True, state=READY),
        None,
    ),
    "no Event, and no probe arrives": (WAS_READY, context(asked=True, state=UNPROBED), "ProbeBlocked"),
    "no Event, and probes arrive": (WAS_READY, context(asked=True, state=READY), None),
    "a time-out of long before": (WAS_READY, context(event(TIMEOUT, "03:01:00"), asked=True, state=READY), None),
    "it only loads": (STARTING, context(event(DROPPED), asked=True, state=LOADING), None),
    "an Event without a time, which anybody may write": (WAS_READY, context(event(TIMEOUT, None)), None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_failure_that_events_show(case: str) -> None:
    status, known, reason = CASES[case]
    found = failure(pods.pod(status=status), context=known)
    assert (str(found.reason) if found is not None else None) == reason
    if found is not None:
        assert found.evidence
        assert found.pod == "x-0"
        assert failure(pods.pod(status=status), before=found, context=known) == found


def test_the_volume_s_own_error_is_reported_until_events_were_read_that_lack_it() -> None:
    pod = pods.pod(status=SET_UP)
    found = must_fail(pod, context=context(mount(SUMMARY), mount(MOUNT)))
    assert "nobody-made-it" in found.message
    assert must_fail(pod, before=found) == found, "no Events were read"
    assert failure(pod, before=found, context=context()) is None


def test_an_event_with_a_time_counts_beside_one_without() -> None:
    assert failure(pods.pod(status=WAS_READY), context=context(event(TIMEOUT, None), event(TIMEOUT))) is not None


QUERIES: dict[str, tuple[Json, dict[str, Report], str, bool, float | None]] = {
    "just placed": (SET_UP, {}, "03:00:01", False, 2.0),
    "still without a container": (SET_UP, {}, "03:00:05", True, 2.0),
    "for long": (SET_UP, {}, "03:01:03", True, 30.0),
    "for very long": (SET_UP, {}, "05:00:00", True, 60.0),
    "loading": (STARTING, reports(LOADING), "03:10:00", False, None),
    "no report yet": (STARTING, {}, "03:10:00", False, None),
    "up, and not started": (STARTING, reports(READY), "03:00:30", True, 5.0),
    "up, and about to be noticed": (STARTING, reports(READY), "03:00:06", False, 14.0),
    "no longer ready": (WAS_READY, {}, "03:03:00", True, 2.0),
    "not ready yet": (pods.running(started=True), reports(READY), "03:03:00", False, None),
    "its node is lost": (pods.lost(), reports(None), "03:03:30", False, None),
}


def at(time: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-02T{time}+00:00")


@pytest.mark.parametrize("case", QUERIES)
def test_events_are_read_of_pods_whose_state_explains_nothing(case: str) -> None:
    status, known, now, is_read, again = QUERIES[case]
    found = event_query(facts(pods.pod(status=status)), known, REVISION, at(now))
    assert (found.pods, found.again) == (("x-0",) if is_read else (), again)


def test_events_are_read_of_few_pods_of_a_service() -> None:
    many = facts(*(pods.pod(f"x-{n:02}", status=SET_UP) for n in range(20)))
    assert event_query(many, {}, REVISION, at("03:10:00")).pods == ("x-00", "x-01", "x-02")


DIAL = 'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": dial tcp 10.244.0.9:8081: '
# What Go's net and net/http say, quoted by the kubelet's prober/prober.go.
NO_ANSWERS = (
    f"{DIAL}i/o timeout",
    f"{DIAL}connect: connection refused",
    f"{DIAL}connect: no route to host",
    f"{DIAL}connect: network is unreachable",
    f"{DIAL}connect: host is down",
    'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": context deadline exceeded',
    'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": net/http: request canceled (Client.Timeout exceeded '
    "while awaiting headers)",
    'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": read tcp 10.0.0.1:5->10.244.0.9:8081: read: '
    "connection reset by peer",
    'Readiness probe failed: Get "http://10.244.0.9:8081/readyz": EOF',
)


@pytest.mark.parametrize("said", NO_ANSWERS)
def test_each_way_of_a_probe_to_get_no_answer(said: str) -> None:
    found = must_fail(pods.pod(status=WAS_READY), context=context(event(said), asked=True, state=READY))
    assert (str(found.reason), found.evidence) == ("ProbeBlocked", (said,))


# kubelet.go, kuberuntime_manager.go and kuberuntime_sandbox.go, containerd's CRI. [Event, message, reason, words]
SET_UPS = {
    "a handler that the node lacks": (
        "FailedCreatePodSandBox",
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "
        '"nvidia" is configured',
        "PodSandboxFailed",
        "spec.podTemplate.spec.runtimeClassName",
    ),
    "no network plugin yet": (
        "NetworkNotReady",
        "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
        "message:Network plugin returns error: cni plugin not initialized",
        "PodSandboxFailed",
        "cni plugin not initialized",
    ),
    "a claim of devices": (
        "FailedPrepareDynamicResources",
        "Failed to prepare dynamic resources: NodePrepareResources failed for claim gpu: no such device",
        "PodSandboxFailed",
        "no such device",
    ),
    "a volume that cannot be mapped": (
        "FailedMapVolume",
        'MapVolume.SetUpDevice failed for volume "v" : rpc error',
        "VolumeUnavailable",
        "MapVolume.SetUpDevice failed",
    ),
    "a volume that cannot be attached": (
        "FailedAttachVolume",
        'Multi-Attach error for volume "v" Volume is already used by pod(s) other',
        "VolumeUnavailable",
        "Multi-Attach error",
    ),
    "a full disk": (
        "FailedMount",
        'MountVolume.SetUp failed for volume "v" : mkdir /var/lib/kubelet/pods/1: no space left on device',
        "NodeDiskFull",
        "no space left on device",
    ),
    "the same, of the sandbox": (
        "FailedCreatePodSandBox",
        f"Failed to create pod sandbox: failed to create containerd container {'a' * 64}: no space left on device",
        "NodeDiskFull",
        "container ...: no space left on device",
    ),
}


@pytest.mark.parametrize("case", SET_UPS)
def test_each_way_of_a_set_up_to_fail(case: str) -> None:
    kind, said, reason, words = SET_UPS[case]
    shown, known = pods.pod(status=SET_UP), context(event(said, reason=kind))
    found = must_fail(shown, context=known)
    assert str(found.reason) == reason
    assert words in f"{found.message} {found.remedy}"
    late = must_fail(shown, before=found, now="2026-01-02T03:14:05Z", context=known)
    assert (found.is_final, late.is_final) == (False, reason != "VolumeUnavailable")
