"""Events with the reason for a change of an autoscaled service's replicas."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from kubeloop.client import InvolvedObject, manifest
from kubeloop.errors import AlreadyExists, KubeError
from kubeloop.resources import Key
from llmservice_api.constants import LLMSERVICE
from llmservice_api.reasons import Reason

from llmservice_activator.answers import ScalingAnswer
from llmservice_activator.services import Service

logger = logging.getLogger(__name__)

COMPONENT = "llmservice-activator"
RECENT_SECONDS = 120.0
"""Seconds in which an answer may have led to a change: KEDA asks every 15 s, the HPA acts every 15 s."""
PAUSE_SECONDS = 10.0
"""Seconds between two Events of one service; those in between are dropped."""
MAX_QUEUED = 256
"""Events that may wait for the API server; further ones are dropped."""
WOKEN = "a request came while no replica served; it is held"
SERVICES = 4096
"""Services whose last Event time is kept."""

Create = Callable[[dict[str, Any]], Awaitable[None]]


class ScalingEvents:
    """Writes Events one after the other. Two activators give one change the same name, so that there is one
    Event."""

    def __init__(
        self,
        create: Create,
        latest: Callable[[Key], ScalingAnswer | None],
        *,
        identity: str,
        woken: Callable[[Service], bool] = lambda service: False,
        dropped: Callable[[], None] = lambda: None,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create, self._latest, self._identity, self._dropped = create, latest, identity, dropped
        self._woken = woken
        """Whether this process started the first replica for a request."""
        self._now, self._clock = now, clock
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_QUEUED)
        self._last: OrderedDict[Key, float] = OrderedDict()

    def changed(self, before: Service, after: Service) -> None:
        """The replicas changed. Without a recent answer of this process as its cause, another activator reports it."""
        answer, at = self._latest(after.key), self._clock()
        if before.replicas == 0 and self._woken(after):
            reason = WOKEN
        elif answer is not None and at - answer.at <= RECENT_SECONDS and _caused(answer, before, after):
            reason = answer.desired.reason
        else:
            return
        if at - self._last.get(after.key, -PAUSE_SECONDS) < PAUSE_SECONDS or self._queue.full():
            self._dropped()
            return
        self._last[after.key] = at
        self._last.move_to_end(after.key)
        if len(self._last) > SERVICES:
            self._last.popitem(last=False)
        self._queue.put_nowait(self._manifest(before, after, reason))

    async def run(self) -> None:
        """Write the queued Events; never returns."""
        while True:
            event = await self._queue.get()
            try:
                await self._create(event)
            except AlreadyExists:
                logger.debug("another scaler wrote the Event %s", event["metadata"]["name"])
            except KubeError as error:
                self._dropped()
                logger.warning("could not create an Event: %s", error)

    def _manifest(self, before: Service, after: Service, reason: str) -> dict[str, Any]:
        message = f"Replicas {before.replicas} → {after.replicas}: {reason}."
        about = InvolvedObject(LLMSERVICE, after.key.namespace, after.key.name, after.uid, after.resource_version)
        return manifest(
            about,
            f"{after.key.name[:200]}.{_digest(after)}",
            "Normal",
            Reason.SCALED,
            message,
            now=self._now(),
            component=COMPONENT,
            instance=self._identity,
        )


def _caused(answer: ScalingAnswer, before: Service, after: Service) -> bool:
    """Whether an answer asked for a change in this direction; a user's opposite change has another cause."""
    wanted, had = answer.desired.replicas, before.replicas
    return answer.service.uid == after.uid and (wanted > had) == (after.replicas > had) and wanted != had


def _digest(service: Service) -> str:
    """A digest of this change of the spec."""
    return hashlib.sha256(f"{service.uid} {service.generation}".encode()).hexdigest()[:16]
