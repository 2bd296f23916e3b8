"""Containment of unexpected exceptions about one service or pod, and quarantine of a service that ends the process.

Each exception is logged with the service it is about and counted in `llmservice_internal_errors_total`. Those that are
about a part of a service (a pod's state, one child, an Event) stay open until that part works again, and the service's
status has the condition Degraded meanwhile. A reconcile that fails as a whole is the worker's to report.

`InWork` keeps what is in work in a file that outlives the process. Memory, a crash in C or the watchdog of the event
loop end the whole process, and the next one would meet the same service first. So after an unclean death the next
process works on what was in work last, and one at a time. A service that was alone in work at two deaths is left alone
until its spec or the operator's version changes.

The file has the operator's version, a line for each piece of work, and an empty line. A line is `working` or the number
of deaths with nothing else in work, then namespace/name, activity and identity. One write without fsync replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Literal, get_args

from kubeloop.log import object_logger
from kubeloop.resources import Key

logger = logging.getLogger("llmservice_operator.service.containment.internal_errors")
"""Logs are searched by this name."""

_PACKAGES = {"kubeloop", *(f"llmservice_{name}" for name in ("operator", "api", "planner", "runtime", "vllm"))}
MOST_PARTS = 64
"""Open errors that are kept of one service: more say nothing more."""
SHOWN_FOR = 60.0
"""Seconds from the last exception for which a part that works again still counts as failing."""


class Part(StrEnum):
    """What failed; the metric's label."""

    RECONCILE = "reconcile"
    STATE = "state"
    """What a pod answered to a question about its state."""
    PROJECTION = "projection"
    """What a watch or a list brought about one object."""
    DRAINS = "drains"
    EVENT = "event"
    BOOKKEEPING = "bookkeeping"
    """Metrics, turns of updates, and which pods are asked."""
    RESYNC = "resync"
    NODES = "nodes"


def place_of(error: BaseException) -> str:
    """The exception's type and the line of ours that raised it or called what did.

    The text of the exception is left out: it may differ from one attempt to the next, which would write a status each
    time, and it may quote anything.
    """
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        parts = PurePath(frame.f_code.co_filename).parts
        for at in (at for at, part in enumerate(parts) if part in _PACKAGES):
            found = f" at {'/'.join(parts[at:])}:{line}"
    return f"{type(error).__name__}{found}"


@dataclass(slots=True)
class Attempt:
    """A block whose exceptions are contained."""

    place: str = ""
    """Where the exception that ended it came from, as it is shown; empty without one."""

    @property
    def failed(self) -> bool:
        """Whether an exception ended it."""
        return bool(self.place)


@dataclass(slots=True)
class _Open:
    """An error that is shown."""

    place: str
    """Of the first exception: others in turn must not write each other's."""
    failed_at: float
    is_over: bool = False
    """Whether the part succeeded since."""


class InternalErrors:
    """Those of one process."""

    def __init__(
        self,
        *,
        count: Callable[[str], None] = lambda part: None,
        changed: Callable[[Key], None] = lambda key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._changed, self._clock = count, changed, clock
        self._open: dict[Key, dict[tuple[Part, str], _Open]] = {}

    @contextmanager
    def contained(self, part: Part, key: Key | None = None, subject: str = "") -> Iterator[Attempt]:
        """Around work about one service (None: about none that is known), or one `subject` of it.

        An exception ends the block and is logged and counted, its traceback once until the part has succeeded for a
        while. Without one the part works again.
        """
        attempt = Attempt()
        try:
            yield attempt
        except Exception as error:  # noqa: BLE001  # recorded with its place
            attempt.place = place_of(error)
            self._record(part, key, error, subject, attempt.place)
        else:
            found = self._open.get(key, {}).get((part, subject)) if key is not None else None
            if key is not None and found is not None and not found.is_over:
                found.is_over = True
                self._is_to_be_shown(part, key)

    def _record(self, part: Part, key: Key | None, error: Exception, subject: str, place: str) -> None:
        self._count(part)
        known = {} if key is None else self._open.setdefault(key, {})
        found = known.get((part, subject))
        log = logger if key is None else object_logger(logger, key)
        trace = None if found is not None and found.place == place else error
        log.error("internal error: %s: %s", f"{part} {subject}".strip(), place, exc_info=trace)
        if found is not None:
            found.failed_at, found.is_over = self._clock(), False
        elif key is not None and len(known) < MOST_PARTS:
            known[part, subject] = _Open(place, self._clock())
            self._is_to_be_shown(part, key)

    def _is_to_be_shown(self, part: Part, key: Key) -> None:
        if part is not Part.RECONCILE:  # that one is reported, and tried again, by whoever called it
            self._changed(key)

    def ended(self, part: Part, key: Key, subject: str) -> None:
        """What it was about is gone."""
        known = self._open.get(key, {})
        if known.pop((part, subject), None) is None:
            return
        if not known:
            del self._open[key]
        self._changed(key)

    def degraded(self, key: Key) -> str:
        """What of a service fails, the reconcile itself apart; the same words for the same errors."""
        return "; ".join(
            f"{f'{part} {subject}'.strip()}: {found.place}"
            for (part, subject), found in sorted(self._shown(key).items(), key=lambda item: item[0])
            if part is not Part.RECONCILE
        )

    def recheck_after(self, key: Key) -> float | None:
        """Seconds until one of them is shown no longer, if nothing fails again."""
        now = self._clock()
        left = [
            found.failed_at + SHOWN_FOR - now
            for (part, _), found in self._open.get(key, {}).items()
            if found.is_over and part is not Part.RECONCILE
        ]
        return max(0.0, min(left)) if left else None

    def has_failed_lately(self, key: Key) -> bool:
        """Whether the reconcile failed a while ago; if it fails again, that is no first failure."""
        return (Part.RECONCILE, "") in self._shown(key)

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._open.pop(key, None)

    def _shown(self, key: Key) -> Mapping[tuple[Part, str], _Open]:
        known = self._open.get(key)
        if known is None:
            return {}
        now = self._clock()
        for which in [w for w, found in known.items() if found.is_over and now - found.failed_at >= SHOWN_FOR]:
            del known[which]
        if not known:
            del self._open[key]
        return known


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
                self._restore(os.pread(self._file, 2**16, 0).decode(errors="replace"))
            except OSError as error:
                logger.warning("cannot record what is in work in %s, going on without: %s", folder, error)

    def _restore(self, text: str) -> None:
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
