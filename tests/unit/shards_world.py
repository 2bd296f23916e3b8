"""Several operator processes, their Leases and one clock; who may write is looked at after whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from llmservice_operator.kube.credentials import Credentials, Token
from llmservice_operator.kube.errors import AlreadyExists, Conflict, NotFound, Unreachable
from llmservice_operator.kube.partition import shard_of
from llmservice_operator.kube.resources import Resource
from llmservice_operator.kube.shards import Shards
from llmservice_operator.kube.transport import Transport

NAMESPACES = tuple(f"team-{letter}" for letter in "abcdefghij")


class Cluster:
    """One clock, the Leases by name, and every process that runs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.version = 0
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        self.leases: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[float, str, str, str]] = []
        self.running: list[Process] = []
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

    def owners(self, namespace: str) -> list[str]:
        """Who may write there now."""
        return [each.name for each in self.running if each.shards.remaining(namespace) > 0]

    def working(self, namespace: str) -> list[str]:
        """Who works on it."""
        return [each.name for each in self.running if each.works_on(namespace)]

    def nobody_owns_two(self) -> None:
        """To be asked after everything that happens."""
        for namespace in NAMESPACES:
            if len(owners := self.owners(namespace)) > 1:
                self.owned_twice.append(f"{self.now - 1000:.2f} s: {namespace} by {owners}")

    @property
    def is_whole(self) -> bool:
        """Every namespace is worked on."""
        return all(self.working(namespace) for namespace in NAMESPACES)

    async def settle(self) -> None:
        for _ in range(40):
            await asyncio.sleep(0)
            self.nobody_owns_two()

    def annotate(self, lease: str, **annotations: str) -> None:
        """By hand; names are without the prefix."""
        found = self.leases[lease]["metadata"]
        marks = {f"llmservice.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
        self.version += 1
        metadata = {
            **found,
            "annotations": {**(found.get("annotations") or {}), **marks},
            "resourceVersion": str(self.version),
        }
        self.leases[lease] = {**self.leases[lease], "metadata": metadata}

    def split(self) -> str | None:
        """As the first Lease says it."""
        found: str | None = (self.leases["op"]["metadata"].get("annotations") or {}).get("llmservice.dev/shards")
        return found


class Connection(Transport):
    """One process's own; it can hang, and be slow."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(Credentials(server="http://x", namespace="ns", token=Token.fixed(None)))
        self.cluster, self.name = cluster, name
        self.hangs = self.is_refused = False
        self.hangs_for: str | None = None
        self.takes = 0.0

    async def request(
        self,
        verb: str,
        resource: Resource,
        path: str,
        *,
        body: Any = None,
        timeout: Callable[[], float] | float = 10.0,
        **_: Any,
    ) -> dict[str, Any]:
        cluster = self.cluster
        lease = body["metadata"]["name"] if verb == "create" else path.rpartition("/")[2]
        cluster.log.append((cluster.now, self.name, verb, lease))
        if self.hangs or lease == self.hangs_for:
            assert isinstance(timeout, float)
            await cluster.sleep(timeout)
            raise Unreachable("timed out")
        if self.is_refused:
            raise Unreachable("connection refused")
        if self.takes:
            await cluster.sleep(self.takes)
        live = cluster.leases.get(lease)
        if verb == "create" and live is not None:
            raise AlreadyExists("there is one")
        if verb != "create" and live is None:
            raise NotFound("no lease")
        if verb == "get" and live is not None:
            return live
        if live is not None and body["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
            raise Conflict("it changed")
        cluster.version += 1
        made = {**body, "metadata": {**body["metadata"], "resourceVersion": str(cluster.version)}}
        cluster.leases[lease] = made
        return made


class Process:
    """An operator, as far as its leases go."""

    def __init__(self, cluster: Cluster, name: str, count: int) -> None:
        self.cluster, self.name = cluster, name
        self.connection = Connection(cluster, name)
        self.shards = Shards(
            self.connection,
            namespace="ns",
            name="op",
            identity=name,
            count=count,
            clock=cluster.clock,
            sleep=cluster.sleep,
        )
        self.shards.is_ready = True
        self.working: set[int] = set()
        self.busy: set[int] = set()
        self.gains: list[int] = []
        cluster.running.append(self)
        self.task = asyncio.create_task(self.shards.run(self))

    def gained(self, shard: int) -> None:
        assert shard not in self.busy, "something of an earlier reign is still in work"
        self.gains.append(shard)
        self.working.add(shard)

    def lost(self, shard: int) -> None:
        self.working.discard(shard)

    def is_busy(self, shard: int) -> bool:
        return shard in self.busy

    @property
    def held(self) -> list[int]:
        return list(self.shards.held)

    def works_on(self, namespace: str) -> bool:
        may = self.shards.owns(namespace) and self.shards.remaining(namespace) > 0
        assert not may or shard_of(namespace, self.shards.count) in self.working
        return may

    async def kill(self) -> None:
        """Without a word."""
        self.cluster.running.remove(self)
        self.task.cancel()
        await asyncio.wait({self.task})

    async def stop(self) -> None:
        """As on SIGTERM."""
        self.shards.stop()
        released = asyncio.create_task(self.shards.release())
        await self.cluster.run_until(released.done, 15)
        await self.kill()
