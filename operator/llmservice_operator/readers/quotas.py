"""Reads the ResourceQuotas of a namespace, on demand and with a short cache."""

from __future__ import annotations

import time
from collections.abc import Callable

from kubeloop.client import KubeClient
from kubeloop.errors import Forbidden
from kubeloop.resources import RESOURCE_QUOTA
from llmservice_planner.quotas import Quota

KEPT_SECONDS = 2.0
"""Services of one namespace that ask at about the same time share one list."""
REFUSED_SECONDS = 300.0
"""Until the next try after a missing right: each try is in the audit log."""
MOST_QUOTAS = 100
"""Of a namespace; those beyond are not looked at."""


class QuotaReader:
    """ResourceQuotas that apply to all pods of a namespace, as of the last moment."""

    def __init__(self, kube: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._clock = kube, clock
        self._kept: dict[str, tuple[float, tuple[Quota, ...]]] = {}
        """By namespace: until when, and what was read; of a missing right, nothing."""

    async def of(self, namespace: str) -> tuple[Quota, ...]:
        """None of them where they may not be listed. Other errors are raised."""
        now = self._clock()
        self._kept = {where: kept for where, kept in self._kept.items() if kept[0] > now}
        if namespace in self._kept:
            return self._kept[namespace][1]
        try:
            listed = await self._kube.list_some(RESOURCE_QUOTA, namespace, field_selector="", limit=MOST_QUOTAS)
        except Forbidden:
            self._kept[namespace] = now + REFUSED_SECONDS, ()
            return ()
        found = tuple(quota for quota in map(Quota.from_object, listed) if quota is not None)
        self._kept[namespace] = now + KEPT_SECONDS, found
        return found
