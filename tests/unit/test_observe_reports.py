"""What becomes of what supervisors say: progress, measured values, adapters; and which pods are asked at all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from llmservice_operator.api.status import LLMServiceStatus
from llmservice_operator.build import adapters
from llmservice_operator.observe.reports import Report
from llmservice_runtime.contract import AdapterState, Measured, Phase, State, Transfer, TransferStep

from tests.unit.decide_world import World, a_pod, an_llmservice, spec

Json = dict[str, Any]

MEASURED = Measured(kv_cache_tokens=4096, max_concurrency=2.0, model_memory_gib=0.5, start_seconds=31.5)
TRANSFER = Transfer("model", TransferStep.DOWNLOADING, 500, 1000, 50.0)
FETCHING = State(Phase.FETCHING, progress="model: Downloading 50%", transfer=TRANSFER)
SERVING = State(Phase.SERVING, started=True, ready=True, measured=MEASURED)
ADDRESS = "10.0.0.7"


def starting(**pod: Any) -> World:
    """One pod of the current revision runs and is not ready."""
    world = World(an_llmservice(spec()))
    world.settle()
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    world.pods = {"x-0": a_pod("x-0", world.revision(), **{"address": ADDRESS, **pod})}
    world.settle()
    return world


def hear(world: World, state: State | None, pod: str = "x-0", restarts: int = 0) -> None:
    world.reports[pod] = Report(f"uid-{pod}", restarts, state)
    world.settle()


def becomes_ready(world: World) -> None:
    world.roll_out()
    world.pods = {"x-0": a_pod("x-0", world.revision(), ready=True, address=ADDRESS)}
    world.settle()


def asked(world: World) -> list[tuple[str, bool]]:
    return [(ask.pod, ask.is_starting) for ask in world.decide().asks]


@pytest.mark.parametrize(
    ("state", "told", "message"),
    [
        pytest.param(
            FETCHING,
            {
                "phase": "Fetching",
                "message": "model: Downloading 50%",
                "artifact": "model",
                "step": "Downloading",
                "percent": 50,
                "bytesPerSecond": 50,
                "etaSeconds": 10,
            },
            "being fetched",
            id="fetching",
        ),
        pytest.param(State(Phase.PREFLIGHT), {"phase": "Preflight"}, "being checked", id="preflight"),
        pytest.param(
            State(Phase.LOADING, progress="loading weights"),
            {"phase": "Loading", "message": "loading weights"},
            "loading the model",
            id="loading",
        ),
        pytest.param(State(Phase.SMOKE), {"phase": "Smoke"}, "first request", id="smoke"),
    ],
)
def test_a_pod_that_starts_shows_how_far_it_is(state: State, told: Json, message: str) -> None:
    world = starting()
    hear(world, state)
    assert world.obj["status"]["progress"] == {"pod": "x-0", **told}
    ready = world.conditions()["Ready"]
    assert ready["reason"] == "Starting"
    assert message in ready["message"]
    assert not any(character.isdigit() for character in ready["message"])
    kept = LLMServiceStatus.model_validate(world.obj["status"]).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    assert kept["progress"] == world.obj["status"]["progress"]


@pytest.mark.parametrize(
    ("state", "pod"),
    [
        pytest.param(None, {}, id="it says nothing"),
        pytest.param(SERVING, {}, id="it serves"),
        pytest.param(State(Phase.FAILED), {}, id="it failed"),
        pytest.param(FETCHING, {"restarts": 1}, id="an earlier run of it"),
        pytest.param(FETCHING, {"deleting": True}, id="it is going away"),
        pytest.param(FETCHING, {"ready": True}, id="it is ready"),
        pytest.param(FETCHING, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, id="it does not run"),
    ],
)
def test_what_is_no_progress(state: State | None, pod: Json) -> None:
    world = starting(**pod)
    hear(world, state)
    assert "progress" not in world.obj["status"]


def test_one_pod_is_reported_for_as_long_as_it_starts() -> None:
    world = starting()
    world.pods["x-1"] = a_pod("x-1", world.revision(), address="10.0.0.8")
    hear(world, FETCHING, "x-1")
    hear(world, State(Phase.LOADING), "x-0")
    assert world.obj["status"]["progress"]["pod"] == "x-1"
    hear(world, SERVING, "x-1")
    assert world.obj["status"]["progress"]["pod"] == "x-0"


def test_pods_are_asked_while_they_start_and_once_when_they_serve() -> None:
    world = starting(address="")
    assert asked(world) == [], "it has no address yet"
    world.pods = {"x-0": a_pod("x-0", world.revision(), address=ADDRESS)}
    assert asked(world) == [("x-0", True)]
    hear(world, FETCHING)
    assert asked(world) == [("x-0", True)]
    becomes_ready(world)
    assert asked(world) == [("x-0", False)], "the last that was heard was of the start"
    hear(world, SERVING)
    assert asked(world) == []
    world.pods["x-0"]["metadata"]["labels"]["llmservice.dev/revision"] = "another"
    assert asked(world) == [], "pods of other revisions are not asked"


def test_what_was_measured_is_reported_and_stays() -> None:
    world = starting()
    hear(world, SERVING)
    becomes_ready(world)
    assert world.obj["status"]["measured"] == MEASURED.to_document()
    world.reports.clear()  # another process
    assert world.decide().is_steady
    assert asked(world) == []
    world.edit(batching={"maxNumSeqs": 9})
    world.settle()
    assert "measured" not in world.obj["status"], "another revision measures anew"


def test_that_a_pod_cannot_be_asked_is_reported_beforehand_and_changes_nothing() -> None:
    world = starting()
    becomes_ready(world)
    assert "port 8081" in world.obj["status"]["measured"]["reason"]
    before, writes = world.conditions(), world.status_writes
    hear(world, None)
    assert world.conditions() == before
    assert world.status_writes == writes
    assert asked(world) == []
    # After a restart of the operator it is asked again; that alone is nothing to write.
    world.reports.clear()
    assert asked(world) == [("x-0", False)]
    assert world.decide().is_steady
    hear(world, None)
    assert world.status_writes == writes


def test_what_was_measured_is_not_lost_when_the_pod_falls_silent() -> None:
    world = starting()
    hear(world, SERVING)
    becomes_ready(world)
    hear(world, None)
    assert world.obj["status"]["measured"] == MEASURED.to_document()


def test_the_same_is_not_written_twice() -> None:
    world = starting()
    hear(world, FETCHING)
    writes = world.status_writes
    for _ in range(3):
        world.now += timedelta(minutes=1)
        world.settle()
    assert world.status_writes == writes


def with_adapters(*names: str) -> World:
    world = World(an_llmservice(spec(adapters=[{"name": name, "uri": f"hf://a/{name}"} for name in names])))
    world.settle()
    becomes_ready(world)
    return world


def serving(world: World, *states: AdapterState, digest: str | None = None) -> State:
    found = adapters.digest(world.service()) if digest is None else digest
    return State(Phase.SERVING, started=True, ready=True, measured=MEASURED, adapters=states, adapters_hash=found or "")


ONE, TWO = AdapterState("one", loaded=True), AdapterState("two", loaded=True)
BAD = AdapterState("two", loaded=False, message="Its rank is too great.")


def test_adapters_are_reported_by_every_replica() -> None:
    world = with_adapters("two", "one")
    assert world.obj["status"]["adapters"] == [{"name": "one", "loaded": False}, {"name": "two", "loaded": False}]
    assert world.obj["status"]["endpoint"]["modelNames"] == ["x"]
    assert asked(world) == [("x-0", False)]
    hear(world, serving(world, ONE, TWO))
    assert world.obj["status"]["adapters"] == [{"name": "one", "loaded": True}, {"name": "two", "loaded": True}]
    assert world.obj["status"]["endpoint"]["modelNames"] == ["x", "one", "two"]
    assert asked(world) == []
    world.pods["x-1"] = a_pod("x-1", world.revision(), ready=True, address="10.0.0.8")
    hear(world, serving(world, ONE, AdapterState("two", loaded=False)), "x-1")
    assert world.obj["status"]["adapters"][1] == {"name": "two", "loaded": False}
    assert asked(world) == [("x-1", False)]


def test_a_broken_adapter_leaves_the_service_ready_and_is_reported_once() -> None:
    world = with_adapters("one", "two")
    world.reports["x-0"] = Report("uid-x-0", 0, serving(world, ONE, BAD))
    decision = world.step()
    (event,) = [event for event in decision.events if event.type == "Warning"]
    assert (event.reason, event.message) == ("AdapterNotServed", "Adapter two: Its rank is too great.")
    world.settle()
    ready = world.conditions()["Ready"]
    assert (ready["status"], ready["reason"]) == ("True", "RolledOut")
    assert "not served: two" in ready["message"]
    assert world.obj["status"]["endpoint"]["modelNames"] == ["x", "one"]
    # The server tries again by itself, so somebody has to look.
    assert asked(world) == [("x-0", False)]
    hear(world, serving(world, ONE, TWO))
    assert "not served" not in world.conditions()["Ready"]["message"]


def test_a_new_adapter_is_on_its_way_until_pods_have_the_list() -> None:
    world = with_adapters("one")
    hear(world, serving(world, ONE))
    world.edit(adapters=[{"name": name, "uri": f"hf://a/{name}"} for name in ("one", "two")])
    world.settle()
    assert world.obj["status"]["adapters"] == [{"name": "one", "loaded": True}, {"name": "two", "loaded": False}]
    assert world.conditions()["Ready"]["status"] == "True"
    assert asked(world) == [("x-0", False)]
    hear(world, serving(world, ONE, BAD, digest="of an earlier list"))
    assert world.obj["status"]["adapters"][1] == {"name": "two", "loaded": False}
    hear(world, serving(world, ONE, BAD))
    assert world.obj["status"]["adapters"][1]["message"] == BAD.message


def test_another_process_asks_about_adapters_and_writes_nothing() -> None:
    world = with_adapters("one")
    hear(world, serving(world, ONE))
    writes = world.status_writes
    world.reports.clear()
    assert world.decide().is_steady
    assert asked(world) == [("x-0", False)]
    hear(world, serving(world, ONE))
    assert world.status_writes == writes
    assert asked(world) == []
