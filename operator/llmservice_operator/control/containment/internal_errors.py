"""Containment: an unexpected exception about one service or pod is recorded here and ends nothing else.

Each one is logged with the service it is about and counted in `llmservice_internal_errors_total`. Those that are about
a part of a service (a pod's state, one child, an Event) stay open until that part works again, and the service's status
has the condition Degraded meanwhile (`decide.degraded`). A reconcile that fails as a whole is the worker's to report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from types import TracebackType

from llmservice_operator.api.service import Key
from llmservice_operator.process.log import object_logger

logger = logging.getLogger(__name__)

_PACKAGES = ("llmservice_operator", "llmservice_runtime", "llmservice_vllm")
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
