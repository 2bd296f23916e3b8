"""Several operator processes, their Leases and one clock; who may write is checked after each event."""

from __future__ import annotations

import asyncio
from typing import Any

from llmservice_operator.kube.errors import Unreachable
from llmservice_operator.kube.partition import shard_of
from llmservice_operator.kube.resources import LEASE, Resource
from llmservice_operator.kube.shards import Shards

from tests.unit.api_server import ApiServer, Connection
from tests.unit.test_lease import World

NAMESPACES = tuple(f"team-{letter}" for letter in "abcdefghij")


class Cluster(World):
    """The Leases by name, and every process that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.api = ApiServer()
        self.log: list[tuple[float, str, str, str]] = []
        self.running: list[Process] = []
        self.owned_twice: list[str] = []

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

    @property
    def leases(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return {lease["metadata"]["name"]: lease for lease in self.api.objects[LEASE]}

    def annotate(self, lease: str, **annotations: str) -> None:
        """By hand; names are without the prefix."""
        found = self.leases[lease]
        marks = {f"llmservice.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
        self.api.put(found, annotations=(found["metadata"].get("annotations") or {}) | marks)

    def split(self) -> str | None:
        """As the first Lease says it."""
        found: str | None = (self.leases["op"]["metadata"].get("annotations") or {}).get("llmservice.dev/shards")
        return found


class ShardConnection(Connection):
    """One process's own; it can hang, and be slow."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster.api)
        self.cluster, self.name = cluster, name
        self.hangs = False
        self.hangs_for: str | None = None
        self.takes = 0.0

    async def request(self, verb: str, resource: Resource, path: str, **options: Any) -> dict[str, Any]:
        cluster, timeout = self.cluster, options.get("timeout", 10.0)
        lease = options["body"]["metadata"]["name"] if verb == "create" else path.rpartition("/")[2]
        cluster.log.append((cluster.now, self.name, verb, lease))
        if self.hangs or lease == self.hangs_for:
            assert isinstance(timeout, float)
            await cluster.sleep(timeout)
            raise Unreachable("timed out")
        if self.takes:
            await cluster.sleep(self.takes)
        return await super().request(verb, resource, path, **options)


class Process:
    """An operator, as far as its leases go."""

    def __init__(self, cluster: Cluster, name: str, count: int) -> None:
        self.cluster, self.name = cluster, name
        self.connection = ShardConnection(cluster, name)
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
