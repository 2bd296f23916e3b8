"""What an observer sees: watches of their own of the parents, the children and the pods, on this machine's clock."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from llmservice_api.constants import SERVICE_LABEL

from benchmarks.scale import services

JSON = Mapping[str, Any]
Seen = Callable[[str, JSON], None]
"""Called with the event's type and the object."""

METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
CHILDREN = {
    "deployments": "/apis/apps/v1/deployments",
    "services": "/api/v1/services",
    "controllerrevisions": "/apis/apps/v1/controllerrevisions",
}
PARENTS = "/apis/llmservice.dev/v1alpha1/llmservices"
PODS = "/api/v1/pods"
LARGEST_EVENT = 2**22


class Observer:
    """When each service first had what."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session, self._server = session, server
        self.first: dict[str, dict[tuple[str, str], float]] = {kind: {} for kind in (*CHILDREN, "pod", "ready")}
        """By what it is and by (namespace, service): seconds of the monotonic clock."""
        self.args: dict[tuple[str, str], tuple[float, int]] = {}
        """When a Deployment last had which --max-num-seqs."""
        self.ready: dict[tuple[str, str], int] = {}
        """The latest generation of which a service said that it is Ready."""
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        selector = {"labelSelector": SERVICE_LABEL}
        for kind, path in CHILDREN.items():
            accept = "application/json" if kind == "deployments" else METADATA
            self._begin(path, selector, accept, self._child(kind))
        self._begin(PODS, selector, "application/json", self._pod)
        self._begin(PARENTS, {}, "application/json", self._parent)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """TimeoutError where it does not come to be in time."""
        async with asyncio.timeout(seconds):
            while not is_so():
                self._check()
                self._changed.clear()
                await self._changed.wait()

    def have(self, kind: str) -> int:
        """How many services have it."""
        return len(self.first[kind])

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError("a watch ended")

    def _begin(self, path: str, params: Mapping[str, str], accept: str, seen: Seen) -> None:
        self._tasks.append(asyncio.create_task(self._follow(path, dict(params), accept, seen)))
        self._tasks[-1].add_done_callback(lambda _: self._changed.set())

    async def _follow(self, path: str, params: dict[str, str], accept: str, seen: Seen) -> None:
        listed = {**params, "limit": "1"}
        async with self._session.get(self._server + path, params=listed, headers={"Accept": METADATA_LIST}) as answer:
            answer.raise_for_status()
            version = (await answer.json(content_type=None))["metadata"]["resourceVersion"]
        while True:
            asked = {**params, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
            async with self._session.get(self._server + path, params=asked, headers={"Accept": accept}) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch of {path} ended: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    is_ours = services.is_ours(event["object"]["metadata"].get("namespace", ""))
                    if is_ours and event["type"] in ("ADDED", "MODIFIED"):
                        seen(event["type"], event["object"])
                        self._changed.set()

    def _note(self, kind: str, where: tuple[str, str]) -> None:
        self.first[kind].setdefault(where, time.monotonic())

    def _child(self, kind: str) -> Seen:
        def seen(_: str, obj: JSON) -> None:
            where = _service(obj)
            self._note(kind, where)
            if kind == "deployments" and (seqs := _max_num_seqs(obj)) != self.args.get(where, (0.0, 0))[1]:
                self.args[where] = (time.monotonic(), seqs)

        return seen

    def _pod(self, _: str, obj: JSON) -> None:
        if _condition(obj, "Ready").get("status") == "True":
            self._note("pod", _service(obj))

    def _parent(self, _: str, obj: JSON) -> None:
        ready, metadata = _condition(obj, "Ready"), obj["metadata"]
        if ready.get("status") == "True" and ready.get("observedGeneration") == metadata["generation"]:
            where = metadata["namespace"], metadata["name"]
            self._note("ready", where)
            self.ready[where] = metadata["generation"]


METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def _service(obj: JSON) -> tuple[str, str]:
    metadata = obj["metadata"]
    return metadata["namespace"], metadata["labels"][SERVICE_LABEL]


def _condition(obj: JSON, kind: str) -> JSON:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _max_num_seqs(deployment: JSON) -> int:
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [*server.get("command", ()), *server.get("args", ())]
    for word, value in zip(words, [*words[1:], ""], strict=True):
        flag, _, joined = word.partition("=")
        if flag == "--max-num-seqs":
            return int(joined or value)
    return 0
