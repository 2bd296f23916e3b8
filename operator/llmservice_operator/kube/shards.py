"""The Leases of one process, one for each shard of the namespaces: where it may write, and which it asks for.

Shard 0's Lease has the name that a single one would have, and says over how many shards the work is split. Any other
is kept only while that one, read every few seconds, says this process's own number: so processes that were started with
different numbers never own the same namespace (`lease` has the pause between two splits).

A shard that is given up or lost ends nothing but the work on its namespaces. It is campaigned for again at once, and
taken once nothing of it is in work any more: what was decided in an earlier reign is never sent in a later one.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

from .errors import ApiError, Forbidden, InBetween, Invalid, KubeError, NotFound, Refused, Unauthorized
from .lease import Lease, LeaseTiming, Outcome, Terms, split_of, wanted_by
from .partition import ShardLease, shard_of, shard_to_ask_for
from .transport import Transport

logger = logging.getLogger(__name__)

YIELDS, YIELDS_FOR_AT_MOST = 1.0, 2.0
"""Seconds for which a free shard is left to those who hold fewer: for each one held, and at most."""
YIELDS_UNTIL_IT_IS_READY = 3.0
YIELDS_WHAT_IT_GAVE = 6.0
"""The same for one that was given to somebody who asked: three looks at it."""
YIELDS_TO_THE_SPLIT = 4.0
"""The same for shard 0, left to those who were started with the split that is in force: while an upgrade replaces one
process after another, the split changes once, when the last one of the old has gone."""
LOOK_AGAIN = 0.1


class Duties(Protocol):
    """The process, as far as its shards are concerned."""

    def gained(self, shard: int) -> None:
        """The shard is this process's: begin with its services."""

    def lost(self, shard: int) -> None:
        """Its services are no longer this process's."""

    def is_busy(self, shard: int) -> bool:
        """Whether something of it is in work."""


