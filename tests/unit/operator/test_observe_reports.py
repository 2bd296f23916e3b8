"""What the status shows of supervisors' reports: progress, measurements, adapters; and which pods are asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from llmservice_api.status import LLMServiceStatus
from llmservice_operator.manifests.children import adapters_digest
from llmservice_operator.observe.observed import Report
from llmservice_runtime.contract import AdapterState, Measured, Phase, State, Transfer, TransferStep

from tests.unit.decide_world import World, a_pod, an_llmservice, spec
from tests.unit.status_states import edited, service, with_pods

Json = dict[str, Any]

MEASURED = Measured(kv_cache_tokens=4096, max_concurrency=2.0, model_memory_gib=0.5, start_seconds=31.5)
TRANSFER = Transfer("model", TransferStep.DOWNLOADING, 500, 1000, 50.0)
FETCHING = State(Phase.FETCHING, progress="model: Downloading 50%", transfer=TRANSFER)
LOADING = State(Phase.LOADING, progress="loading weights")
SERVING = State(Phase.SERVING, started=True, ready=True, measured=MEASURED)
ADDRESS = "10.0.0.7"


def starting(**pod: Any) -> World:
    """One pod of the current revision runs and is not ready."""
    world = service()
    return with_pods(world, a_pod("x-0", world.revision(), **{"address": ADDRESS, **pod}))


def receive(world: World, state: State | None, pod: str = "x-0", restarts: int = 0) -> None:
    world.reports[pod] = Report(f"uid-{pod}", restarts, state)
    world.settle()


def become_ready(world: World) -> None:
    with_pods(world, a_pod("x-0", world.revision(), ready=True, address=ADDRESS))


def asked(world: World) -> list[tuple[str, bool]]:
    return [(ask.pod, ask.is_starting) for ask in world.decide().asks]


DOWNLOAD: Json = {"message": "model: Downloading 50%", "artifact": "model", "step": "Downloading", "percent": 50}
PHASES: list[tuple[State, Json, str]] = [
    (FETCHING, {"phase": "Fetching", "bytesPerSecond": 50, "etaSeconds": 10} | DOWNLOAD, "being fetched"),
    (State(Phase.PREFLIGHT), {"phase": "Preflight"}, "being checked"),
    (LOADING, {"phase": "Loading", "message": "loading weights"}, "loading the model"),
    (State(Phase.SMOKE), {"phase": "Smoke"}, "first request"),
]


@pytest.mark.parametrize(("state", "progress", "message"), PHASES)
def test_a_starting_pod_shows_its_progress(state: State, progress: Json, message: str) -> None:
    world = starting()
    receive(world, state)
    assert world.obj["status"]["progress"] == {"pod": "x-0", **progress}
    ready = world.conditions()["Ready"]
    assert ready["reason"] == "Starting"
    assert message in ready["message"]
    assert not any(character.isdigit() for character in ready["message"])
    parsed = LLMServiceStatus.model_validate(world.obj["status"])
    kept = parsed.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert kept["progress"] == world.obj["status"]["progress"]


@pytest.mark.parametrize(
    ("state", "pod"),
    [
        (None, {}),
        (SERVING, {}),
        (State(Phase.FAILED), {}),
        (FETCHING, {"restarts": 1}),
        (FETCHING, {"deleting": True}),
        (FETCHING, {"ready": True}),
        (FETCHING, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}),
    ],
    ids=["no state", "serving", "failed", "an earlier run", "deleting", "ready", "not running"],
)
def test_no_progress_of_a_pod_that_does_not_start(state: State | None, pod: Json) -> None:
    world = starting(**pod)
    receive(world, state)
    assert "progress" not in world.obj["status"]


def test_one_pod_is_reported_for_as_long_as_it_starts() -> None:
    world = starting()
    world.pods["x-1"] = a_pod("x-1", world.revision(), address="10.0.0.8")
    receive(world, FETCHING, "x-1")
    receive(world, State(Phase.LOADING), "x-0")
    assert world.obj["status"]["progress"]["pod"] == "x-1"
    receive(world, SERVING, "x-1")
    assert world.obj["status"]["progress"]["pod"] == "x-0"


def test_pods_are_asked_while_they_start_and_once_when_they_serve() -> None:
    world = starting(address="")
    assert asked(world) == [], "it has no address yet"
    world.pods = {"x-0": a_pod("x-0", world.revision(), address=ADDRESS)}
    assert asked(world) == [("x-0", True)]
    receive(world, FETCHING)
    assert asked(world) == [("x-0", True)]
    become_ready(world)
    assert asked(world) == [("x-0", False)], "the last report is of the start"
    receive(world, SERVING)
    assert asked(world) == []
    world.pods["x-0"]["metadata"]["labels"]["llmservice.dev/revision"] = "another"
    assert asked(world) == [], "pods of other revisions are not asked"


def test_measurements_stay_through_restarts_and_silence_until_another_revision() -> None:
    world = starting()
    receive(world, SERVING)
    become_ready(world)
    assert world.obj["status"]["measured"] == MEASURED.to_document()
    world.reports.clear()  # another process
    assert world.decide().is_steady
    assert asked(world) == []
    receive(world, None)
    assert world.obj["status"]["measured"] == MEASURED.to_document()
    edited(world)
    assert "measured" not in world.obj["status"]


def test_with_a_start_cache_each_new_pod_is_asked_once() -> None:
    """Its start took another time than the first one, which the status has."""
    world = starting()
    receive(world, replace(SERVING, measured=replace(MEASURED, start_cache="New")))
    become_ready(world)
    assert asked(world) == []
    world.reports.clear()
    assert asked(world) == [("x-0", False)]
    receive(world, replace(SERVING, measured=replace(MEASURED, start_cache="Reused", start_seconds=9)))
    assert (world.obj["status"]["measured"]["startCache"], asked(world)) == ("Reused", [])


def test_a_pod_that_does_not_answer_is_reported_beforehand_and_changes_nothing() -> None:
    world = starting()
    become_ready(world)
    assert "port 8081" in world.obj["status"]["measured"]["reason"]
    before, writes = world.conditions(), world.status_writes
    receive(world, None)
    assert asked(world) == [("x-0", False)], "it may answer later"
    assert (world.conditions(), world.status_writes) == (before, writes)


def test_a_pod_that_was_silent_while_it_started_is_measured_once_it_answers() -> None:
    world = starting()
    receive(world, None)
    become_ready(world)
    assert asked(world) == [("x-0", False)]
    receive(world, SERVING)
    assert (world.obj["status"]["measured"], asked(world)) == (MEASURED.to_document(), [])


def test_an_unchanged_report_is_not_written_twice() -> None:
    world = starting()
    receive(world, FETCHING)
    world.now += timedelta(minutes=1)
    assert world.decide().is_steady


def listed(*names: str) -> list[Json]:
    return [{"name": name, "uri": f"hf://a/{name}"} for name in names]


def with_adapters(*names: str) -> World:
    world = World(an_llmservice(spec(adapters=listed(*names))))
    world.settle()
    become_ready(world)
    return world


def serving(world: World, *states: AdapterState, digest: str | None = None) -> State:
    found = adapters_digest(world.service()) if digest is None else digest
    return State(Phase.SERVING, started=True, ready=True, measured=MEASURED, adapters=states, adapters_hash=found or "")


def loaded(world: World) -> dict[str, bool]:
    return {item["name"]: item["loaded"] for item in world.obj["status"]["adapters"]}


ONE, TWO = AdapterState("one", loaded=True), AdapterState("two", loaded=True)
BAD = AdapterState("two", loaded=False, message="Its rank is too great.")


def test_adapters_are_loaded_once_every_replica_reports_them() -> None:
    world = with_adapters("two", "one")
    assert loaded(world) == {"one": False, "two": False}
    assert world.obj["status"]["endpoint"]["modelNames"] == ["x"]
    assert asked(world) == [("x-0", False)]
    receive(world, serving(world, ONE, TWO))
    assert loaded(world) == {"one": True, "two": True}
    assert world.obj["status"]["endpoint"]["modelNames"] == ["x", "one", "two"]
    assert asked(world) == []
    world.pods["x-1"] = a_pod("x-1", world.revision(), ready=True, address="10.0.0.8")
    receive(world, serving(world, ONE, AdapterState("two", loaded=False)), "x-1")
    assert loaded(world) == {"one": True, "two": False}
    assert asked(world) == [("x-1", False)]


def test_a_broken_adapter_leaves_the_service_ready_and_is_reported_once() -> None:
    world = with_adapters("one", "two")
    world.reports["x-0"] = Report("uid-x-0", 0, serving(world, ONE, BAD))
    (event,) = [event for event in world.step().events if event.type == "Warning"]
    assert (event.reason, event.message) == ("AdapterNotServed", "Adapter two: Its rank is too great.")
    world.settle()
    ready = world.conditions()["Ready"]
    assert (ready["status"], ready["reason"]) == ("True", "RolledOut")
    assert "not served: two" in ready["message"]
    assert world.obj["status"]["endpoint"]["modelNames"] == ["x", "one"]
    assert asked(world) == [("x-0", False)], "the server retries by itself"
    receive(world, serving(world, ONE, TWO))
    assert "not served" not in world.conditions()["Ready"]["message"]


def test_a_failure_of_an_earlier_list_is_not_reported_of_a_new_adapter() -> None:
    world = with_adapters("one")
    receive(world, serving(world, ONE))
    edited(world, adapters=listed("one", "two"))
    assert loaded(world) == {"one": True, "two": False}
    assert world.conditions()["Ready"]["status"] == "True"
    assert asked(world) == [("x-0", False)]
    receive(world, serving(world, ONE, BAD, digest="of an earlier list"))
    assert world.obj["status"]["adapters"][1] == {"name": "two", "loaded": False}
    receive(world, serving(world, ONE, BAD))
    assert world.obj["status"]["adapters"][1]["message"] == BAD.message


def test_another_process_asks_about_adapters_and_writes_nothing() -> None:
    world = with_adapters("one")
    receive(world, serving(world, ONE))
    writes = world.status_writes
    world.reports.clear()
    assert world.decide().is_steady
    assert asked(world) == [("x-0", False)]
    receive(world, serving(world, ONE))
    assert world.status_writes == writes
    assert asked(world) == []
