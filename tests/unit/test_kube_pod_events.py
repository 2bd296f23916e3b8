"""Events are listed for single pods, seldom, and not at all where that is forbidden."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.errors import Forbidden, ServerError
from kubeloop.events import KEPT_SECONDS, REFUSED_SECONDS, PodEventReader


class Events(KubeClient):
    """One Event for each pod."""

    def __init__(self) -> None:
        super().__init__(None, AlwaysOpen())  # type: ignore[arg-type]  # no request is sent
        self.queries: list[str] = []
        self.failure: Exception | None = None
        self.now = 100.0
        self.reader = PodEventReader(self, clock=lambda: self.now)

    async def list_some(self, resource: Any, namespace: str, *, field_selector: str, limit: int) -> list[Any]:
        self.queries.append(f"{resource.plural} {namespace} {field_selector} {limit}")
        if self.failure is not None:
            raise self.failure
        return [{"reason": "FailedMount", "message": field_selector}]


async def test_one_request_for_each_pod_whose_answer_is_kept_briefly() -> None:
    events = Events()
    assert set(await events.reader.of("ns", ("a", "b")) or ()) == {"a", "b"}
    about = "events ns involvedObject.kind=Pod,involvedObject.name={} 100"
    assert events.queries == [about.format("a"), about.format("b")]
    await events.reader.of("ns", ("a",))
    assert len(events.queries) == 2
    events.now += KEPT_SECONDS
    await events.reader.of("ns", ("a",))
    assert len(events.queries) == 3


async def test_a_missing_right_is_requested_again_only_after_minutes() -> None:
    events = Events()
    events.failure = Forbidden("no", code=403)
    assert [await events.reader.of("ns", ("a",)) for _ in range(2)] == [None, None]
    assert len(events.queries) == 1
    events.failure = None
    assert await events.reader.of("other", ("a",)) is not None, "it may be granted elsewhere"
    events.now += REFUSED_SECONDS
    assert await events.reader.of("ns", ("a",)) is not None


async def test_other_errors_are_raised() -> None:
    events = Events()
    events.failure = ServerError("down", code=500)
    with pytest.raises(ServerError):
        await events.reader.of("ns", ("a",))
