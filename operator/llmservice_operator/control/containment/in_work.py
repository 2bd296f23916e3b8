"""What is in work, recorded so that the next process knows it after an unclean death.

A defect may take the whole process: a crash in C, memory, a loop that never ends and the liveness probe. The next
process would meet the same service at once, and nothing would ever be reconciled again. So whatever is in work has a
slot in a file (`in_work_file`), and a clean end leaves the slots empty. What a dead process left in them are suspects:
they are worked on after everything else and one at a time, and one that survives that is none any more. A service that
was alone in work at two deaths in a row is quarantined until its spec or the operator's version changes.

An outside kill (a node that fails, a person) makes suspects too, and costs them a moment; two of them in a row would
have to meet the same service alone to quarantine it, without one successful attempt and without an hour of work in
between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from llmservice_operator.api.service import Key
from llmservice_operator.control.containment.in_work_file import Activity, Death, InWorkFile, Suspect, Work

logger = logging.getLogger(__name__)

DEATHS = 2
"""In a row, with nothing else in work, after which a service is quarantined."""
LAST_FOR = 60.0
"""Seconds for which suspects wait for everything else to be worked on; on a busy cluster something always is."""
LATE = 10.0
"""Seconds without a heartbeat after which the event loop counts as blocked."""
TRIED_WITHIN = 3600.0
"""Seconds of work after which a suspect that was not tried is none any more: its pod is asked no longer. One outside
kill more would else quarantine it, whenever that is."""

Identity = Callable[[Key], tuple[str, int]]
"""uid and generation of a service, as far as they are known."""


class InWork:
    """Of one process. Without a folder it only counts; single-threaded, on the event loop."""

    def __init__(
        self,
        file: InWorkFile | None = None,
        *,
        identity: Identity = lambda key: ("", 0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.others_wait: Callable[[], bool] = lambda: False
        """Whether anything but the one who asks waits to be worked on."""
        self._file, self._clock = file, clock
        self._suspects: dict[Work, Suspect] = {}
        self._busy = self._wanting = 0
        self._is_alone = False
        self._waiters: list[asyncio.Future[None]] = []
        self._free: list[int] = []
        self._last_until = clock() + LAST_FOR
        self._tried_until = float("inf")
        self._beaten_at = clock()
        self._blocked_for = 0.0
        """Before the last heartbeat."""
        self._ended_late: list[Callable[[], None]] = []
        """What ended while the loop was blocked, and counts as in work until it is known to go on."""

    @classmethod
    def of(
        cls,
        folder: Path | None,
        version: str,
        *,
        identity: Identity = lambda key: ("", 0),
        clock: Callable[[], float] = time.monotonic,
    ) -> InWork:
        """What an earlier process left in this folder (None: nothing is recorded) is taken up and written down."""
        if folder is None:
            return cls(identity=identity, clock=clock)
        try:
            file, death = InWorkFile.open(folder, version)
        except OSError as error:
            logger.warning("cannot record what is in work in %s, going on without: %s", folder, error)
            return cls(identity=identity, clock=clock)
        made = cls(file, identity=identity, clock=clock)
        made._take_up(death)
        return made

    def _take_up(self, death: Death) -> None:
        assert self._file is not None
        is_alone = len({work.key for work, _ in death.in_work}) == 1
        self._suspects = dict(death.suspects)
        for work, found in dict(death.in_work).items():  # several pods of a service may have been asked at once
            known = self._suspects.get(work)
            before = known.alone if known is not None and known.is_of(found.uid, found.generation) else 0
            self._suspects[work] = found._replace(alone=before + is_alone)
        if death.in_work:
            names = sorted({str(work.key) for work, _ in death.in_work})
            logger.warning(
                "an earlier process ended abnormally; what it had in work comes last, and one at a time: %s",
                ", ".join(names),
            )
        for work, suspect in self._suspects.items():
            if suspect.alone >= DEATHS:
                logger.error("%s is quarantined: %d processes in a row ended with it alone", work.key, suspect.alone)
        self._free = list(range(self._file.slots))
        self._file.save(self._suspects)  # before the slots are emptied: a death in between loses nothing
        self._file.empty()

    @property
    def suspects(self) -> Collection[Work]:
        """What is worked on last and alone."""
        return self._suspects.keys()

    def quarantined(self, key: Key) -> bool:
        """Whether nothing is to be done about a service; one that changed since is a suspect still, and tried alone."""
        if not self._suspects:
            return False
        found = [work for work in self._suspects if work.key == key and self._suspects[work].alone >= DEATHS]
        now = self.identity(key) if found else ("", 0)
        is_kept = False
        for work in found:
            if self._suspects[work].is_of(*now):
                is_kept = True
            else:
                self._suspects[work] = Suspect(*now)
                self._save()
        return is_kept

    def begin(self, keys: Iterable[Key], *, is_complete: Callable[[str], bool] = lambda namespace: True) -> None:
        """The work begins, and these are all services of the namespaces that are complete; see `keep`."""
        self._last_until = self._clock() + LAST_FOR
        self._tried_until = self._clock() + TRIED_WITHIN
        self.keep(keys, is_complete=is_complete)

    def keep(self, keys: Iterable[Key], *, is_complete: Callable[[str], bool]) -> None:
        """Suspects that are gone are forgotten; of a namespace that is not synced yet nobody knows what is gone."""
        if not self._suspects:
            return
        known = frozenset(keys)
        gone = [work for work in self._suspects if work.key not in known and is_complete(work.namespace)]
        for work in gone:
            del self._suspects[work]
        if gone:
            self._save()

    def may_begin(self, activity: Activity, key: Key) -> bool:
        """False for a suspect as long as anything else waits, less suspect ones among it: ask again in a moment."""
        suspect = self._suspects.get(Work(activity, *key)) if self._suspects else None
        if suspect is None or self._clock() >= self._last_until:
            return True
        return not self.others_wait() and all(suspect.alone <= other.alone for other in self._suspects.values())

    @asynccontextmanager
    async def during(self, activity: Activity, key: Key) -> AsyncIterator[None]:
        """Around the work itself; whoever comes while a suspect is in work, or is about to be, waits."""
        work = Work(activity, *key)
        is_suspect = work in self._suspects
        if is_suspect:
            await self._for_itself()
        else:
            while self._is_alone or self._wanting:
                await self._changed()
        self._busy += 1
        self._is_alone = is_suspect
        slot = self._free.pop() if self._free else None
        try:
            if self._file is not None and slot is not None:
                self._file.write(slot, work, *self.identity(key))
            yield
        finally:
            self._busy -= 1
            self._is_alone = False
            self._ended_late.append(partial(self._ended, work if is_suspect else None, slot))
            if self._file is None or not self._is_late():
                self._all_ended()
            self._wake()

    def _ended(self, suspect: Work | None, slot: int | None) -> None:
        if self._file is not None and slot is not None:
            self._file.clear(slot)
            self._free.append(slot)
        if suspect is not None:
            self._suspects.pop(suspect, None)
            self._save()

    def _all_ended(self) -> None:
        ended, self._ended_late = self._ended_late, []
        for each in ended:
            each()

    def _is_late(self) -> bool:
        return self._gap() > LATE

    def _gap(self) -> float:
        return max(self._blocked_for, self._clock() - self._beaten_at)

    def beat(self) -> None:
        """The event loop runs; to be called every second. After a gap, the signal because of it may come after this."""
        now = self._clock()
        self._blocked_for, self._beaten_at = now - self._beaten_at, now
        if not self._is_late():
            self._all_ended()
        if now >= self._tried_until:
            self._tried_until = float("inf")
            untried = [work for work, suspect in self._suspects.items() if suspect.alone < DEATHS]
            for work in untried:
                del self._suspects[work]
            self._save()

    def stopping(self) -> None:
        """A signal asks the process to end; the slots are kept where the loop was blocked, which is why."""
        if self._file is not None and self._is_late():
            logger.error("the event loop was blocked for %.0f s", self._gap())
            self._file.keep()

    def close(self) -> None:
        """The process ends in order: nothing that it had in work is a suspect."""
        if self._file is not None:
            self._file.empty()

    async def _for_itself(self) -> None:
        self._wanting += 1
        try:
            while self._busy:
                await self._changed()
        finally:
            self._wanting -= 1
            self._wake()

    async def _changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(self._suspects)
