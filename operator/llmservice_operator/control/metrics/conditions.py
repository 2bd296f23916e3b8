"""What the conditions of each service say, as metrics: one or two series of a service that is well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import Gauge

from llmservice_operator.api.conditions import ConditionType
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import Key
from llmservice_operator.control.metrics.failures import known
from llmservice_operator.control.metrics.series import Series

Json = Mapping[str, Any]

FAILURE = "Failure"
"""The type of a problem that `status.failure` names and no condition."""
_AT_ZERO = frozenset({str(Reason.IDLE), str(Reason.SCALED_TO_ZERO)})
_BAD = {
    str(ConditionType.STALLED): "True",
    str(ConditionType.DEGRADED): "True",
    str(ConditionType.AUTOSCALED): "False",
}
"""The status of a condition that says something is wrong."""


class Conditions:
    """Sets the gauges of each service by its status."""

    def __init__(self, ready: Gauge, available: Gauge, problem: Gauge) -> None:
        self._ready, self._available, self._problem = ready, available, problem
        self._series = Series()
        self._waking: set[Key] = set()
        """Services that were at zero by intent, and of which no replica has answered since."""

    def update(self, key: Key, status: Json) -> None:
        """A service's stored or just written status; an empty one: it is gone."""
        if not status:
            self._waking.discard(key)
        self._series.update(key, dict(self._of(key, status)))

    def _of(self, key: Key, status: Json) -> Iterator[tuple[tuple[Gauge, tuple[str, ...]], float]]:
        for condition in status.get("conditions") or ():
            kind, value, reason = (str(condition.get(name, "")) for name in ("type", "status", "reason"))
            if kind == ConditionType.READY:
                yield (self._ready, (*key,)), float(value == "True")
            elif kind == ConditionType.AVAILABLE:
                if not self._is_waking(key, value, reason):
                    yield (self._available, (*key,)), float(value == "True")
            elif _BAD.get(kind) == value or reason == Reason.QUOTA_BELOW_MAXIMUM:
                yield (self._problem, (*key, kind, known(reason))), 1.0
        if (failure := (status.get("failure") or {}).get("reason")) is not None:
            yield (self._problem, (*key, FAILURE, known(str(failure)))), 1.0

    def _is_waking(self, key: Key, value: str, reason: str) -> bool:
        """Whether none is to answer: at zero by intent, or on the way from there to the first answer."""
        if reason in _AT_ZERO:
            self._waking.add(key)
        elif value == "True":
            self._waking.discard(key)
        return key in self._waking
