"""One look at one service: what is sent to the API server, in which order, and what is not."""

from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.queue.work_queue import Priority
from llmservice_operator.control.reconcile import FIRST_STATUS_AFTER, Next
from llmservice_operator.control.watch.kinds import PARENT
from llmservice_operator.decide.decision import Decision, Update
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.requirements import Requirements
from llmservice_operator.kube.errors import Forbidden, Invalid, KubeError, Refused, Unreachable

from tests.unit.reconcile_world import LABELS, World, parent, service


async def test_create_then_nothing() -> None:
    world = World(parent())
    assert await world.look() == Next()
    assert world.api.calls == ["get LLMService", "apply Service", "status", "event Told"]
    for _ in range(3):
        await world.look()
        assert world.api.calls == []


async def test_what_the_watch_brought_a_moment_ago_is_not_read_again() -> None:
    world = World(parent())
    world.ctx.is_current = lambda namespace: True
    assert await world.look() == Next()
    assert world.api.calls == ["apply Service", "status", "event Told"]


async def test_drift_after_our_own_status_write_needs_no_read() -> None:
    world = World(parent())
    await world.look()
    drifted = world.api._store(service(port=81), "u-Service")
    world.ctx.cache.update("Service", drifted)
    await world.look()
    assert world.api.calls == ["apply Service by force"]


async def test_the_watch_events_of_our_own_writes_are_no_news() -> None:
    world = World(parent())
    await world.look()
    for kind, name in (("Service", "chat"), (PARENT, "chat")):
        assert world.ctx.cache.update(kind, world.api.objects[kind, name]) == ()


@pytest.mark.parametrize(
    ("edits", "waits"),
    [
        pytest.param({}, None, id="our own status is no news"),
        pytest.param({"generation": 2}, Priority.EDITED, id="an edit that only the answer shows"),
        pytest.param({"deletionTimestamp": "now"}, Priority.REST, id="a deletion that only the answer shows"),
    ],
)
async def test_the_answer_to_a_status_write(edits: dict[str, Any], waits: Priority | None) -> None:
    """The watch brings an edit after the version that the answer showed already: as old news, to nobody."""
    world = World(parent())
    write = world.api.apply_status

    async def edited_just_before(manifest: Any, *, manager: str) -> Any:
        live = world.api.objects[PARENT, "chat"]
        world.api.objects[PARENT, "chat"] = {**live, "metadata": {**live["metadata"], **edits}}
        return await write(manifest, manager=manager)

    world.api.apply_status = edited_just_before  # type: ignore[method-assign]
    await world.look()
    assert world.ctx.queue.depth == int(waits is not None)
    assert [priority for priority in Priority if world.ctx.queue.waits(priority)] == ([] if waits is None else [waits])


OTHER = Key("ns", "other")
FAILED = {"reason": "Unschedulable"}


