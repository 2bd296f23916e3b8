"""Events are listed for single pods, seldom, and not at all where that is forbidden."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.kube.client import KubeClient
from llmservice_operator.kube.errors import Forbidden, ServerError
from llmservice_operator.kube.pod_events import KEPT_SECONDS, REFUSED_SECONDS, PodEventReader
from llmservice_operator.kube.resources import EVENT, Resource


class Events(KubeClient):
    """Counts what is listed; one Event for each pod."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failure: Exception | None = None

    async def list_some(
        self, resource: Resource, namespace: str, *, field_selector: str, limit: int
    ) -> list[dict[str, Any]]:
        assert resource is EVENT
        self.calls.append(f"{namespace} {field_selector} {limit}")
        if self.failure is not None:
            raise self.failure
        return [{"reason": "FailedMount", "message": field_selector}]


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.api = Events()
        self.reader = PodEventReader(self.api, clock=lambda: self.now)


async def test_one_request_for_each_pod_and_its_answer_is_kept_for_a_moment() -> None:
    world = World()
    found = await world.reader.of("ns", ("a", "b"))
    assert found is not None
    assert set(found) == {"a", "b"}
    assert world.api.calls == [
        "ns involvedObject.kind=Pod,involvedObject.name=a 100",
        "ns involvedObject.kind=Pod,involvedObject.name=b 100",
    ]
    await world.reader.of("ns", ("a",))
    assert len(world.api.calls) == 2
    world.now += KEPT_SECONDS
    await world.reader.of("ns", ("a",))
    assert len(world.api.calls) == 3


async def test_a_missing_right_is_not_asked_for_again_and_again() -> None:
    world = World()
    world.api.failure = Forbidden("no", code=403)
    assert await world.reader.of("ns", ("a",)) is None
    assert await world.reader.of("ns", ("a",)) is None
    assert len(world.api.calls) == 1
    world.api.failure = None
    assert await world.reader.of("other", ("a",)) is not None, "it may be granted elsewhere"
    world.now += REFUSED_SECONDS
    assert await world.reader.of("ns", ("a",)) is not None


async def test_other_errors_are_the_caller_s() -> None:
    world = World()
    world.api.failure = ServerError("down", code=500)
    with pytest.raises(ServerError):
        await world.reader.of("ns", ("a",))
