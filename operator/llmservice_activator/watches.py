"""The activator's watches of LLMServices and their pods, and whether they are current."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kubeloop.errors import KubeError
from kubeloop.informer import Informer
from kubeloop.resources import POD, Resource
from kubeloop.transport import Transport
from llmservice_api.constants import SERVICE_LABEL
from llmservice_api.kinds import LLMSERVICE

from llmservice_activator.services import Services

logger = logging.getLogger(__name__)

OUTDATED_AFTER = 60.0
"""Seconds of a failing watch after which its data is not used."""


class Watches:
    """The informers of both kinds, for each namespace or for all, and their state."""

    def __init__(
        self,
        transport: Transport,
        namespaces: tuple[str, ...],
        services: Services,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._failing_since: dict[tuple[str | None, Resource], float] = {}
        scopes: tuple[str | None, ...] = namespaces or (None,)
        self._problems: dict[tuple[str | None, Resource], str | None] = {
            (scope, resource): "not listed yet" for scope in scopes for resource in (LLMSERVICE, POD)
        }
        """By part; None: listed and watched."""
        self._seen: set[tuple[str | None, Resource]] = set()
        selectors = {LLMSERVICE: "", POD: SERVICE_LABEL}
        self._informers = [
            (
                resource,
                Informer(
                    transport,
                    resource,
                    scope,
                    selectors[resource],
                    services,
                    report=lambda error, part=(scope, resource): self._report(part, error),  # type: ignore[misc]
                ),
            )
            for scope, resource in self._problems
        ]

    async def run(self) -> None:
        """Watch; never returns."""
        async with asyncio.TaskGroup() as group:
            for resource, informer in self._informers:
                group.create_task(informer.run(), name=f"watch of {resource.plural}")

    def is_synced(self, namespace: str) -> bool:
        """Whether data about a namespace is current enough to remove replicas.

        A watch that fails briefly is resumed without loss. While it fails for longer, pods may have come whose requests
        are not counted.
        """
        return all(self._is_current((self._scope(namespace), resource)) for resource in (LLMSERVICE, POD))

    def _scope(self, namespace: str) -> str | None:
        return namespace if (namespace, LLMSERVICE) in self._problems else None

    def _is_current(self, part: tuple[str | None, Resource]) -> bool:
        since = self._failing_since.get(part)
        return part in self._seen and (since is None or self._clock() - since < OUTDATED_AFTER)

    def is_watched(self, namespace: str) -> bool:
        return (None, LLMSERVICE) in self._problems or (namespace, LLMSERVICE) in self._problems

    def is_ready(self) -> bool:
        """Whether each namespace was listed or cannot be for now, and at least one was.

        While the API server is unavailable all activators stay ready: held requests do not need it.
        """
        waits = any(part not in self._seen and problem == "not listed yet" for part, problem in self._problems.items())
        scopes = {scope for scope, _ in self._problems}
        return not waits and any(all((scope, kind) in self._seen for kind in (LLMSERVICE, POD)) for scope in scopes)

    def problems(self, namespace: str | None = None) -> list[str]:
        """One line for each part that is not watched now; with `namespace`, of those that concern it."""
        return [
            f"{f'namespace {scope}: ' if scope else ''}{resource.full_name}: {problem}"
            for (scope, resource), problem in self._problems.items()
            if problem is not None and (namespace is None or scope == self._scope(namespace))
        ]

    def _report(self, part: tuple[str | None, Resource], error: KubeError | None) -> None:
        problem = None if error is None else " ".join(str(error).split())
        if problem is not None and problem != self._problems[part]:
            logger.warning("cannot watch %s: %s", part[1].full_name, problem)
        elif problem is None and self._problems[part] not in (None, "not listed yet"):
            logger.info("%s is watched again", part[1].full_name)
        self._problems[part] = problem
        if problem is None:
            self._seen.add(part)
            self._failing_since.pop(part, None)
        else:
            self._failing_since.setdefault(part, self._clock())
