"""What is known of the model before it starts, where that comes from, and how long it is waited for."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.decision import Decision
from llmservice_operator.manifests.inspection import inspection_key, job_name
from llmservice_operator.observe.observed import Refusal
from llmservice_planner.cluster import ClusterGPUs
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.inspection.inspected import Inspection

from tests.unit.decide_world import H100, QWEN_7B, World, an_llmservice, orphaned, spec

Json = dict[str, Any]

TENSORS = {"embedding": 2**30, "head": 2**30, "attention": 2**31, "feedForward": 11 * 2**30, "parameters": 8 * 10**9}
FOUND = Inspection("0123abc", QWEN_7B, TENSORS | {"dtype": "bfloat16"})
REFUSED = Failure(FailureReason.MODEL_ACCESS_DENIED, "The hub says no.", "Ask for access.")
UNPLACED = "0/1 nodes are available: 1 Insufficient memory."


ALL = {"Service", "ControllerRevision", "Deployment"}


def unknown(**sections: Any) -> World:
    """A model that nobody has inspected yet."""
    return World(an_llmservice(spec(**sections)), sibling_model={}, gpus=ClusterGPUs((H100,)))


def looking(**sections: Any) -> World:
    """The same, with the Job made and nothing of its pod yet."""
    world = unknown(**sections)
    world.settle()
    assert world.kinds() == {"Job"}
    return world


def found(**sections: Any) -> World:
    """The same, after the Job."""
    world = looking(**sections)
    ends(world, FOUND)
    world.settle()
    return world


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


def later(world: World, seconds: float) -> Decision:
    world.now += timedelta(seconds=seconds)
    return world.decide()


def test_nothing_is_made_before_the_model_was_inspected() -> None:
    world = unknown()
    decision = world.step()
    (apply,) = decision.apply
    assert (apply.kind, apply.name, apply.is_optional) == ("Job", job_name(world.service()), True)
    world.settle()
    assert world.kinds() == {"Job"}
    conditions = world.conditions()
    assert world.condition("Fits") == ("Unknown", "InspectingModel")
    assert conditions["Reconciling"]["reason"] == conditions["Ready"]["reason"] == "InspectingModel"
    assert "plan" not in world.status
    assert decision.events == ()


def test_what_was_found_is_recorded_and_planned_with_and_the_job_goes() -> None:
    world = looking()
    ends(world, FOUND)
    decision = world.step()
    assert (decision.requeue_after, decision.prune) == (1, ())
    assert [prune.kind for prune in world.decide().prune] == ["Job"], "once the status has it"
    world.settle()
    assert world.condition("Fits") == ("True", "Fits")
    assert world.kinds() == ALL
    model = world.status["model"]
    assert (model["inspection"], model["revision"]) == (inspection_key(world.service().spec), "0123abc")
    assert json.loads(model["config"]) == QWEN_7B
    assert model["tensors"] == TENSORS | {"dtype": "bfloat16"}
    # By the bytes of the tensors, not by counting.
    assert world.plan["weightsGiB"] == pytest.approx(15.0, abs=0.3)
    world.inspections = []
    world.edit(batching={"maxNumSeqs": 8})
    assert "Job" not in {apply.kind for apply in world.step().apply}, "another edit needs no further Job"
    assert world.condition("Fits") == ("True", "Fits")


def test_another_model_is_inspected_and_what_serves_goes_on() -> None:
    world = found()
    world.roll_out()
    world.settle()
    template, model = world.template, world.status["model"]
    world.inspections = []
    world.change(model={"uri": "hf://Qwen/Qwen3-8B"})
    assert world.template == template
    assert (world.condition("Available")[0], world.condition("Fits")[1]) == ("True", "InspectingModel")
    assert world.status["model"] == model, "that of what serves"
    ends(world, FOUND)
    world.settle()
    assert world.template != template
    assert world.status["model"]["inspection"] == inspection_key(world.service().spec)


def test_what_the_spec_says_is_enough() -> None:
    facts = {"numHiddenLayers": 28, "hiddenSize": 3584, "numAttentionHeads": 28, "numKeyValueHeads": 4}
    facts |= {"vocabSize": 152064, "maxPositionEmbeddings": 32768, "intermediateSize": 18944}
    world = unknown(model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "architecture": facts})
    world.settle()
    assert "Job" not in world.kinds()
    assert world.condition("Fits") == ("True", "Fits")
    assert "model" not in world.status


def test_what_the_spec_says_wins_over_what_was_read() -> None:
    world = found(model={"uri": "hf://a/b", "architecture": {"maxPositionEmbeddings": 4096}})
    assert world.plan["requestedMaxModelLen"] == 4096


def test_another_services_findings_are_used() -> None:
    world = unknown()
    world.sibling_model = {"config": json.dumps(QWEN_7B)}
    for apply in world.decide().apply:
        world._apply(apply.manifest)
    world.step()  # the status is written last: by then the revision is recorded
    assert world.status["model"]["inspection"] == inspection_key(world.service().spec)
    world.settle()
    assert world.kinds() == ALL
    assert world.condition("Fits") == ("True", "Fits")


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
    assert words in world.message("Ready")
    decision = later(world, 2)
    assert {apply.kind for apply in decision.apply} == {"Service", "ControllerRevision", "Deployment"}
    world.settle()
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    message = world.message("Fits")
    assert words in message
    assert "spec.model.architecture" in message
    assert "Job" in world.kinds(), "it may yet find something"


@pytest.mark.parametrize(
    ("accelerator", "fits"), [({}, "Fits"), ({"products": ["Tesla-T4"]}, "DoesNotFit")], ids=["any", "its product"]
)
def test_findings_that_come_late_are_reported_and_restart_nothing(accelerator: Json, fits: str) -> None:
    world = looking(accelerator=accelerator)
    world.now += timedelta(seconds=31)
    world.serve()
    template, revisions = world.template, world.of_kind("ControllerRevision")
    ends(world, FOUND)
    world.settle()
    assert world.condition("Fits")[1] == fits
    assert world.condition("Ready")[0] == "True"
    assert accelerator or (world.plan["gpu"], world.node_reads) == (H100.product, 1), "once, and not in a steady state"
    assert world.status["model"]["revision"] == "0123abc"
    assert (world.template, world.of_kind("ControllerRevision")) == (template, revisions)
    assert "Job" not in world.kinds()


FAILURES: list[tuple[str, Any, str]] = [
    ("a classified reason", FOUND.__class__(failure=REFUSED), "The hub says no. Ask for access."),
    ("no last words", "Traceback\nMemoryError", "MemoryError"),
]


@pytest.mark.parametrize(("words", "shown"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_an_inspection_that_fails_blocks_nothing_and_is_reported(words: Any, shown: str) -> None:
    world = looking()
    ends(world, words)
    world.settle()
    assert world.kinds() == ALL
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert shown in world.message("Fits")
    assert world.message("Fits").count("spec.model.architecture") == 1
    assert shown in world.status["model"]["failure"]


def test_the_next_edit_inspects_again_what_failed() -> None:
    world = looking()
    ends(world, Inspection(failure=REFUSED))
    world.settle()
    world.inspections = []
    world.settle()
    world.change(batching={"maxNumSeqs": 8})
    assert "Job" in world.kinds()
    assert world.condition("Fits") == ("Unknown", "InspectingModel")
    ends(world, FOUND)
    world.settle()
    assert world.condition("Fits") == ("True", "Fits")


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "BackoffLimitExceeded"])
def test_a_job_that_failed_is_not_waited_for(reason: str) -> None:
    world = looking()
    world.of_kind("Job")[0]["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": reason}]}
    world.settle()
    assert "Deployment" in world.kinds()
    assert reason in world.message("Fits")


def test_a_job_that_cannot_be_made_blocks_nothing() -> None:
    world = unknown()
    world.refused = {("Job", job_name(world.service())): Refusal(403, "exceeded quota")}
    world.settle()
    assert world.kinds() == ALL
    assert "exceeded quota" in world.message("Fits")
    assert world.condition("Ready")[1] != "QuotaExceeded"


NO_JOB: list[tuple[str, Json, frozenset[str], str]] = [
    ("without the right to list jobs, which would not be seen", {}, frozenset({"Job"}), "no right to list jobs"),
    ("in the image of the runtime", {"model": {"uri": "file:///models/a"}}, frozenset(), "lies in the runtime image"),
    ("in an image", {"model": {"uri": "image://registry.local/a:1"}}, frozenset(), "would pull as a whole"),
]


@pytest.mark.parametrize(("sections", "hidden", "words"), [row[1:] for row in NO_JOB], ids=[row[0] for row in NO_JOB])
def test_without_a_job_it_is_started_and_what_is_missing_is_named(
    sections: Json, hidden: frozenset[str], words: str
) -> None:
    world = unknown(**sections)
    world.hidden = hidden
    world.settle()
    assert world.kinds() == ALL
    assert world.condition("Fits") == ("Unknown", "FactsMissing")
    assert words in world.message("Fits")
    assert "spec.model.architecture" in world.message("Fits")


def test_with_ignore_nothing_is_inspected() -> None:
    world = unknown(fitPolicy="Ignore")
    world.settle()
    assert world.kinds() == ALL
    assert world.condition("Fits") == ("Unknown", "PolicyIgnore")
    assert not {"plan", "model"} & set(world.status)
    assert world.node_reads == 0


@pytest.mark.parametrize("happens", [lambda world: world, orphaned], ids=["ours", "orphaned"])
def test_a_job_under_way_goes_with_ignore(happens: Any) -> None:
    world = happens(looking())
    world.change(fitPolicy="Ignore")
    assert world.kinds() == ALL


def test_a_paused_service_makes_no_job() -> None:
    world = unknown(paused=True)
    assert world.step().apply == ()
    assert world.condition("Fits") == ("Unknown", "FactsMissing")


def test_somebody_elses_job_is_left_alone() -> None:
    world = looking()
    world.of_kind("Job")[0]["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.edit(fitPolicy="Ignore")
    assert world.step().prune == ()
