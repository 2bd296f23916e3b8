"""A defect that one service brings to light is that service's own: the others go on, and what serves keeps serving."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.audit import writes_since
from tests.support.cluster import Cluster, eventually
from tests.support.host import pause
from tests.support.local_operator import local_operator
from tests.support.services import idle

pytestmark = pytest.mark.cluster

DEFECTIVE = "defective"
OTHERS = [f"other-{number}" for number in range(6)]
QUIET = 8.0
WITHIN = 180.0
PLANTED = "tests.support.planted"


def reason_of(cluster: Cluster, namespace: str, name: str) -> str | None:
    return (cluster.condition(namespace, name, "Ready") or {}).get("reason")


def all_there(cluster: Cluster, namespace: str) -> None:
    for name in OTHERS:
        cluster.wait_condition(namespace, name, "Ready", "True", timeout=WITHIN)


def events_of(cluster: Cluster, namespace: str, reason: str) -> set[str]:
    events = cluster.list("events", namespace)
    return {each["involvedObject"]["name"] for each in events if each["reason"] == reason}


def test_an_exception_about_one_service_is_its_condition_and_is_not_written_again(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.apply(idle(DEFECTIVE), namespace)
    cluster.wait_condition(namespace, DEFECTIVE, "Ready", "True", timeout=WITHIN)
    deployment = cluster.must_get("deployments", namespace, DEFECTIVE)
    with local_operator(cluster, tmp_path, PLANTED, PLANTED=f"{DEFECTIVE}:raise") as operator:
        for name in OTHERS:
            cluster.apply(idle(name), namespace)
        cluster.patch("llmservices", namespace, DEFECTIVE, {"spec": {"batching": {"maxNumSeqs": 9}}})
        all_there(cluster, namespace)
        eventually("InternalError", lambda: reason_of(cluster, namespace, DEFECTIVE) == "InternalError", WITHIN)
        ready = cluster.wait_condition(namespace, DEFECTIVE, "Ready", "Unknown", reason="InternalError", timeout=0)
        assert "OverflowError" in ready["message"]
        cluster.wait_condition(namespace, DEFECTIVE, "Stalled", "True", timeout=0)
        assert cluster.must_get("deployments", namespace, DEFECTIVE)["spec"] == deployment["spec"]
        began = time.time()
        pause(QUIET)
        assert [write for write in writes_since(cluster, began) if write.namespace == namespace] == []
        assert 'llmservice_internal_errors_total{part="reconcile"}' in operator.metrics()
        assert events_of(cluster, namespace, "InternalError") == {DEFECTIVE}
        assert operator.starts == 1
    cluster.wait_condition(namespace, DEFECTIVE, "Ready", "True", timeout=WITHIN)
    assert cluster.condition(namespace, DEFECTIVE, "Stalled") is None, "an operator without the defect takes it up"


@pytest.mark.full
def test_a_service_that_ends_the_process_is_quarantined_and_no_neighbour_is(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    for name in (DEFECTIVE, *OTHERS):
        cluster.apply(idle(name), namespace)
    all_there(cluster, namespace)
    with local_operator(cluster, tmp_path, PLANTED, PLANTED=f"{DEFECTIVE}:exit") as operator:
        for name in OTHERS:
            cluster.patch("llmservices", namespace, name, {"spec": {"batching": {"maxNumSeqs": 9}}})
        eventually("Quarantined", lambda: reason_of(cluster, namespace, DEFECTIVE) == "Quarantined", WITHIN)
        starts = operator.starts
        assert 3 <= starts <= 6, "one death in company at most, two alone, and then none"
        all_there(cluster, namespace)
        for name in OTHERS:
            args = cluster.must_get("deployments", namespace, name)["spec"]["template"]["spec"]["containers"][0]
            assert "9" in str(args["args"]) or "9" in str(args["command"]), f"{name} has its edit"
        assert events_of(cluster, namespace, "Quarantined") == {DEFECTIVE}
        assert {name: reason_of(cluster, namespace, name) for name in OTHERS} == dict.fromkeys(OTHERS, "ScaledToZero")
        pause(QUIET)
        assert operator.starts == starts, "nothing ends it any more"
    cluster.wait_condition(namespace, DEFECTIVE, "Ready", "True", timeout=WITHIN)
