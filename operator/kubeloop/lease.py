"""Leader election with a coordination.k8s.io Lease, on the monotonic clock.

Times in the Lease are informational; wall clocks are not compared. A follower measures from when it last saw the record
change. The holder measures from when it *sent* its last successful renewal, so it stops first: it writes until the
renew deadline (6 s), followers wait for the whole duration (10 s).

Earlier releases could split the namespaces over several Leases. The number is an annotation of this Lease; holders of
the others read it every few seconds and stop writing within the renew deadline once it changed. A process that takes
this Lease and finds another number than 1 pauses for one duration, in which nobody writes.
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
    Invalid,
    KubeError,
    NotFound,
    ProxyRefusal,
    Refused,
    Unauthorized,
    lacks_right,
)
from kubeloop.resources import LEASE, rfc3339
from kubeloop.transport import Transport

logger = logging.getLogger(__name__)

ALONE, PAUSE = "1", "to-1"
"""Values of the annotation: one process writes everywhere; nobody writes."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """In seconds. A takeover needs at most retry + duration + one request after the holder's last renewal."""

    duration: float = 10.0
    renew_deadline: float = 6.0
    retry: float = 2.0
    retry_failed: float = 0.5
    request_timeout: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry + self.request_timeout:
            raise ValueError("a lease needs duration > renew deadline > retry + request timeout")


class LeaderCallbacks(Protocol):
    def gained(self) -> None:
        """Start to reconcile all services."""

    def lost(self) -> None:
        """Stop to reconcile: another process may lead now."""

    def is_busy(self) -> bool:
        """Whether a reconcile is still running."""


class Lease:
    """A gate for all writes. `run` acquires, renews, and acquires again after a loss.

    A loss ends the work and not the process. The Lease is acquired again only when no reconcile is running, so that no
    decision of an earlier term is written in a later one.
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
        """Whether reconciling may begin."""
        self.problem: str | None = "the Lease was not asked for yet"
        """Why this process cannot acquire the Lease; None where it holds it or waits for it."""
        self._transport = transport
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._stopping = False
        self._renewed_at: float | None = None
        self._lost = False
        self._in_force_at: float | None = None  # end of a pause: held until then without acting
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._was_answered = True
        self._held: dict[str, Any] | None = None  # the last response, so that a renewal is one request

    def remaining(self) -> float:
        """Seconds for which this process may write. Computed from the clock, so that a suspended process does not write
        late."""
        return self._left() if self._in_force_at is None else 0.0

    @property
    def is_leader(self) -> bool:
        return self.remaining() > 0

    def _left(self) -> float:
        """Seconds until the renew deadline."""
        if self._renewed_at is None or self._lost:
            return 0.0
        left = self._renewed_at + self.timing.renew_deadline - self._clock()
        if left <= 0:
            self._lost = True  # a late renewal must not restore leadership that another process may have taken over
        return left

    async def run(self, callbacks: LeaderCallbacks) -> None:
        """Acquire and hold the Lease, again after each loss, until `stop`."""
        while not self._stopping:
            await self._campaign(callbacks)
            await self._lead(callbacks)
            self.is_acting = False
            if not self._stopping:
                logger.error("lost the lease %s/%s", self.namespace, self.name)
                callbacks.lost()

    def stop(self) -> None:
        """Acquire no more; a held Lease is renewed until `release`."""
        self._stopping = True

    async def release(self) -> None:
        """Release the Lease, so that a follower need not wait for its expiry; call it when no request is running."""
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

    async def _campaign(self, callbacks: LeaderCallbacks) -> None:
        while not await self._try_to_acquire(callbacks):
            # An expired record is tried again at once only if the API server answers.
            least = 0.05 if self._was_answered else self.timing.retry_failed
            await self._sleep(max(least, self._until_next_try(callbacks)))
        logger.info("became the leader of %s/%s as %s", self.namespace, self.name, self.identity)

    async def _lead(self, callbacks: LeaderCallbacks) -> None:
        pause = self.timing.retry
        while self._left() > 0:
            if not self.is_acting and self.is_leader:
                self.is_acting = True
                callbacks.gained()
            await self._sleep(min(pause, max(0.0, self._left())))
            if self._left() > 0:
                pause = self.timing.retry if await self._renew() else self.timing.retry_failed

    def _may_take(self, callbacks: LeaderCallbacks) -> bool:
        return not self._stopping and not callbacks.is_busy()

    def _until_next_try(self, callbacks: LeaderCallbacks) -> float:
        if not self._may_take(callbacks):
            return self.timing.retry
        return min(self.timing.retry, self._seen_at + self._seen_duration() - self._clock())

    def _seen_duration(self) -> float:
        return float(self._seen[1]) if self._seen else self.timing.retry

    async def _try_to_acquire(self, callbacks: LeaderCallbacks) -> bool:
        started = self._clock()
        self._was_answered = True
        try:
            taken = await self._take(callbacks)
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

    async def _take(self, callbacks: LeaderCallbacks) -> dict[str, Any] | None:
        """The Lease with this process as holder; None where another holds it, or it may not be taken now."""
        try:
            live = await self._request("get")
        except NotFound:
            return await self._request("create", self._lease(transitions=0)) if self._may_take(callbacks) else None
        if not self._is_free(live) or not self._may_take(callbacks):
            return None
        taken = {**live, "spec": self._taken_over(live.get("spec") or {})}
        return await self._request("update", taken if self._split(live) == ALONE else self._marked(taken, PAUSE))

    def _is_free(self, live: dict[str, Any]) -> bool:
        """Whether nobody else holds the Lease, or its record did not change for the holder's own duration. Its holder
        may be this process after an earlier term: identities are unique to a process."""
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
        """Renew once, with retries until the deadline; False where another process holds the Lease."""
        started = self._clock()
        is_due = self._in_force_at is not None and started >= self._in_force_at
        try:
            live = self._held or await self._request("get")
            self._held = None
            # The write that ends a pause may have succeeded without a response.
            splits = (ALONE,) if self._in_force_at is None else (ALONE, PAUSE)
            if (live.get("spec") or {}).get("holderIdentity") != self.identity or self._split(live) not in splits:
                self._lost = True
                return False
            renewed = {**live, "spec": {**live["spec"], "renewTime": self._timestamp()}}
            self._held = await self._request("update", self._marked(renewed, ALONE) if is_due else renewed)
        except Conflict:
            return False  # changed by somebody: the next attempt reads it and checks the holder
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
        """Update `problem` after an attempt. A missing response changes nothing."""
        if lacks_right(error):
            self.problem = f"missing right: {error.right}, for the Lease {self.namespace}/{self.name}"
        elif isinstance(error, NotFound | Invalid | Refused | Unauthorized | ProxyRefusal):
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
        """Number of Leases over which the work is split; PAUSE while nobody may write."""
        return str(((lease.get("metadata") or {}).get("annotations") or {}).get(self._split_annotation) or ALONE)

    def _marked(self, lease: dict[str, Any], split: str) -> dict[str, Any]:
        annotations = {**(lease["metadata"].get("annotations") or {}), self._split_annotation: split}
        return {**lease, "metadata": {**lease["metadata"], "annotations": annotations}}
