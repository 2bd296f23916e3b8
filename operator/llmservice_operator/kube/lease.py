"""Leader election by a coordination.k8s.io Lease, on the monotonic clock.

Times in the Lease are for people; wall clocks are not compared. A follower counts from the moment it saw the
record change for the last time. The holder counts from the moment it *sent* its last successful renewal, so its own
view ends before anybody else's can: it stops writing after the renew deadline (6 s), followers wait for the whole
duration (10 s).

A Lease can be one of several (`shards`): then `Terms` say what else it is taken and kept under, and the first of them
carries the split that is in force, in an annotation. Who takes it and wants another split than it says makes a pause of
one whole duration, in which no split is in force and whoever acted by the old one finds out.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_operator.api.constants import SPLIT_ANNOTATION, WANTED_ANNOTATION
from llmservice_operator.api.timestamps import rfc3339

from .errors import Conflict, KubeError, NotFound
from .resources import LEASE
from .transport import Transport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """All in seconds. Takeover needs at most retry + duration + one request after the holder's last renewal."""

    duration: float = 10.0
    renew_deadline: float = 6.0
    retry: float = 2.0
    retry_failed: float = 0.5
    request_timeout: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry + self.request_timeout:
            raise ValueError("a lease needs duration > renew deadline > retry + request timeout")


