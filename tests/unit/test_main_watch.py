"""kopf as an informer, against a server that plays the API: what it asks, what it brings, what it never does."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from llmservice_operator import handlers
from llmservice_operator.api.service import Key
from llmservice_operator.control.cache import Cache
from llmservice_operator.control.kinds import PROJECTIONS, WATCHED
from llmservice_operator.kube.credentials import Credentials, TokenSource
from llmservice_operator.kube.resources import DEPLOYMENT, JOB, LLMSERVICE, POD, Resource

PATHS = {resource.path(None): resource for resource in WATCHED}


def service(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": LLMSERVICE.api_version,
        "kind": LLMSERVICE.kind,
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "generation": 1,
            # Objects that another kopf operator handles carry these; they are not ours to touch.
            "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"],
            "annotations": {"kopf.zalando.org/last-handled-configuration": "{}"},
            **metadata,
        },
        "spec": {"model": {"uri": "hf://a/b"}},
    }


class Api:
    """Discovery, one list and one watch a kind."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.objects: dict[Resource, list[dict[str, Any]]] = {resource: [] for resource in WATCHED}
        self.streams: dict[Resource, asyncio.Queue[dict[str, Any] | None]] = {r: asyncio.Queue() for r in WATCHED}
        self.watching = {resource: asyncio.Event() for resource in WATCHED}
        self.token = "t"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        self.requests.append((request.method, path, dict(request.query)))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        if path in PATHS:
            resource = PATHS[path]
            return await (self._watch(request, resource) if "watch" in request.query else self._list(resource))
        return web.json_response(self._discovery(path))

    async def _list(self, resource: Resource) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "50"}, "items": self.objects[resource]})

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watching[resource].set()
        while (event := await self.streams[resource].get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    @staticmethod
    def _discovery(path: str) -> dict[str, Any]:
        if path == "/api":
            return {"versions": ["v1"]}
        everything = [
            *WATCHED,
            Resource("", "v1", "namespaces", "Namespace"),
            Resource("", "v1", "events", "Event"),
            Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
        ]
        if path == "/apis":
            groups = {r.group: r.version for r in everything if r.group}
            return {
                "groups": [
                    {"name": g, "preferredVersion": {"version": v}, "versions": [{"version": v}]}
                    for g, v in groups.items()
                ]
            }
        return {
            "resources": [
                {
                    "name": r.plural,
                    "singularName": r.kind.lower(),
                    "kind": r.kind,
                    "namespaced": True,
                    "verbs": ["list", "watch", "patch"],
                }
                for r in everything
                if path == (f"/apis/{r.api_version}" if r.group else f"/api/{r.version}")
            ]
        }


class Watching:
    def __init__(self, api: Api, cache: Cache) -> None:
        self.api = api
        self.cache = cache
        self.keys: list[Key] = []
        self.relisted: list[str] = []
        self.changed = asyncio.Event()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def api() -> Api:
    return Api()


@contextlib.asynccontextmanager
async def watching(api: Api, token: TokenSource | None = None) -> AsyncIterator[Watching]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    async with TestServer(app) as server:
        seen = Watching(api, Cache(PROJECTIONS))
        intake = handlers.Intake(
            seen.cache, changed=seen.keys.append, relisted=seen.relisted.append, arrived=seen.changed.set
        )
        credentials = Credentials(
            server=str(server.make_url("")).rstrip("/"),
            namespace="ns",
            token=token or TokenSource("t", None, lambda: 0.0),
        )
        stop = asyncio.Event()
        running = asyncio.create_task(
            kopf.operator(
                registry=handlers.registry(credentials),
                settings=handlers.settings(),
                standalone=True,
                clusterwide=True,
                memo=intake,
                stop_flag=stop,
                identity="test",  # type: ignore[arg-type]
            )
        )
        try:
            for event in api.watching.values():
                await asyncio.wait_for(event.wait(), 10)
            yield seen
        finally:
            for stream in api.streams.values():
                stream.put_nowait(None)
            stop.set()
            await asyncio.wait_for(running, 10)


async def test_lists_changes_and_deletions_become_keys(api: Api) -> None:
    api.objects[LLMSERVICE] = [service("one", 5)]
    async with watching(api) as seen:
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
        stream = api.streams[LLMSERVICE]
        await stream.put({"type": "MODIFIED", "object": service("one", 6, labels={"nobody": "cares"})})
        await stream.put({"type": "ADDED", "object": service("two", 7)})
        await seen.until(lambda: len(seen.keys) == 2)
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one").resource_version == "6"
        await stream.put({"type": "DELETED", "object": service("one", 8)})
        await seen.until(lambda: len(seen.keys) == 3)
        assert seen.keys == [Key("ns", "one"), Key("ns", "two"), Key("ns", "one")]
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one") is None
        assert seen.relisted == [LLMSERVICE.kind]


async def test_nothing_is_ever_written(api: Api) -> None:
    """No finalizer, no annotation, no event, and the other operator's marks stay."""
    api.objects[LLMSERVICE] = [service("one", 5), service("two", 5, deletionTimestamp="2026-01-01T00:00:00Z")]
    async with watching(api) as seen:
        await seen.until(lambda: len(seen.keys) == 2)
        for version in range(6, 10):
            await api.streams[LLMSERVICE].put(
                {"type": "MODIFIED", "object": service("one", version, generation=version)}
            )
        await seen.until(lambda: len(seen.keys) == 6)
    assert {method for method, _, _ in api.requests} == {"GET"}


async def test_the_server_filters_children_by_our_label(api: Api) -> None:
    async with watching(api):
        pass
    for resource, selector in (
        (DEPLOYMENT, "llmservice.dev/service"),
        (JOB, "llmservice.dev/service"),
        # Pods that look at models do not carry the label that Services select by.
        (POD, "app.kubernetes.io/managed-by=llmservice-operator"),
    ):
        queries = [query for _, path, query in api.requests if path == resource.path(None)]
        assert queries
        assert {query.get("labelSelector") for query in queries} == {selector}
    assert all("labelSelector" not in q for _, path, q in api.requests if path == LLMSERVICE.path(None))


async def test_nothing_but_our_kinds_is_listed(api: Api) -> None:
    """No right on namespaces, CRDs, secrets or configmaps is needed."""
    async with watching(api):
        pass
    collections = {path for _, path, query in api.requests if query}
    assert collections == set(PATHS)


async def test_a_watch_that_lost_its_place_asks_for_a_comparison(api: Api) -> None:
    api.objects[LLMSERVICE] = [service("one", 5), service("two", 5)]
    async with watching(api) as seen:
        await seen.until(lambda: len(seen.keys) == 2)
        api.objects[LLMSERVICE] = [service("two", 5)]
        expired = {"kind": "Status", "code": 410, "reason": "Expired"}
        await api.streams[LLMSERVICE].put({"type": "ERROR", "object": expired})
        await seen.until(lambda: len(seen.relisted) == 3)
        # kopf itself says nothing about the one that vanished.
        assert len(seen.keys) == 2
        assert seen.cache.get(LLMSERVICE.kind, "ns", "one") is not None


async def test_watches_go_on_with_a_renewed_token(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t")
    async with watching(api, TokenSource(None, path, lambda: 0.0)) as seen:
        path.write_text("renewed")
        api.token = "renewed"
        for resource in WATCHED:
            api.watching[resource].clear()
            await api.streams[resource].put(None)  # as the server does every ten minutes
        for resource in WATCHED:
            await asyncio.wait_for(api.watching[resource].wait(), 10)
        await api.streams[LLMSERVICE].put({"type": "ADDED", "object": service("one", 60)})
        await seen.until(lambda: seen.keys == [Key("ns", "one")])
