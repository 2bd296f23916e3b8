"""What a decision requires is never too little: with every part there is, whether required or not, it decides the same.

The states are those of `status_states`, and the moments of a rollout at which something was read before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.decision import (
    NO_REQUIREMENTS,
    GPUsQuery,
    Inputs,
    Requirements,
    RoomQuery,
)
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.service.decide import decide
from llmservice_planner import room as planner
from llmservice_planner.room import Room

from tests.unit.decide_world import H100, World, a_pod, an_llmservice, serving, spec
from tests.unit.operator.test_decide_autoscaling import READY, autoscaled
from tests.unit.operator.test_decide_fit_choice import TOO_SMALL, UNNAMED_ONLY, failed_on
from tests.unit.operator.test_decide_gap import about_to_change
from tests.unit.operator.test_decide_quotas import ONE_REPLICA
from tests.unit.operator.test_decide_rollouts import a_room, surging
from tests.unit.operator.test_decide_upgrade import bound_to_its_choice
from tests.unit.status_states import CASES, UNREPORTED, edited, served, service

LABELS_AND_TAINTS = (
    "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
    "1 node(s) had untolerated taint {a: b}."
)


def everything(world: World) -> dict[str, Any]:
    """Each part, as the test's cluster has it."""
    events = PodEvents.of({name: world.events.get(name, []) for name in world.pods})
    return {
        "gpus": world.gpus, "room": world.room, "pod_events": events, "quotas": world.quotas_now(),
        "update_permission": world.update_permission,
    }  # fmt: skip


def replaced_first() -> World:
    """An edit whose gap the status tells of before the Deployment is changed."""
    world = served()
    world.room = a_room(0)
    world.edit(batching={"maxNumSeqs": 8})
    return world


def waiting_for_room() -> World:
    """A new pod waits longer than an old one is kept for."""
    world = surging(2)
    world.now += timedelta(hours=1)
    return world


def without_a_volume(*, is_edited: bool = False) -> World:
    """Its pod stays on its node without a container, and Events say why; the edit is held, since it does not fit."""
    world = serving(H100)
    if is_edited:
        world.edit(precision={"weights": "float32"}, batching={"maxModelLen": 2**21})
    return with_a_lost_volume(world, world.revision())


def with_a_lost_volume(world: World, revision: str) -> World:
    pod = a_pod("x-0", revision, state={"waiting": {"reason": "ContainerCreating"}})
    pod["status"]["phase"] = "Pending"
    pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T03:00:00Z"
    world.pods = {"x-0": pod}
    event = {"reason": "FailedMount", "message": "no such claim", "lastTimestamp": "2026-01-02T03:04:00Z"}
    world.events = {"x-0": [event]}
    return world


def returned_and_held() -> World:
    """Back at a spec that ran while its plan was ignored, and is held now; the pod of the revision between waits."""
    does_not_fit = {"precision": {"weights": "float32"}, "batching": {"maxModelLen": 2**21}}
    world = serving(H100, fitPolicy="Warn", **does_not_fit)
    world.edit(fitPolicy="Enforce", precision={"weights": "auto"}, batching={"maxModelLen": 4096})
    world.serve()
    world.edit(fitPolicy="Enforce", **does_not_fit)
    return with_a_lost_volume(world, world.revision())


def without_a_node(world: World, *messages: str) -> World:
    world.pods = {
        f"x-{i}": a_pod(f"x-{i}", world.revision(), unschedulable=message, scheduled=False)
        for i, message in enumerate(messages)
    }
    return world


def on_an_old_driver(*names: str) -> World:
    """No container of these pods is started, since the image wants a newer driver than their nodes have."""
    world = edited(service())
    message = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver"
    end = {"exitCode": 128, "reason": "StartError", "message": message, "finishedAt": "2026-01-02T03:01:00Z"}
    world.pods = {name: a_pod(name, world.revision(), state={"terminated": end}) for name in names}
    labels = {"nvidia.com/cuda.driver-version.full": "550.54.15", "nvidia.com/cuda.runtime-version.full": "12.4"}
    world.room = Room((planner.NodeRoom(world.pods[names[0]]["spec"]["nodeName"], labels=labels),))
    return world


def beyond_a_quota(*conditions: Any, is_lowered_later: bool = False) -> World:
    """A quota admits one replica of at most four."""
    world = autoscaled(*conditions)
    world.quotas = [ONE_REPLICA]
    if not is_lowered_later:
        world.edit(drain={"timeoutSeconds": 9})
        world.settle()
    return world


