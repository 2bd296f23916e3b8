"""Several operator processes that share the work by shards, measured as if they were one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from llmservice_operator.kube.shards import lease_name

from benchmarks.scale.process import STARTS_WITHIN, Operator, Use
from tests.support.cluster import Cluster
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE

HELD = 'llmservice_shard_held{shard="'
SHARED_WITHIN = STARTS_WITHIN + 60.0
RIGHT = "bench-shards"


class Several(Operator):
    """As many processes as there are shards; what they use is summed, and listed when they end."""

    def __init__(self, config: Path, shards: int) -> None:
        super().__init__(config)
        self._each = [Operator(config, args=(f"--shards={shards}",)) for _ in range(shards)]

    @property
    def pid(self) -> int:
        return self._each[0].pid

    async def start(self) -> None:
        for each in self._each:
            await each.start()
        self.started_at = self._each[0].started_at

    async def ready(self) -> None:
        """Until each has a shard; a split that is new begins with a pause."""
        await asyncio.gather(*(each.ready() for each in self._each))
        async with asyncio.timeout(SHARED_WITHIN):
            while True:
                if [await _held(each) for each in self._each] == [1] * len(self._each):
                    return
                await asyncio.sleep(0.2)

    @contextlib.asynccontextmanager
    async def profiled(self, path: Path | None) -> AsyncIterator[None]:
        async with self._each[0].profiled(path):
            yield

    async def looks(self) -> float:
        return sum([await each.looks() for each in self._each])

    def use(self) -> Use:
        """Summed: peaks too, though they need not have been at one time."""
        return _sum([each.use() for each in self._each])

    async def stop(self) -> Use:
        used = await asyncio.gather(*(each.stop() for each in self._each))
        for number, use in enumerate(used):
            print(f"process {number}: {use.cpu_seconds:.2f} s of CPU, {use.peak_mib:.0f} MiB", file=sys.stderr)
        return _sum(used)

    def close(self) -> None:
        super().close()
        for each in self._each:
            each.close()

    def last_words(self, size: int = 4000) -> str:
        return "\n".join(each.last_words(size // len(self._each)) for each in self._each)


@contextlib.contextmanager
def leases(cluster: Cluster, shards: int) -> Iterator[None]:
    """The right on all of them meanwhile, and none of them afterwards: the installed operator begins anew."""
    names = [lease_name(OPERATOR, shard) for shard in range(shards)]
    where = ("-n", OPERATOR_NAMESPACE)
    named = [f"--resource-name={name}" for name in names]
    cluster.kubectl("create", "role", RIGHT, *where, "--verb=get,update", "--resource=leases", *named)
    try:
        account = f"--serviceaccount={OPERATOR_NAMESPACE}:{OPERATOR}"
        cluster.kubectl("create", "rolebinding", RIGHT, *where, f"--role={RIGHT}", account)
        yield
    finally:
        cluster.kubectl("delete", "role,rolebinding", RIGHT, *where, "--ignore-not-found")
        cluster.kubectl("delete", "lease", *names, *where, "--ignore-not-found")


async def _held(process: Operator) -> int:
    return sum(int(float(line.split()[1])) for line in await process.metrics() if line.startswith(HELD))


def _sum(used: list[Use]) -> Use:
    return Use(sum(use.cpu_seconds for use in used), sum(use.peak_mib for use in used))
