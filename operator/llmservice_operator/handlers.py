"""kopf registrations: an event of an LLMService becomes a projection in the cache and, where that changed, a key.

Only `on.event` handlers are used: they add no finalizer and no annotation to anybody's object, and kopf never patches
what it watches. kopf's own indices are not: while it lists, every object's handler waits for all others' (work that
grows with the square of their number), and what they tell, that everything was listed, `control.resync` finds out.
The children of the services send some fifteen events each: kube.informer watches them.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self

import kopf

from llmservice_operator.api.constants import GROUP
from llmservice_operator.control.watch.ingest import Intake
from llmservice_operator.kube.credentials import Credentials
from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.resources import LLMSERVICE

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STOPS_WITHIN = 1.5
LOOKS, LOOKS_AT_FIRST = 2, 12
"""How many looks at its tasks, one every five seconds, must find none: once it watched, and while it begins."""
FIRST_LOOK = 0.1
"""Seconds until the first look, and longer each time until one finds them: the process is not ready before."""
PROBE_AGAIN = 5.0
"""Seconds after which a namespace whose LLMServices cannot be listed is asked for them again."""
_LLMSERVICES = (LLMSERVICE.group, LLMSERVICE.version, LLMSERVICE.plural)


class Memo:
    """kopf's memo: where events go."""

    def __init__(self, intake: Intake, *, relisted: Callable[[], None], arrived: Callable[[], None]) -> None:
        self._intake, self._relisted, self._arrived = intake, relisted, arrived

    def __copy__(self) -> Self:
        """kopf copies the memo for each object; there is but one."""
        return self

    def event(self, kind: str | None, raw: dict[str, Any]) -> None:
        """An LLMService was listed (None), added, changed or deleted."""
        if kind == "DELETED":
            self._intake.gone(LLMSERVICE, raw)
        else:
            self._intake.seen(LLMSERVICE, raw)
        if kind is None:
            self._relisted()
        self._arrived()


