"""What a plan costs the API server: one list of nodes for a new revision, one Job for a new model, else nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.api.service import parse_spec
from llmservice_operator.build.inspection import inspection_key
from llmservice_operator.control.watch.kinds import PARENT
from llmservice_operator.decide.decide import decide
from llmservice_operator.kube.errors import Forbidden, KubeError, Refused
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


def a_world(*objects: Any, **spec: Any) -> World:
    """With the operator's own decisions."""
    service = parent(uri=URI)
    service["spec"] |= {"scaling": {"replicas": 1}} | spec
    world = World(service)
    world.ctx.decide = decide
    for obj in (NODE, *objects):
        world.api.objects[obj["kind"], obj["metadata"]["name"]] = obj
    return world


def knowing(name: str, namespace: str = "ns", **model: Any) -> Any:
    """Another service, which has looked at a model."""
    other = parent(uid=f"u-{name}", uri=URI)
    other["metadata"] |= {"name": name, "namespace": namespace}
    key = inspection_key(parse_spec(other["spec"]))
    other["status"] = {"model": {"inspection": key, "config": json.dumps(QWEN_7B), **model}}
    return other


def status(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.api.objects[PARENT, "chat"]["status"]
    return found


def condition(world: World, type_: str) -> dict[str, Any]:
    return next(dict(item) for item in status(world)["conditions"] if item["type"] == type_)


def deployed(world: World) -> bool:
    return ("Deployment", "chat") in world.api.objects


async def test_nodes_are_listed_for_a_new_revision_and_never_in_a_steady_state() -> None:
    world = a_world()
    world.ctx.cache.update(PARENT, knowing("other"))
    await world.look()
    assert world.api.calls.count("list Node") == 1
    assert condition(world, "Fits")["reason"] == "Fits"
    for _ in range(3):
        world.now += 60
        await world.look()
        assert world.api.calls == []


async def test_on_cpus_no_node_is_listed() -> None:
    world = a_world(accelerator={"type": "cpu"}, runtime={"image": "a/vllm-cpu:v0.32.0"}, batching={"maxModelLen": 512})
    world.ctx.cache.update(PARENT, knowing("other"))
    await world.look()
    assert deployed(world)
    assert "list Node" not in world.api.calls


async def test_nothing_is_listed_before_the_model_is_known() -> None:
    world = a_world()
    await world.look()
    assert [call for call in world.api.calls if call.split()[0] in ("list", "apply")] == ["apply Job"]
    world.now += 5
    await world.look()
    assert world.api.calls == []


async def test_a_model_that_is_found_out_is_told_before_its_job_goes() -> None:
    world = a_world()
    then = await world.look()
    assert then.after == pytest.approx(30.1)
    job = next(obj for (kind, _), obj in world.api.objects.items() if kind == "Job")
    world.ctx.cache.update("Pod", pod_of(job, Inspection("abc", QWEN_7B).to_json()))
    then = await world.look()
    assert deployed(world)
    assert status(world)["model"]["revision"] == "abc"
    assert then.after == 1
    assert not [call for call in world.api.calls if call.startswith("delete")]
    await world.look()
    assert world.api.calls == ["delete Job u-Job"]
    assert await world.look() == (None, None)
    assert world.api.calls == []


def pod_of(job: Any, words: str) -> Any:
    """A Job's pod that ended with these words."""
    ended = {"terminated": {"exitCode": 0, "message": words, "finishedAt": "2026-01-01T00:00:10Z"}}
    return {
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


LENDERS = [
    pytest.param(knowing("other"), True, id="of this namespace"),
    pytest.param(knowing("other", namespace="elsewhere"), False, id="of another namespace"),
    pytest.param(knowing("other", inspection="another"), False, id="of another model"),
    pytest.param(knowing("other", config=None), False, id="that knows nothing either"),
]


@pytest.mark.parametrize(("other", "lends"), LENDERS)
async def test_what_a_neighbour_knows_needs_no_job(other: Any, lends: bool) -> None:
    world = a_world()
    world.ctx.cache.update(PARENT, other)
    await world.look()
    assert ("apply Job" in world.api.calls) is not lends
    assert deployed(world) is lends


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(Refused("exceeded quota: team", code=403), "exceeded quota: team", id="a quota"),
        pytest.param(Forbidden("no", right="patch jobs.batch", code=403), "grant it: patch jobs.batch", id="a right"),
    ],
)
async def test_a_job_that_is_not_taken_stops_nothing(error: KubeError, words: str) -> None:
    world = a_world()
    world.api.fails["apply Job"] = [error]
    then = await world.settle()
    assert deployed(world)
    assert words in condition(world, "Fits")["message"]
    assert then.after is None
    await world.look()
    assert world.api.calls == []


async def test_the_next_edit_tries_the_job_again() -> None:
    world = a_world()
    world.api.fails["apply Job"] = [Refused("exceeded quota: team", code=403)]
    await world.look()
    edited = world.api.objects[PARENT, "chat"]
    edited = edited | {"metadata": edited["metadata"] | {"generation": 2, "resourceVersion": "900"}}
    edited["spec"] = edited["spec"] | {"batching": {"maxNumSeqs": 8}}
    world.api.objects[PARENT, "chat"] = edited
    world.ctx.cache.update(PARENT, edited)
    await world.look()
    assert "apply Job" in world.api.calls


async def test_a_missing_right_on_nodes_is_named_and_stops_nothing() -> None:
    world = a_world()
    world.ctx.cache.update(PARENT, knowing("other"))
    world.api.fails["list Node"] = [Forbidden("no", right="list nodes", code=403)]
    await world.look()
    assert deployed(world)
    assert "no right to list nodes" in condition(world, "Fits")["message"]


async def test_what_does_not_fit_sends_nothing_but_its_status() -> None:
    world = a_world(precision={"weights": "float32"}, batching={"maxModelLen": 2**21})
    world.ctx.cache.update(PARENT, knowing("other"))
    then = await world.look()
    assert world.api.calls == ["list Node", "get LLMService", "status", "event DoesNotFit"]
    assert then.after == 60
    world.now += 60
    await world.look()
    assert world.api.calls == ["list Node"]
