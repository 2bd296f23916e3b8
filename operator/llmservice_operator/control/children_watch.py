"""The watches of everything but the LLMServices themselves, which kopf watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from llmservice_operator.control.intake import Intake
from llmservice_operator.control.kinds import OF_CHILDREN, selector
from llmservice_operator.kube.errors import Forbidden
from llmservice_operator.kube.informer import Informer
from llmservice_operator.kube.resources import ENDPOINT_SLICE, JOB, Resource
from llmservice_operator.kube.transport import Transport

logger = logging.getLogger(__name__)

DISPENSABLE = (JOB, ENDPOINT_SLICE)
"""Without these services run all the same: their models are not looked at before, and a ready pod counts as reached."""


class ChildrenWatch:
    """One informer for each kind and namespace."""

    def __init__(self, transport: Transport, intake: Intake, namespaces: Iterable[str | None]) -> None:
        self._informers = [
            (resource, Informer(transport, resource, namespace, selector(resource), intake))
            for resource in OF_CHILDREN
            for namespace in namespaces
        ]
        self.hidden: set[str] = set()
        """Kinds that the operator has no right to list, as far as it can do without: until it is started again, since
        their watches ended too."""

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            for resource, informer in self._informers:
                group.create_task(self._follow(resource, informer), name=f"watch of {resource.plural}")

    async def complete(self) -> None:
        """Until everything that there was at the start has been seen, of what may be."""
        for _, informer in self._informers:
            await informer.complete.wait()

    async def _follow(self, resource: Resource, informer: Informer) -> None:
        try:
            await informer.run(is_dispensable=resource in DISPENSABLE)
        except Forbidden as error:
            self.hidden.add(resource.kind)
            informer.complete.set()
            logger.warning("going on without %s until the operator is started again: %s", resource.plural, error)