class Outcome(enum.Enum):
    """How an election ended."""

    RELEASED = "released"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a lease is taken and kept under, beside its record. The defaults are those of one that stands alone."""

    split: int | None = 1
    """Value that its annotation is to have; None: another lease has it."""
    may_take: Callable[[], bool] = lambda: True
    """Whether it may be taken at all, now."""
    patience: Callable[[], float] = lambda: 0.0
    """Seconds for which a free one is left to others first."""
    left: Callable[[], float] = lambda: math.inf
    """Seconds for which it may be kept, whatever its own record says."""
    asks: Callable[[], bool] = lambda: False
    """Whether to ask its holder for it."""
    seen: Callable[[Mapping[str, Any], float], None] = lambda lease, asked_at: None
    """It was read or written, by a request that was sent at this time; empty: there is none."""
    wanted: Callable[[], None] = lambda: None
    """It is ours, and another process asks for it."""
    tried: Callable[[KubeError | None], None] = lambda error: None
    """The API server answered a try to take or to keep it (None), or this came instead."""


class Lease:
    """One candidate, for one reign. `run` campaigns, then renews until it is stopped or has lost."""

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms | None = None,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.identity = identity
        self.timing = timing or LeaseTiming()
        self._terms = terms or Terms()
        self._transport = transport
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._renewed_at: float | None = None
        self._lost = False
        self._released = False
        self._is_barred = False
        self._in_force_at: float | None = None  # when our split may be: until then we hold it and do not act
        self._free_since: float | None = None
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._was_answered = True
        self._held: dict[str, Any] | None = None  # as the server answered last: a renewal is then one request

    # The gate that every write passes

    def remaining(self) -> float:
        """Seconds for which this process may still write; computed from the clock, so a process that slept knows."""
        return self._left() if self._in_force_at is None else 0.0

    @property
    def is_leader(self) -> bool:
        """Whether a write would be allowed now."""
        return self.remaining() > 0

    def _left(self) -> float:
        """Seconds for which it is ours."""
        if self._renewed_at is None or self._lost:
            return 0.0
        own = self._renewed_at + self.timing.renew_deadline - self._clock()
        left = min(own, self._terms.left())
        if left <= 0:
            self._lost = True  # for good: a late renewal must not bring back a leader whose work others took over
            self._is_barred = own > 0
        return left

    # The campaign

    async def run(self, on_gained: Callable[[], None]) -> Outcome:
        """Campaign, call `on_gained` once, renew; returns at the end of the reign."""
        while not await self._try_to_acquire():
            # Once the record has expired, only a server that answers makes another try at once worth while.
            least = 0.05 if self._was_answered else self.timing.retry_failed
            await self._sleep(max(least, self._until_next_try()))
        logger.info("became the leader of %s/%s as %s", self.namespace, self.name, self.identity)
        is_gained = False
        pause = self.timing.retry
        while self._left() > 0:
            if not is_gained and self.is_leader:
                is_gained = True
                on_gained()
            await self._sleep(min(pause, max(0.0, self._left())))
            if self._left() > 0:
                pause = self.timing.retry if await self._renew() else self.timing.retry_failed
        if self._released:
            return Outcome.RELEASED
        logger.error("lost the lease %s/%s", self.namespace, self.name)
        return Outcome.LOST

    async def release(self) -> None:
        """Give the lease up at once, so that a follower need not wait; call it when nothing is in flight."""
        if self._left() <= 0 and not self._is_barred:
            return
        self._lost = self._released = True
        self._is_barred = False
        try:
            live = await self._request("get")
            if live["spec"].get("holderIdentity") == self.identity:
                spec = {**live["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
                await self._request("update", {**live, "spec": spec})
        except KubeError as error:
            logger.warning("could not release the lease, a follower takes it over when it expires: %s", error)

    def _until_next_try(self) -> float:
        if self._free_since is not None:
            if not self._terms.may_take():
                return self.timing.retry
            if patience := self._terms.patience():
                return min(self.timing.retry, self._free_since + patience - self._clock())
        expires_in = self._seen_at + self._seen_duration() - self._clock()
        return min(self.timing.retry, expires_in)

    def _seen_duration(self) -> float:
        return float(self._seen[1]) if self._seen else self.timing.retry

    async def _try_to_acquire(self) -> bool:
        started = self._clock()
        self._was_answered = True
        try:
            live = await self._read()
            self._terms.seen(live or {}, started)
            if live is not None and not self._is_free(live):
                if self._terms.asks():
                    await self._request("update", _annotated(live, {WANTED_ANNOTATION: self.identity}))
                self._terms.tried(None)
                return False
            if not self._is_our_turn():
                self._terms.tried(None)
                return False
            split = self._split_mark(live)
            if live is None:
                taken = await self._request("create", _annotated(self._lease(transitions=0), split))
            else:
                marks = {WANTED_ANNOTATION: None, **split}
                spec = self._taken_over(live.get("spec") or {})
                taken = await self._request("update", {**_annotated(live, marks), "spec": spec})
        except Conflict:
            self._terms.tried(None)
            return False  # another candidate was faster
        except KubeError as error:
            self._terms.tried(error)
            logger.warning("cannot campaign for the lease %s/%s: %s", self.namespace, self.name, error)
            self._was_answered = False
            return False
        self._terms.tried(None)
        self._held, self._renewed_at = taken, started
        self._lost = self._released  # what never began was not lost: one that slept until now campaigns on
        self._in_force_at = self._clock() + self.timing.duration if split else None
        self._terms.seen(taken, started)
        return self._left() > 0

    def _is_our_turn(self) -> bool:
        """It is free; those who hold less may take it first."""
        now = self._clock()
        if self._free_since is None:
            self._free_since = now
        return self._terms.may_take() and now - self._free_since >= self._terms.patience()

    def _split_mark(self, live: dict[str, Any] | None) -> dict[str, str | None]:
        """Nothing where the right split is in force; else that none is."""
        split = self._terms.split
        return {} if split is None or split_of(live or {}) == str(split) else {SPLIT_ANNOTATION: _pause_before(split)}

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._request("get")
        except NotFound:
            return None

    def _is_free(self, live: dict[str, Any]) -> bool:
        """Nobody else holds it, or its record did not change for the holder's own duration while we looked. Our own
        name is in it after an earlier reign of this process, whose identity no other one has."""
        spec = live.get("spec") or {}
        record = (
            spec.get("holderIdentity"),
            spec.get("leaseDurationSeconds") or self.timing.duration,
            spec.get("renewTime"),
            spec.get("leaseTransitions"),
        )
        now = self._clock()
        if record != self._seen:
            self._seen, self._seen_at, self._free_since = record, now, None
        return record[0] in (None, "", self.identity) or now - self._seen_at >= float(record[1])

    def _taken_over(self, spec: dict[str, Any]) -> dict[str, Any]:
        taken: dict[str, Any] = self._lease(transitions=int(spec.get("leaseTransitions") or 0) + 1)["spec"]
        return taken

    async def _renew(self) -> bool:
        """One renewal; a failure is tried again until the deadline, another holder's name ends the reign."""
        started = self._clock()
        try:
            live = self._held or await self._request("get")
            self._held = None
            if (live.get("spec") or {}).get("holderIdentity") != self.identity or not self._is_split_ours(live):
                self._lost = True
                return False
            is_due = self._in_force_at is not None and started >= self._in_force_at
            marks = {WANTED_ANNOTATION: None, **({SPLIT_ANNOTATION: str(self._terms.split)} if is_due else {})}
            spec = {**live["spec"], "renewTime": self._timestamp()}
            self._held = await self._request("update", {**_annotated(live, marks), "spec": spec})
        except Conflict:
            return False  # somebody touched it: the next try reads it and sees whether we still hold it
        except KubeError as error:
            self._terms.tried(error)
            logger.warning("cannot renew the lease %s/%s: %s", self.namespace, self.name, error)
            return False
        self._terms.tried(None)
        if self._left() > 0:
            self._renewed_at = started
            self._in_force_at = None if is_due else self._in_force_at
            self._terms.seen(self._held, started)
            if wanted_by(live) not in ("", self.identity):
                self._terms.wanted()
        return True

    def _is_split_ours(self, live: Mapping[str, Any]) -> bool:
        """A pause that we made ends with a write of ours, whose answer may have been lost."""
        split = self._terms.split
        may_say = (str(split),) if self._in_force_at is None else (str(split), _pause_before(split))
        return split is None or split_of(live) in may_say

    async def _request(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        path = LEASE.path(self.namespace, None if verb == "create" else self.name)
        return await self._transport.request(verb, LEASE, path, body=body, timeout=self.timing.request_timeout)

    def _timestamp(self) -> str:
        return rfc3339(self._now(), "microseconds")

    def _lease(self, *, transitions: int) -> dict[str, Any]:
        stamp = self._timestamp()
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": round(self.timing.duration),
                "acquireTime": stamp,
                "renewTime": stamp,
                "leaseTransitions": transitions,
            },
        }


def split_of(lease: Mapping[str, Any]) -> str:
    """What a Lease says of the split: a number, or what is no number while none is in force."""
    return _annotation(lease, SPLIT_ANNOTATION) or "1"


def wanted_by(lease: Mapping[str, Any]) -> str:
    """Who asks for it; empty: nobody."""
    return _annotation(lease, WANTED_ANNOTATION)


def _annotation(lease: Mapping[str, Any], name: str) -> str:
    return str(((lease.get("metadata") or {}).get("annotations") or {}).get(name) or "")


def _annotated(lease: dict[str, Any], marks: Mapping[str, str | None]) -> dict[str, Any]:
    """With these annotations; None takes one away."""
    before = lease["metadata"].get("annotations") or {}
    after = {name: value for name, value in {**before, **marks}.items() if value is not None}
    return lease if after == before else {**lease, "metadata": {**lease["metadata"], "annotations": after}}


def _pause_before(split: int | None) -> str:
    return f"to-{split}"
