"""`llmservice chat` with a service that has no ready replica, and in a pod of the cluster."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from kubeloop.resources import Key
from llmservice_activator.holding.interface import HoldingTarget
from llmservice_cli.app import options_of
from llmservice_cli.chat import session
from llmservice_cli.errors import CliError
from llmservice_cli.load.server import url_inside

from tests.support.patience import until
from tests.unit.api_server import ApiServer
from tests.unit.cli.chat_world import WHOLE, Model, api, forwarding, model
from tests.unit.cli.test_status import condition, pod, service
from tests.unit.cli.test_status_held import SYSTEM, add
from tests.unit.cli_world import PODS, SERVICES, Command
from tests.unit.holding_world import World, target, world

__all__ = ["api", "model"]


def at_start(**status: Any) -> Any:
    waiting = [condition("Available", "False", "Starting"), condition("Ready", "False", "Starting")]
    return service(conditions=waiting, progress={"phase": "Fetching", "percent": 43}, **status)


async def test_a_service_that_starts_is_explained(api: ApiServer, llmservice: Command) -> None:
    api.objects |= {f"{SERVICES}/chat": at_start(), f"{PODS}/chat-1": pod("chat-1", ready=False)}
    with pytest.raises(CliError, match=r"chat has no ready replica: Starting \(Fetching, 43 %\)") as refused:
        await llmservice.within("chat", "chat", "-m", "Hello")
    assert "--wait" in refused.value.remedy


async def test_it_is_waited_for(api: ApiServer, llmservice: Command) -> None:
    api.objects |= {f"{SERVICES}/chat": at_start(), f"{PODS}/chat-1": pod("chat-1", ready=False)}

    async def listed(request: web.Request) -> web.StreamResponse:
        api.objects[f"{PODS}/chat-1"] = pod("chat-1")
        there = service(conditions=[condition("Available", "True", "Serving")])
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [there]})

    api.answers[SERVICES] = listed
    done = await llmservice.within("chat", "chat", "-m", "Hello", "--wait")
    assert done.out == "Good day.\n"


HELD = {"port": 10240, "maxRequests": 100}


async def test_an_activator_holds_the_request(api: ApiServer, model: Model, llmservice: Command) -> None:
    del api.objects[f"{PODS}/chat-1"]
    api.objects[f"{SERVICES}/chat"] = at_start(holding=HELD)
    add(api, "")

    async def watched(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return web.Response()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [at_start(holding=HELD)]})

    api.answers[SERVICES] = watched
    api.answers[f"/api/v1/namespaces/{SYSTEM}/pods/act-1/portforward"] = forwarding(model.url)
    model.events = (": held\n\n", *WHOLE)
    done = await llmservice.within("chat", "chat", "-m", "Hello")
    assert (done.code, done.out) == (0, "Good day.\n")
    assert "team/chat has no ready replica: act-1 holds the request and starts one" in done.err
    assert "cannot be followed" not in done.err
    assert ({"ports": "10240"}) in [query for _, path, query, _ in api.requests if path.endswith("portforward")]


async def test_the_real_activators_server_holds_it_until_a_pod_answers(
    api: ApiServer, model: Model, llmservice: Command
) -> None:
    del api.objects[f"{PODS}/chat-1"]
    api.objects[f"{SERVICES}/chat"] = at_start(holding=HELD)
    api.answers[SERVICES] = 403
    add(api, "")

    async def starts(activator: World, of: HoldingTarget) -> None:
        await until(lambda: activator.held(of) == 1)
        assert {*activator.woken} == {of.key}  # again, where a busy machine takes longer
        await activator.serve(replace(of, pods=(model.url,)))

    async with world() as activator:
        of = target(Key("team", "chat"), model_names=frozenset({"chat"}))
        await activator.serve(of)
        held = f"/api/v1/namespaces/{SYSTEM}/pods/act-1/portforward"
        api.answers[held] = forwarding(f"http://127.0.0.1:{of.port}")
        start = asyncio.create_task(starts(activator, of))
        done = await llmservice.within("chat", "chat", "-m", "Hello")
        await start
    assert (done.code, done.out) == (0, "Good day.\n")
    assert activator.counted.of["forwarded after it was held"] == 1


async def test_activators_that_may_not_be_listed(api: ApiServer, llmservice: Command) -> None:
    del api.objects[f"{PODS}/chat-1"]
    api.objects[f"{SERVICES}/chat"] = at_start(holding=HELD)
    for path in ("/api/v1/pods", f"/api/v1/namespaces/{SYSTEM}/pods"):
        api.answers[path] = (403, 'User "me" cannot list resource "pods"')
    with pytest.raises(CliError, match="may not be listed") as refused:
        await llmservice.within("chat", "chat", "-m", "Hello")
    assert f"list on pods and get and create on pods/portforward in the operator's namespace ({SYSTEM})" in (
        refused.value.remedy
    )


async def test_a_status_that_may_not_be_watched_hides_no_answer(
    api: ApiServer, model: Model, llmservice: Command
) -> None:
    del api.objects[f"{PODS}/chat-1"]
    api.objects[f"{SERVICES}/chat"] = at_start(holding=HELD)
    add(api, "")
    api.answers[f"/api/v1/namespaces/{SYSTEM}/pods/act-1/portforward"] = forwarding(model.url)
    api.answers[SERVICES] = (403, 'User "me" cannot watch resource "llmservices"')
    done = await llmservice.within("chat", "chat", "-m", "Hello")
    assert (done.code, done.out) == (0, "Good day.\n")
    assert 'the service\'s status cannot be followed: User "me" cannot watch' in done.err


@pytest.mark.parametrize("is_available", [True, False], ids=["served", "held"])
async def test_in_a_pod_of_the_cluster_it_asks_the_service(
    api: ApiServer, model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch, is_available: bool
) -> None:
    async def inside(*_: Any) -> str:
        return model.url

    monkeypatch.setattr(session, "url_inside", inside)
    there = service(conditions=[condition("Available", "True", "Serving")])
    api.objects = {f"{SERVICES}/chat": there if is_available else at_start(holding=HELD)}
    api.answers[SERVICES] = 403
    done = await llmservice.within("chat", "chat", "-m", "Hello")
    assert (done.code, done.out) == (0, "Good day.\n")
    assert not [path for _, path, _, _ in api.requests if "pods" in path]
    assert ("has no ready replica" in done.err) != is_available


INSIDE: dict[str, tuple[tuple[str, ...], str | None, str, str | None]] = {
    "in a pod": ((), None, "10.0.0.1", "http://chat.team.svc:80"),
    "outside": ((), None, "", None),
    "another cluster is named": (("--context", "other"), None, "10.0.0.1", None),
    "another cluster is set": ((), "/kubeconfig", "10.0.0.1", None),
    "no such name": (("-n", "nowhere"), None, "10.0.0.1", None),
}


@pytest.mark.parametrize(("words", "kubeconfig", "host", "expected"), INSIDE.values(), ids=INSIDE)
async def test_where_the_service_can_be_reached(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kubeconfig: str | None, host: str, expected: str | None
) -> None:
    async def found(name: str, port: int, **_: Any) -> Any:
        if name != "chat.team.svc":
            raise socket.gaierror
        return [(name, port)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found, raising=False)
    monkeypatch.setenv("KUBECONFIG", kubeconfig or "")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    options = options_of(["chat", "chat", *words])
    of = {**service(), "metadata": {"name": "chat", "namespace": options.namespace or "team"}}
    assert await url_inside(of, options) == expected


def test_how_a_start_goes_on() -> None:
    assert session.start_of(at_start()) == "Starting, Fetching 43 %"
    assert session.start_of({"metadata": {}, "spec": {}}) == "not reconciled yet"
    assert session.start_of(None) == "it was deleted"
