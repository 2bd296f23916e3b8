"""Reads the ResourceQuotas of a namespace on demand, with a short cache."""

from __future__ import annotations

import time
from collections.abc import Callable

from kubeloop.client import KubeClient
from kubeloop.errors import Forbidden
from kubeloop.resources import RESOURCE_QUOTA
from llmservice_planner.quotas import Quota

KEPT_SECONDS = 2.0
"""Seconds: services of one namespace that ask at about the same time share one list."""
REFUSED_SECONDS = 300.0
"""Seconds until the next try after a missing permission: each try is an entry of the audit log."""
MOST_QUOTAS = 100
"""Of a namespace; further ones are ignored."""


class QuotaReader:
    """ResourceQuotas that apply to all pods of a namespace, cached for KEPT_SECONDS."""

    def __init__(self, kube: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._clock = kube, clock
        self._kept: dict[str, tuple[float, tuple[Quota, ...]]] = {}
        """By namespace: expiry and quotas, empty without permission."""

    async def of(self, namespace: str) -> tuple[Quota, ...]:
        """The quotas; empty where they may not be listed. Other errors are raised."""
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
