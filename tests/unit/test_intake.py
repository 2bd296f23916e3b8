"""What the watches bring: what a user does at once, what children do in bursts."""

from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.cache import Cache
from llmservice_operator.control.intake import Intake
from llmservice_operator.control.kinds import PROJECTIONS
from llmservice_operator.control.queue import Backoff, WorkQueue
from llmservice_operator.kube.resources import DEPLOYMENT, LLMSERVICE, POD, Resource

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
def test_who_is_told(resource: Resource, is_at_once: bool) -> None:
    changed: list[Key] = []
    stirred: list[Key] = []
    intake = Intake(Cache(PROJECTIONS), changed.append, stirred.append)
    intake.seen(resource, an_object(resource, 1))
    intake.seen(resource, an_object(resource, 1))  # known already
    intake.gone(resource, an_object(resource, 2))
    intake.seen(resource, an_object(resource, 3))
    intake.listed(resource, None, {}, "4")
    told, not_told = (changed, stirred) if is_at_once else (stirred, changed)
    assert (told, not_told) == ([CHAT] * 4, [])


def test_a_burst_is_one_look() -> None:
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