@pytest.mark.parametrize(
    ("waiting", "before", "told", "is_written"),
    [
        pytest.param(None, {}, {}, True, id="nobody waits"),
        pytest.param(Priority.NEW, {}, {}, False, id="others wait for their children"),
        pytest.param(Priority.REST, {}, {}, True, id="others wait for less"),
        pytest.param(Priority.NEW, {"observedGeneration": 1}, {}, True, id="it was told of before"),
        pytest.param(Priority.NEW, {}, {"failure": FAILED}, True, id="it failed"),
        pytest.param(Priority.NEW, {}, {"conditions": [("Stalled", "True")]}, True, id="it is stalled"),
        pytest.param(Priority.NEW, {}, {"conditions": [("Ready", "True")]}, True, id="it is ready"),
        pytest.param(Priority.NEW, {}, {"conditions": [("Ready", "False")]}, False, id="it is on its way"),
    ],
)
async def test_when_a_new_service_is_told_of(
    waiting: Priority | None, before: Any, told: Any, is_written: bool
) -> None:
    world = World({**parent(), "status": before})
    whole = {"reason": "Told", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    listed = [{"type": kind, "status": status} | whole for kind, status in told.get("conditions", ())]
    world.deciding.more = {**told, "conditions": listed} if listed else told
    if waiting is not None:
        world.ctx.queue.add(OTHER, waiting)
    then = await world.look()
    assert "apply Service" in world.api.calls
    assert ("status" in world.api.calls) is is_written
    assert then.after == (None if is_written else FIRST_STATUS_AFTER)
    if waiting is not None:
        world.ctx.queue.done(await world.ctx.queue.get())
    await world.look()
    assert ("status" in world.api.calls) is not is_written


async def test_our_own_status_that_the_watch_brings_before_its_answer_is_no_news() -> None:
    world = World(parent())
    write = world.api.apply_status
    told: list[Key] = []

    async def seen_first(manifest: Any, *, manager: str) -> Any:
        answer = await write(manifest, manager=manager)
        told.extend(world.ctx.cache.update(PARENT, answer))
        return answer

    world.api.apply_status = seen_first  # type: ignore[method-assign]
    await world.look()
    assert "status" in world.api.calls
    assert told == []


@pytest.mark.parametrize(
    ("stored", "calls"),
    [
        pytest.param(None, ["get LLMService"], id="gone"),
        pytest.param(parent(9, deletionTimestamp="now"), ["get LLMService"], id="deleting"),
    ],
)
async def test_a_stale_cache_does_not_revive_what_is_gone(stored: Any, calls: list[str]) -> None:
    world = World(parent())
    world.api.objects.clear()
    if stored:
        world.api.objects[PARENT, "chat"] = stored
    assert await world.look() == Next()
    assert world.api.calls == calls
    await world.look()
    assert world.api.calls == []


async def test_a_newer_spec_is_what_is_carried_out() -> None:
    world = World(parent(1))
    world.api.objects[PARENT, "chat"] = parent(9, generation=2)
    ports: list[int] = []
    write = world.api.apply

    async def apply(manifest: Any, *, manager: str, force: bool = False) -> Any:
        ports.append(manifest["spec"]["port"])
        return await write(manifest, manager=manager, force=force)

    def decide(inputs: Inputs) -> Decision:
        world.deciding.wanted = service(port=inputs.parent["metadata"]["generation"])
        return world.deciding(inputs)

    world.api.apply, world.ctx.decide = apply, decide  # type: ignore[method-assign]
    await world.look()
    assert ports == [2]
    assert world.api.objects[PARENT, "chat"]["status"]["observedGeneration"] == 2


async def test_an_invalid_spec_is_told_once_and_nothing_else_is_done() -> None:
    world = World(parent(uri="hf://"))
    await world.look()
    assert world.api.calls == ["get LLMService", "status"]
    await world.look()
    assert world.api.calls == []


async def test_a_foreign_service_is_not_taken_over() -> None:
    foreign = {**service(), "metadata": {"namespace": "ns", "name": "chat", "uid": "f", "resourceVersion": "3"}}
    world = World(parent())
    world.api.objects["Service", "chat"] = foreign
    then = await world.look()
    assert world.api.calls == ["get LLMService", "apply Service", "get Service", "status", "event Told"]
    assert world.api.objects["Service", "chat"] is foreign
    assert world.api.objects[PARENT, "chat"]["status"]["refused"] == ['conflict with "helm"']
    assert then.after is not None


async def test_a_refusal_is_tried_again_later_and_later_without_a_status_write() -> None:
    world = World(parent())
    foreign = {**service(), "metadata": {"namespace": "ns", "name": "chat", "uid": "f", "resourceVersion": "3"}}
    world.api.objects["Service", "chat"] = foreign
    waits = [(await world.look()).after]
    for _ in range(7):
        # In between, events about it ask for nothing.
        assert (await world.look()).after == waits[-1]
        assert world.api.calls == []
        world.now += waits[-1] or 0
        waits.append((await world.look()).after)
        assert world.api.calls == ["apply Service", "get Service"]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_once_the_name_is_free_it_is_taken() -> None:
    world = World(parent())
    foreign = {**service(), "metadata": {"namespace": "ns", "name": "chat", "uid": "f", "resourceVersion": "3"}}
    world.api.objects["Service", "chat"] = foreign
    await world.look()
    del world.api.objects["Service", "chat"]
    world.now += 1
    assert await world.look() == Next()
    assert world.api.calls == ["apply Service", "status", "event Told"]
    assert world.api.objects[PARENT, "chat"]["status"]["refused"] == []


async def test_an_edited_spec_tries_at_once_what_was_refused() -> None:
    world = World(parent())
    world.api.fails["apply Service"] = [Refused("exceeded quota", code=403)]
    await world.look()
    edited = {**world.api.objects[PARENT, "chat"]}
    edited["metadata"] = {**edited["metadata"], "generation": 2, "resourceVersion": "500"}
    world.api.objects[PARENT, "chat"] = edited
    world.ctx.cache.update(PARENT, edited)
    await world.look()
    assert "apply Service" in world.api.calls
    assert ("Service", "chat") in world.api.objects


async def test_our_own_child_that_lost_its_label_is_taken_back() -> None:
    """The watch asks for the label, so the child looks gone; it still carries our controller reference."""
    world = World(parent())
    await world.look()
    mine = world.api.objects["Service", "chat"]
    unlabelled = {**mine, "metadata": {**mine["metadata"], "labels": {}, "resourceVersion": "900"}}
    world.api.objects["Service", "chat"] = unlabelled
    world.ctx.cache.remove("Service", "ns", "chat", mine["metadata"]["uid"])
    await world.look()
    assert world.api.calls == ["get LLMService", "apply Service", "get Service", "apply Service by force"]
    assert world.api.objects["Service", "chat"]["metadata"]["labels"] == LABELS


async def test_a_child_that_vanished_unseen_is_made_anew_after_the_conflict() -> None:
    world = World(parent())
    await world.look()
    world.deciding.wanted = service(port=90)
    del world.api.objects["Service", "chat"]
    with pytest.raises(KubeError, match="changed under our hands"):
        await world.look()
    assert world.api.calls == ["apply Service by force", "get Service"]
    await world.look()
    assert world.api.calls == ["get LLMService", "apply Service"]


async def with_a_field_of_others() -> World:
    """They set a session affinity, and changed the port."""
    world = World(parent())
    await world.look()
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:sessionAffinity": {}}}}
    drifted = world.api._store(service(port=81, sessionAffinity="ClientIP"), "u-Service")
    drifted["metadata"]["managedFields"] = [theirs]
    world.ctx.cache.update("Service", drifted)
    world.deciding.expel = True
    return world


async def test_what_ours_may_not_stand_beside_is_taken_out_before_it_is_applied() -> None:
    world = await with_a_field_of_others()
    world.api.fails["apply Service by force"] = [Invalid("may not both be set", code=422)]
    await world.look()
    tried = ["apply Service by force", "get Service", "patch Service", "apply Service by force"]
    assert world.api.calls == tried
    assert world.api.objects["Service", "chat"]["spec"] == {"port": 80}


async def test_what_is_refused_for_itself_is_told_in_the_words_of_that_refusal() -> None:
    world = await with_a_field_of_others()
    world.api.fails["apply Service by force"] = [Invalid("no such port", code=422)]
    world.api.fails["patch Service"] = [Invalid("the patch does not apply", code=422)]
    await world.look()
    assert world.api.calls[:3] == ["apply Service by force", "get Service", "patch Service"]
    assert world.api.objects[PARENT, "chat"]["status"]["refused"] == ["no such port"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(
            Forbidden("no", right="patch services", code=403),
            "no; grant it: patch services (the chart's role has every right that is needed)",
            id="a right is missing",
        ),
        pytest.param(Refused("exceeded quota", code=403), "exceeded quota", id="a quota"),
    ],
)
async def test_a_refusal_is_told_in_the_status(error: KubeError, told: str) -> None:
    world = World(parent())
    world.api.fails["apply Service"] = [error]
    then = await world.look()
    assert then.after == 1
    assert world.api.calls == ["get LLMService", "apply Service", "status", "event Told"]
    assert world.api.objects[PARENT, "chat"]["status"]["refused"] == [told]


