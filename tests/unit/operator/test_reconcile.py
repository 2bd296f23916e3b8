"""One pass over one service: what is sent to the API server, what is not, and what the cluster holds at the end."""

from typing import Any

import pytest
from kubeloop.errors import Forbidden, Invalid, KubeError, Refused, Unreachable
from kubeloop.queue import Priority
from kubeloop.resources import Key, Resource
from llmservice_operator.decision import Decision, Inputs, Requirements, Update
from llmservice_operator.service.reconcile import FIRST_STATUS_AFTER, Next
from llmservice_operator.service.watch import PARENT

from tests.unit.api_server import CREATED
from tests.unit.reconcile_world import KEY, LABELS, World, parent, service

OTHER = Key("ns", "other")
FOREIGN = {**service(), "metadata": {"namespace": "ns", "name": "chat", "uid": "f", "resourceVersion": "3"}}


async def reconciled() -> World:
    """With the Service made and the status written."""
    world = World(parent())
    assert await world.reconcile() == Next()
    return world


async def test_create_then_nothing() -> None:
    world = await reconciled()
    assert world.calls() == ["get LLMService", "apply Service", "status", "event Told"]
    for kind in ("Service", PARENT):
        assert world.ctx.cache.update(kind, world.stored(kind)) == (), "the watch events of our own writes"
    for _ in range(3):
        await world.reconcile()
        assert world.calls() == []


async def test_what_the_watch_brought_a_moment_ago_is_not_read_again() -> None:
    world = World(parent())
    world.ctx.is_current = lambda namespace: True
    assert await world.reconcile() == Next()
    assert world.calls() == ["apply Service", "status", "event Told"]


async def test_a_service_whose_writes_fail_has_its_metrics_after_a_restart() -> None:
    world = await reconciled()
    ready = {"type": "Ready", "status": "True", "reason": "RolledOut", "message": "", "lastTransitionTime": CREATED}
    after = World(world.stored() | {"status": {"conditions": [ready]}})
    after.api.fails["apply Service"] = [Unreachable("no answer")]
    with pytest.raises(KubeError):
        await after.reconcile()
    labels = {"namespace": KEY.namespace, "service": KEY.name}
    assert after.ctx.metrics.registry.get_sample_value("llmservice_ready", labels) == 1.0


async def test_drift_after_our_own_status_write_needs_no_read() -> None:
    world = await reconciled()
    world.drift(port=81)
    await world.reconcile()
    assert world.calls() == ["apply Service by force"]


@pytest.mark.parametrize(
    ("edits", "waits"),
    [
        pytest.param({}, None, id="our own status"),
        pytest.param({"generation": 2}, Priority.EDITED, id="an edit that only the answer shows"),
        pytest.param({"deletionTimestamp": "now"}, Priority.REST, id="a deletion that only the answer shows"),
    ],
)
async def test_the_answer_to_a_status_write(edits: dict[str, Any], waits: Priority | None) -> None:
    """The watch brings an edit after the version that the answer showed already: nothing is queued for it."""
    world = World(parent())
    write = world.kube.apply_status
    queued: list[Key] = []

    async def edited_just_before(resource: Resource, manifest: Any, *, manager: str) -> Any:
        world.api.put(world.stored(), **edits)
        answer = await write(resource, manifest, manager=manager)
        if not edits:
            queued.extend(world.ctx.cache.update(PARENT, answer))  # the watch may be faster than the answer
        return answer

    world.kube.apply_status = edited_just_before  # type: ignore[method-assign]
    await world.reconcile()
    assert "status" in world.calls()
    assert (queued, world.ctx.queue.depth) == ([], int(waits is not None))
    assert [priority for priority in Priority if world.ctx.queue.waits(priority)] == ([] if waits is None else [waits])


