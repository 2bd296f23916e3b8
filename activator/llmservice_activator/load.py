"""Reads the numbers of requests of services' pods, at once and with a bound over all services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from llmservice_operator.kube.pod_port import Requests, Unreadable

Read = Callable[[str], Awaitable[Requests]]
"""Requests of the pod at an IP address; Unreadable."""

AT_ONCE = 256
"""Connections over all services."""
AT_ONCE_OF_ONE = 64
"""Connections of one service, so that one whose pods do not answer leaves room for the others."""
PATIENCE = 2.5
"""Seconds after which a pod whose turn has not come counts as one that did not answer. KEDA's metrics server waits for
3 s in all (kedacore/keda, pkg/metricsservice/client.go), and one pod may take the 2 s of `kube.pod_port`."""


class LoadReader:
    """Bounds the reads of all services together."""

    def __init__(self, read: Read, *, at_once: int = AT_ONCE, patience: float = PATIENCE) -> None:
        self._read, self._patience = read, patience
        self._all = asyncio.Semaphore(at_once)

    async def requests(self, addresses: Collection[str]) -> dict[str, Requests]:
        """By address, of the pods that answered."""
        own = asyncio.Semaphore(AT_ONCE_OF_ONE)
        found: dict[str, Requests] = {}

        async def ask(address: str) -> None:
            try:
                async with asyncio.timeout(self._patience), own, self._all:
                    found[address] = await self._read(address)
            except (Unreadable, TimeoutError):
                return  # what is missing in the result did not answer

        await asyncio.gather(*(ask(address) for address in addresses))
        return found
