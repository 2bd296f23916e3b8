"""ResourceQuotas are listed for a namespace, seldom, and not at all where that is forbidden."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.errors import Forbidden, ServerError
from llmservice_operator.readers.quotas import KEPT_SECONDS, MOST_QUOTAS, REFUSED_SECONDS, QuotaReader

from tests.unit.test_decide_quotas import ONE_REPLICA, quota


class Lists(KubeClient):
    """What a namespace has."""

    def __init__(self, *objects: Any) -> None:
        super().__init__(None, AlwaysOpen())  # type: ignore[arg-type]  # no request is sent
        self.objects = list(objects)
        self.queries: list[str] = []
        self.failure: Exception | None = None
        self.now = 100.0
        self.reader = QuotaReader(self, clock=lambda: self.now)

    async def list_some(self, resource: Any, namespace: str, *, field_selector: str, limit: int) -> list[Any]:
        self.queries.append(f"{resource.plural} {namespace} {field_selector!r} {limit}")
        if self.failure is not None:
            raise self.failure
        return self.objects

    async def names(self, namespace: str = "ns") -> list[str]:
        return [quota.name for quota in await self.reader.of(namespace)]


async def test_one_request_for_each_namespace_whose_answer_is_kept_briefly() -> None:
    lists = Lists(ONE_REPLICA, quota({"pods": "1"}, {"pods": "1"}, "scoped", scopes=["BestEffort"]), {"metadata": []})
    assert await lists.names() == ["team"]
    assert lists.queries == [f"resourcequotas ns '' {MOST_QUOTAS}"]
    await lists.names("other")
    assert len(lists.queries) == 2
    lists.now += KEPT_SECONDS - 1
    await lists.names()
    assert len(lists.queries) == 2
    lists.now += 1
    lists.objects.clear()
    assert await lists.names() == []
    assert len(lists.queries) == 3


async def test_a_missing_right_is_requested_again_only_after_minutes() -> None:
    lists = Lists(ONE_REPLICA)
    lists.failure = Forbidden("no", code=403)
    assert [await lists.names() for _ in range(2)] == [[], []]
    assert len(lists.queries) == 1
    lists.failure = None
    assert await lists.names("other") == ["team"], "it may be granted elsewhere"
    lists.now += REFUSED_SECONDS
    assert await lists.names() == ["team"]


async def test_other_errors_are_raised_and_not_kept() -> None:
    lists = Lists(ONE_REPLICA)
    lists.failure = ServerError("down", code=500)
    with pytest.raises(ServerError):
        await lists.names()
    lists.failure = None
    assert await lists.names() == ["team"]
