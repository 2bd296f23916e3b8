"""A whole operator on the simulated API server, and what the kubelet and Prometheus ask it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
from kubeloop.credentials import Credentials, Token
from kubeloop.resources import LEASE
from kubeloop.transport import Transport
from llmservice_api.constants import LEADER_WORKER_SET, LLMSERVICE, RESOURCE_CLAIM_TEMPLATE
from llmservice_operator.__main__ import Operator
from llmservice_operator.options import Options
from llmservice_operator.readers.pod_port import ActivatorReader, RequestsReader, StateReader
from llmservice_operator.service.metrics import Metrics

from tests.support.http_servers import application
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.unit.api_server import ApiServer, llmservice

UNWATCHED = frozenset({LEADER_WORKER_SET.kind, RESOURCE_CLAIM_TEMPLATE.kind})
"""Hidden everywhere: groups are not enabled."""


class Running:
    """One operator."""

    def __init__(self, api: ApiServer, operator: Operator, session: aiohttp.ClientSession, options: Options) -> None:
        self.api, self.operator = api, operator
        self._session, self._options = session, options

    async def ask(self, path: str, port: int | None = None) -> tuple[int, str]:
        async with self._session.get(f"http://127.0.0.1:{port or self._options.health_port}{path}") as response:
            return response.status, await response.text()

    async def readyz(self) -> tuple[int, str]:
        return await self.ask("/readyz")

    async def until(self, what: Callable[[int, str], bool]) -> str:
        """The first answer of /readyz that is like this."""
        found = (0, "")
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    with contextlib.suppress(aiohttp.ClientConnectionError):
                        found = await self.readyz()
                        if what(*found):
                            return found[1]
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"still {found}") from None

    async def becomes_ready(self) -> str:
        return await self.until(lambda code, _: code == 200)

    async def shows(self, words: str) -> str:
        return await self.until(lambda _, text: words in text)

    async def metric(self, line: str) -> bool:
        _, text = await self.ask("/metrics", self._options.metrics_port)
        return line in text.splitlines()

    async def acts_on(self, namespace: str, name: str) -> None:
        path = f"{LLMSERVICE.path(namespace, name)}/status"
        await self.eventually(lambda: any(asked == path and method != "GET" for method, asked, *_ in self.api.requests))

    async def hides(self, namespace: str, *kinds: str) -> None:
        """The kinds that services of this namespace are reconciled without."""
        await self.eventually(lambda: self.operator._ctx.hidden(namespace) - UNWATCHED == set(kinds))

    @staticmethod
    async def eventually(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.02)


async def with_a_token(url: str) -> Credentials:
    return Credentials(server=url, namespace="system", token=Token.fixed("t"))


@contextlib.asynccontextmanager
async def running(
    api: ApiServer, *namespaces: str, login: Callable[[str], Awaitable[Credentials]] | None = None, **more: Any
) -> AsyncIterator[Running]:
    """An operator, from its start to its end; `login` makes its credentials, from the server's address."""
    options = Options(
        namespaces=namespaces,
        health_port=free_port(),
        metrics_port=free_port(),
        lease_namespace="system",
        identity="me",
        **more,
    )
    async with application(api.answer) as url, contextlib.AsyncExitStack() as stack:
        credentials = await (login or with_a_token)(url)
        transport = await stack.enter_async_context(Transport(credentials))
        reader = await stack.enter_async_context(StateReader())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        operator = Operator(options, transport, reader, RequestsReader(), ActivatorReader(), Metrics())
        life = asyncio.create_task(operator.run())
        try:
            yield Running(api, operator, session, options)
        finally:
            operator._stop.set()
            api.end_watches()
            await asyncio.wait_for(life, PATIENCE)


def refused_service(namespace: str, name: str) -> dict[str, Any]:
    """An LLMService whose spec is refused, so that a status is all that there is to write."""
    return llmservice(name, 5, spec={}, namespace=namespace, uid=f"{namespace}-{name}")


def rival_lease(name: str = "llmservice-operator") -> dict[str, Any]:
    """Another process has it, for long."""
    spec = {"holderIdentity": "rival", "leaseDurationSeconds": 3600, "renewTime": "x", "leaseTransitions": 1}
    metadata = {"name": name, "namespace": "system", "resourceVersion": "1"}
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
