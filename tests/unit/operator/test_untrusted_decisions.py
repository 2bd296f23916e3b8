"""Decisions about hostile pods, records and statuses: their status can be stored."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import pickle
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubeloop.resources import Key
from llmservice_api.constants import SERVICE_LABEL
from llmservice_api.errors import UnreadableObject
from llmservice_api.status import LLMServiceStatus
from llmservice_operator.facts import normalize
from llmservice_operator.observe.failures.pod_events import PodEvent
from llmservice_operator.observe.observed import Report
from llmservice_operator.service.metrics import Metrics
from llmservice_operator.service.state_poller import reported_step
from llmservice_operator.service.status import events
from llmservice_operator.service.watch import (
    PROJECTIONS,
    ParentFacts,
    priority_after_child,
    priority_of_service,
)
from llmservice_runtime.contract import DrainReport, Phase, State

from tests.support import cpu
from tests.unit.decide_world import Json, World, a_pod, serving
from tests.unit.hostile import anything, objects, texts
from tests.unit.operator.test_decide_inspection import UNPLACED, ends, looking
from tests.unit.runtime.test_untrusted_runtime import BROKEN, FAILURE, INSPECTION, STATE, document

SERVICE_NAME = "kubernetes.io/service-name"
FEWER = settings(max_examples=settings().max_examples // 2)
"""Each example makes a decision."""


@functools.cache
def settled(**changes: Any) -> World:
    """A service that serves, whose status says all that a status can say."""
    return serving(adapters=[{"name": "a", "uri": "hf://a/b"}], lora={}, **changes)


def whole_status() -> Json:
    """As stored, with the sections of a failing service too."""
    status: Json = copy.deepcopy(settled().obj["status"])
    label = status["rollout"]["revision"]
    failure = {"reason": "EngineDied", "message": "It died.", "remedy": "Wait.", "pod": "x-0"}
    status["failure"] = failure | {"since": "2026-01-02T03:00:00Z", "evidence": ["exit code 1"]}
    status["progress"] = {"pod": "x-0", "phase": "Fetching", "percent": 5, "etaSeconds": 7, "artifact": "model"}
    status["measured"] = json.loads(STATE.to_json())["measured"]
    status["adapters"] = [{"name": "a", "loaded": False, "message": "no"}]
    status["rollout"] |= {"stableRevision": label, "failedRevision": "old", "failedSpec": "h", "updatePending": True}
    return status


def checked(world: World) -> None:
    """The decision can be executed: all of it is JSON that the CRD accepts."""
    decision = world.decide()
    for apply in decision.apply:
        orjson.dumps(apply.manifest)
    if decision.status is not None:
        text = orjson.dumps(decision.status)
        LLMServiceStatus.model_validate(orjson.loads(text))
        assert len(text) < 256 * 1024
        for event in events(world.obj.get("status") or {}, decision.status):
            event.message.encode()
        Metrics().set_status(Key("team-a", "x"), decision.status, world.obj.get("status"))


def fresh() -> World:
    """A copy of its own for each example; copy.deepcopy would take longer than the decision."""
    world = copy.copy(settled())
    world.obj, world.pods, world.children = pickle.loads(settled_objects())
    return world


@functools.cache
def settled_objects() -> bytes:
    world = settled()
    return pickle.dumps((world.obj, world.pods, world.children))


def stored(world: World) -> World:
    """With the LLMService as the watch delivers it."""
    facts = ParentFacts.from_object(world.obj)
    priority_of_service(facts)
    priority_after_child(facts)
    world.obj = dict(facts.obj)
    return world


CONFIG = INSPECTION.to_document()["config"]


@FEWER
@given(objects(whole_status()), st.booleans())
def test_any_stored_status(status: Any, is_new: bool) -> None:
    world = fresh()
    world.obj["status"] = status
    Metrics().set_status(Key("team-a", "x"), ParentFacts.from_object(world.obj).obj["status"])
    if is_new:
        world.children.clear()
        world.pods.clear()
    checked(stored(world))


@FEWER
@given(objects(whole_status()), objects(whole_status()))
def test_a_status_that_is_known_is_taken_as_it_was_read_and_another_is_read(first: Any, second: Any) -> None:
    raw = fresh().obj
    known = ParentFacts.from_object({**raw, "status": first})
    assert ParentFacts.from_object({**raw, "status": second}, known) == ParentFacts.from_object(
        {**raw, "status": second}
    )
    again = ParentFacts.from_object({**raw, "status": copy.deepcopy(known.obj["status"])}, known)
    assert again.obj["status"] is known.obj["status"]


@FEWER
@given(texts(CONFIG), anything | st.sampled_from(["a\ud800", "x" * 100_000, "\x00"]))
def test_any_config_in_the_stored_status_and_any_annotation(config: str, annotation: str) -> None:
    world = fresh()
    world.obj["status"]["model"] = world.obj["status"]["model"] | {"config": config[:8192]}
    world.obj["metadata"]["annotations"] = {"llmservice.dev/update-requested": annotation}
    checked(stored(world))


@FEWER
@given(texts(document(STATE)), st.sampled_from(list(Phase)), st.booleans())
def test_any_state_of_a_pod(text: str, phase: Phase, is_started: bool) -> None:
    world = fresh()
    label = world.revision()
    world.pods = {"x-0": a_pod("x-0", label, ready=is_started, address="10.0.0.1")}
    state = State.from_json(text.replace('"Fetching"', f'"{phase}"', 1))
    world.reports = {"x-0": Report("uid-x-0", 0, state)}
    reported_step(world.reports["x-0"])
    metrics = Metrics()
    metrics.set_progress(Key("team-a", "x"), "x-0", state)
    metrics.exposition()
    checked(world)


@FEWER
@given(texts(document(FAILURE)) | texts(document(DrainReport(3))), st.sampled_from(["server", "runtime"]))
def test_any_termination_message_of_a_pod(text: str, container: str) -> None:
    world = fresh()
    ended = {"exitCode": 1, "reason": "Error", "message": text, "finishedAt": "2026-01-02T03:04:00Z"}
    pod = a_pod("x-0", world.revision(), state={"terminated": ended}, restarts=4)
    pod["status"]["containerStatuses"][0]["name"] = container
    pod["status"]["message"] = text
    world.pods = {"x-0": pod}
    checked(world)


@FEWER
@given(objects({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNPLACED}), st.text())
def test_any_condition_of_a_pod(condition: Any, message: str) -> None:
    world = fresh()
    pod = a_pod("x-0", world.revision(), scheduled=False, state={"waiting": {"reason": "Odd", "message": message}})
    pod["status"]["conditions"] = [condition]
    try:
        PROJECTIONS["Pod"](pod, None)
    except UnreadableObject:
        return
    world.pods = {"x-0": pod}
    checked(world)


@functools.cache
def inspecting() -> World:
    return looking()


@FEWER
@given(texts(document(INSPECTION)) | texts(document(BROKEN)))
def test_any_termination_message_of_an_inspection(text: str) -> None:
    world = copy.copy(inspecting())
    ends(world, text)
    checked(world)


def record() -> Json:
    world = settled()
    found = next(child for (kind, _), child in world.children.items() if kind == "ControllerRevision")
    data: Json = copy.deepcopy(found["data"])
    data["chosen"] |= {"gpu": "NVIDIA-H100", "maxModelLen": 4096, "updateRequested": "now"}
    data["chosen"]["plan"] = {"weightsGiB": 14.5}
    return data


@FEWER
@given(objects(record()), st.booleans(), st.booleans())
def test_any_record(data: Any, is_pinned: bool, is_update: bool) -> None:
    world = fresh()
    kind, name = next(where for where in world.children if where[0] == "ControllerRevision")
    world.children[kind, name]["data"] = data
    try:
        PROJECTIONS[kind](world.children[kind, name], None)
    except UnreadableObject:
        return
    if is_pinned:
        world.obj["spec"]["rollout"] = {"pinnedRevision": name.rpartition("-")[2]}
    if is_update:
        world.obj["metadata"]["annotations"] = {"llmservice.dev/update-requested": "again"}
    checked(world)


@pytest.mark.parametrize("kind", sorted(PROJECTIONS))
@given(data=st.data())
def test_any_object_is_projected_or_refused(kind: str, data: st.DataObject) -> None:
    obj = data.draw(of_kind(kind))
    with contextlib.suppress(UnreadableObject):
        PROJECTIONS[kind](obj, None)


@functools.cache
def of_kind(kind: str) -> st.SearchStrategy[Any]:
    world = settled()
    if kind == "LLMService":
        return objects(world.obj)
    if kind == "Pod":
        return objects(next(iter(world.pods.values())))
    if kind == "EndpointSlice":
        return objects(SLICE)
    found = next((child for (of, _), child in world.children.items() if of == kind), None)
    return objects(found or next(child for (of, _), child in world.children.items() if of == "Service"))


SLICE = {
    "metadata": {
        "name": "s",
        "namespace": "n",
        "uid": "u",
        "labels": dict.fromkeys((SERVICE_LABEL, SERVICE_NAME), "x"),
    },
    "ports": [{"port": 8000}],
    "endpoints": [{"targetRef": {"kind": "Pod", "uid": "u"}, "conditions": {"ready": True}}],
}


@FEWER
@given(objects({"reason": "FailedMount", "message": "no", "lastTimestamp": "2026-01-02T03:04:00Z", "series": {}}))
def test_any_event_about_a_pod(event: Any) -> None:
    try:
        found = PodEvent.from_object(event)
    except (AttributeError, TypeError):
        assert not isinstance(event.get("series") or {}, dict), "the API server knows what a series is"
        return
    assert len(found.message) <= 4096
    world = fresh()
    world.pods = {"x-0": a_pod("x-0", world.revision(), state={"waiting": {"reason": "ContainerCreating"}})}
    world.pods["x-0"]["status"]["phase"] = "Pending"
    world.pods["x-0"]["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T03:00:00Z"
    world.events = {"x-0": [event]}
    checked(world)


REPEATED = [
    "exceeded quota: a, requested: b, used: ",
    ", used: ",
    " ",
    "Pod a was using b, request is ",
    "{,",
    "back-off ",
]
FUNCTIONS: list[Callable[[str], object]] = [
    normalize.replica_failure,
    normalize.conflict,
    normalize.unschedulable_causes,
    normalize.waiting,
    normalize.eviction,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("text", REPEATED)
def test_long_messages_take_no_longer_than_short_ones(function: Callable[[str], object], text: str) -> None:
    """CPU time for 1 MB, which a quadratic expression would spend hours on."""
    cpu.within(2.0, lambda: function(text * (1_000_000 // len(text))))


def test_unknown_reasons_share_one_series() -> None:
    metrics = Metrics()
    for number in range(1000):
        status = {"conditions": [{"type": "Ready", "reason": f"R{number}"}], "failure": {"reason": f"F{number}"}}
        metrics.set_status(Key("team-a", "x"), status)
    text = metrics.exposition().decode()
    assert "R999" not in text
    assert "F999" not in text
    assert text.count('llmservice_services{reason="Other"} 1.0') == 1
