"""A server that plays the API for those who list and watch: it keeps what it is asked, and streams what it is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web
from llmservice_operator.control.watch.kinds import WATCHED
from llmservice_operator.kube.credentials import Issued, Token
from llmservice_operator.kube.resources import LLMSERVICE, Resource

PATHS = {resource.path(None): resource for resource in WATCHED}


def token_of(path: Path) -> Token:
    """The token of a file, read again where the server does not accept it."""

    async def read() -> Issued:
        return Issued(await asyncio.to_thread(path.read_text))

    return Token(Issued(path.read_text()), read)


class Api:
    """Discovery, one list and one watch a kind."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.objects: dict[Resource, list[dict[str, Any]]] = {resource: [] for resource in WATCHED}
        self.streams: dict[Resource, asyncio.Queue[dict[str, Any] | None]] = {r: asyncio.Queue() for r in WATCHED}
        self.watching = {resource: asyncio.Event() for resource in WATCHED}
        self.token = "t"
        self.page: int | None = None
        """Objects in a page of a list; None: all of them."""
        self.refused: dict[Resource, list[int]] = {}
        """Codes that the next requests of a kind are answered with."""
        self.ends_at_once: dict[Resource, list[dict[str, Any]]] = {}
        """The only events that a watch of these kinds ever brings, if any, before the server ends it."""
        self.lines: dict[Resource, list[bytes]] = {}
        """What the next watches of a kind bring instead of events, each before the server ends it."""
        self.resets: set[Resource] = set()
        """Kinds whose next event is a connection that is reset."""
        self.undiscovered: set[Resource] = set()
        """Kinds whose group and version discovery does not know yet, though they can be listed and watched."""
        self.answered = asyncio.Event()
        """Set with each of these."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        self.requests.append((request.method, path, dict(request.query)))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        if path in PATHS:
            resource = PATHS[path]
            if self.refused.get(resource):
                code = self.refused[resource].pop(0)
                self.answered.set()
                return web.json_response({"kind": "Status", "code": code, "message": "no"}, status=code)
            return await (self._watch(request, resource) if "watch" in request.query else self._list(request, resource))
        if path in {f"/apis/{resource.api_version}" for resource in self.undiscovered}:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        return web.json_response(self._discovery(path))

    async def _list(self, request: web.Request, resource: Resource) -> web.Response:
        start = int(request.query.get("continue", 0))
        end = len(self.objects[resource]) if self.page is None else start + self.page
        metadata = {"resourceVersion": "50"} | ({"continue": str(end)} if end < len(self.objects[resource]) else {})
        return web.json_response({"metadata": metadata, "items": self.objects[resource][start:end]})

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watching[resource].set()
        if resource in self.ends_at_once:
            for only in self.ends_at_once[resource]:
                await response.write(json.dumps(only).encode() + b"\n")
            return response
        if self.lines.get(resource):
            await response.write(self.lines[resource].pop(0))
            return response
        while (event := await self.streams[resource].get()) is not None:
            if resource in self.resets and request.transport is not None:
                self.resets.discard(resource)
                request.transport.abort()
                return response
            await response.write(json.dumps(event).encode() + b"\n")
            if event["type"] == "ERROR":
                break
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


def service(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    """An LLMService as the API server stores it; `metadata` goes over what it has by itself."""
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
