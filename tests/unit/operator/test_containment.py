"""An exception about one service, pod or object is that service's condition, a metric and a log line, and no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from kubeloop.informer import Cache
from kubeloop.resources import Key
from llmservice_api.conditions import ConditionType
from llmservice_api.reasons import Reason
from llmservice_operator.decision import Decision, Inputs, Update
from llmservice_operator.observe.observed import Ask
from llmservice_operator.service.containment import InternalErrors, Part
from llmservice_operator.service.context import Updates
from llmservice_operator.service.decide import complete
from llmservice_operator.service.reconcile import Workers
from llmservice_operator.service.state_poller import INTERVAL, PATIENCE, StatePoller
from llmservice_operator.service.watch import PARENT, PROJECTIONS
from llmservice_runtime.contract import Phase, State

from tests.support.patience import PATIENCE as LONGEST
from tests.unit.operator.test_updates import turn
from tests.unit.reconcile_world import KEY, World, parent

BAD, GOOD = KEY, [Key("ns", f"good-{number}") for number in range(5)]


def conditions(world: World, key: Key = BAD) -> dict[str, Mapping[str, Any]]:
    return {c["type"]: c for c in world.stored(PARENT, key.name)["status"].get("conditions", ())}


def errors_of(world: World, part: Part) -> float:
    return world.ctx.metrics.registry.get_sample_value("llmservice_internal_errors_total", {"part": part}) or 0.0


def ready_of(world: World, key: Key = BAD) -> float | None:
    labels = {"namespace": key.namespace, "service": key.name}
    return world.ctx.metrics.registry.get_sample_value("llmservice_ready", labels)


class Defect:
    """What a decision computes for one service raises."""

    def __init__(self, world: World, error: Exception) -> None:
        self.deciding, self.error, self.is_there = world.deciding, error, True
        world.ctx.decide = self

    def __call__(self, inputs: Inputs) -> Decision:
        if inputs.parent["metadata"]["name"] == BAD.name and self.is_there:
            raise self.error
        return complete(self.deciding(inputs), inputs)


async def work_until_idle(world: World, *keys: Key, later: float = 0.0) -> None:
    """The real workers on the real queue; keys that wait for their time are taken up after `later` seconds."""
    workers = Workers(world.ctx, count=2)
    task = asyncio.create_task(workers.run())
    for key in keys:
        world.ctx.queue.add(key)
    for _ in range(2):
        for _ in range(200):
            await asyncio.sleep(0)
        world.now += later
        world.ctx.queue._ring()
    workers.stop()
    await asyncio.wait_for(task, LONGEST)


@pytest.mark.parametrize(
    "error",
    [OverflowError("inf"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
async def test_a_decision_that_raises_is_shown_on_its_service_and_touches_no_other(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    since = {"message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
    stored = {"type": "Available", "status": "True", "reason": "ReplicasReady"} | since
    ready = {"type": "Ready", "status": "True", "reason": "RolledOut"} | since
    bad = parent() | {"status": {"conditions": [stored, ready], "endpoint": {"url": "u"}, "observedGeneration": 1}}
    world = World(bad, *(parent(name=key.name) for key in GOOD))
    Defect(world, error)
    with caplog.at_level(logging.ERROR):
        await work_until_idle(world, BAD, *GOOD)
    assert all(world.stored("Service", key.name) for key in GOOD)
    found = conditions(world)
    assert found["Available"] == stored, "what serves keeps serving, and the status says so as before"
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("Unknown", "InternalError")
    assert (found["Stalled"]["status"], found["Stalled"]["reason"]) == ("True", "InternalError")
    assert found["Ready"]["observedGeneration"] == 1
    assert f"{type(error).__name__} at llmservice_operator/" in found["Ready"]["message"]
    assert Reason.INTERNAL_ERROR.remedy in found["Ready"]["message"]
    assert world.status["endpoint"] == {"url": "u"}
    assert errors_of(world, Part.RECONCILE) == 1
    assert [record.object_key for record in caplog.records if hasattr(record, "object_key")] == [BAD]
    assert world.api.calls.count("event InternalError") == 1


async def test_it_is_tried_again_without_a_write_and_the_status_recovers_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(parent())
    defect = Defect(world, ValueError("x"))
    await work_until_idle(world, BAD)
    assert conditions(world).keys() == {"Ready", "Stalled"}
    world.api.calls.clear()
    for _ in range(3):
        await work_until_idle(world, later=120.0)
    assert world.api.calls == []
    assert errors_of(world, Part.RECONCILE) >= 4
    assert sum(record.exc_info is not None for record in caplog.records) == 1, "the traceback is logged once"
    defect.error = TypeError("another one")
    await work_until_idle(world, later=120.0)
    assert world.api.calls == [], "two errors in turn would write each other's message for ever"
    defect.is_there = False
    await work_until_idle(world, later=120.0)
    assert conditions(world) == {}
    assert world.stored("Service") is not None


async def test_a_service_whose_pass_always_fails_has_its_metrics_after_the_operators_restart() -> None:
    world = World(parent())
    Defect(world, ValueError("x"))
    await work_until_idle(world, BAD)
    after = World(world.stored())
    Defect(after, ValueError("x"))
    await work_until_idle(after, BAD)
    assert "status" not in " ".join(after.calls()), "nothing is written again"
    assert ready_of(after) == 0.0


async def test_a_quarantined_service_has_its_metrics_after_the_operators_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(parent())
    monkeypatch.setattr(world.ctx.in_work, "quarantined", lambda key: True)
    await work_until_idle(world, BAD)
    after = World(world.stored())
    monkeypatch.setattr(after.ctx.in_work, "quarantined", lambda key: True)
    await work_until_idle(after, BAD)
    assert ready_of(after) == 0.0


async def test_an_error_is_shown_for_its_generation_and_holds_up_no_other_update() -> None:
    world = World(parent(generation=3), parent(name=GOOD[0].name))
    Defect(world, ValueError("x"))
    assert turn(world.ctx.updates, BAD, world.ctx.cache).is_granted
    assert not turn(world.ctx.updates, GOOD[0], world.ctx.cache).is_granted
    await work_until_idle(world, BAD)
    assert (world.status["observedGeneration"], conditions(world)["Stalled"]["observedGeneration"]) == (3, 3)
    assert turn(world.ctx.updates, GOOD[0], world.ctx.cache).is_granted


@pytest.mark.parametrize("what", ["metrics", "event", "questions"])
async def test_a_failure_in_bookkeeping_does_not_stop_the_reconcile_and_is_written_once(
    what: str,
) -> None:
    world = World(parent())

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a defect")

    if what == "metrics":
        world.ctx.metrics.set_status = broken  # type: ignore[method-assign]
    elif what == "event":
        world.kube.create_event = broken  # type: ignore[method-assign]
    else:
        world.ctx.state_poller.poll = broken  # type: ignore[method-assign]
    await work_until_idle(world, BAD)
    assert world.stored("Service") is not None
    (found,) = conditions(world).values()
    assert (found["type"], found["status"], found["reason"]) == (ConditionType.DEGRADED, "True", "InternalError")
    await work_until_idle(world, BAD, later=5.0)
    world.api.calls.clear()
    for _ in range(5):
        await work_until_idle(world, BAD, later=5.0)
    assert "status" not in world.api.calls


@pytest.mark.parametrize("what", ["quarantined", "may_begin", "during"])
async def test_what_fails_around_the_reconcile_is_reported_with_its_service_and_tried_again(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(parent(), parent(name=GOOD[0].name))

    def broken(*_: Any) -> Any:
        raise OSError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(world.ctx.in_work, what, broken)
        await work_until_idle(world, BAD)
    assert world.stored("Service") is None
    assert {record.object_key for record in caplog.records if hasattr(record, "object_key")} == {BAD}
    assert errors_of(world, Part.BOOKKEEPING) == 2, "once more since its condition changed, and then after a while"
    assert conditions(world)["Stalled"]["reason"] == "InternalError"
    assert world.ctx.queue.delayed == 1, "nothing else brings it back"
    world.now += 10.0
    world.ctx.queue._ring()
    await work_until_idle(world)
    assert world.stored("Service") is not None
    assert world.ctx.queue._failures == {}


async def test_a_status_that_cannot_be_made_is_reported_with_its_service_and_not_tried_for_ever_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(parent())
    Defect(world, ValueError("x"))

    async def broken(*_: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("llmservice_operator.service.reconcile.report_unhandled", broken)
    await work_until_idle(world, BAD)
    said = [record for record in caplog.records if "internal error: bookkeeping" in record.message]
    assert {getattr(record, "object_key", None) for record in said} == {BAD}
    assert 1 <= len(said) <= 2
    assert world.ctx.queue.delayed == 1


@pytest.mark.parametrize("error", [OverflowError("1e400"), UnicodeEncodeError("utf-8", "", 0, 1, "x")])
async def test_an_answer_of_a_pod_that_raises_ends_neither_the_process_nor_the_other_questions(
    error: Exception,
) -> None:
    world = World(parent())
    asked: list[str] = []
    is_broken = True

    async def read(address: str) -> State:
        asked.append(address)
        if address == "bad" and is_broken:
            raise error
        return State(Phase.LOADING, progress="p")

    async def later(seconds: float) -> None:
        world.now += seconds
        poller._queue._ring()
        for _ in range(50):
            await asyncio.sleep(0)

    metrics, errors = world.ctx.metrics, world.ctx.errors
    poller = StatePoller(read, world.changed.append, metrics, errors=errors, clock=lambda: world.now, rng=lambda: 0.5)
    world.ctx.state_poller = poller
    task = asyncio.create_task(poller.run())
    for name, service in (("bad", "chat"), ("good", "other")):
        poller.poll(Key("ns", service), [Ask(name, "u", 0, name, True)], [name])
    for _ in range(PATIENCE + 1):
        await later(20 * INTERVAL)
    assert not task.done()
    assert min(asked.count("good"), asked.count("bad"), errors_of(world, Part.STATE)) > PATIENCE
    await world.reconcile()
    assert "state of pod bad" in conditions(world)["Degraded"]["message"]
    poller.poll(KEY, [Ask("bad", "u", 0, "bad", True)], ["bad"])
    is_broken = False
    await later(0)
    await later(100 * INTERVAL)
    await world.reconcile()
    assert conditions(world) == {}
    is_broken = True
    poller.poll(KEY, [Ask("bad", "u", 0, "bad", True)], ["bad"])
    await later(20 * INTERVAL)
    assert world.ctx.errors.degraded(KEY)
    poller.poll(KEY, [], [])
    assert world.ctx.errors.degraded(KEY) == "", "a pod that is gone leaves no error"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_service_whose_revisions_cannot_be_read_takes_no_turn_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmservice_operator.service import context

    def seen(key: Key, cache: Cache) -> Update | None:
        if key == BAD:
            raise ValueError("a defect")
        return None

    monkeypatch.setattr(context, "_seen", seen)
    world = World(parent(), parent(name=GOOD[0].name))
    found = Updates()
    assert turn(found, GOOD[0], world.ctx.cache).is_granted


def test_a_service_that_cannot_be_forgotten_whole_is_forgotten_as_far_as_it_can() -> None:
    world = World(parent())

    def broken(_: Key) -> None:
        raise KeyError("a defect")

    world.ctx.metrics.forget = broken  # type: ignore[assignment, method-assign]
    world.ctx.memory(KEY, "u")
    world.ctx.updates._reported.add(KEY)
    world.ctx.forget(KEY)
    assert world.ctx.memories == {}
    assert world.ctx.updates._reported == set()


def test_errors_are_bounded_and_reported_by_type_and_place_and_never_by_their_text() -> None:
    errors = InternalErrors()
    with errors.contained(Part.STATE, KEY, "of pod x"):
        Cache(PROJECTIONS).update(PARENT, {"metadata": {"secret": "word"}})
    shown = errors.degraded(KEY)
    assert shown.startswith("state of pod x: KeyError at kubeloop/informer.py:")
    assert "word" not in shown
    for number in range(1000):
        with errors.contained(Part.PROJECTION, KEY, f"of pod {number}"):
            raise ValueError
    assert len(errors._open[KEY]) == 64
    with pytest.raises(asyncio.CancelledError), errors.contained(Part.STATE, BAD._replace(name="other")):
        raise asyncio.CancelledError
    assert errors.degraded(BAD._replace(name="other")) == "", "a task that is cancelled is no error"


def test_a_status_that_says_nothing_of_a_priority_keeps_no_other_from_being_taken_up() -> None:
    """One LLMService that cannot be ranked at a start would leave all after it aside."""
    world = World({**parent(), "status": {"observedGeneration": "one"}}, parent(name=GOOD[0].name))
    world.ctx.enqueue([BAD, GOOD[0]])
    assert world.ctx.queue.depth == 2
