"""Starts the first replica of a service with a held request: sets LLMService/scale from 0 to 1."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kubeloop import log
from kubeloop.client import MERGE_PATCH
from kubeloop.errors import Conflict, KubeError
from kubeloop.resources import Key
from kubeloop.transport import Transport
from llmservice_api.constants import LLMSERVICE

from llmservice_activator.events import COMPONENT
from llmservice_activator.services import Service, Services

logger = logging.getLogger(__name__)

ATTEMPTS = 5
"""Attempts of one start, where somebody else writes the LLMService at the same time."""
REQUEST_SECONDS = 5.0
"""Seconds of a request."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until the next attempt after a failed one."""


class ReplicaStarter:
    """Starts replicas, at most one start per service at a time. Call it again while requests are held."""

    def __init__(
        self,
        transport: Transport,
        services: Services,
        count: Callable[[str], None] = lambda result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`count` is called with each result: woken, already or failed."""
        self._transport, self._services, self._count, self._clock = transport, services, count, clock
        self._working: dict[Key, asyncio.Task[None]] = {}
        self._failed: dict[Key, tuple[float, float]] = {}
        """By service: the last pause, and its end."""
        self._woken: dict[Key, str] = {}
        """uids of services whose first replica this process started."""

    def __call__(self, key: Key) -> None:
        service = self._services.find(key)
        if service is None or not service.may_be_at_zero or service.replicas or key in self._working:
            return
        if self._clock() >= self._failed.get(key, (0, 0))[1]:
            task = self._working[key] = asyncio.create_task(self._wake(service), name=f"wake of {key}")
            task.add_done_callback(lambda _: self._working.pop(key, None))

    def has_started(self, service: Service) -> bool:
        """Whether this process requested the first replica; True once for each start."""
        return self._woken.pop(service.key, None) == service.uid

    def forget(self, key: Key) -> None:
        self._failed.pop(key, None)
        self._woken.pop(key, None)

    async def stop(self) -> None:
        tasks = list(self._working.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wake(self, service: Service) -> None:
        key = service.key
        try:
            # The watch may bring the change before the response arrives.
            self._woken[key] = service.uid
            is_woken = await self._set_one(service)
        except (KubeError, ValueError) as error:
            self._woken.pop(key, None)
            pause = min(LONGEST_PAUSE, 2 * self._failed.get(key, (FIRST_PAUSE / 2, 0))[0])
            self._failed[key] = pause, self._clock() + pause
            self._count("failed")
            logger.error("cannot start a replica for requests that are held: %s", error, extra={log.KEY: key})
            return
        self._failed.pop(key, None)
        if not is_woken:
            self._woken.pop(key, None)
        self._count("woken" if is_woken else "already")
        if is_woken:
            logger.info("a request is held: replicas 0 -> 1", extra={log.KEY: key})

    async def _set_one(self, service: Service) -> bool:
        """Set one replica; returns whether the service had none.

        A Scale omits `replicas` where it is 0, so that a JSON patch cannot test for it; the write requires the
        resourceVersion that was read.
        """
        path = LLMSERVICE.path(*service.key, "scale")
        for attempt in range(1, ATTEMPTS + 1):
            scale = await self._transport.request("get", LLMSERVICE, path, timeout=REQUEST_SECONDS)
            metadata = scale["metadata"]
            if metadata.get("uid") != service.uid or (scale.get("spec") or {}).get("replicas"):
                return False
            version = {"uid": service.uid, "resourceVersion": metadata["resourceVersion"]}
            patch = {"metadata": version, "spec": {"replicas": 1}}
            try:
                await self._transport.request(
                    "patch",
                    LLMSERVICE,
                    path,
                    body=patch,
                    params={"fieldManager": COMPONENT},
                    content_type=MERGE_PATCH,
                    timeout=REQUEST_SECONDS,
                )
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            else:
                return True
        raise AssertionError("the last attempt returns or raises")
