"""The web page in this process, before a simulated API server that knows viewers by their tokens."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from aiohttp import web
from llmservice_ui.app import application
from llmservice_ui.guard import Guard
from llmservice_ui.sessions import LOOPBACK, ApiAddress, Sessions, Settings
from llmservice_ui.sizing import Sizer

from tests.support import http_servers
from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer

BASE = "http://localhost:8090"
OWN = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
"""What a browser sends with a form of the page."""
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
FLEET = "/apis/llmservice.dev/v1alpha1/llmservices"


@dataclass
class World:
    """A page, and who may sign in to it."""

    api: ApiServer
    app: Guard
    sessions: Sessions
    users: dict[str, str] = field(default_factory=lambda: {"t0ken": "jane"})
    """By token; others are refused."""
    now: float = 1_000_000.0
    """Of the clock, and of the calendar."""

    def browser(self, **options: Any) -> httpx.AsyncClient:
        """With cookies of its own."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=BASE, **options)

    async def signed_in(self, token: str = "t0ken") -> httpx.AsyncClient:
        browser = self.browser()
        answer = await browser.post("/sign-in", data={"token": token}, headers=OWN)
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
        return browser

    async def reviewed(self, request: web.Request) -> web.StreamResponse:
        name = self.users.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if name is None:
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        return web.json_response({"status": {"userInfo": {"username": name}}})


@asynccontextmanager
async def world(sizer: Sizer | None = None, **settings: Any) -> AsyncIterator[World]:
    api = ApiServer()
    async with http_servers.application(api.answer, 1) as url:
        chosen = Settings(ApiAddress(url), LOOPBACK, **settings)
        sessions = Sessions(chosen, lambda: made.now, lambda: made.now)
        made = World(api, application(chosen, sizer or Sizer({}, seconds=PATIENCE), sessions), sessions)
        api.answers[f"POST {REVIEWS}"] = made.reviewed
        try:
            yield made
        finally:
            await sessions.close()


def text_of(page: str) -> str:
    """What is read on a page: no tags, one space between words."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def table_of(page: str) -> list[list[str]]:
    """The cells of the rows of its first table."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in body.split("<tr>")[1:]
    ]


def service(name: str, namespace: str = "team", **status: Any) -> Mapping[str, Any]:
    """One that is Ready, but for what `status` says."""
    found = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "RolledOut", "message": "all of it",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "ready": "1/1", "gpus": 2, "observedGeneration": 1,
    }  # fmt: skip
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"uri": f"hf://org/{name}"}},
        "status": {**found, **status},
    }


def add(api: ApiServer, *services: Mapping[str, Any]) -> None:
    for one in services:
        api.put({"kind": "LLMService", **one})
