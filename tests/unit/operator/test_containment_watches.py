"""What the watches and lists bring and the operator cannot read stops neither them nor what is about other objects."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from kubeloop import kopf_source
from kubeloop.informer import Cache, Informer
from kubeloop.resources import DEPLOYMENT, SERVICE, Key
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.options import Options, version
from llmservice_operator.service.containment import SHOWN_FOR, InternalErrors
from llmservice_operator.service.watch import PARENT, PROJECTIONS, EventHandler

from tests.unit.api_server import ApiServer, over_http
from tests.unit.operator.test_containment import conditions, work_until_idle
from tests.unit.reconcile_world import KEY, World, parent, service
from tests.unit.running_operator import refused_service, running


@pytest.mark.parametrize(
    ("resource", "obj"),
    [
        pytest.param(SERVICE, service(), id="a child"),
        pytest.param(LLMSERVICE, parent(), id="an LLMService"),
        pytest.param(DEPLOYMENT, {"metadata": {"namespace": "ns", "name": "x", "labels": None}}, id="without labels"),
        pytest.param(SERVICE, {}, id="no object at all"),
    ],
)
def test_an_object_that_cannot_be_read_keeps_no_other_from_being_read(resource: Any, obj: Any) -> None:
    seen: list[Key] = []

    def broken(raw: Any, known: Any) -> Any:
        raise KeyError("a defect")

    kinds = {**PROJECTIONS, resource.kind: broken}
    errors = InternalErrors(changed=seen.append)
    cache = Cache(kinds)
    handler = EventHandler(cache, seen.append, seen.append, errors)
    handler.updated(resource, obj)
    handler.deleted(resource, obj)
    if resource is not SERVICE:
        child = service()
        child["metadata"] |= {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        handler.updated(SERVICE, child)
        assert cache.get(SERVICE.kind, "ns", "chat") is not None


async def test_an_object_that_cannot_be_read_is_shown_on_its_service_until_it_can() -> None:
    world = World(parent())
    await world.reconcile()
    handler = EventHandler(world.ctx.cache, lambda _: None, lambda _: None, world.ctx.errors)
    stored = world.stored("Service")
    unreadable = {**stored, "metadata": {**stored["metadata"], "resourceVersion": "900", "ownerReferences": 7}}
    handler.updated(SERVICE, unreadable)
    await world.reconcile()
    assert "projection of Service chat" in conditions(world)["Degraded"]["message"]
    handler.updated(SERVICE, {**stored, "metadata": {**stored["metadata"], "resourceVersion": "901"}})
    await world.reconcile()
    assert "Degraded" in conditions(world), "one that fails now and then would be written each time"
    await work_until_idle(world, later=SHOWN_FOR)
    assert conditions(world) == {}
    handler.updated(SERVICE, {**unreadable, "metadata": {**unreadable["metadata"], "resourceVersion": "902"}})
    assert world.ctx.errors.degraded(KEY)
    handler.deleted(SERVICE, unreadable)
    assert (world.ctx.errors.degraded(KEY), world.ctx.errors._open) == ("", {}), "gone, it leaves no error"


async def test_a_watch_whose_answer_cannot_be_read_lists_again() -> None:
    """A line that is no JSON, or an event without an object, ended the watches of all kinds."""
    api = ApiServer()
    for line in (b"{", b"[]", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": {"metadata": {}}}'):
        for each in (line + b"\n", None):
            api.streams[SERVICE].put_nowait(each)

    async def sleep(_: float) -> None:
        if api.streams[SERVICE].empty():
            raise asyncio.CancelledError

    handler = EventHandler(Cache(PROJECTIONS), lambda _: None, lambda _: None)
    async with over_http(api) as transport:
        with pytest.raises(asyncio.CancelledError):
            await Informer(transport, SERVICE, None, "", handler, sleep=sleep).run()
    assert api.calls.count("list Service") == 4


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
async def test_an_llmservice_that_cannot_be_read_keeps_no_other_from_being_reconciled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache never has it, so what waited for everything in a list waited for ever."""
    project = PROJECTIONS[PARENT]

    def projected(raw: Any, known: Any) -> Any:
        if raw["metadata"]["name"] == "unreadable":
            raise KeyError("a defect")
        return project(raw, known)

    monkeypatch.setitem(PROJECTIONS, PARENT, projected)
    monkeypatch.setattr(kopf_source, "RETRY", 0.1)
    api = ApiServer(refused_service("ns", "unreadable"), refused_service("ns", "chat"))
    async with running(api) as operator:
        assert await operator.becomes_ready()
        await operator.acts_on("ns", "chat")
    gc.collect()  # a session that kopf left open would be another test's affair


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
async def test_a_namespace_that_is_not_synced_yet_loses_no_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may make their namespace unreadable for a while would have a service that kills tried again and again."""
    monkeypatch.setattr(kopf_source, "RETRY", 0.1)
    build = f"{version()} {Options().services.operator_image}"
    (tmp_path / "in-work").write_text(f"{build}\n2 b/x reconcile b-x/1\n\n")
    api = ApiServer(refused_service("a", "y"), refused_service("b", "x"))
    api.refused["b/llmservices"] = 403
    async with running(api, "a", "b", state_dir=tmp_path) as operator:
        await operator.acts_on("a", "y")
        in_work = operator.operator._in_work
        found: list[tuple[Key, bool]] = []
        quarantined = in_work.quarantined

        def asked(key: Key) -> bool:
            found.append((key, quarantined(key)))
            return found[-1][1]

        monkeypatch.setattr(in_work, "quarantined", asked)
        api.refused.clear()
        await operator.acts_on("b", "x")
        assert next(is_set_aside for key, is_set_aside in found if key.namespace == "b"), "it is set aside as before"
    gc.collect()