class Forgetful(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """kopf keeps nothing of what it saw: nobody asks for differences, and copies of all bodies were half its work."""

    def build(self, **_: Any) -> Any:
        """No essence."""
        return {}

    def clear(self, *, essence: Any) -> Any:
        """Nothing in it."""
        return essence

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Nothing is."""

    def purge(self, **_: Any) -> None:
        """Nothing to."""

    def touch(self, **_: Any) -> None:
        """Never: it would patch the object."""


@dataclass(frozen=True, kw_only=True)
class _Connection(kopf.ConnectionInfo):
    """kopf's own, with a TLS context of ours: kopf has no setting for `tls-server-name`."""

    context: ssl.SSLContext | None = field(default=None, compare=False)

    def as_ssl_context(self) -> ssl.SSLContext:
        """Without one the server speaks plain http."""
        return self.context if self.context is not None else super().as_ssl_context()


def registry(credentials: Credentials) -> kopf.OperatorRegistry:
    """All registrations, in a registry of their own."""
    made = kopf.OperatorRegistry()

    @kopf.on.event(*_LLMSERVICES, registry=made)
    async def changed(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
        memo.event(event["type"], dict(event["object"]))

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        # Called again whenever the API server does not accept the token any more.
        credentials.token.forget()
        return _Connection(
            server=credentials.server,
            token=await credentials.token(),
            default_namespace=credentials.namespace,
            proxy_url=credentials.proxy,
            context=credentials.ssl_context(),
        )

    return made


def settings() -> kopf.OperatorSettings:
    """kopf as an informer: it watches and writes nothing."""
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
    made.networking.error_backoffs = (0.5, 1, 2, 3, 5, 5, 10, 10, 10, 10)
    made.queueing.exit_timeout = 0.5
    return made


class Watch:
    """kopf for one namespace, or (None) all together, started again whenever it ends before it is told to.

    An answer that it does not expect (410 to a watch, a token that is refused too often) ends kopf 1.45's watcher, and
    its other tasks may wait for each other for ever then: nothing would come in any more, from a process that leads.
    One kopf for each namespace, since one that may not list a single one of them ends for all.
    """

    def __init__(
        self,
        credentials: Credentials,
        memo: Memo,
        namespace: str | None,
        identity: str,
        *,
        probe: Callable[[], Awaitable[None]],
        told: Callable[[KubeError | str | None], None],
        started: Callable[[], None],
        look_every: float = 5.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._credentials, self._memo, self._identity = credentials, memo, identity
        self._namespace, self._probe, self._told, self._started = namespace, probe, told, started
        self._look_every, self._sleep = look_every, sleep

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, or until a signal reached kopf first.

        kopf begins where `probe` raises nothing; `started` is called each time that it has begun, `told` with None when
        it is seen to watch, else with why it does not.
        """
        pause = FIRST_PAUSE
        while not stop.is_set():
            try:
                await self._probe()
            except KubeError as error:
                self._told(error)
                await self._wait(stop, PROBE_AGAIN)
                continue
            began = time.monotonic()
            why = await self._once(stop)
            if why is None:
                return
            self._told(why)
            logger.error("the watch of LLMServices ended and is started again: %s", why)
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(LONGEST_PAUSE, pause * 2)
            await self._wait(stop, pause)

    async def _wait(self, stop: asyncio.Event, seconds: float) -> None:
        """So long, or until it is to end."""
        tasks = {asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(stop.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _once(self, stop: asyncio.Event) -> str | None:
        """Returns why it ended; None: it was told to."""
        ready, inner_stop = asyncio.Event(), asyncio.Event()
        watching = asyncio.create_task(self._kopf(ready, inner_stop), name="kopf")
        stopping = asyncio.create_task(stop.wait())
        try:
            started = asyncio.create_task(ready.wait())
            await asyncio.wait({watching, started, stopping}, return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            self._started()
            why = await self._ended(watching, stopping)
            inner_stop.set()
            if why is not None:
                watching.cancel()
            await asyncio.wait({watching}, timeout=STOPS_WITHIN)
            return why
        finally:
            stopping.cancel()
            watching.cancel()

    async def _ended(self, watching: asyncio.Task[None], stopping: asyncio.Task[Any]) -> str | None:
        """A few looks in a row must find nothing: a task may be missing for a moment, and its first list takes time."""
        missed_for, patience, look_after = 0.0, LOOKS_AT_FIRST * self._look_every, min(FIRST_LOOK, self._look_every)
        while missed_for < patience:
            done, _ = await asyncio.wait({watching, stopping}, timeout=look_after, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                return None
            if watching in done:
                error = watching.exception()
                return None if error is None else f"{type(error).__name__}: {error}"
            if is_watching(self._namespace):
                self._told(None)
                missed_for, patience, look_after = 0.0, LOOKS * self._look_every, self._look_every
            else:
                missed_for += look_after
                look_after = min(self._look_every, 2 * look_after)
        return "its tasks are gone"

    def _kopf(self, ready: asyncio.Event, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
        return kopf.operator(
            registry=registry(self._credentials),
            # Else kopf asks the system for the user's name, and a UID need not have one.
            identity=self._identity,  # type: ignore[arg-type]  # a NewType that kopf keeps private
            settings=settings(),
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=() if self._namespace is None else (self._namespace,),
            memo=self._memo,
            stop_flag=stop,
            ready_flag=ready,
        )


def is_watching(namespace: str | None) -> bool:
    """Whether kopf's own tasks are there: the one that keeps its watchers, and the watcher of this namespace."""
    names = {task.get_name() for task in asyncio.all_tasks()}
    watcher = f"watcher for {LLMSERVICE.plural}.{LLMSERVICE.version}.{LLMSERVICE.group}@{namespace}"
    return watcher in names and "multidimensional multitasker" in names