STATES: dict[str, Callable[[], World]] = {
    "beyond a quota": lambda: beyond_a_quota(READY),
    "beyond a quota that was lowered since": lambda: beyond_a_quota(READY, is_lowered_later=True),
    "beyond a quota, and KEDA is away": beyond_a_quota,
    **{name: case.make for name, case in CASES.items()},
    **{name: make for name, (make, *_) in UNREPORTED.items()},
    "replaced first": replaced_first,
    "about to leave a gap": lambda: about_to_change()[0],
    "waiting for room": waiting_for_room,
    "without a volume": without_a_volume,
    "without a volume, and held": lambda: without_a_volume(is_edited=True),
    "returned and held": returned_and_held,
    "never ran": bound_to_its_choice,
    "on too small a GPU": lambda: failed_on(serving(*UNNAMED_ONLY), TOO_SMALL),
    "on an old driver": lambda: on_an_old_driver("x-0", "x-1"),
    "labels and taints": lambda: without_a_node(edited(service()), LABELS_AND_TAINTS),
}


def required(inputs: Inputs) -> Requirements:
    """What is to be read before anything is decided."""
    found = decide(inputs)
    return found if isinstance(found, Requirements) else NO_REQUIREMENTS


@pytest.mark.parametrize("state", [pytest.param(make, id=name) for name, make in STATES.items()])
def test_parts_that_were_not_required_change_no_decision(state: Callable[[], World]) -> None:
    world = state()
    for _ in range(2):
        assert world.decide() == world.decide(**everything(world))
        world.step()


def test_a_steady_service_requires_nothing() -> None:
    inputs = served().inputs()
    assert not required(inputs)
    parts = (
        inputs.gpus,
        inputs.room,
        inputs.pod_events,
        inputs.update_permission,
        inputs.sibling_model,
        inputs.reading,
    )
    assert parts == (None,) * 6


def test_a_new_service_requires_the_models_facts_then_their_reading_then_the_nodes() -> None:
    first = World(an_llmservice(spec())).inputs()
    bare = replace(first, sibling_model=None, reading=None, gpus=None)
    key = required(bare).sibling_model
    assert required(bare) == Requirements(sibling_model=key)
    assert key
    with_facts = replace(bare, sibling_model=first.sibling_model)
    document = required(with_facts).reading
    assert required(with_facts) == Requirements(reading=document)
    assert "num_hidden_layers" in (document or "")
    assert required(replace(with_facts, reading=first.reading)) == Requirements(gpus=GPUsQuery("nvidia.com/gpu"))
    assert not required(first)


def room_of(world: World) -> RoomQuery | None:
    return required(replace(world.inputs(), room=None)).room


def test_an_edit_requires_what_is_free_now_and_one_that_does_not_fit_does_not_look() -> None:
    """Else each of its passes would list the nodes, and all pods on them."""
    world = serving(H100)
    world.edit(precision={"weights": "float32"}, batching={"maxModelLen": 2**21})
    assert room_of(world) is None
    world.settle()
    assert room_of(world) is None
    other = served()
    other.edit(batching={"maxNumSeqs": 8})
    assert room_of(other) == RoomQuery("nvidia.com/gpu", 0.0)


LACK = "0/1 nodes are available: 1 Insufficient {}."


@pytest.mark.parametrize("messages", [[LABELS_AND_TAINTS, LACK.format("cpu")], [LACK.format("nvidia.com/gpu")]])
def test_pods_without_a_node_require_what_is_free_for_their_message_only(messages: list[str]) -> None:
    world = without_a_node(edited(service()), *messages)
    assert room_of(world) == RoomQuery("nvidia.com/gpu", 60.0, is_only_shown=True)


def test_pods_on_too_old_a_driver_require_the_labels_of_nodes_until_the_status_names_it() -> None:
    world = on_an_old_driver("x-0", "x-1")
    assert room_of(world) == RoomQuery("nvidia.com/gpu", 60.0, is_only_shown=True)
    world.step()
    assert world.status["failure"]["message"].endswith("driver 550.54.15, which supports CUDA 12.4)")
    assert room_of(world) is None
    del world.pods["x-0"]
    assert room_of(world) is not None, "the next pod's failure is reported with its own driver"


@pytest.mark.parametrize("make", [without_a_volume, lambda: without_a_volume(is_edited=True), returned_and_held])
def test_a_pod_that_does_not_start_requires_its_events(make: Callable[[], World]) -> None:
    world = make()
    assert required(replace(world.inputs(), pod_events=None)).pod_events == ("x-0",)
    world.step()
    assert world.status["failure"]["reason"] == "VolumeUnavailable"