async def test_what_cannot_be_written_is_told_from_the_second_time_on() -> None:
    world = World(parent())
    world.api.fails["apply Service"] = [Unreachable("no answer"), Unreachable("no answer")]
    with pytest.raises(Unreachable):
        await world.look()
    assert world.api.calls == ["get LLMService", "apply Service"]
    with pytest.raises(Unreachable):
        await world.look()
    assert world.api.calls == ["apply Service", "status", "event Told"]
    await world.look()
    assert "apply Service" in world.api.calls
    world.api.fails["apply Service by force"] = [Unreachable("no answer")]
    world.ctx.cache.update("Service", world.api._store(service(port=81), "u-Service"))
    with pytest.raises(Unreachable):
        await world.look()
    assert "status" not in world.api.calls, "the first one in a row again"


async def test_pruning_asks_for_the_very_object() -> None:
    world = World(parent())
    await world.look()
    world.deciding.prune = True
    await world.look()
    assert world.api.calls == ["delete Service u-Service", "status", "event Told"]
    await world.look()
    assert world.api.calls == []


async def test_a_builder_at_war_with_a_webhook_gives_up_and_says_so() -> None:
    world = World(parent())
    world.deciding.never_content = True
    then = await world.settle()
    assert then.failure is not None
    assert "do not become what was applied" in then.failure
    assert len([call for call in world.api.calls if call.startswith("apply")]) == 4
    assert world.api.calls.count("status") == 1
    await world.settle()
    assert [call for call in world.api.calls if call.startswith("apply")] == ["apply Service by force"]
    world.deciding.never_content = False
    assert await world.settle() == Next()


