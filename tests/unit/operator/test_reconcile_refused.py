"""What the API server refuses, or keeps failing to take, stops only what needs it, and the status quotes it."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

import pytest
from kubeloop.errors import Forbidden, Invalid, KubeError, ServerError, TooManyRequests, Unreachable
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.observed import Observed
from llmservice_operator.service.watch import PARENT

from tests.unit.api_server import RESOURCES
from tests.unit.decide_world import a_pod, of_another
from tests.unit.operator.test_reconcile_fit import known
from tests.unit.reconcile_world import World

SHRINKS = "PersistentVolumeClaim is invalid: only dynamically provisioned pvc can be resized"
WEBHOOK = 'Internal error occurred: failed calling webhook "deny.example": no endpoints available for service "policy"'
DUPLICATE = 'duplicate entries for key [name="start-cache"]'
MANY = 50
"""Failures in a row: more than passes in a test."""


async def served(**spec: Any) -> World:
    """Made, with two replicas asked for."""
    world = known(model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "cache": {"size": "100Gi"}}, **spec)
    await world.settle()
    await seen(world).settle()
    return world


def bigger(size: str = "200Gi") -> dict[str, Any]:
    return {"model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "cache": {"size": size}}}


# The kind whose change is refused, and the edit that asks for it.
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("PersistentVolumeClaim", bigger()),
    ("Service", {"endpoint": {"port": 8080}}),
]


@pytest.mark.parametrize(("kind", "edit"), CHANGES, ids=[kind for kind, _ in CHANGES])
async def test_a_refused_change_of_what_exists_stops_nothing_else(kind: str, edit: dict[str, Any]) -> None:
    world = await served()
    world.api.fails[f"apply {kind} by force"] = [Invalid(SHRINKS, code=422)] * MANY
    world.edit(edit | {"scaling": {"replicas": 5}, "batching": {"maxNumSeqs": 4}})
    await world.settle()
    deployment = world.stored("Deployment")
    assert deployment["spec"]["replicas"] == 5, "scaling follows"
    assert "--max-num-seqs" in str(deployment["spec"]["template"]), "and so does a rollout"
    for condition in ("Ready", "Stalled"):
        assert world.condition(condition)["reason"] == "AdmissionRefused"
        assert SHRINKS.rpartition(": ")[2] in world.condition(condition)["message"]
    world.edit({"scaling": {"replicas": 6}})
    await world.settle()
    assert world.stored("Deployment")["spec"]["replicas"] == 6
    assert len(world.calls(f"apply {kind}")) == 1, "an edit tries it at once"
    await world.settle()
    assert world.calls("apply") == []
    world.api.fails.clear()
    world.now += 61
    await world.settle()
    assert world.calls("apply") == [f"apply {kind} by force"]
    assert world.condition("Ready")["reason"] != "AdmissionRefused"


async def test_a_claim_that_does_not_exist_yet_is_needed_first() -> None:
    world = known(model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "cache": {"size": "100Gi"}})
    world.api.fails["apply PersistentVolumeClaim"] = [Invalid("no such storage class", code=422)] * MANY
    await world.settle()
    assert world.stored("Deployment") is None
    assert world.condition("Ready")["reason"] == "AdmissionRefused"


async def test_a_budget_that_is_refused_stops_no_rollout() -> None:
    world = known(scaling={"replicas": 2})
    world.api.fails["apply PodDisruptionBudget"] = [Invalid("denied", code=422)] * MANY
    await world.settle()
    assert world.stored("Deployment") is not None
    world.edit({"scaling": {"replicas": 3}})
    await world.settle()
    assert world.stored("Deployment")["spec"]["replicas"] == 3
    assert "PodDisruptionBudget" in world.condition("Ready")["message"]


# What the API server answers, the reason, and words of it in the status.
FAILING: list[tuple[KubeError, str, str]] = [
    (ServerError(WEBHOOK, code=500), "AdmissionUnavailable", "deny.example"),
    (ServerError(DUPLICATE, code=500), "APIServerFailing", "duplicate entries"),
    (TooManyRequests("too many requests", code=429), "APIServerFailing", "too many requests"),
    (Unreachable("no answer within 10 s"), "APIServerFailing", "no answer within 10 s"),
]


@pytest.mark.parametrize(("error", "reason", "words"), FAILING, ids=["webhook", "merge", "429", "timeout"])
async def test_what_keeps_failing_is_shown_from_the_second_time_on_and_is_final_at_the_deadline(
    error: KubeError, reason: str, words: str
) -> None:
    world = known(rollout={"progressDeadlineSeconds": 600})
    world.api.fails["apply Deployment"] = [error] * MANY

    async def fail() -> None:
        with pytest.raises(KubeError):
            await world.settle()

    await fail()
    assert world.status == {}, "one failure may pass"
    await fail()
    assert world.condition("Ready")["reason"] == world.condition("Reconciling")["reason"] == reason
    assert words in world.condition("Ready")["message"]
    assert world.status["failure"]["reason"] == reason
    assert "event " + reason in world.calls()
    writes = len(world.calls("status"))
    for _ in range(3):
        world.now += 60
        await fail()
        assert world.calls("status") == [], writes
    world.now += 600
    await fail()
    assert world.condition("Stalled")["reason"] == reason
    world.api.fails.clear()
    await world.settle()
    assert world.stored("Deployment") is not None
    assert world.condition("Ready")["reason"] != reason
    assert "failure" not in world.status


def seen(world: World) -> World:
    """The watches show all that is there."""
    for kind in ("PersistentVolumeClaim", "Service", "Deployment", "ControllerRevision", "PodDisruptionBudget"):
        for obj in world.api.all_of(RESOURCES[kind]):
            world.see(obj)
    return world


async def tried(world: World, times: int) -> list[str]:
    """The calls of as many tries, a minute apart."""
    calls = []
    for _ in range(times):
        with contextlib.suppress(KubeError):
            await world.settle()
        calls += world.calls()
        seen(world).now += 60
    return calls


async def succeeded() -> World:
    """Made for an earlier LLMService of this name, whose children the garbage collector missed."""
    world = await served(rollout={"progressDeadlineSeconds": 600})
    earlier = world.stored()
    world.ctx.cache.remove(PARENT, "ns", "chat", earlier["metadata"]["uid"])
    world.api.remove(PARENT, "chat")
    world.see(world.api.put({**earlier, "status": {}}, uid="u-2"))
    world.ctx.now = lambda: datetime.datetime(2026, 1, 1, 1, tzinfo=datetime.UTC)
    return world


@pytest.mark.parametrize(("error", "reason", "words"), FAILING, ids=["webhook", "merge", "429", "timeout"])
async def test_a_deletion_that_keeps_failing_is_shown_and_stops_nothing(
    error: KubeError, reason: str, words: str
) -> None:
    world = await served(rollout={"progressDeadlineSeconds": 600}, scaling={"replicas": 0})
    uid = world.stored("PersistentVolumeClaim", "chat-cache")["metadata"]["uid"]
    world.api.fails[f"delete PersistentVolumeClaim {uid}"] = [error] * MANY
    edit = {"model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct"}, "startCache": {"size": "1Gi"}}
    world.edit(edit)
    calls = await tried(world, 3)
    for condition in ("Ready", "Reconciling"):
        assert world.condition(condition)["reason"] == reason
        assert "PersistentVolumeClaim chat-cache" in world.condition(condition)["message"]
        assert words in world.condition(condition)["message"]
    assert "event " + reason in calls
    world.edit(edit | {"scaling": {"replicas": 3}})
    calls = await tried(world, 12)
    assert world.stored("Deployment")["spec"]["replicas"] == 3
    assert world.condition("Stalled")["reason"] == reason
    assert sum(call.startswith("delete") for call in calls) >= 10, "it is tried on"
    world.api.fails.clear()
    await tried(world, 2)
    assert world.stored("PersistentVolumeClaim", "chat-cache") is None
    assert world.condition("Ready")["reason"] != reason


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [*FAILING, (Forbidden("denied", code=403), "AdmissionRefused", "denied")],
    ids=["webhook", "merge", "429", "timeout", "403"],
)
async def test_an_adoption_that_keeps_failing_is_shown_and_stops_nothing(
    error: KubeError, reason: str, words: str
) -> None:
    world = await succeeded()
    world.api.fails["patch Service"] = [error] * MANY
    calls = await tried(world, 3)
    assert world.condition("Ready")["reason"] == reason
    assert "Service chat" in world.condition("Ready")["message"]
    assert words in world.condition("Ready")["message"]
    assert "event " + reason in calls
    for kind in ("Deployment", "PersistentVolumeClaim"):
        name = "chat" if kind == "Deployment" else "chat-cache"
        assert world.stored(kind, name)["metadata"]["ownerReferences"][0]["uid"] == "u-2", "others are taken over"
    world.edit(bigger("100Gi") | {"scaling": {"replicas": 3}})
    calls = await tried(world, 14)
    assert world.stored("Deployment")["spec"]["replicas"] == 3
    assert world.condition("Stalled")["reason"] == reason
    assert calls.count("patch Service") >= 10, "it is tried on"
    world.api.fails.clear()
    world.now += 60
    await tried(world, 3)
    assert world.stored("Service")["metadata"]["ownerReferences"][0]["uid"] == "u-2"
    assert world.condition("Ready")["reason"] != reason


async def test_what_failed_and_is_no_longer_wanted_is_not_shown_any_more() -> None:
    world = await served()
    world.api.fails["apply Deployment by force"] = [ServerError(WEBHOOK, code=500)] * MANY
    world.edit({"scaling": {"replicas": 5}})
    for _ in range(2):
        with pytest.raises(KubeError):
            await world.settle()
    assert world.condition("Ready")["reason"] == "AdmissionUnavailable"
    world.edit({"scaling": {"replicas": 1}})
    await world.settle()
    assert world.condition("Ready")["reason"] != "AdmissionUnavailable"


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="none"),
        pytest.param([{"kind": "StatefulSet", "name": "x", "uid": "u", "controller": True}], id="StatefulSet"),
        pytest.param([{"kind": "Job", "name": "x-1", "uid": "u", "controller": True}], id="Job"),
        pytest.param([{"kind": "ReplicaSet", "name": "other-1", "uid": "u", "controller": True}], id="ReplicaSet"),
        pytest.param([{"kind": "ReplicaSet", "name": "x-other-1", "uid": "u", "controller": True}], id="longer name"),
        pytest.param([{"kind": "ReplicaSet", "name": "x-1", "uid": "u", "controller": False}], id="no controller"),
    ],
)
def test_a_pod_with_the_labels_that_is_not_of_the_deployment_is_no_replica(owners: list[dict[str, Any]]) -> None:
    """Such as `kubectl debug --copy-to --keep-labels`, or another controller's."""
    ours, copy, alike = a_pod("x-0", "r"), a_pod("debug", "r"), of_another(a_pod("rollout", "r"))
    copy["metadata"]["ownerReferences"] = owners
    pods = {each["metadata"]["name"]: PodFacts.from_object(each) for each in (ours, copy, alike)}
    assert [pod.name for pod in Observed.of("x", {"Pod": pods}).pods] == ["x-0"]


async def test_a_pod_that_is_no_replica_is_in_no_figure_of_the_service() -> None:
    world = await served()
    gpus = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}

    def restarted(pod: dict[str, Any], version: int) -> dict[str, Any]:
        pod["metadata"] |= {"namespace": "ns", "resourceVersion": str(version)}
        pod["spec"]["containers"] = [{"name": "server", **gpus}]
        pod["status"]["containerStatuses"][0]["restartCount"] = version
        return {"kind": "Pod", **pod}

    for version in (1, 4):
        world.see(restarted(a_pod("chat-0", "r", ready=True, service="chat"), version))
        world.see(restarted(of_another(a_pod("theirs", "r", service="chat")), version))
        await world.settle()
    sample = world.ctx.metrics.registry.get_sample_value
    of_it = {"namespace": "ns", "service": "chat"}
    assert sample("llmservice_gpus", of_it | {"state": "serving"}) == 1
    assert sample("llmservice_gpus", of_it | {"state": "not_serving"}) is None
    assert sample("llmservice_restarts_total", of_it) == 4
