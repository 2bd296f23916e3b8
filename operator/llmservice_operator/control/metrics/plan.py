"""The plan beside what became of it, as metrics: the planner is checked by every start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import Gauge

from llmservice_operator.api.service import Key
from llmservice_operator.control.metrics.series import Series
from llmservice_operator.observe.status.previous_status import is_plan_of_another

Json = Mapping[str, Any]


class Plans:
    """Sets the gauges of each service, and removes those of which its status no longer speaks."""

    def __init__(self, planned: Gauge, measured: Gauge, error: Gauge) -> None:
        self._planned, self._measured, self._error = planned, measured, error
        self._series = Series()

    def update(self, key: Key, status: Json) -> None:
        """A service's stored or just written status; an empty one: it is gone."""
        plan = {} if is_plan_of_another(status) else status.get("plan") or {}
        self._series.update(key, dict(self._of(key, plan, status.get("measured") or {})))

    def _of(self, key: Key, plan: Json, measured: Json) -> Iterator[tuple[tuple[Gauge, tuple[str, ...]], float]]:
        pairs = {
            "kv_cache_tokens": (plan.get("kvCacheTokens"), measured.get("kvCacheTokens")),
            "weights": ((plan.get("perGPU") or {}).get("weightsGiB"), measured.get("modelMemoryGiB")),
        }
        tokens, found = pairs["kv_cache_tokens"]
        if tokens is not None:
            yield (self._planned, (*key,)), float(tokens)
        if found is not None:
            yield (self._measured, (*key,)), float(found)
        for quantity, (expected, real) in pairs.items():
            if expected is not None and real:
                yield (self._error, (*key, quantity)), (expected - real) / real
