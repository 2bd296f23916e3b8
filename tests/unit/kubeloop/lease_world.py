"""Several operator processes, their Lease and one clock; who may write is looked at after whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kubeloop.errors import Unreachable
from kubeloop.lease import Lease, LeaseTiming
from kubeloop.resources import LEASE, Resource
from llmservice_api.constants import SPLIT_ANNOTATION

from tests.unit import api_server
from tests.unit.api_server import ApiServer, Json

SPLIT = "llmservice.dev/shards"
SECOND_LEASE = "op-1"
"""Of a release that could split the work over two."""


class Cluster:
    """One clock, the Leases by name, and every process that runs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.api = ApiServer()
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        self.log: list[tuple[float, str, str, str]] = []
        self.running: list[Process | Former] = []
        self.owned_twice: list[str] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waked = asyncio.Event()
        self._sleepers.append((self.now + seconds, waked))
        await waked.wait()

    async def run_until(self, done: Callable[[], bool], limit: float) -> float:
        """Let time pass, event by event; returns how long it took."""
        started = self.now
        await self.settle()
        while not done():
            due = min((when for when, _ in self._sleepers), default=started + limit + 1)
            assert due <= started + limit, f"not within {limit} s"
            self.now = max(self.now, due)
            await self._wake()
        return self.now - started

    async def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        await self.settle()
        while (due := min((when for when, _ in self._sleepers), default=until + 1)) <= until:
            self.now = max(self.now, due)
            await self._wake()
        self.now = until

    async def _wake(self) -> None:
        """Those whose time has come."""
        ready = [event for when, event in self._sleepers if when <= self.now]
        self._sleepers = [(when, event) for when, event in self._sleepers if when > self.now]
        for event in ready:
            event.set()
        await self.settle()

    @property
    def owners(self) -> list[str]:
        """Who may write now; one of a former release only in its part of the namespaces."""
        return [each.name for each in self.running if each.remaining() > 0]

    def nobody_owns_two(self) -> None:
        """To be asked after everything that happens."""
        if len(owners := self.owners) > 1:
            self.owned_twice.append(f"{self.now - 1000:.2f} s: {owners}")

    @property
    def is_whole(self) -> bool:
        """All namespaces are worked on."""
        return any(isinstance(each, Process) and each.works for each in self.running)

    async def settle(self) -> None:
        for _ in range(40):
            await asyncio.sleep(0)
            self.nobody_owns_two()

    def put(self, lease: str, holder: str, split: str | None = None) -> None:
        """As another process writes it, now."""
        metadata = {"name": lease, "namespace": "ns", "annotations": {} if split is None else {SPLIT: split}}
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": str(self.now)}
        self.api.put({"kind": LEASE.kind, "metadata": metadata, "spec": spec})

    def lease(self, name: str = "op") -> Json:
        found = self.api.find(LEASE.kind, name, "ns")
        assert found is not None
        return found

    def split(self) -> str | None:
        """As the Lease says it."""
        found: str | None = (self.lease()["metadata"].get("annotations") or {}).get(SPLIT)
        return found


class Connection(api_server.Connection):
    """One process's own; it can hang, and be slow."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster.api)
        self.cluster, self.name = cluster, name
        self.hangs = self.is_refused = False
        self.takes = 0.0

    async def request(self, verb: str, resource: Resource, path: str, **options: Any) -> Json:
        lease = options["body"]["metadata"]["name"] if verb == "create" else path.rpartition("/")[2]
        self.cluster.log.append((self.cluster.now, self.name, verb, lease))
        if self.hangs:
            await self.cluster.sleep(options["timeout"])
            raise Unreachable("timed out")
        if self.is_refused:
            raise Unreachable("connection refused")
        if self.takes:
            await self.cluster.sleep(self.takes)
        return await super().request(verb, resource, path, **options)


class Process:
    """An operator, as far as its Lease goes."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.connection = Connection(cluster, name)
        self.lease = Lease(
            self.connection,
            namespace="ns",
            name="op",
            identity=name,
            split_annotation=SPLIT_ANNOTATION,
            clock=cluster.clock,
            sleep=cluster.sleep,
        )
        self.is_working = self.busy = False
        self.gains = 0
        cluster.running.append(self)
        self.task = asyncio.create_task(self.lease.run(self))

    def gained(self) -> None:
        assert not self.busy, "something of an earlier reign is still in work"
        self.gains += 1
        self.is_working = True

    def lost(self) -> None:
        self.is_working = False

    def is_busy(self) -> bool:
        return self.busy

    def remaining(self) -> float:
        return self.lease.remaining()

    @property
    def works(self) -> bool:
        works = self.lease.is_acting and self.lease.is_leader
        assert not works or self.is_working
        return works

    async def kill(self) -> None:
        """Without a word."""
        self.cluster.running.remove(self)
        self.task.cancel()
        await asyncio.wait({self.task})

    async def stop(self) -> None:
        """As on SIGTERM."""
        self.lease.stop()
        released = asyncio.create_task(self.lease.release())
        await self.cluster.run_until(released.done, 15)
        await self.kill()


class Former:
    """A process of a release that split the work over two Leases, which holds the second one.

    It writes while it renewed that within the deadline, and read within the deadline that the first one says 2.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.name = cluster, "former"
        self.hears = True
        self._renewed_at = self._in_force_at = float("-inf")
        cluster.running.append(self)
        self.task = asyncio.create_task(self._run())

    def remaining(self) -> float:
        timing = LeaseTiming()
        return min(self._renewed_at, self._in_force_at) + timing.renew_deadline - self.cluster.now

    async def _run(self) -> None:
        while True:
            if self.hears:
                self._in_force_at = self.cluster.now if self.cluster.split() == "2" else float("-inf")
                if self._in_force_at == self.cluster.now:
                    self._renewed_at = self.cluster.now
                    self.cluster.put(SECOND_LEASE, self.name)
            await self.cluster.sleep(LeaseTiming().retry)
