"""ResourceQuotas are listed for a namespace, seldom, and not at all where that is forbidden."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.errors import Forbidden, ServerError
from kubeloop.resources import RESOURCE_QUOTA
from llmservice_operator.readers.nodes import (
    MOST_QUOTAS,
    REFUSED_SECONDS,
    QuotaReader,
)
from llmservice_operator.readers.nodes import (
    QUOTAS_KEPT_SECONDS as KEPT_SECONDS,
)

from tests.unit.api_server import ApiServer, Connection
from tests.unit.operator.test_decide_quotas import ONE_REPLICA, quota

LIST = "list ResourceQuota"


class Lists:
    """A reader of what a namespace has."""

    def __init__(self, *objects: Any) -> None:
        self.api, self.now = ApiServer(), 100.0
        for number, each in enumerate(objects):
            for namespace in ("ns", "other"):
                self.api.objects[RESOURCE_QUOTA.path(namespace, str(number))] = each
        self.reader = QuotaReader(KubeClient(Connection(self.api), AlwaysOpen()), clock=lambda: self.now)

    async def names(self, namespace: str = "ns") -> list[str]:
        return [quota.name for quota in await self.reader.of(namespace)]


async def test_one_request_for_each_namespace_whose_answer_is_kept_briefly() -> None:
    lists = Lists(ONE_REPLICA, quota({"pods": "1"}, {"pods": "1"}, "scoped", scopes=["BestEffort"]), {"metadata": []})
    assert await lists.names() == ["team"]
    query = {"limit": str(MOST_QUOTAS), "fieldSelector": ""}
    assert lists.api.requests == [("GET", "/api/v1/namespaces/ns/resourcequotas", query, None)]
    await lists.names("other")
    assert len(lists.api.calls) == 2
    lists.now += KEPT_SECONDS - 1
    await lists.names()
    assert len(lists.api.calls) == 2
    lists.now += 1
    lists.api.objects.clear()
    assert await lists.names() == []
    assert len(lists.api.calls) == 3


async def test_a_missing_right_is_requested_again_only_after_minutes() -> None:
    lists = Lists(ONE_REPLICA)
    lists.api.fails[LIST] = [Forbidden("no", code=403)]
    assert [await lists.names() for _ in range(2)] == [[], []]
    assert len(lists.api.calls) == 1
    assert await lists.names("other") == ["team"], "it may be granted elsewhere"
    lists.now += REFUSED_SECONDS
    assert await lists.names() == ["team"]


async def test_other_errors_are_raised_and_not_kept() -> None:
    lists = Lists(ONE_REPLICA)
    lists.api.fails[LIST] = [ServerError("down", code=500)]
    with pytest.raises(ServerError):
        await lists.names()
    assert await lists.names() == ["team"]
