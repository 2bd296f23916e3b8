"""The keys in work, in a plain file: after an unclean death the next process works on them last, and one at a time.

A crash in C, memory or a blocked event loop ends the whole process, and the next one would meet the same service first.
A service that was alone in work at two deaths is quarantined until its spec or the operator's version changes.

The file has the operator's version, a line for each key, and an empty line. A line is `working` or the number of deaths
with nothing else in work, then activity, namespace, name and identity. One write without fsync replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from llmservice_operator.api.service import Key

logger = logging.getLogger(__name__)

DEATHS = 2
LAST_FOR = 60.0  # seconds for which interrupted work waits for all other: on a busy cluster some always waits
TRIED_WITHIN = 3600.0  # seconds after which work that was not tried again is forgotten: an outside kill proves nothing
LATE = 10.0  # seconds without a heartbeat after which the event loop counts as blocked

Activity = Literal["reconcile", "state"]


class Interrupted(NamedTuple):
    identity: str  # of the service when a death interrupted this work
    deaths: int  # with nothing else in work


class InWork:
    """Of one process; single-threaded, on the event loop. Without a folder that can be written nothing is recorded."""

    def __init__(
        self,
        folder: Path | None = None,
        version: str = "",
        identity: Callable[[Key], str] = lambda key: "",
        others_wait: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._version, self._identity, self._others_wait, self._clock = version, identity, others_wait, clock
        self.interrupted: dict[tuple[Activity, Key], Interrupted] = {}
        self._working: dict[object, str] = {}
        self._alone, self._idle = asyncio.Lock(), asyncio.Event()
        self._idle.set()
        self._waits_until, self._forgets_at = math.inf, clock() + TRIED_WITHIN
        self._beats, self._file = (clock(), clock()), -1
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = os.open(folder / "in-work", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                self._take_up(os.pread(self._file, 2**16, 0).decode(errors="replace"))
            except OSError as error:
                logger.warning("cannot record what is in work in %s, going on without: %s", folder, error)

    def _take_up(self, text: str) -> None:
        version, *lines = text.partition("\n\n")[0].split("\n")
        working: dict[tuple[Activity, Key], str] = {}
        for line in lines if version == self._version else ():  # another version need not die of the same
            match line.split(" "):
                case ["working", "reconcile" | "state" as activity, namespace, name, identity]:
                    working[activity, Key(namespace, name)] = identity
                case ["0" | "1" | "2" as deaths, "reconcile" | "state" as activity, namespace, name, identity]:
                    self.interrupted[activity, Key(namespace, name)] = Interrupted(identity, int(deaths))
                case _:
                    logger.warning("a line of the record of what is in work is damaged, going on without")
        if keys := sorted({str(key) for _, key in working}):
            what = "an earlier process ended abnormally; what it had in work comes last, and one at a time: %s"
            logger.warning(what, ", ".join(keys))
        for work, identity in working.items():
            known = self.interrupted.get(work)
            before = known.deaths if known is not None and known.identity == identity else 0
            self.interrupted[work] = Interrupted(identity, min(DEATHS, before + (len(keys) == 1)))
        for key in {key for (_, key), each in self.interrupted.items() if each.deaths >= DEATHS}:
            logger.error("%s is quarantined: %d processes in a row ended with it alone", key, DEATHS)

    def quarantined(self, key: Key) -> bool:
        """Whether nothing is to be done about a service; one that changed since is tried again, last and alone."""
        found = [work for work, each in self.interrupted.items() if work[1] == key and each.deaths >= DEATHS]
        changed = [work for work in found if self.interrupted[work].identity != self._identity(key)]
        self.interrupted.update((work, Interrupted(self._identity(key), 0)) for work in changed)
        return len(changed) < len(found)

    def may_begin(self, activity: Activity, key: Key) -> bool:
        """False for interrupted work while other work waits, or some that had fewer deaths: ask again in a moment."""
        this = self.interrupted.get((activity, key))
        if this is None or self._clock() >= self._waits_until:
            return True
        self._waits_until = min(self._waits_until, self._clock() + LAST_FOR)
        return not self._others_wait() and all(this.deaths <= other.deaths for other in self.interrupted.values())

    @asynccontextmanager
    async def during(self, activity: Activity, key: Key) -> AsyncIterator[None]:
        """Around the work itself. While interrupted work is tried, or waits for its turn, nothing else begins."""
        work, this = (activity, key), object()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._alone)
            if work in self.interrupted:
                await self._idle.wait()
            else:
                await stack.aclose()
            self._working[this] = f"working {activity} {key.namespace} {key.name} {self._identity(key)}"
            self._idle.clear()
            self._write()
            try:
                yield
            finally:
                self._working.pop(this, None)
                self.interrupted.pop(work, None)
                if not self._working:
                    self._idle.set()
                self._write()

    def _write(self) -> None:
        """A late event loop leaves the file as it was: the signal because of that may still come."""
        if self._file >= 0 and self._clock() - self._beats[0] <= LATE:
            lines = [f"{e.deaths} {a} {k.namespace} {k.name} {e.identity}" for (a, k), e in self.interrupted.items()]
            try:
                os.pwrite(self._file, "\n".join([self._version, *self._working.values(), *lines, "\n"]).encode(), 0)
            except OSError as error:
                self._file = -1
                logger.warning("cannot record what is in work any more: %s", error)

    def beat(self) -> None:
        """The event loop runs; to be called every second."""
        self._beats = (self._beats[1], self._clock())
        if self._clock() >= self._forgets_at:
            self._forgets_at = math.inf
            self.interrupted = {work: each for work, each in self.interrupted.items() if each.deaths >= DEATHS}

    def stopping(self) -> None:
        """A signal asks the process to end. If that is because the loop was blocked, the file stays as it was."""
        if self._file >= 0 and (gap := self._clock() - self._beats[0]) > LATE:
            logger.error("the event loop was blocked for %.0f s", gap)
            self._file = -1

    def close(self) -> None:
        """The process ends in order: nothing is in work any more."""
        self._working.clear()
        self._write()
