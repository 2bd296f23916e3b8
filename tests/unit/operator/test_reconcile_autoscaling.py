"""What autoscaling costs the API server: a refused ScaledObject is tried again each minute, marks go before a
scale-down, and a steady service sends nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubeloop.errors import ApiError, Conflict, Forbidden, NotFound, Refused, ServerError
from llmservice_api.constants import DELETION_COST_ANNOTATION
from llmservice_operator.readers.pod_port import Requests
from llmservice_operator.service import gather
from llmservice_operator.service.decide import decide
from prometheus_client import CollectorRegistry

from tests.unit.decide_world import a_pod
from tests.unit.operator.test_decide_autoscaling import READY, SCALING
from tests.unit.reconcile_world import LABELS, World, parent

APPLY = "apply ScaledObject"
MANAGED = "admission webhook denied the request: the workload 'chat' of type 'x' is already managed by the hpa 'a'"
REFUSALS: dict[str, tuple[ApiError, str]] = {
    "another autoscaler": (Refused(MANAGED, code=403), "AutoscalerConflict"),
    "no right": (Forbidden('cannot patch resource "scaledobjects"', code=403), "KedaMissing"),
    "no CRD any more": (NotFound("the server could not find the requested resource", code=404), "KedaMissing"),
    "a webhook that does not answer": (ServerError("failed calling webhook", code=500), "KedaMissing"),
}


def a_world(replicas: int = 1, **autoscaling: Any) -> World:
    """With the operator's own decisions; the model is not planned."""
    service = parent()
    scaling = {"replicas": replicas, "autoscaling": {"maxReplicas": 4} | autoscaling}
    service["spec"] |= {"fitPolicy": "Ignore", "scaling": scaling}
    world = World(service)
    world.ctx.decide, world.ctx.settings = decide, SCALING
    return world


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refused_scaled_object_is_tried_again_each_minute_and_stops_nothing(case: str) -> None:
    error, reason = REFUSALS[case]
    world = a_world()
    world.api.fails[APPLY] = [error] * 3
    then = await world.settle()
    assert world.stored("Deployment") is not None
    assert world.condition("Autoscaled")["reason"] == reason
    assert then.after is not None
    assert 0 < then.after <= 60
    await world.settle()
    assert world.calls() == [], "nothing before its time"
    for _ in range(2):
        world.now += 60
        await world.settle()
        assert world.calls("apply", "status") == [APPLY], "no other write, and no status"
    world.now += 60
    await world.settle()
    assert world.stored("ScaledObject") is not None
    assert world.condition("Autoscaled")["status"] == "Unknown"


async def test_a_budget_that_cannot_be_deleted_is_reported_and_the_rest_goes_on() -> None:
    world = a_world(replicas=2)
    await world.settle()
    assert world.stored("PodDisruptionBudget") is not None
    right = Forbidden("no", right="delete poddisruptionbudgets.policy", code=403)
    world.api.fails["delete PodDisruptionBudget u-PodDisruptionBudget"] = [right]
    world.edit({"scaling": {"replicas": 1}})
    assert (await world.settle()).after == 60
    assert world.calls("delete") == [
        "delete PodDisruptionBudget u-PodDisruptionBudget",
        "delete ScaledObject u-ScaledObject",
    ]
    ready, failure = world.condition("Ready"), world.status["failure"]
    assert (ready["status"], ready["reason"], failure["reason"]) == ("False", "AdmissionRefused", "AdmissionRefused")
    assert "grant it: delete poddisruptionbudgets.policy" in ready["message"]
    assert failure["remedy"] in ready["message"]
    world.edit({"drain": {"timeoutSeconds": 9}})
    await world.settle()
    assert world.stored("PodDisruptionBudget") is None, "an edit tries at once"
    assert world.condition("Ready")["reason"] != "AdmissionRefused"


async def test_an_edit_tries_at_once() -> None:
    world = a_world()
    world.api.fails[APPLY] = [Refused(MANAGED, code=403)]
    await world.settle()
    world.edit({"drain": {"timeoutSeconds": 9}})
    await world.settle()
    assert world.stored("ScaledObject") is not None


