"""Leader election by a coordination.k8s.io Lease, on the monotonic clock.

Times in the Lease are for people; wall clocks are not compared. A follower counts from the moment it saw the
record change for the last time. The holder counts from the moment it *sent* its last successful renewal, so its own
view ends before anybody else's can: it stops writing after the renew deadline (6 s), followers wait for the whole
duration (10 s).

Earlier releases could split the namespaces over several Leases. The number is an annotation of this one, and whoever
holds another reads it every few seconds and stops writing within the renew deadline once it has changed. So who takes
this one and finds another number than 1 makes a pause of one whole duration, in which nobody writes.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kubeloop.errors import (
    ApiError,
    Conflict,
    InBetween,
    Invalid,
    KubeError,
    NotFound,
    Refused,
    Unauthorized,
    lacks_right,
)
from kubeloop.resources import LEASE
from kubeloop.timestamps import rfc3339
from kubeloop.transport import Transport

logger = logging.getLogger(__name__)

ALONE, PAUSE = "1", "to-1"
"""Values of the annotation: one process writes everywhere, and none writes anywhere."""


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


class Duties(Protocol):
    """The process, as far as its Lease is concerned."""

    def gained(self) -> None:
        """Begin with all services."""

    def lost(self) -> None:
        """The services are another's now."""

    def is_busy(self) -> bool:
        """Whether something is in work."""


