"""kopf registrations: an event of an LLMService goes to `control.watch.resync`, and from there where all events go.

Only `on.event` handlers are used: they add no finalizer and no annotation to anybody's object, and kopf never patches
what it watches. kopf's own indices are not used: while it lists, every object's handler waits for all others' (work
that grows with the square of their number). kube.informer watches the children of the services.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from llmservice_api.constants import GROUP

from llmservice_operator.control.watch.resync import Resync
from llmservice_operator.kube.credentials import Credentials
from llmservice_operator.kube.errors import KubeError, Unreachable
from llmservice_operator.kube.resources import LLMSERVICE
from llmservice_operator.lean_kopf import kopf

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds from the end of kopf's watch until it is started again."""
STOPS_WITHIN = 1.5
"""Seconds that kopf's tasks have to end when they are cancelled."""
LOGIN_AGAIN = 5.0
"""Seconds after which a login that failed is tried again; kopf would wait for a minute."""
_LLMSERVICES = (LLMSERVICE.group, LLMSERVICE.version, LLMSERVICE.plural)


class Forgetful(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """Storages that keep nothing: no handler needs differences, and copies of all bodies took half of kopf's time."""

    def build(self, **_: Any) -> Any:
        return {}

    def clear(self, *, essence: Any) -> Any:
        return essence

    def fetch(self, **_: Any) -> None:
        """Store and return nothing."""

    store = purge = touch = fetch


@dataclass(frozen=True, kw_only=True)
class _Connection(kopf.ConnectionInfo):
    """kopf's own, with a TLS context of ours: kopf has no setting for `tls-server-name`."""

    context: ssl.SSLContext | None = field(default=None, compare=False)

    def as_ssl_context(self) -> ssl.SSLContext:
        """Without one the server speaks plain http."""
        return self.context if self.context is not None else super().as_ssl_context()


def registry(credentials: Credentials, resync: Resync) -> kopf.OperatorRegistry:
    """All registrations, in a registry of their own."""
    made = kopf.OperatorRegistry()

    @kopf.on.event(*_LLMSERVICES, registry=made)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        resync.event(event["type"], dict(event["object"]))

    @kopf.on.login(registry=made, backoff=LOGIN_AGAIN)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        # Called again whenever the API server does not accept the token any more.
        found = await connection(credentials)
        resync.started()
        return found

    return made


async def connection(credentials: Credentials) -> kopf.ConnectionInfo:
    """How kopf reaches the API server, with a token that is fetched anew."""
    credentials.token.forget()
    return _Connection(
        server=credentials.server,
        token=await credentials.token(),
        default_namespace=credentials.namespace,
        proxy_url=credentials.proxy,
        context=credentials.ssl_context(),
    )


def settings() -> kopf.OperatorSettings:
    """Settings with which kopf watches and writes nothing."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    # An event-only operator would strip kopf's default finalizer from objects of another kopf operator.
    made.persistence.finalizer = f"{GROUP}/never-set"
    # Without it kopf lists and watches CRDs and namespaces, for which we ask no right.
    made.scanning.disabled = True
    made.persistence.diffbase_storage = Forgetful()
    made.persistence.progress_storage = Forgetful()
    made.watching.server_timeout = 600
    made.watching.connect_timeout = 5.0
    made.watching.chunk_size = 500
    made.networking.request_timeout = 30.0
    made.networking.connect_timeout = 5.0
    # Longer failures end its watch: then the LLMServices are listed until that succeeds, and /readyz shows why not.
    made.networking.error_backoffs = (0.5, 1, 2, 3, 5)
    made.queueing.exit_timeout = 0.5
    # Without it kopf kills the process some minutes after its tasks were cancelled.
    made.process.ultimate_exiting_timeout = None
    return made


class Watch:
    """kopf's watch of the LLMServices of one namespace, or of all, started again whenever it ends.

    The watch ends with any of kopf's tasks, or where kopf brings nothing of what there is. kopf 1.45 expects a lost
    place (410) in the events of a watch, but not as the answer to its request; nor does it expect an answer that is no
    JSON. `kopf.operator` then cancels every task of the process that is younger than itself, so the tasks of
    `kopf.spawn_tasks` are awaited here. One kopf for each namespace, since one that may not list a single namespace
    ends for all of them.
    """

    def __init__(
        self,
        credentials: Credentials,
        resync: Resync,
        namespace: str | None,
        identity: str,
        *,
        spawned: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`spawned` is called each time that kopf has taken SIGTERM and SIGINT, before one can reach it."""
        self._credentials, self._resync, self._namespace, self._identity = credentials, resync, namespace, identity
        self._spawned, self._sleep = spawned, sleep

    async def run(self) -> None:
        """Never returns; cancel it to end kopf."""
        pause = FIRST_PAUSE
        while True:
            await self._resync.listed.wait()
            began = time.monotonic()
            why = await self._once()
            self._resync.ended(why)
            logger.error("the watch of LLMServices ended and is started again: %s", why)
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(LONGEST_PAUSE, pause * 2)
            await self._sleep(pause)

    async def _once(self) -> KubeError | str:
        """Run kopf until one of its tasks ends; returns why it ended."""
        tasks = await kopf.spawn_tasks(
            registry=registry(self._credentials, self._resync),
            # Else kopf asks the system for the user's name, and a UID need not have one.
            identity=self._identity,  # type: ignore[arg-type]  # a NewType that kopf keeps private
            settings=settings(),
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=() if self._namespace is None else (self._namespace,),
        )
        self._spawned()  # no await before it: a signal reaches its handler in the event loop only
        tasks = [*tasks, asyncio.create_task(self._resync.check_first_event(), name="first event")]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended, _ = await asyncio.wait(tasks, timeout=STOPS_WITHIN)
        errors = [task.exception() for task in (*done, *ended) if not task.cancelled()]
        return next((_reason(error) for error in errors if error is not None), "a task of kopf's returned")


def _reason(error: BaseException) -> KubeError | str:
    """A KubeError where the API server is away or busy, which passes without anybody's doing.

    kopf's own errors are known by their `status` alone: it does not export them.
    """
    what, status = f"{type(error).__name__}: {error}", getattr(error, "status", None)
    is_away = isinstance(error, aiohttp.ClientConnectionError | TimeoutError)
    is_busy = isinstance(status, int) and (status == 429 or status >= 500)
    return Unreachable(what) if is_away or is_busy else what