async def test_writes_that_are_put_right_each_time_are_no_war() -> None:
    world = World(parent())
    await world.settle()
    for port in range(90, 100):
        world.ctx.cache.update("Service", world.api._store(service(port=port), "u-Service"))
        assert await world.settle() == Next()


async def test_a_turn_that_another_service_took_meanwhile_is_waited_for() -> None:
    """It was free when it was looked up; the nodes were listed then, which took its time."""
    world = World(parent())
    world.ctx.requirements = lambda inputs: Requirements(turn=inputs.turn is None)
    granted: list[bool] = []

    def decide(inputs: Inputs) -> Decision:
        assert inputs.turn is not None
        if not granted:
            assert world.ctx.updates.claim(OTHER)
        granted.append(inputs.turn.value.is_granted)
        return Decision(claims_turn=granted[-1], update=None if granted[-1] else Update.WAITS)

    world.ctx.decide = decide
    await world.look()
    assert granted == [True, False]


async def test_an_event_that_cannot_be_made_stops_nothing() -> None:
    world = World(parent())
    world.api.fails["event Told"] = [Forbidden("no", right="create events", code=403)]
    assert await world.look() == Next()


async def test_a_new_object_of_the_same_name_starts_afresh() -> None:
    world = World(parent())
    await world.look()
    world.ctx.cache.remove(PARENT, "ns", "chat", "u-1")
    await world.look()
    assert world.ctx.memories == {}
    again = parent(300, uid="u-2")
    world.api.objects[PARENT, "chat"] = again
    world.ctx.cache.update(PARENT, again)
    await world.look()
    assert world.api.calls[0] == "get LLMService"
