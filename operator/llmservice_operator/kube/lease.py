"""Leader election by a coordination.k8s.io Lease, on the monotonic clock.

Times in the Lease are for people; nobody's wall clock is compared. A follower counts from the moment it saw the
record change for the last time. The holder counts from the moment it *sent* its last successful renewal, so its own
view ends before anybody else's can: it stops writing after the renew deadline (6 s), followers wait for the whole
duration (10 s).
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

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


class Lease:
    """One candidate. `run` campaigns, then renews until it is stopped or has lost."""

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.identity = identity
        self.timing = timing or LeaseTiming()
        self._transport = transport
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._renewed_at: float | None = None
        self._lost = False
        self._released = False
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._was_answered = True
        self._held: dict[str, Any] | None = None  # as the server answered last: a renewal is then one request

    # The gate that every write passes

    def remaining(self) -> float:
        """Seconds for which this process may still write; computed from the clock, so a process that slept knows."""
        if self._renewed_at is None or self._lost:
            return 0.0
        left = self._renewed_at + self.timing.renew_deadline - self._clock()
        if left <= 0:
            self._lost = True  # for good: a late renewal must not bring back a leader whose work others took over
        return left

    @property
    def is_leader(self) -> bool:
        """Whether a write would be allowed now."""
        return self.remaining() > 0

    # The campaign

    async def run(self, on_gained: Callable[[], None]) -> Outcome:
        """Campaign, call `on_gained` once, renew; returns at the end of the reign."""
        while not await self._try_to_acquire():
            # Once the record has expired, only a server that answers makes another try at once worth while.
            least = 0.05 if self._was_answered else self.timing.retry_failed
            await self._sleep(max(least, self._until_next_try()))
        logger.info("became the leader of %s/%s as %s", self.namespace, self.name, self.identity)
        on_gained()
        pause = self.timing.retry
        while self.is_leader:
            await self._sleep(min(pause, max(0.0, self.remaining())))
            if self.is_leader:
                pause = self.timing.retry if await self._renew() else self.timing.retry_failed
        if self._released:
            return Outcome.RELEASED
        logger.error("lost the lease %s/%s", self.namespace, self.name)
        return Outcome.LOST

    async def release(self) -> None:
        """Give the lease up at once, so that a follower need not wait; call it when nothing is in flight."""
        if not self.is_leader:
            return
        self._lost = self._released = True
        try:
            live = await self._request("get")
            if live["spec"].get("holderIdentity") == self.identity:
                spec = {**live["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
                await self._request("update", {**live, "spec": spec})
        except KubeError as error:
            logger.warning("could not release the lease, a follower takes it over when it expires: %s", error)

    def _until_next_try(self) -> float:
        expires_in = self._seen_at + self._seen_duration() - self._clock()
        return min(self.timing.retry, expires_in)

    def _seen_duration(self) -> float:
        return float(self._seen[1]) if self._seen else self.timing.retry

    async def _try_to_acquire(self) -> bool:
        started = self._clock()
        self._was_answered = True
        try:
            live = await self._read()
            if live is None:
                self._held = await self._request("create", self._lease(transitions=0))
            elif not self._is_free(live):
                return False
            else:
                self._held = await self._request("update", {**live, "spec": self._taken_over(live.get("spec") or {})})
        except Conflict:
            return False  # another candidate was faster
        except KubeError as error:
            logger.warning("cannot campaign for the lease %s/%s: %s", self.namespace, self.name, error)
            self._was_answered = False
            return False
        self._renewed_at = started
        return self.is_leader

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._request("get")
        except NotFound:
            return None

    def _is_free(self, live: dict[str, Any]) -> bool:
        """Nobody holds it, or its record did not change for the holder's own duration while we looked."""
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
        return not record[0] or now - self._seen_at >= float(record[1])

    def _taken_over(self, spec: dict[str, Any]) -> dict[str, Any]:
        taken: dict[str, Any] = self._lease(transitions=int(spec.get("leaseTransitions") or 0) + 1)["spec"]
        return taken

    async def _renew(self) -> bool:
        """One renewal; a failure is tried again until the deadline, another holder's name ends the reign."""
        started = self._clock()
        try:
            live = self._held or await self._request("get")
            self._held = None
            if (live.get("spec") or {}).get("holderIdentity") != self.identity:
                self._lost = True
                return False
            spec = {**live["spec"], "renewTime": self._timestamp()}
            self._held = await self._request("update", {**live, "spec": spec})
        except Conflict:
            return False  # somebody touched it: the next try reads it and sees whether we still hold it
        except KubeError as error:
            logger.warning("cannot renew the lease %s/%s: %s", self.namespace, self.name, error)
            return False
        if self.is_leader:
            self._renewed_at = started
        return True

    async def _request(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        path = LEASE.path(self.namespace, None if verb == "create" else self.name)
        return await self._transport.request(verb, LEASE, path, body=body, timeout=self.timing.request_timeout)

    def _timestamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

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