async def test_a_steady_autoscaled_service_sends_nothing_and_kedas_own_writes_neither() -> None:
    world = a_world()
    await world.settle()
    world.see(world.api.put(world.stored("ScaledObject") | {"status": {"conditions": [READY]}}, uid="u-ScaledObject"))
    await world.settle()
    assert world.condition("Autoscaled")["status"] == "True"
    for time in ("12:00:00", "12:00:15"):
        status = {"conditions": [READY], "lastActiveTime": f"2026-01-01T{time}Z"}
        world.see(world.api.put(world.stored("ScaledObject") | {"status": status}, uid="u-ScaledObject"))
        assert (await world.settle()).after is None
        assert world.calls() == []


async def scaling_down(*, to: int = 1) -> World:
    """Two pods serve, of which the first is busy, and fewer are wanted now."""
    world = a_world(replicas=2)
    await world.settle()
    revision = world.stored("Deployment")["spec"]["template"]["metadata"]["labels"]["llmservice.dev/revision"]
    for number, requests in enumerate((5, 2)):
        pod = a_pod(f"chat-{number}", revision, ready=True, address=f"10.0.0.{number}", service="chat")
        pod["metadata"] |= {"namespace": "ns", "labels": pod["metadata"]["labels"] | LABELS}
        world.see(world.api.put(pod | {"kind": "Pod"}))
        world.in_flight[f"10.0.0.{number}"] = requests
    world.edit({"scaling": {"replicas": to, "autoscaling": {"maxReplicas": 4}}})
    return world


def marks(world: World) -> dict[str, str]:
    pods = [world.stored("Pod", f"chat-{n}")["metadata"] for n in range(2)]
    found = {pod["name"]: (pod.get("annotations") or {}).get(DELETION_COST_ANNOTATION) for pod in pods}
    return {name: cost for name, cost in found.items() if cost is not None}


def counted(registry: CollectorRegistry, result: str) -> float:
    return registry.get_sample_value("llmservice_deletion_costs_total", {"result": result}) or 0.0


async def test_the_least_busy_pod_is_marked_before_the_deployment_is_made_smaller() -> None:
    world = await scaling_down()
    await world.settle()
    assert world.calls("patch Pod", "Deployment") == ["patch Pod", "apply Deployment by force"]
    assert marks(world) == {"chat-1": "-1"}
    assert counted(world.ctx.metrics.registry, "written") == 1
    await world.settle()
    assert world.calls() == []


async def test_no_pod_is_marked_where_another_apply_is_refused_before_the_deployment_s() -> None:
    world = await scaling_down()
    gone = world.api.remove("Service", "chat")
    assert gone is not None
    world.ctx.cache.remove("Service", "ns", "chat", gone["metadata"]["uid"])
    world.api.fails["apply Service"] = [Refused("exceeded quota", code=403)]
    await world.settle()
    assert world.calls("apply", "patch Pod") == ["apply Service"]
    assert marks(world) == {}


@pytest.mark.parametrize("error", [Forbidden("no right", code=403), Conflict("uid mismatch", code=409)])
async def test_a_pod_that_cannot_be_marked_does_not_stop_the_scale_down(error: ApiError) -> None:
    world = await scaling_down()
    world.api.fails["patch Pod"] = [error]
    await world.settle()
    assert world.calls("patch Pod", "Deployment") == ["patch Pod", "apply Deployment by force"]
    assert world.stored("Deployment")["spec"]["replicas"] == 1
    assert counted(world.ctx.metrics.registry, "failed") == 1


async def test_pods_that_do_not_answer_are_not_marked_and_delay_it_by_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await scaling_down()
    monkeypatch.setattr(gather, "READING_SECONDS", 0.5)
    read = world.requests

    async def slow(address: str) -> Requests:
        if address == "10.0.0.1":
            await asyncio.Event().wait()
        return await read(address)

    world.ctx.read_requests = slow
    await world.settle()
    assert marks(world) == {"chat-0": "-1"}, "the other one did not answer in time"
    assert world.stored("Deployment")["spec"]["replicas"] == 1


async def test_no_pod_is_asked_where_none_is_chosen() -> None:
    for to in (0, 2, 3):
        world = await scaling_down(to=to)
        world.ctx.read_requests = refuse
        await world.settle()
        assert marks(world) == {}
        assert world.stored("Deployment")["spec"]["replicas"] == to


async def refuse(address: str) -> Requests:
    raise AssertionError(f"{address} is asked")
