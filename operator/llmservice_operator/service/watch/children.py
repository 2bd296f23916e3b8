"""Watches of all kinds except LLMServices, which kopf watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from kubeloop.errors import Forbidden, KubeError, NotFound
from kubeloop.informer import Informer
from kubeloop.resources import ENDPOINT_SLICE, JOB, Resource
from kubeloop.sync_state import SyncState
from kubeloop.transport import Transport
from llmservice_api.kinds import BY_KIND, CHILD_KINDS

from llmservice_operator.service.watch.ingest import EventHandler
from llmservice_operator.service.watch.kinds import CHILD_RESOURCES, selector

logger = logging.getLogger(__name__)

DISPENSABLE = (JOB, ENDPOINT_SLICE)
"""Optional for services: without them models are not inspected, and a ready pod counts as serving."""
OPTIONAL = tuple(BY_KIND[child.kind] for child in CHILD_KINDS if child.is_optional)
"""Without permission or CRD, services without such a child run."""
TRIES = 3
"""Refusals in a row after which such a kind is hidden: a starting API server may refuse for some seconds."""


class ChildrenWatch:
    """One informer per kind and namespace; each reports to `sync`."""

    def __init__(
        self,
        transport: Transport,
        handler: EventHandler,
        namespaces: Iterable[str | None],
        sync: SyncState,
        kinds: Sequence[Resource] = CHILD_RESOURCES,
    ) -> None:
        self._informers = [
            (resource, Informer(transport, resource, namespace, selector(resource), handler, report=report.update))
            for namespace in namespaces
            for resource in kinds
            for report in [_SyncReport(sync, namespace, resource)]
        ]

    async def run(self) -> None:
        """Watch; never returns."""
        async with asyncio.TaskGroup() as group:
            for resource, informer in self._informers:
                group.create_task(informer.run(), name=f"watch of {resource.plural}")


class _SyncReport:
    """Turns reports of one informer into the state of its kind."""

    def __init__(self, sync: SyncState, namespace: str | None, resource: Resource) -> None:
        self._sync, self._namespace, self._resource = sync, namespace, resource
        self._refusals = 0

    def update(self, error: KubeError | None) -> None:
        """None: it is synced."""
        if error is None:
            self._refusals = 0
            self._sync.show(self._namespace, self._resource)
        elif not self._can_go_without(error):
            self._sync.failed(self._namespace, self._resource.full_name, error)
        else:
            self._refusals += 1
            if self._refusals == TRIES:
                logger.warning("going on without %s until they may be listed: %s", self._resource.plural, error)
            if self._refusals >= TRIES:
                self._sync.hide(self._namespace, self._resource)

    def _can_go_without(self, error: KubeError) -> bool:
        if isinstance(error, NotFound):
            return self._resource in OPTIONAL
        return isinstance(error, Forbidden) and self._resource in (*DISPENSABLE, *OPTIONAL)
