"""What is known of the model before it starts, where that comes from, and how long it is waited for."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.build.inspection import inspection_key, job_name
from llmservice_operator.decide.decision import Decision
from llmservice_operator.observe.observed import Refusal
from llmservice_operator.planner.cluster import ClusterGPUs, NodeGroup
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.inspection.inspected import Inspection

from tests.unit.decide_world import QWEN_7B, World, an_llmservice, orphaned, spec

Json = dict[str, Any]

H100 = NodeGroup("NVIDIA-H100-80GB-HBM3", 8, memory_mib=81559)
TENSORS = {"embedding": 2**30, "head": 2**30, "attention": 2**31, "feedForward": 11 * 2**30, "parameters": 8 * 10**9}
FOUND = Inspection("0123abc", QWEN_7B, TENSORS | {"dtype": "bfloat16"})
REFUSED = Failure(FailureReason.MODEL_ACCESS_DENIED, "The hub says no.", "Ask for access.")
UNPLACED = "0/1 nodes are available: 1 Insufficient memory."


def a_world(**sections: Any) -> World:
    """A model that nobody has looked at yet."""
    return World(an_llmservice(spec(**sections)), lent={}, gpus=ClusterGPUs((H100,)))


def looking(**sections: Any) -> World:
    """The same, with the Job made and nothing of its pod yet."""
    world = a_world(**sections)
    world.settle()
    assert kinds(world) == {"Job"}
    return world


def kinds(world: World) -> set[str]:
    return {kind for kind, _ in world.children}


def pod(world: World, status: Json, **metadata: Any) -> None:
    """The Job's pod, as the kubelet and the scheduler tell of it."""
    job = world.children["Job", job_name(world.service())]
    world.inspections = [
        {
            "metadata": {
                "name": "look",
                "namespace": "team-a",
                "uid": "uid-look",
                "labels": {"llmservice.dev/inspects": "x"},
                "creationTimestamp": job["metadata"]["creationTimestamp"],
                "ownerReferences": [{"kind": "Job", "name": "j", "uid": job["metadata"]["uid"], "controller": True}],
            }
            | metadata,
            "status": status,
        }
    ]


def container(**state: Any) -> Json:
    return {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "inspect", "state": state}],
    }


def ends(world: World, inspection: Inspection | str) -> None:
    """The pod ended with these last words."""
    text = inspection if isinstance(inspection, str) else inspection.to_json()
    pod(world, container(terminated={"exitCode": 0, "reason": "Completed", "message": text}))


def runs(world: World) -> None:
    pod(world, container(running={"startedAt": "2026-01-02T03:04:10Z"}))


def fits(world: World) -> tuple[str, str]:
    condition = world.conditions()["Fits"]
    return condition["status"], condition["reason"]


def later(world: World, seconds: float) -> Decision:
    world.now += timedelta(seconds=seconds)
    return world.decide()


def test_nothing_is_made_before_the_model_was_looked_at() -> None:
    world = a_world()
    decision = world.step()
    (apply,) = decision.apply
    assert (apply.kind, apply.name, apply.is_optional) == ("Job", job_name(world.service()), True)
    world.settle()
    assert kinds(world) == {"Job"}
    conditions = world.conditions()
    assert fits(world) == ("Unknown", "InspectingModel")
    assert conditions["Reconciling"]["reason"] == conditions["Ready"]["reason"] == "InspectingModel"
    assert "plan" not in world.obj["status"]
    assert decision.events == ()


def test_what_was_found_is_recorded_and_planned_with_and_the_job_goes() -> None:
    world = looking()
    ends(world, FOUND)
    decision = world.step()
    assert decision.requeue_after == 1
    world.settle()
    assert fits(world) == ("True", "Fits")
    assert kinds(world) == {"Service", "ControllerRevision", "Deployment"}
    model = world.obj["status"]["model"]
    assert (model["inspection"], model["revision"]) == (inspection_key(world.service().spec), "0123abc")
    assert json.loads(model["config"]) == QWEN_7B
    assert model["tensors"] == TENSORS | {"dtype": "bfloat16"}
    # By the bytes of the tensors, not by counting.
    assert world.obj["status"]["plan"]["weightsGiB"] == pytest.approx(15.0, abs=0.3)


def test_findings_outlast_the_job_until_the_status_has_them() -> None:
    """The Job is deleted after the status was written: between the two the operator may end."""
    world = looking()
    ends(world, FOUND)
    assert world.decide().prune == ()
    world.step()
    assert [prune.kind for prune in world.decide().prune] == ["Job"]


def test_another_edit_needs_no_further_look() -> None:
    world = looking()
    ends(world, FOUND)
    world.settle()
    world.inspections = []
    world.edit(batching={"maxNumSeqs": 8})
    assert "Job" not in {apply.kind for apply in world.step().apply}
    assert fits(world) == ("True", "Fits")


