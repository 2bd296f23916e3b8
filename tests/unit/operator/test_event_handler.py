"""What the watches bring: what a user does at once, what children do in bursts."""

from typing import Any

import pytest
from kubeloop.informer import Cache
from kubeloop.queue import Backoff, WorkQueue
from kubeloop.resources import DEPLOYMENT, POD, Key, Resource
from llmservice_api.constants import LLMSERVICE
from llmservice_operator.service.containment import InternalErrors
from llmservice_operator.service.watch import PROJECTIONS, EventHandler

CHAT = Key("ns", "chat")


def an_object(resource: Resource, version: int, **content: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "ns",
        "name": "chat",
        "uid": "u",
        "resourceVersion": str(version),
        "labels": {"llmservice.dev/service": "chat"},
        "generation": version,
    }
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


@pytest.mark.parametrize(
    ("resource", "is_at_once"), [(LLMSERVICE, True), (DEPLOYMENT, False), (POD, False)], ids=lambda given: str(given)
)
def test_which_changes_are_queued_at_once(resource: Resource, is_at_once: bool) -> None:
    changed: list[Key] = []
    children_changed: list[Key] = []
    handler = EventHandler(Cache(PROJECTIONS), changed.append, children_changed.append)
    handler.updated(resource, an_object(resource, 1))
    handler.updated(resource, an_object(resource, 1))  # known already
    handler.deleted(resource, an_object(resource, 2))
    handler.updated(resource, an_object(resource, 3))
    handler.listed(resource, None, {}, "4")
    assert (changed, children_changed) == (([CHAT] * 4, []) if is_at_once else ([], [CHAT] * 4))


def unreadable(resource: Resource, version: int, service: str = "chat") -> dict[str, Any]:
    """None that can be projected."""
    made = an_object(resource, version)
    metadata = {**made["metadata"], "labels": {"llmservice.dev/service": service}, "ownerReferences": 7}
    return {**made, "metadata": metadata}


def test_what_could_not_be_read_leaves_no_error_once_it_is_gone_or_given_to_another_service() -> None:
    """Its deletion was missed; the cache never had it, so that nothing else shows it."""
    errors = InternalErrors()
    handler = EventHandler(Cache(PROJECTIONS), lambda _: None, lambda _: None, errors)
    handler.updated(DEPLOYMENT, unreadable(DEPLOYMENT, 5))
    handler.listed(DEPLOYMENT, "another", {}, "9")
    handler.listed(POD, None, {}, "9")
    handler.listed(DEPLOYMENT, None, {}, "4")
    assert errors.degraded(CHAT), "of another namespace, another kind, or older than it"
    handler.listed(DEPLOYMENT, None, {("ns", "chat"): "u"}, "9")
    assert errors.degraded(CHAT), "it is still there"
    handler.listed(DEPLOYMENT, None, {("ns", "chat"): "v"}, "9")
    assert (errors.degraded(CHAT), errors._open) == ("", {})
    handler.updated(DEPLOYMENT, unreadable(DEPLOYMENT, 5, "first"))
    handler.updated(DEPLOYMENT, unreadable(DEPLOYMENT, 6, "second"))
    assert [bool(errors.degraded(Key("ns", name))) for name in ("first", "second")] == [False, True]
    handler.deleted(DEPLOYMENT, an_object(DEPLOYMENT, 7))
    assert errors._open == {}


def test_a_burst_is_one_reconcile() -> None:
    moments = [0.0]
    queue: WorkQueue[Key] = WorkQueue(clock=lambda: moments[-1])
    for moment in (0.0, 0.05, 0.1):
        moments.append(moment)
        queue.add_soon(CHAT, 0.2)
    assert (queue.depth, queue.delayed) == (0, 1)
    queue.add(CHAT)
    assert (queue.depth, queue.delayed) == (1, 0), "what a user does is not kept waiting by it"


async def test_one_that_keeps_failing_is_not_tried_more_often() -> None:
    now = 0.0
    queue: WorkQueue[Key] = WorkQueue(clock=lambda: now, rng=lambda: 1.0, backoff=Backoff(base=5.0))
    queue.add(CHAT)
    assert await queue.get() == CHAT
    queue.done(CHAT)
    queue.failed(CHAT)
    now = 4.0
    queue.add_soon(CHAT, 0.2)
    assert queue._schedule.next_due() == 5.0
