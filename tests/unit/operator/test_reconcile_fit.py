"""What a plan costs the API server: one list of nodes for a new revision, one Job for a new model, else nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubeloop.errors import Forbidden, KubeError, Refused
from kubeloop.resources import JOB
from llmservice_api.service import parse_spec
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.service.decide import decide
from llmservice_runtime.inspection.inspected import Inspection

from tests.unit.decide_world import QWEN_7B
from tests.unit.reconcile_world import World, parent

URI = "hf://Qwen/Qwen2.5-7B-Instruct"
NODE = {
    "kind": "Node",
    "metadata": {
        "name": "gpu",
        "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"},
    },
    "status": {"allocatable": {"nvidia.com/gpu": "8"}},
}
QUOTA = Refused("exceeded quota: team", code=403)


def a_world(**spec: Any) -> World:
    """With the operator's own decisions."""
    service = parent(uri=URI)
    service["spec"] |= {"scaling": {"replicas": 1}} | spec
    world = World(service)
    world.ctx.decide = decide
    world.api.put(NODE)
    return world


def knowing(name: str, namespace: str = "ns", **model: Any) -> Any:
    """Another service, whose model was inspected."""
    other = parent(uid=f"u-{name}", uri=URI, name=name, namespace=namespace)
    key = inspection_key(parse_spec(other["spec"]))
    other["status"] = {"model": {"inspection": key, "config": json.dumps(QWEN_7B), **model}}
    return other


def known(**spec: Any) -> World:
    """Of a model that another service knows."""
    world = a_world(**spec)
    world.see(knowing("other"))
    return world


def deployed(world: World) -> bool:
    return world.stored("Deployment") is not None


async def test_nodes_are_listed_for_a_new_revision_and_never_in_a_steady_state() -> None:
    world = known()
    await world.reconcile()
    assert world.calls().count("list Node") == 1
    assert world.condition("Fits")["reason"] == "Fits"
    for _ in range(3):
        world.now += 60
        await world.reconcile()
        assert world.calls() == []


async def test_on_cpus_no_node_is_listed() -> None:
    world = known(accelerator={"type": "cpu"}, runtime={"image": "a/vllm-cpu:v0.32.0"}, batching={"maxModelLen": 512})
    await world.reconcile()
    assert deployed(world)
    assert "list Node" not in world.calls()


async def test_a_model_is_inspected_first_and_recorded_before_its_job_goes() -> None:
    world = a_world()
    assert (await world.reconcile()).after == pytest.approx(30.1)
    assert world.calls("list", "apply") == ["apply Job"], "nothing is listed before the model is known"
    world.now += 5
    await world.reconcile()
    assert world.calls() == []
    (job,) = world.api.all_of(JOB)
    world.see(pod_of(job, Inspection("abc", QWEN_7B).to_json()))
    assert (await world.reconcile()).after == 1
    assert deployed(world)
    assert world.status["model"]["revision"] == "abc"
    assert not world.calls("delete")
    await world.reconcile()
    assert world.calls() == ["delete Job u-Job"]
    assert await world.reconcile() == (None, None)
    assert world.calls() == []


def pod_of(job: Any, message: str) -> Any:
    """A Job's pod that ended with this message."""
    ended = {"terminated": {"exitCode": 0, "message": message, "finishedAt": "2026-01-01T00:00:10Z"}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": "look",
            "namespace": "ns",
            "uid": "u-look",
            "resourceVersion": "7",
            "labels": {"llmservice.dev/inspects": "chat"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"kind": "Job", "name": "j", "uid": job["metadata"]["uid"], "controller": True}],
        },
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": "inspect", "state": ended}]},
    }


@pytest.mark.parametrize(
    ("other", "is_shared"),
    [
        pytest.param(knowing("other"), True, id="of this namespace"),
        pytest.param(knowing("other", namespace="elsewhere"), False, id="of another namespace"),
        pytest.param(knowing("other", inspection="another"), False, id="of another model"),
        pytest.param(knowing("other", config=None), False, id="that knows nothing either"),
    ],
)
async def test_what_another_service_knows_needs_no_job(other: Any, is_shared: bool) -> None:
    world = a_world()
    world.see(other)
    await world.reconcile()
    assert ("apply Job" in world.calls(), deployed(world)) == (not is_shared, is_shared)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(QUOTA, "exceeded quota: team", id="a quota"),
        pytest.param(Forbidden("no", right="patch jobs.batch", code=403), "grant it: patch jobs.batch", id="a right"),
    ],
)
async def test_a_job_that_is_refused_stops_nothing_and_is_tried_again_with_the_next_edit(
    error: KubeError, words: str
) -> None:
    world = a_world()
    world.api.fails["apply Job"] = [error]
    assert (await world.settle()).after is None
    assert deployed(world)
    assert words in world.condition("Fits")["message"]
    await world.reconcile()
    assert world.calls() == []
    world.edit({"batching": {"maxNumSeqs": 8}})
    await world.reconcile()
    assert "apply Job" in world.calls()


async def test_a_missing_right_on_nodes_is_named_and_stops_nothing() -> None:
    world = known()
    world.api.fails["list Node"] = [Forbidden("no", right="list nodes", code=403)]
    await world.reconcile()
    assert deployed(world)
    assert "no right to list nodes" in world.condition("Fits")["message"]


async def test_what_does_not_fit_sends_nothing_but_its_status() -> None:
    world = known(precision={"weights": "float32"}, batching={"maxModelLen": 2**21})
    assert (await world.reconcile()).after == 60
    assert world.calls() == ["list Node", "get LLMService", "status", "event DoesNotFit"]
    assert not world.stored("Deployment")
    world.now += 60
    await world.reconcile()
    assert world.calls() == ["list Node"]
