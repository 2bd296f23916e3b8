"""The LLMServices of a run, what a watch shows of them, and their simulated pods' ports, on this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import aiohttp
from aiohttp import web
from kubeloop.resources import Key
from llmservice_runtime.contract import (
    HTTP_PORT,
    METRICS_PATH,
    REQUESTS_BEGUN,
    REQUESTS_IN_FLIGHT,
    STATE_PATH,
    STATE_PORT,
    Phase,
    State,
)

from benchmarks.scale.services import JSON, manifest, name_of, namespace_of
from benchmarks.scale.watch import Observer

EACH_WITH_A_REPLICA = 10
"""One service in so many has a replica; the others are at zero."""
PODS = ipaddress.ip_network("10.0.0.0/24")
"""Where kwok's pods have their addresses."""


def is_at_zero(number: int) -> bool:
    return number % EACH_WITH_A_REPLICA != 0


def key_of(number: int) -> Key:
    return Key(namespace_of(number), name_of(number))


def autoscaled(number: int) -> JSON:
    """That of the scale benchmark, with bounds from zero."""
    made = manifest(number)
    replicas = 0 if is_at_zero(number) else 1
    made["spec"]["scaling"] = {"replicas": replicas, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
    return made


class ScaleObserver(Observer):
    """Sees ports and replicas as well."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        super().__init__(session, server)
        self.ports: dict[tuple[str, str], int] = {}
        self.scaled: dict[tuple[str, str], float] = {}
        """When each first had a replica: seconds of the monotonic clock."""

    def _parent(self, kind: str, obj: Mapping[str, Any]) -> None:
        super()._parent(kind, obj)
        where = obj["metadata"]["namespace"], obj["metadata"]["name"]
        if port := obj.get("status", {}).get("holding", {}).get("port"):
            self.ports[where] = port
        if obj["spec"].get("scaling", {}).get("replicas", 0):
            self.scaled.setdefault(where, time.monotonic())


@contextlib.contextmanager
def pods_here() -> Iterator[None]:
    """Connections to simulated pods end on this machine. RuntimeError where it has such addresses itself."""
    shown = json.loads(_ip("-j", "address"))
    own = {ipaddress.ip_address(each["local"]) for link in shown for each in link["addr_info"]}
    if any(address in PODS for address in own):
        raise RuntimeError(f"this machine has an address of {PODS}, which kwok gives to its pods")
    route = ("local", str(PODS), "dev", "lo")
    _ip("route", "add", *route)
    try:
        yield
    finally:
        _ip("route", "del", *route)


def _ip(*words: str) -> str:
    return subprocess.run(("ip", *words), check=True, capture_output=True, text=True).stdout


@contextlib.asynccontextmanager
async def supervisors() -> AsyncIterator[None]:
    """What all pods answer: one request in flight, ready; and vLLM's part, as short as can be."""
    counters = f"{REQUESTS_IN_FLIGHT} 1\n{REQUESTS_BEGUN} 1\n"
    state = State(Phase.SERVING, started=True, ready=True).to_json()
    parts = (
        (STATE_PORT, {METRICS_PATH: counters, STATE_PATH: state}, "GET"),
        (HTTP_PORT, {"/health": ""}, "GET"),
        (HTTP_PORT, {"/v1/completions": '{"object": "text_completion", "choices": []}'}, "POST"),
    )
    apps: dict[int, web.Application] = {}
    for port, pages, method in parts:
        app = apps.setdefault(port, web.Application())
        for path, text in pages.items():
            app.router.add_route(method, path, _answering(text))
    async with contextlib.AsyncExitStack() as stack:
        for port, app in apps.items():
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, None, port).start()
        yield


def _answering(text: str) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json" if text.startswith("{") else "text/plain")

    return answer