@pytest.mark.parametrize(
    ("waiting", "before", "more", "is_written"),
    [
        pytest.param(None, {}, {}, True, id="nobody waits"),
        pytest.param(Priority.NEW, {}, {}, False, id="others wait for their children"),
        pytest.param(Priority.REST, {}, {}, True, id="others wait for less"),
        pytest.param(Priority.NEW, {"observedGeneration": 1}, {}, True, id="it has a status"),
        pytest.param(Priority.NEW, {}, {"failure": {"reason": "Unschedulable"}}, True, id="it failed"),
        pytest.param(Priority.NEW, {}, {"conditions": ("Stalled", "True")}, True, id="it is stalled"),
        pytest.param(Priority.NEW, {}, {"conditions": ("Ready", "True")}, True, id="it is ready"),
        pytest.param(Priority.NEW, {}, {"conditions": ("Ready", "False")}, False, id="it is on its way"),
    ],
)
async def test_when_the_first_status_is_written(
    waiting: Priority | None, before: Any, more: Any, is_written: bool
) -> None:
    world = World({**parent(), "status": before})
    if "conditions" in more:
        since = {"reason": "Told", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        more = {"conditions": [dict(zip(("type", "status"), more["conditions"], strict=True)) | since]}
    world.deciding.more = more
    if waiting is not None:
        world.ctx.queue.add(OTHER, waiting)
    then = await world.reconcile()
    assert "apply Service" in world.calls()
    assert ("status" in world.calls()) is is_written
    assert then.after == (None if is_written else FIRST_STATUS_AFTER)
    if waiting is not None:
        world.ctx.queue.done(await world.ctx.queue.get())
    await world.reconcile()
    assert ("status" in world.calls()) is not is_written


@pytest.mark.parametrize("is_deleting", [False, True])
async def test_a_stale_cache_does_not_revive_what_is_gone(is_deleting: bool) -> None:
    world = World(parent())
    if is_deleting:
        world.api.put(parent(), deletionTimestamp="now")
    else:
        world.api.objects.clear()
    assert await world.reconcile() == Next()
    assert world.calls() == ["get LLMService"]
    await world.reconcile()
    assert world.calls() == []


async def test_a_newer_spec_is_what_is_executed() -> None:
    world = World(parent())
    world.api.put(parent(9, generation=2))

    def decide(inputs: Inputs) -> Decision:
        world.deciding.wanted = service(port=inputs.parent["metadata"]["generation"])
        return world.deciding(inputs)

    world.ctx.decide = decide
    await world.reconcile()
    assert world.calls("apply") == ["apply Service"]
    assert (world.stored("Service")["spec"]["port"], world.status["observedGeneration"]) == (2, 2)


async def test_an_invalid_spec_is_reported_once_and_nothing_else_is_done() -> None:
    world = World(parent(uri="hf://"))
    await world.reconcile()
    assert world.calls() == ["get LLMService", "status"]
    await world.reconcile()
    assert world.calls() == []


async def test_a_foreign_service_is_left_alone_and_its_name_is_taken_once_it_is_free() -> None:
    """A refusal is tried again with back-off, without another status write; events in between change nothing."""
    world = World(parent())
    world.api.put(FOREIGN)
    waits = [(await world.reconcile()).after]
    assert world.calls() == ["get LLMService", "apply Service", "get Service", "status", "event Told"]
    assert world.status["refused"] == ['conflict with "helm"']
    for _ in range(7):
        assert (await world.reconcile()).after == waits[-1]
        assert world.calls() == []
        world.now += waits[-1] or 0
        waits.append((await world.reconcile()).after)
        assert world.calls() == ["apply Service", "get Service"]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert world.api.remove("Service", "chat") is FOREIGN
    world.now += 60
    assert await world.reconcile() == Next()
    assert world.calls() == ["apply Service", "status", "event Told"]
    assert world.status["refused"] == []


async def test_an_edited_spec_tries_at_once_what_was_refused() -> None:
    world = World(parent())
    world.api.fails["apply Service"] = [Refused("exceeded quota", code=403)]
    await world.reconcile()
    world.edit()
    await world.reconcile()
    assert world.stored("Service") is not None


async def test_our_own_child_that_lost_its_label_is_taken_back() -> None:
    """The watch asks for the label, so the child looks gone; it still carries our controller reference."""
    world = await reconciled()
    ours = world.stored("Service")
    world.api.put(ours, labels={})
    world.ctx.cache.remove("Service", "ns", "chat", ours["metadata"]["uid"])
    await world.reconcile()
    assert world.calls() == ["get LLMService", "apply Service", "get Service", "apply Service by force"]
    assert world.stored("Service")["metadata"]["labels"] == LABELS


async def test_a_child_that_vanished_unseen_is_made_anew_after_the_conflict() -> None:
    world = await reconciled()
    world.deciding.wanted = service(port=90)
    world.api.remove("Service", "chat")
    with pytest.raises(KubeError, match="changed under our hands"):
        await world.reconcile()
    assert world.calls() == ["apply Service by force", "get Service"]
    await world.reconcile()
    assert world.calls() == ["get LLMService", "apply Service"]


@pytest.mark.parametrize(
    ("of_apply", "of_patch", "refused"),
    [("may not both be set", None, []), ("no such port", "the patch does not apply", ["no such port"])],
    ids=["which helps", "which does not: the first refusal is reported"],
)
async def test_fields_of_others_that_conflict_with_ours_are_removed_before_the_apply(
    of_apply: str, of_patch: str | None, refused: list[str]
) -> None:
    world = await reconciled()
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:sessionAffinity": {}}}}
    world.drift([theirs], port=81, sessionAffinity="ClientIP")
    world.deciding.remove_foreign_fields = True
    world.api.fails["apply Service by force"] = [Invalid(of_apply, code=422)]
    world.api.fails["patch Service"] = [Invalid(of_patch, code=422)] if of_patch else []
    await world.reconcile()
    assert world.calls()[:3] == ["apply Service by force", "get Service", "patch Service"]
    assert (world.stored("Service")["spec"] == {"port": 80}) is not bool(refused)
    assert world.status["refused"] == refused


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            Forbidden("no", right="patch services", code=403),
            "no; grant it: patch services (the chart's role has every right that is needed)",
            id="a right is missing",
        ),
        pytest.param(Refused("exceeded quota", code=403), "exceeded quota", id="a quota"),
    ],
)
async def test_a_refusal_is_in_the_status(error: KubeError, message: str) -> None:
    world = World(parent())
    world.api.fails["apply Service"] = [error]
    assert (await world.reconcile()).after == 1
    assert world.calls() == ["get LLMService", "apply Service", "status", "event Told"]
    assert world.status["refused"] == [message]


