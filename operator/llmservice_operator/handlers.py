"""kopf registrations: an event of an LLMService becomes a projection in the cache and, where that changed, a key.

Only `on.event` handlers are used: they add no finalizer and no annotation to anybody's object, and kopf never patches
what it watches. kopf's own indices are not: while it lists, every object's handler waits for all others' (work that
grows with the square of their number), and what they tell, that everything was listed, `Resync.warm` finds out itself.
The children of the services send some fifteen events each: kube.informer watches them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self

import kopf

from llmservice_operator.api.constants import GROUP
from llmservice_operator.control.intake import Intake
from llmservice_operator.kube.credentials import Credentials
from llmservice_operator.kube.resources import LLMSERVICE

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STOPS_WITHIN = 1.5
LOOKS, LOOKS_AT_FIRST = 2, 12
"""How many looks at its tasks, one every five seconds, must find none: once it watched, and while it begins."""
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
        return kopf.ConnectionInfo(
            server=credentials.server,
            ca_data=credentials.ca,
            insecure=credentials.insecure,
            token=credentials.token(),
            certificate_data=credentials.client_certificate,
            private_key_data=credentials.client_key,
            default_namespace=credentials.namespace,
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
    """kopf, started again whenever it ends before it is told to.

    An answer that it does not expect (410 to a watch, a token that is refused too often) ends kopf 1.45's watcher, and
    its other tasks may wait for each other for ever then: nothing would come in any more, from a process that leads.
    """

    def __init__(
        self,
        credentials: Credentials,
        memo: Memo,
        namespaces: Sequence[str],
        identity: str,
        *,
        started: Callable[[], None],
        look_every: float = 5.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._credentials, self._memo, self._identity = credentials, memo, identity
        self._namespaces, self._started = tuple(namespaces), started
        self._look_every, self._sleep = look_every, sleep

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, or until a signal reached kopf first; `started` is called each time that kopf has begun."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            why = await self._once(stop)
            if why is None:
                return
            logger.error("the watch of LLMServices ended and is started again: %s", why)
            pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(LONGEST_PAUSE, pause * 2)
            await self._sleep(pause)

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
        missed, patience = 0, LOOKS_AT_FIRST
        while missed < patience:
            done, _ = await asyncio.wait(
                {watching, stopping}, timeout=self._look_every, return_when=asyncio.FIRST_COMPLETED
            )
            if stopping in done:
                return None
            if watching in done:
                error = watching.exception()
                return None if error is None else f"{type(error).__name__}: {error}"
            if is_watching(max(1, len(self._namespaces))):
                missed, patience = 0, LOOKS
            else:
                missed += 1
        return "its tasks are gone"

    def _kopf(self, ready: asyncio.Event, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
        return kopf.operator(
            registry=registry(self._credentials),
            # Else kopf asks the system for the user's name, and a UID need not have one.
            identity=self._identity,  # type: ignore[arg-type]  # a NewType that kopf keeps private
            settings=settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            memo=self._memo,
            stop_flag=stop,
            ready_flag=ready,
        )


def is_watching(count: int) -> bool:
    """Whether kopf's own tasks are there: the one that keeps its watchers, and a watcher a namespace."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    watchers = sum(name.startswith(f"watcher for {LLMSERVICE.plural}.") for name in names)
    return watchers >= count and "multidimensional multitasker" in names
