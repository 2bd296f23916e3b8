"""Failures as metrics: which services have one now, and how many there have been, by reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge

from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import Key

_REASONS = frozenset(map(str, Reason))


def known(reason: str) -> str:
    """The reason as a label: a stored status may hold any word, and each would be a series for ever."""
    return reason if reason in _REASONS else "Other"


class ByReason:
    """Services by reason, as a gauge: a service counts in the reason that was set last."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._reasons: dict[Key, str | None] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._reasons

    def set(self, key: Key, reason: str | None) -> bool:
        """None: in no reason. Returns whether that is another one than before."""
        old = self._reasons.get(key)
        self._reasons[key] = reason
        if reason == old:
            return False
        if old is not None:
            self._gauge.labels(old).dec()
        if reason is not None:
            self._gauge.labels(reason).inc()
        return True

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self.set(key, None)
        del self._reasons[key]


class Failures:
    """Follows the failure in each service's status."""

    def __init__(self, failing: Gauge, begun: Counter) -> None:
        self._failing, self._begun = ByReason(failing), begun

    def update(self, key: Key, status: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Take in a stored status, or one that was just written in the place of `before`.

        A failure that began before this process did is not counted again; one in a service's first status is.
        """
        if before is not None and key not in self._failing:
            self.update(key, before)
        found = (status.get("failure") or {}).get("reason")
        reason = None if found is None else known(found)
        is_known = key in self._failing
        if self._failing.set(key, reason) and is_known and reason is not None:
            self._begun.labels(reason).inc()

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._failing.forget(key)