def test_another_model_is_looked_at_and_what_serves_goes_on() -> None:
    world = looking()
    ends(world, FOUND)
    world.settle()
    world.roll_out()
    world.settle()
    template, model = world.deployment["spec"]["template"], world.obj["status"]["model"]
    world.inspections = []
    world.edit(model={"uri": "hf://Qwen/Qwen3-8B"})
    world.settle()
    assert world.deployment["spec"]["template"] == template
    assert (world.conditions()["Available"]["status"], fits(world)[1]) == ("True", "InspectingModel")
    assert world.obj["status"]["model"] == model, "that of what serves"
    ends(world, FOUND)
    world.settle()
    assert world.deployment["spec"]["template"] != template
    assert world.obj["status"]["model"]["inspection"] == inspection_key(world.service().spec)


def test_what_the_spec_says_is_enough() -> None:
    facts = {
        "numHiddenLayers": 28,
        "hiddenSize": 3584,
        "numAttentionHeads": 28,
        "numKeyValueHeads": 4,
        "vocabSize": 152064,
        "maxPositionEmbeddings": 32768,
    }
    model = {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "architecture": facts | {"intermediateSize": 18944}}
    world = a_world(model=model)
    world.settle()
    assert "Job" not in kinds(world)
    assert fits(world) == ("True", "Fits")
    assert "model" not in world.obj["status"]


def test_what_the_spec_says_wins_over_what_was_read() -> None:
    world = looking(model={"uri": "hf://a/b", "architecture": {"maxPositionEmbeddings": 4096}})
    ends(world, FOUND)
    world.settle()
    assert world.obj["status"]["plan"]["requestedMaxModelLen"] == 4096


def test_another_services_findings_are_lent() -> None:
    world = a_world()
    world.lent = {"config": json.dumps(QWEN_7B)}
    world.settle()
    assert "Job" not in kinds(world)
    assert fits(world) == ("True", "Fits")
    assert world.obj["status"]["model"]["inspection"] == inspection_key(world.service().spec)


def test_what_was_lent_is_told_though_the_status_is_written_last() -> None:
    """Children first, then another decision, and its status: by then the revision is recorded."""
    world = a_world()
    world.lent = {"config": json.dumps(QWEN_7B)}
    for apply in world.decide().apply:
        world._apply(apply.manifest)
    status = world.decide().status
    assert status is not None
    assert status["model"]["inspection"] == inspection_key(world.service().spec)


WAITS: list[tuple[str, Any, float, str]] = [
    ("no pod yet", None, 30, "its pod is not there yet"),
    (
        "unschedulable",
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNPLACED}]},
        30,
        "no node takes it",
    ),
    (
        "image pull",
        container(waiting={"reason": "ImagePullBackOff", "message": "no such image"}),
        30,
        "ImagePullBackOff",
    ),
    ("running", container(running={"startedAt": "2026-01-02T03:04:10Z"}), 120, ""),
]


@pytest.mark.parametrize(("status", "patience", "words"), [row[1:] for row in WAITS], ids=[row[0] for row in WAITS])
def test_it_is_waited_for_and_not_for_ever(status: Any, patience: float, words: str) -> None:
    world = looking()
    if status is not None:
        pod(world, status)
    decision = later(world, patience - 1)
    assert decision.apply == ()
    assert decision.requeue_after == pytest.approx(1.1)
    world.step()
    assert words in world.conditions()["Ready"]["message"]
    decision = later(world, 2)
    assert {apply.kind for apply in decision.apply} == {"Service", "ControllerRevision", "Deployment"}
    world.settle()
    assert fits(world) == ("Unknown", "FactsMissing")
    message = world.conditions()["Fits"]["message"]
    assert words in message
    assert "spec.model.architecture" in message
    assert "Job" in kinds(world), "it may yet find something"


def test_findings_that_come_late_are_told_and_restart_nothing() -> None:
    world = looking()
    world.now += timedelta(seconds=31)
    world.settle()
    world.roll_out()
    world.settle()
    template, revisions = world.deployment["spec"]["template"], [k for k in world.children if "Revision" in k[0]]
    ends(world, FOUND)
    world.settle()
    assert fits(world) == ("True", "Fits")
    assert world.obj["status"]["plan"]["gpu"] == H100.product
    assert world.node_reads == 1, "once, and not while nothing changes"
    assert world.obj["status"]["model"]["revision"] == "0123abc"
    assert world.deployment["spec"]["template"] == template
    assert [k for k in world.children if "Revision" in k[0]] == revisions
    assert "Job" not in kinds(world)


