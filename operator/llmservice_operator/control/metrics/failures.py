"""Failures as metrics: which services have one now, and how many there have been, by reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge

from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import Key

_REASONS = frozenset(map(str, Reason))


OTHER = "Other"


def known(reason: str) -> str:
    """The reason as a label: a stored status may hold any word, and each would be a series for ever."""
    return reason if reason in _REASONS else OTHER


class Failures:
    """Follows the failure that each service's status tells."""

    def __init__(self, failing: Gauge, begun: Counter) -> None:
        self._failing, self._begun = failing, begun
        self._told: dict[Key, str | None] = {}

    def told(self, key: Key, status: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """A stored status, or one that was just written in the place of `before`.

        What began before this process did is not counted again; what the first look at a service found, is.
        """
        if before is not None and key not in self._told:
            self.told(key, before)
        told = (status.get("failure") or {}).get("reason")
        reason = None if told is None else known(told)
        is_known, old = key in self._told, self._told.get(key)
        self._told[key] = reason
        if reason == old:
            return
        self._turn(old, -1)
        self._turn(reason, 1)
        if reason is not None and is_known:
            self._begun.labels(reason).inc()

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._turn(self._told.pop(key, None), -1)

    def _turn(self, reason: str | None, by: int) -> None:
        if reason is not None:
            self._failing.labels(reason).inc(by)
