"""What is in work, in a file that outlives the process: a service that ends it again and again is quarantined.

Memory, a crash in C or the watchdog of the event loop end the whole process, and the next one would meet the same
service first. So after an unclean death the next process works on what was in work last, and one at a time. A service
that was alone in work at two deaths is left alone until its spec or the operator's version changes.

The file has the operator's version, a line for each piece of work, and an empty line. A line is `working` or the number
of deaths with nothing else in work, then namespace/name, activity and identity. One write without fsync replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal, get_args

from kubeloop.resources import Key

logger = logging.getLogger("llmservice_operator.service.containment.in_work")
"""Logs are searched by this name."""

Activity = Literal["reconcile", "state"]
DEATHS = 2
LAST_FOR = 60.0  # seconds for which interrupted work waits for all other: on a busy cluster some always waits
TRIED_WITHIN = 3600.0  # seconds after which work that was not tried again is forgotten: an outside kill proves nothing


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
        """`identity`: of a service as it is now; one that is edited is another one, whose work killed nobody yet."""
        self._version, self._identity, self._others_wait, self._clock = version, identity, others_wait, clock
        self.interrupted: dict[str, int] = {}
        """Work at whose time a process died: how many did with nothing else in work."""
        self._working: list[str] = []
        self._alone, self._idle = asyncio.Lock(), asyncio.Event()
        self._idle.set()
        self._waits_until, self._forgets_at, self._file = math.inf, clock() + TRIED_WITHIN, -1
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = os.open(folder / "in-work", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                self._take_up(os.pread(self._file, 2**16, 0).decode(errors="replace"))
            except OSError as error:
                logger.warning("cannot record what is in work in %s, going on without: %s", folder, error)

    def _take_up(self, text: str) -> None:
        version, *lines = text.partition("\n\n")[0].split("\n")
        found = [line.partition(" ")[::2] for line in lines if version == self._version]
        before = {work: int(deaths) for deaths, work in found if deaths in ("0", "1", "2")}
        working = [work for word, work in found if word == "working"]
        keys = sorted({work.partition(" ")[0] for work in working})
        died = {work: min(DEATHS, before.get(work, 0) + (len(keys) == 1)) for work in working}
        self.interrupted = died | before | died  # what was interrupted last comes first
        if keys:
            what = "an earlier process ended abnormally; what it had in work comes last, and one at a time: %s"
            logger.warning(what, ", ".join(keys))
        for key in {work.partition(" ")[0] for work, deaths in self.interrupted.items() if deaths >= DEATHS}:
            logger.error("%s is quarantined: %d processes in a row ended with it alone", key, DEATHS)

    def _work(self, activity: Activity, key: Key) -> str:
        return f"{key} {activity} {self._identity(key)}"

    def quarantined(self, key: Key) -> bool:
        """Whether nothing is to be done about a service as it is now."""
        return any(self.interrupted.get(self._work(activity, key), 0) >= DEATHS for activity in get_args(Activity))

    def may_begin(self, activity: Activity, key: Key) -> bool:
        """False for interrupted work while other work waits, or some that had fewer deaths: ask again in a moment."""
        now, deaths = self._clock(), self.interrupted.get(self._work(activity, key))
        if now >= self._forgets_at:
            self.interrupted = {work: deaths for work, deaths in self.interrupted.items() if deaths >= DEATHS}
        if deaths is None or now >= min(self._waits_until, self._forgets_at):
            return True
        self._waits_until = min(self._waits_until, now + LAST_FOR)
        return not self._others_wait() and deaths == min(self.interrupted.values())

    @asynccontextmanager
    async def during(self, activity: Activity, key: Key) -> AsyncIterator[None]:
        """Around the work itself. While interrupted work is tried, or waits for its turn, nothing else begins."""
        work = self._work(activity, key)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._alone)
            if work in self.interrupted:
                await self._idle.wait()
            else:
                await stack.aclose()
            self._working.append(work)
            self._idle.clear()
            self._write(self._working)
            try:
                yield
            finally:
                self._working.remove(work)
                self.interrupted.pop(work, None)
                if not self._working:
                    self._idle.set()
                self._write(self._working)

    def _write(self, working: Collection[str]) -> None:
        if self._file >= 0:
            lines = [f"working {work}" for work in working]
            lines += [f"{deaths} {work}" for work, deaths in self.interrupted.items()]
            try:
                os.pwrite(self._file, "\n".join([self._version, *lines, "\n"]).encode(), 0)
            except OSError as error:
                self._file = -1
                logger.warning("cannot record what is in work any more: %s", error)

    def close(self) -> None:
        """The process ends in order: what is in work is cancelled."""
        self._write([])
        self._file = -1