async def test_an_api_server_that_does_not_answer_is_in_the_status_from_the_second_time_on() -> None:
    world = World(parent())
    world.api.fails["apply Service"] = [Unreachable("no answer"), Unreachable("no answer")]
    for calls in (["get LLMService", "apply Service"], ["apply Service", "status", "event Told"]):
        with pytest.raises(Unreachable):
            await world.reconcile()
        assert world.calls() == calls
    await world.reconcile()
    world.api.fails["apply Service by force"] = [Unreachable("no answer")]
    world.drift(port=81)
    with pytest.raises(Unreachable):
        await world.reconcile()
    assert "status" not in world.calls(), "the first one in a row again"


async def test_pruning_deletes_that_very_object() -> None:
    world = await reconciled()
    world.deciding.prune = True
    await world.reconcile()
    assert world.calls() == ["delete Service u-Service", "status", "event Told"]
    await world.reconcile()
    assert world.calls() == []


async def test_a_builder_and_a_webhook_that_undo_each_other_is_a_failure() -> None:
    world = World(parent())
    world.deciding.never_content = True
    then = await world.settle()
    assert "do not become what was applied" in (then.failure or "")
    assert (len(world.calls("apply")), world.calls().count("status")) == (4, 1)
    await world.settle()
    assert world.calls("apply") == ["apply Service by force"]
    world.deciding.never_content = False
    assert await world.settle() == Next()


async def test_drift_that_is_repaired_each_time_is_no_failure() -> None:
    world = await reconciled()
    for port in range(90, 100):
        world.drift(port=port)
        assert await world.settle() == Next()


async def test_a_turn_that_another_service_took_meanwhile_is_waited_for() -> None:
    """It was free when it was looked up; the nodes were listed then, which took its time."""
    world = World(parent())
    granted: list[bool] = []

    def decide(inputs: Inputs) -> Decision | Requirements:
        if inputs.update_permission is None:
            return Requirements(update_permission=True)
        if not granted:
            assert world.ctx.updates.claim(OTHER)
        granted.append(inputs.update_permission.value.is_granted)
        return Decision(claims_update=granted[-1], update=None if granted[-1] else Update.WAITS)

    world.ctx.decide = decide
    await world.reconcile()
    assert granted == [True, False]


async def test_a_decision_that_asks_for_ever_is_an_error_of_this_service() -> None:
    """Nothing that it asks for has to be waited for, so that nothing else would run."""
    world = World(parent())
    world.ctx.decide = lambda inputs: Requirements(update_permission=True)
    with pytest.raises(RuntimeError, match="asks for more after 32 rounds"):
        await world.reconcile()


async def test_an_event_that_cannot_be_made_stops_nothing() -> None:
    world = World(parent())
    world.api.fails["event Told"] = [Forbidden("no", right="create events", code=403)]
    assert await world.reconcile() == Next()


async def test_a_new_object_of_the_same_name_has_a_memory_of_its_own() -> None:
    world = await reconciled()
    world.ctx.cache.remove(PARENT, "ns", "chat", "u-1")
    await world.reconcile()
    assert world.ctx.memories == {}
    world.see(world.api.put(parent(300, uid="u-2")))
    await world.reconcile()
    assert world.calls()[0] == "get LLMService"