def test_late_findings_are_planned_for_the_product_that_the_spec_names() -> None:
    world = looking(accelerator={"products": ["Tesla-T4"]})
    world.now += timedelta(seconds=31)
    world.settle()
    world.roll_out()
    world.settle()
    template = world.deployment["spec"]["template"]
    ends(world, FOUND)
    world.settle()
    assert fits(world) == ("False", "DoesNotFit")
    assert world.conditions()["Ready"]["status"] == "True"
    assert world.deployment["spec"]["template"] == template


FAILURES: list[tuple[str, Any, str]] = [
    ("a classified reason", FOUND.__class__(failure=REFUSED), "The hub says no. Ask for access."),
    ("no last words", "Traceback\nMemoryError", "MemoryError"),
]


@pytest.mark.parametrize(("words", "told"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_a_look_that_fails_blocks_nothing_and_is_told(words: Any, told: str) -> None:
    world = looking()
    ends(world, words)
    world.settle()
    assert "Deployment" in kinds(world)
    assert "Job" not in kinds(world)
    assert fits(world) == ("Unknown", "FactsMissing")
    message = world.conditions()["Fits"]["message"]
    assert told in message
    assert message.count("spec.model.architecture") == 1
    assert told in world.obj["status"]["model"]["failure"]


def test_the_next_edit_looks_again_at_what_failed() -> None:
    world = looking()
    ends(world, Inspection(failure=REFUSED))
    world.settle()
    world.inspections = []
    world.settle()
    world.edit(batching={"maxNumSeqs": 8})
    world.settle()
    assert "Job" in kinds(world)
    assert fits(world) == ("Unknown", "InspectingModel")
    ends(world, FOUND)
    world.settle()
    assert fits(world) == ("True", "Fits")


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "BackoffLimitExceeded"])
def test_a_job_that_failed_is_not_waited_for(reason: str) -> None:
    world = looking()
    job = world.children["Job", job_name(world.service())]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": reason}]}
    world.settle()
    assert "Deployment" in kinds(world)
    assert reason in world.conditions()["Fits"]["message"]


def test_a_job_that_cannot_be_made_blocks_nothing() -> None:
    world = a_world()
    world.refused = {("Job", job_name(world.service())): Refusal(403, "exceeded quota")}
    world.settle()
    assert kinds(world) == {"Service", "ControllerRevision", "Deployment"}
    assert "exceeded quota" in world.conditions()["Fits"]["message"]
    assert world.conditions()["Ready"]["reason"] != "QuotaExceeded"


def test_without_the_right_to_list_jobs_none_is_made() -> None:
    """It would not be seen, and be waited for."""
    world = a_world()
    world.hidden = frozenset({"Job"})
    world.settle()
    assert kinds(world) == {"Service", "ControllerRevision", "Deployment"}
    assert fits(world) == ("Unknown", "FactsMissing")
    message = world.conditions()["Fits"]["message"]
    assert "no right to list jobs" in message
    assert "spec.model.architecture" in message


IN_IMAGES = [
    ("the runtime's", "file:///models/a", "lies in the runtime image"),
    ("its own", "image://registry.local/models/a:1", "would pull as a whole"),
]


@pytest.mark.parametrize(("uri", "words"), [row[1:] for row in IN_IMAGES], ids=[row[0] for row in IN_IMAGES])
def test_what_lies_in_an_image_is_not_looked_at(uri: str, words: str) -> None:
    world = a_world(model={"uri": uri})
    world.settle()
    assert kinds(world) == {"Service", "ControllerRevision", "Deployment"}
    assert fits(world) == ("Unknown", "FactsMissing")
    message = world.conditions()["Fits"]["message"]
    assert words in message
    assert "spec.model.architecture" in message


def test_ignore_looks_at_nothing() -> None:
    world = a_world(fitPolicy="Ignore")
    world.settle()
    assert kinds(world) == {"Service", "ControllerRevision", "Deployment"}
    assert fits(world) == ("Unknown", "PolicyIgnore")
    assert not {"plan", "model"} & set(world.obj["status"])
    assert world.node_reads == 0


def test_a_look_under_way_is_given_up_with_ignore() -> None:
    world = looking()
    world.edit(fitPolicy="Ignore")
    world.settle()
    assert kinds(world) == {"Service", "ControllerRevision", "Deployment"}


def test_a_job_that_was_left_behind_goes_too() -> None:
    world = looking()
    orphaned(world)
    world.edit(fitPolicy="Ignore")
    world.settle()
    assert kinds(world) == {"Service", "ControllerRevision", "Deployment"}


def test_a_paused_service_makes_no_job() -> None:
    world = a_world(paused=True)
    assert world.step().apply == ()
    assert fits(world) == ("Unknown", "FactsMissing")


def test_somebody_elses_job_is_left_alone() -> None:
    world = looking()
    job = world.children["Job", job_name(world.service())]
    job["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.edit(fitPolicy="Ignore")
    assert world.step().prune == ()
