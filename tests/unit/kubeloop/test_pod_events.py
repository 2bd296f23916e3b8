"""Events are listed for single pods, seldom, and not at all where that is forbidden."""

from __future__ import annotations

import pytest
from kubeloop.client import KEPT_SECONDS, REFUSED_SECONDS, AlwaysOpen, KubeClient, PodEventReader
from kubeloop.errors import Forbidden, ServerError

from tests.unit.api_server import ApiServer, Connection

LIST = "list Event"


class Events:
    """A reader of the simulated API server's."""

    def __init__(self) -> None:
        self.api, self.now = ApiServer(), 100.0
        self.reader = PodEventReader(KubeClient(Connection(self.api), AlwaysOpen()), clock=lambda: self.now)


async def test_one_request_for_each_pod_whose_answer_is_kept_briefly() -> None:
    events = Events()
    for name in "abc":
        about = {"kind": "Pod", "name": name}
        events.api.put({"kind": "Event", "metadata": {"namespace": "ns", "name": f"e-{name}"}, "involvedObject": about})
    found = await events.reader.of("ns", ("a", "b")) or {}
    assert {pod: len(of_pod) for pod, of_pod in found.items()} == {"a": 1, "b": 1}
    about_pod = "involvedObject.kind=Pod,involvedObject.name="
    assert [query["fieldSelector"] for _, _, query, _ in events.api.requests] == [f"{about_pod}a", f"{about_pod}b"]
    assert {(path, query["limit"]) for _, path, query, _ in events.api.requests} == {
        ("/api/v1/namespaces/ns/events", "100")
    }
    await events.reader.of("ns", ("a",))
    assert len(events.api.calls) == 2
    events.now += KEPT_SECONDS
    await events.reader.of("ns", ("a",))
    assert len(events.api.calls) == 3


async def test_a_missing_right_is_requested_again_only_after_minutes() -> None:
    events = Events()
    events.api.fails[LIST] = [Forbidden("no", code=403)]
    assert [await events.reader.of("ns", ("a",)) for _ in range(2)] == [None, None]
    assert len(events.api.calls) == 1
    assert await events.reader.of("other", ("a",)) is not None, "it may be granted elsewhere"
    events.now += REFUSED_SECONDS
    assert await events.reader.of("ns", ("a",)) is not None


async def test_other_errors_are_raised() -> None:
    events = Events()
    events.api.fails[LIST] = [ServerError("down", code=500)]
    with pytest.raises(ServerError):
        await events.reader.of("ns", ("a",))
