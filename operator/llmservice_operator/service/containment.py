"""Containment of unexpected exceptions about one service or pod, and of deaths of the process.

Each exception is logged with the service it is about and counted in `llmservice_internal_errors_total`. Those that are
about a part of a service (a pod's state, one child, an Event) stay open until that part works again, and the service's
status has the condition Degraded meanwhile. A reconcile that fails as a whole is the worker's to report.

A crash in C, memory or a blocked event loop ends the whole process, and the next one would meet the same service first.
So the keys in work are in a plain file: after an unclean death the next process works on them last, and one at a time.
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
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from types import TracebackType
from typing import Literal, NamedTuple

from kubeloop.log import object_logger
from kubeloop.resources import Key

logger = logging.getLogger("llmservice_operator.service.containment.internal_errors")
_work_logger = logging.getLogger("llmservice_operator.service.containment.in_work")
# Logs are searched by these names.

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
                _work_logger.warning("cannot record what is in work in %s, going on without: %s", folder, error)

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
                    _work_logger.warning("a line of the record of what is in work is damaged, going on without")
        if keys := sorted({str(key) for _, key in working}):
            what = "an earlier process ended abnormally; what it had in work comes last, and one at a time: %s"
            _work_logger.warning(what, ", ".join(keys))
        for work, identity in working.items():
            known = self.interrupted.get(work)
            before = known.deaths if known is not None and known.identity == identity else 0
            self.interrupted[work] = Interrupted(identity, min(DEATHS, before + (len(keys) == 1)))
        for key in {key for (_, key), each in self.interrupted.items() if each.deaths >= DEATHS}:
            _work_logger.error("%s is quarantined: %d processes in a row ended with it alone", key, DEATHS)

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
                _work_logger.warning("cannot record what is in work any more: %s", error)

    def beat(self) -> None:
        """The event loop runs; to be called every second."""
        self._beats = (self._beats[1], self._clock())
        if self._clock() >= self._forgets_at:
            self._forgets_at = math.inf
            self.interrupted = {work: each for work, each in self.interrupted.items() if each.deaths >= DEATHS}

    def stopping(self) -> None:
        """A signal asks the process to end. If that is because the loop was blocked, the file stays as it was."""
        if self._file >= 0 and (gap := self._clock() - self._beats[0]) > LATE:
            _work_logger.error("the event loop was blocked for %.0f s", gap)
            self._file = -1

    def close(self) -> None:
        """The process ends in order: nothing is in work any more."""
        self._working.clear()
        self._write()


_PACKAGES = (
    "kubeloop",
    "llmservice_operator",
    "llmservice_api",
    "llmservice_planner",
    "llmservice_runtime",
    "llmservice_vllm",
)
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
    WATCH = "watch"
    RESYNC = "resync"
    NODES = "nodes"


def place_of(error: BaseException) -> str:
    """The exception's type and the line of ours that raised it or called what did.

    The text of the exception is left out: it may differ from one attempt to the next, which would write a status each
    time, and it may quote anything.
    """
    found = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        path = PurePath(trace.tb_frame.f_code.co_filename)
        for package in _PACKAGES:
            if package in path.parts:
                found = f" at {'/'.join(path.parts[path.parts.index(package) :])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{found}"


class Contained:
    """A context manager: an exception is recorded and ends the block; none closes what was open of this part."""

    __slots__ = ("_errors", "_key", "_part", "_subject", "place")

    def __init__(self, errors: InternalErrors, part: Part, key: Key | None, subject: str) -> None:
        self._errors, self._part, self._key, self._subject = errors, part, key, subject
        self.place = ""
        """Where the exception came from, as it is shown."""

    @property
    def failed(self) -> bool:
        """Whether there was one."""
        return bool(self.place)

    def end(self) -> None:
        """What it is about is gone."""
        if self._key is not None and not self.failed:
            self._errors.ended(self._part, self._key, self._subject)

    def __enter__(self) -> Contained:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._errors.succeeded(self._part, self._key, self._subject)
            return False
        if not isinstance(error, Exception):
            return False  # a task that is cancelled, a process that ends
        self.place = place_of(error)
        self._errors.record(self._part, self._key, error, self._subject)
        return True


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

    def contained(self, part: Part, key: Key | None = None, subject: str = "") -> Contained:
        """Around work about one service (None: about none that is known), or one `subject` of it."""
        return Contained(self, part, key, subject)

    def record(self, part: Part, key: Key | None, error: Exception, subject: str = "") -> None:
        """Log and count it; the traceback is logged once until the part has succeeded for a while."""
        self._count(part)
        place = place_of(error)
        about = f"{part} {subject}".strip()
        if key is None:
            logger.error("internal error: %s: %s", about, place, exc_info=error)
            return
        log = object_logger(logger, key)
        known = self._open.setdefault(key, {})
        found = known.get((part, subject))
        log.error("internal error: %s: %s", about, place, exc_info=None if found and found.place == place else error)
        if found is not None:
            found.failed_at, found.is_over = self._clock(), False
        elif len(known) < MOST_PARTS:
            known[part, subject] = _Open(place, self._clock())
            self._is_to_be_shown(part, key)

    def succeeded(self, part: Part, key: Key | None, subject: str = "") -> None:
        """This part works (again); it is shown for a while still, since one that fails now and then would be written
        each time."""
        known = self._open.get(key) if key is not None else None
        found = known.get((part, subject)) if known is not None else None
        if key is not None and found is not None and not found.is_over:
            found.is_over = True
            self._is_to_be_shown(part, key)

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

    def _is_to_be_shown(self, part: Part, key: Key) -> None:
        if part is not Part.RECONCILE:  # that one is reported, and tried again, by whoever called it
            self._changed(key)

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