class Shards:
    """A gate for all writes, by the namespace that they go to."""

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        name: str,
        identity: str,
        count: int = 1,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.count, self.identity, self.timing = count, identity, timing or LeaseTiming()
        self.is_ready = False
        """Whether it could begin at once. Until then it asks for no shard and leaves free ones to others."""
        self._transport, self._namespace, self._name = transport, namespace, name
        self._clock, self._now, self._sleep = clock, now, sleep
        self._leases: dict[int, Lease] = {}
        self._acting: set[int] = set()
        self._given: set[int] = set()
        self._seen_leases: dict[int, ShardLease] = {}
        self._split = ""
        self._in_force_until = float("-inf")
        self._stopping = False
        self._duties: Duties | None = None
        self._hand_overs: set[asyncio.Task[None]] = set()
        self._errors: dict[int, KubeError | None] = {}
        """Result of the last try, by shard."""

    # Where this process may write

    def remaining(self, namespace: str) -> float:
        """Seconds for which this process may still write into a namespace."""
        lease = self._leases.get(shard_of(namespace, self.count))
        return lease.remaining() if lease is not None else 0.0

    def owns(self, namespace: str) -> bool:
        """Whether work on a namespace may begin."""
        return shard_of(namespace, self.count) in self._acting

    @property
    def held(self) -> Collection[int]:
        """Shards whose services this process works on, now."""
        return [shard for shard in sorted(self._acting) if self._leases[shard].is_leader]

    def problem(self) -> str | None:
        """Why this process can never get a Lease; None: it has some, or waits for its turn."""
        for shard, error in sorted(self._errors.items()):
            if isinstance(error, Forbidden) and not isinstance(error, Refused):
                where = f"{self._namespace}/{lease_name(self._name, shard)}"
                return f"missing right: {error.right}, for the Lease {where}"
            if isinstance(error, NotFound | Invalid | Refused | Unauthorized | InBetween):
                return f"the Lease cannot be asked for: {error.message}"
        if len(self._errors) < self.count:
            return "the Lease was not asked for yet"
        return None

    # The campaign

    async def run(self, duties: Duties) -> None:
        """Campaign for all shards until `stop`."""
        self._duties = duties
        async with asyncio.TaskGroup() as group:
            for shard in range(self.count):
                group.create_task(self._serve(shard, duties), name=f"lease {shard}")

    def stop(self) -> None:
        """Take nothing more."""
        self._stopping = True

    async def release(self) -> None:
        """Give everything up, so that others need not wait; call it when nothing is in flight."""
        self.stop()
        self._acting.clear()
        await asyncio.gather(*(lease.release() for lease in self._leases.values()))

    async def _serve(self, shard: int, duties: Duties) -> None:
        while True:
            lease = self._leases[shard] = self._lease(shard)
            outcome = await lease.run(partial(self._gained, shard, duties))
            self._acting.discard(shard)
            if self._stopping:
                return
            if outcome is Outcome.LOST:
                duties.lost(shard)
                await lease.release()  # where only the split barred us from it

    def _gained(self, shard: int, duties: Duties) -> None:
        self._acting.add(shard)
        self._given.discard(shard)
        duties.gained(shard)

    async def _hand_over(self, shard: int, lease: Lease) -> None:
        """What is in work may still be written; then it is the other's."""
        duties = self._duties
        while duties is not None and duties.is_busy(shard) and lease.is_leader:
            await self._sleep(LOOK_AGAIN)
        if duties is not None:
            duties.lost(shard)
        self._given.add(shard)
        await lease.release()

    # What the leases are kept under

    def may_take(self, shard: int) -> bool:
        """Not what is still in work of an earlier reign, nor what another split may own."""
        is_idle = self._duties is not None and not self._duties.is_busy(shard)
        return is_idle and not self._stopping and (shard == 0 or self.in_force_for() > 0)

    def patience(self, shard: int) -> float:
        """Others may have fewer."""
        if shard in self._given:
            seen = self._seen_leases.get(shard)
            # Where giving it up failed, our own name is in it, and others may take it only when it has expired.
            is_unreleased = seen is not None and seen.holder == self.identity
            return YIELDS_WHAT_IT_GAVE + (self.timing.duration if is_unreleased else 0.0)
        if shard == 0 and self._split.isdecimal() and self._split != str(self.count):
            return YIELDS_TO_THE_SPLIT
        if self.count > 1 and not self.is_ready:
            return YIELDS_UNTIL_IT_IS_READY
        return min(YIELDS_FOR_AT_MOST, YIELDS * len(self._acting))

    def asks(self, shard: int) -> bool:
        """Whether to ask the holder of this one for it."""
        may = self.is_ready and not self._stopping and self.in_force_for() > 0
        return may and shard_to_ask_for(self.identity, self._seen_leases, self.count) == shard

    def seen(self, shard: int, lease: Mapping[str, Any], asked_at: float) -> None:
        """A Lease as it is now."""
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        self._seen_leases[shard] = ShardLease(holder, wanted_by(lease))
        if holder not in ("", self.identity):
            self._given.discard(shard)
        if shard == 0:
            self._split = split_of(lease) if lease else ""
            is_ours = self._split == str(self.count)
            self._in_force_until = asked_at + self.timing.renew_deadline if is_ours else float("-inf")

    def tried(self, shard: int, error: KubeError | None) -> None:
        """A Lease was asked for, or renewed. No answer says nothing new."""
        if error is None or isinstance(error, ApiError):
            self._errors[shard] = error

    def in_force_for(self) -> float:
        """Seconds for which no other split can be in force: whoever makes one pauses longer than that."""
        return self._in_force_until - self._clock()

    def wanted(self, shard: int) -> None:
        """Somebody has fewer than we; the last one is not given away."""
        if shard in self._acting and len(self._acting) > 1:
            logger.info("giving up shard %d of %d: another process asks for it", shard, self.count)
            self._acting.discard(shard)
            task = asyncio.create_task(self._hand_over(shard, self._leases[shard]), name=f"hand-over of {shard}")
            self._hand_overs.add(task)
            task.add_done_callback(self._hand_overs.discard)

    def _lease(self, shard: int) -> Lease:
        return Lease(
            self._transport,
            namespace=self._namespace,
            name=lease_name(self._name, shard),
            identity=self.identity,
            terms=Terms(
                split=None if shard else self.count,
                may_take=lambda: self.may_take(shard),
                patience=lambda: self.patience(shard),
                left=lambda: self.in_force_for() if shard else math.inf,
                asks=lambda: self.asks(shard),
                seen=partial(self.seen, shard),
                wanted=partial(self.wanted, shard),
                tried=partial(self.tried, shard),
            ),
            timing=self.timing,
            clock=self._clock,
            now=self._now,
            sleep=self._sleep,
        )


def lease_name(name: str, shard: int) -> str:
    """The first keeps the name of a single one: what was started with another number must meet it."""
    return f"{name}-{shard}" if shard else name
