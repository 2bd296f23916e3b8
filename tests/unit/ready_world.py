"""A whole operator against a server that plays an API with rights: who may list what where, and who has the Lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web
from llmservice_operator.__main__ import Operator
from llmservice_operator.control.metrics.registry import Metrics
from llmservice_operator.control.watch.kinds import WATCHED
from llmservice_operator.kube.credentials import Credentials, Token
from llmservice_operator.kube.resources import LEASE, LLMSERVICE, Resource
from llmservice_operator.kube.state_reader import StateReader
from llmservice_operator.kube.transport import Transport
from llmservice_operator.options import Options

from tests.support.http_servers import application
from tests.support.ports import free_port
from tests.unit.watched_api import Api

KINDS = {resource.path(None): resource for resource in (*WATCHED, LEASE)}
WAIT = 20


def status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


class World:
    """Objects by kind and namespace, Leases, and what is forbidden."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Resource, str], list[dict[str, Any]]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.forbidden: set[tuple[str, str | None]] = set()
        """(plural, namespace); namespace None: everywhere."""
        self.absent: set[str] = set()
        """Kinds, by plural, whose CRD is not there."""
        self.refused_watches: dict[str, tuple[int, str]] = {}
        """By plural: the code and the reason that watches are answered with."""
        self.held = asyncio.Event()
        """While it is not set, lists of what is in `slow` are not answered."""
        self.held.set()
        self.slow: set[str] = set()
        self.applied: list[str] = []
        """Paths that were written to, but for the Leases."""
        self.version = 50
        self._ends = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        resource, namespace, name = self._target(path)
        if resource is None:
            return web.json_response(Api._discovery(path))
        if resource.plural in self.absent:
            return status(404, "NotFound", "the server could not find the requested resource")
        if {(resource.plural, namespace), (resource.plural, None)} & self.forbidden:
            return status(403, "Forbidden", f'User "op" cannot list resource "{resource.plural}" in API group ""')
        if resource is LEASE:
            return await self._lease(request, name)
        if request.method != "GET":
            self.applied.append(path)
            return web.json_response({**(await request.json()), "metadata": self._stamp(await request.json())})
        if resource.plural in self.slow:
            await self.held.wait()
        if name is not None:
            found = [obj for obj in self._of(resource, namespace) if obj["metadata"]["name"] == name]
            return web.json_response(found[0]) if found else status(404, "NotFound", "none")
        if "watch" in request.query:
            if resource.plural in self.refused_watches:
                return status(*self.refused_watches[resource.plural], "no")
            return await self._watch(request)
        items = self._of(resource, namespace)
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    def end_watches(self) -> None:
        """As the server does every ten minutes."""
        self._ends.set()
        self._ends = asyncio.Event()

    def service(self, namespace: str, name: str) -> None:
        metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "resourceVersion": "5"}
        self.objects.setdefault((LLMSERVICE, namespace), []).append(
            {
                "apiVersion": LLMSERVICE.api_version,
                "kind": LLMSERVICE.kind,
                "metadata": {**metadata, "generation": 1},
                "spec": {},  # refused, so a status is all that there is to write
            }
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await self._ends.wait()
        return response

    async def _lease(self, request: web.Request, name: str | None) -> web.Response:
        if request.method == "GET":
            found = self.leases.get(name or "")
            return web.json_response(found) if found else status(404, "NotFound", "none")
        body = await request.json()
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.leases[body["metadata"]["name"]] = body
        return web.json_response(body)

    def _stamp(self, body: Any) -> dict[str, Any]:
        self.version += 1
        metadata = body.get("metadata", {}) if isinstance(body, dict) else {}
        return {**metadata, "uid": f"uid-{metadata.get('name')}", "resourceVersion": str(self.version)}

    def _of(self, resource: Resource, namespace: str | None) -> list[dict[str, Any]]:
        return [
            o for (kind, ns), some in self.objects.items() if kind is resource for o in some if namespace in (None, ns)
        ]

    @staticmethod
    def _target(path: str) -> tuple[Resource | None, str | None, str | None]:
        before, _, rest = path.partition("/namespaces/")
        if not rest:
            return KINDS.get(path), None, None
        namespace, plural, *name = rest.split("/")
        return KINDS.get(f"{before}/{plural}"), namespace, name[0] if name else None


class Running:
    """One operator of this world."""

    def __init__(self, world: World, operator: Operator, session: aiohttp.ClientSession, options: Options) -> None:
        self.world, self.operator = world, operator
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
            async with asyncio.timeout(WAIT):
                while True:
                    with contextlib.suppress(aiohttp.ClientConnectionError):
                        found = await self.readyz()
                        if what(*found):
                            return found[1]
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"still {found}") from None

    async def becomes_ready(self) -> str:
        return await self.until(lambda code, _: code == 200)

    async def says(self, words: str) -> str:
        return await self.until(lambda _, text: words in text)

    async def metric(self, line: str) -> bool:
        _, text = await self.ask("/metrics", self._options.metrics_port)
        return line in text.splitlines()

    async def acts_on(self, namespace: str, name: str) -> None:
        path = f"{LLMSERVICE.path(namespace, name)}/status"
        await self.eventually(lambda: path in self.world.applied)

    async def hides(self, namespace: str, *kinds: str) -> None:
        """What services of this namespace are worked on without."""
        await self.eventually(lambda: self.operator._ctx.hidden(namespace) == set(kinds))

    @staticmethod
    async def eventually(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.05)


async def with_a_token(url: str) -> Credentials:
    return Credentials(server=url, namespace="system", token=Token.fixed("t"))


@contextlib.asynccontextmanager
async def running(
    world: World, *namespaces: str, login: Callable[[str], Awaitable[Credentials]] | None = None, **more: Any
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
    async with application(world.answer) as url, contextlib.AsyncExitStack() as stack:
        credentials = await (login or with_a_token)(url)
        transport = await stack.enter_async_context(Transport(credentials))
        reader = await stack.enter_async_context(StateReader())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        operator = Operator(options, transport, reader, Metrics())
        life = asyncio.create_task(operator.run())
        try:
            yield Running(world, operator, session, options)
        finally:
            operator._stop.set()
            world.held.set()
            world.end_watches()
            await asyncio.wait_for(life, WAIT)


def rival_lease(name: str = "llmservice-operator") -> dict[str, Any]:
    """Another process has it, for long."""
    spec = {"holderIdentity": "rival", "leaseDurationSeconds": 3600, "renewTime": "x", "leaseTransitions": 1}
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": name, "namespace": "system", "resourceVersion": "1"},
        "spec": spec,
    }
