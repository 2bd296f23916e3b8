"""Conditions, GPUs and restarts of each service as metrics: little of a service that is well, nothing of one gone."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_api.reasons import Reason
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.service.metrics import Metrics

KEY, OTHER = Key("team-a", "x"), Key("team-a", "y")
SERVICE = {"namespace": "team-a", "service": "x"}
GPU = "nvidia.com/gpu"


def status(*conditions: tuple[str, str, str], failure: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "conditions": [{"type": kind, "status": value, "reason": reason} for kind, value, reason in conditions]
    }
    return shown | ({"failure": {"reason": failure}} if failure else {})


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Values of a metric of team-a/x, by its other labels."""
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label not in SERVICE): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.labels.get("service") == "x"
    }


ROWS = {
    # status; ready, available, problems as (reason, type)
    "well": (status(("Ready", "True", "RolledOut"), ("Available", "True", "ReplicasReady")), 1, 1, set()),
    "it starts": (status(("Ready", "False", "Starting"), ("Available", "False", "NoReplicaReady")), 0, 0, set()),
    "nobody knows": (status(("Ready", "Unknown", "InternalError")), 0, None, set()),
    "at zero": (status(("Ready", "True", "Idle"), ("Available", "False", "Idle")), 1, None, set()),
    "scaled to zero": (
        status(("Ready", "True", "ScaledToZero"), ("Available", "False", "ScaledToZero")), 1, None, set(),
    ),
    "the endpoint is lost": (
        status(("Ready", "False", "NoEndpoints"), ("Available", "False", "NoEndpoints")), 0, 0, set(),
    ),
    "stalled by a failure": (
        status(("Ready", "False", "InvalidFlag"), ("Stalled", "True", "InvalidFlag"), failure="InvalidFlag"),
        0, None, {("InvalidFlag", "Stalled"), ("InvalidFlag", "Failure")},
    ),
    "degraded while it serves": (
        status(("Ready", "True", "RolledOut"), ("Degraded", "True", "InternalError")),
        1, None, {("InternalError", "Degraded")},
    ),
    "it reconciles": (
        status(("Ready", "False", "Progressing"), ("Reconciling", "True", "Progressing")), 0, None, set(),
    ),
    "KEDA is missing": (status(("Autoscaled", "False", "KedaMissing")), None, None, {("KedaMissing", "Autoscaled")}),
    "a quota ends first": (
        status(("Autoscaled", "True", "QuotaBelowMaximum")), None, None, {("QuotaBelowMaximum", "Autoscaled")},
    ),
    "it is autoscaled": (status(("Autoscaled", "True", "Autoscaling")), None, None, set()),
    "a word that is none of ours": (status(("Stalled", "True", "a\nb")), None, None, {("Other", "Stalled")}),
}  # fmt: skip


@pytest.mark.parametrize(("shown", "ready", "available", "problems"), ROWS.values(), ids=ROWS)
def test_what_a_status_says(shown: dict[str, Any], ready: float, available: float, problems: set[Any]) -> None:
    metrics = Metrics()
    metrics.set_status(KEY, shown)
    assert samples(metrics, "llmservice_ready") == ({} if ready is None else {(): ready})
    assert samples(metrics, "llmservice_available") == ({} if available is None else {(): available})
    assert samples(metrics, "llmservice_problem") == dict.fromkeys(problems, 1.0)


def test_a_service_that_wakes_is_not_unavailable_until_it_has_answered() -> None:
    metrics = Metrics()

    def available(value: str, reason: str) -> float | None:
        metrics.set_status(KEY, status(("Ready", value, reason), ("Available", value, reason)))
        return samples(metrics, "llmservice_available").get(())

    assert available("True", "ReplicasReady") == 1
    for reason in ("Idle", "ScaledToZero"):
        assert available("False", reason) is None
        assert available("False", "NoReplicaReady") is None, "it wakes: requests are held"
        assert available("False", "NoEndpoints") is None
        assert available("True", "ReplicasReady") == 1
        assert available("False", "NoReplicaReady") == 0
    available("False", "Idle")
    metrics.forget(KEY)
    assert available("False", "NoReplicaReady") == 0, "a new service of that name"


def test_a_problem_is_gone_with_its_reason_and_everything_with_the_service() -> None:
    metrics = Metrics()
    for shown in (status(("Stalled", "True", "InvalidFlag")), status(("Stalled", "True", "DoesNotFit"))):
        for key in (KEY, OTHER):
            metrics.set_status(key, shown)
            metrics.set_pods(key, [pod("p", gpus=1, restarts=1)], GPU)
    metrics.set_pods(KEY, [pod("p", gpus=1, restarts=3)], GPU)
    assert samples(metrics, "llmservice_problem") == {("DoesNotFit", "Stalled"): 1.0}
    metrics.forget(KEY)
    metrics.forget(KEY)
    assert b'service="x"' not in metrics.exposition()
    assert b'service="y"' in metrics.exposition()


def pod(
    name: str, gpus: int = 0, *, ready: bool = False, restarts: int = 0, phase: str = "Running", node: str = "n"
) -> PodFacts:
    container = {"name": "server", "restartCount": restarts, "state": {"running": {}}}
    container["resources"] = {}
    requests = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}} if gpus else {}
    return PodFacts.from_object(
        {
            "metadata": {"namespace": "team-a", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
            "spec": {"nodeName": node, "containers": [{"name": "server", "resources": requests}]},
            "status": {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "containerStatuses": [container],
            },
        }
    )


def test_gpus_are_counted_where_a_pod_has_taken_them() -> None:
    metrics = Metrics()
    assert pod("a", 2).asked[GPU] == Decimal(2)
    pods = [pod("a", 2, ready=True), pod("b", 2), pod("c", 2, node=""), pod("d", 2, phase="Failed")]
    metrics.set_pods(KEY, pods, GPU)
    assert samples(metrics, "llmservice_gpus") == {("serving",): 2.0, ("not_serving",): 2.0}
    metrics.set_pods(KEY, [pod("a", 2, ready=True), pod("b", 2, ready=True)], GPU)
    assert samples(metrics, "llmservice_gpus") == {("serving",): 4.0}
    metrics.set_pods(KEY, pods, "")
    assert samples(metrics, "llmservice_gpus") == {}


def test_restarts_are_counted_from_the_first_sight_of_a_service_on() -> None:
    metrics = Metrics()

    def restarts(**pods: int) -> dict[tuple[str, ...], float]:
        metrics.set_pods(KEY, [pod(name, restarts=count) for name, count in pods.items()], "")
        return samples(metrics, "llmservice_restarts_total")

    assert restarts(a=5) == {}, "before this process began"
    assert restarts(a=5) == {}, "a service that is well costs no series"
    assert restarts(a=6) == {(): 1.0}
    assert restarts(a=6, b=2) == {(): 3.0}, "a new pod that has restarted before it was seen"
    assert restarts(b=2) == {(): 3.0}
    assert restarts(b=3) == {(): 4.0}


def test_every_reason_of_a_problem_is_a_label_of_its_own() -> None:
    metrics = Metrics()
    for number, reason in enumerate(Reason):
        metrics.set_status(Key("n", str(number)), status(failure=str(reason)))
    assert b'reason="Other"' not in metrics.exposition()