class Lease:
    """A gate for all writes. `run` campaigns, renews, and campaigns again after a loss.

    A lost Lease ends the work and not the process. It is taken again once nothing is in work any more: what was decided
    in an earlier reign is never sent in a later one.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        name: str,
        identity: str,
        split_annotation: str,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.identity = identity
        self._split_annotation = split_annotation
        self.timing = timing or LeaseTiming()
        self.is_acting = False
        """Whether work may begin."""
        self.problem: str | None = "the Lease was not asked for yet"
        """Why this process can never get it; None: it has it, or waits for its turn."""
        self._transport = transport
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._stopping = False
        self._renewed_at: float | None = None
        self._lost = False
        self._in_force_at: float | None = None  # the end of a pause: until then we hold it and do not act
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
        left = self._renewed_at + self.timing.renew_deadline - self._clock()
        if left <= 0:
            self._lost = True  # a late renewal must not bring back a leader whose work others took over
        return left

    # The campaign

    async def run(self, duties: Duties) -> None:
        """Campaign until `stop`, for one reign after the other."""
        while not self._stopping:
            await self._campaign(duties)
            await self._reign(duties)
            self.is_acting = False
            if not self._stopping:
                logger.error("lost the lease %s/%s", self.namespace, self.name)
                duties.lost()

    def stop(self) -> None:
        """Take it no more; what is held is renewed until `release`."""
        self._stopping = True

    async def release(self) -> None:
        """Give the lease up at once, so that a follower need not wait; call it when nothing is in flight."""
        self.stop()
        self.is_acting = False
        if self._left() <= 0:
            return
        self._lost = True
        try:
            live = await self._request("get")
            if live["spec"].get("holderIdentity") == self.identity:
                spec = {**live["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
                await self._request("update", {**live, "spec": spec})
        except KubeError as error:
            logger.warning("could not release the lease, a follower takes it over when it expires: %s", error)

    async def _campaign(self, duties: Duties) -> None:
        while not await self._try_to_acquire(duties):
            # Once the record has expired, only a server that answers makes another try at once worth while.
            least = 0.05 if self._was_answered else self.timing.retry_failed
            await self._sleep(max(least, self._until_next_try(duties)))
        logger.info("became the leader of %s/%s as %s", self.namespace, self.name, self.identity)

    async def _reign(self, duties: Duties) -> None:
        pause = self.timing.retry
        while self._left() > 0:
            if not self.is_acting and self.is_leader:
                self.is_acting = True
                duties.gained()
            await self._sleep(min(pause, max(0.0, self._left())))
            if self._left() > 0:
                pause = self.timing.retry if await self._renew() else self.timing.retry_failed

    def _may_take(self, duties: Duties) -> bool:
        return not self._stopping and not duties.is_busy()

    def _until_next_try(self, duties: Duties) -> float:
        if not self._may_take(duties):
            return self.timing.retry
        return min(self.timing.retry, self._seen_at + self._seen_duration() - self._clock())

    def _seen_duration(self) -> float:
        return float(self._seen[1]) if self._seen else self.timing.retry

    async def _try_to_acquire(self, duties: Duties) -> bool:
        started = self._clock()
        self._was_answered = True
        try:
            taken = await self._take(duties)
        except Conflict:
            taken = None  # another candidate was faster
        except KubeError as error:
            self._tried(error)
            logger.warning("cannot campaign for the lease %s/%s: %s", self.namespace, self.name, error)
            self._was_answered = False
            return False
        self._tried(None)
        if taken is None:
            return False
        self._held, self._renewed_at, self._lost = taken, started, self._stopping
        self._in_force_at = None if self._split(taken) == ALONE else self._clock() + self.timing.duration
        return self._left() > 0

    async def _take(self, duties: Duties) -> dict[str, Any] | None:
        """The Lease, as ours; None: it is another's, or not to be taken now."""
        try:
            live = await self._request("get")
        except NotFound:
            return await self._request("create", self._lease(transitions=0)) if self._may_take(duties) else None
        if not self._is_free(live) or not self._may_take(duties):
            return None
        taken = {**live, "spec": self._taken_over(live.get("spec") or {})}
        return await self._request("update", taken if self._split(live) == ALONE else self._marked(taken, PAUSE))

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
            self._seen, self._seen_at = record, now
        return record[0] in (None, "", self.identity) or now - self._seen_at >= float(record[1])

    def _taken_over(self, spec: dict[str, Any]) -> dict[str, Any]:
        taken: dict[str, Any] = self._lease(transitions=int(spec.get("leaseTransitions") or 0) + 1)["spec"]
        return taken

    async def _renew(self) -> bool:
        """One renewal; a failure is tried again until the deadline, another holder's name ends the reign."""
        started = self._clock()
        is_due = self._in_force_at is not None and started >= self._in_force_at
        try:
            live = self._held or await self._request("get")
            self._held = None
            # A pause of ours ends with a write of ours, whose answer may have been lost.
            splits = (ALONE,) if self._in_force_at is None else (ALONE, PAUSE)
            if (live.get("spec") or {}).get("holderIdentity") != self.identity or self._split(live) not in splits:
                self._lost = True
                return False
            renewed = {**live, "spec": {**live["spec"], "renewTime": self._timestamp()}}
            self._held = await self._request("update", self._marked(renewed, ALONE) if is_due else renewed)
        except Conflict:
            return False  # somebody touched it: the next try reads it and sees whether we still hold it
        except KubeError as error:
            self._tried(error)
            logger.warning("cannot renew the lease %s/%s: %s", self.namespace, self.name, error)
            return False
        self._tried(None)
        if self._left() > 0:
            self._renewed_at = started
            self._in_force_at = None if is_due else self._in_force_at
        return True

    def _tried(self, error: KubeError | None) -> None:
        """To take or to keep it. No answer says nothing new."""
        if lacks_right(error):
            self.problem = f"missing right: {error.right}, for the Lease {self.namespace}/{self.name}"
        elif isinstance(error, NotFound | Invalid | Refused | Unauthorized | InBetween):
            self.problem = f"the Lease cannot be asked for: {error.message}"
        elif error is None or isinstance(error, ApiError):
            self.problem = None

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

    def _split(self, lease: Mapping[str, Any]) -> str:
        """Over how many Leases the work is split; no number while nobody may write."""
        return str(((lease.get("metadata") or {}).get("annotations") or {}).get(self._split_annotation) or ALONE)

    def _marked(self, lease: dict[str, Any], split: str) -> dict[str, Any]:
        annotations = {**(lease["metadata"].get("annotations") or {}), self._split_annotation: split}
        return {**lease, "metadata": {**lease["metadata"], "annotations": annotations}}
