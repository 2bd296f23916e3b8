"""Samples of gauges that belong to one service each: set where they change, removed where they are gone."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Gauge

from llmservice_operator.api.service import Key

Samples = Mapping[tuple[Gauge, tuple[str, ...]], float]
"""Values by gauge and label values."""


class Series:
    """What is shown of each service. A scrape computes nothing: the gauges hold the values."""

    def __init__(self) -> None:
        self._shown: dict[Key, Samples] = {}

    def update(self, key: Key, now: Samples) -> None:
        """Show these samples of a service and no others; none: it is gone."""
        before = self._shown.get(key, {})
        for (gauge, labels), value in now.items():
            if before.get((gauge, labels)) != value:
                gauge.labels(*labels).set(value)
        for gauge, labels in before.keys() - now.keys():
            gauge.remove(*labels)
        if now:
            self._shown[key] = now
        else:
            self._shown.pop(key, None)
