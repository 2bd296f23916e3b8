"""`llmservice ui`: the page is found, gets a token once, and is opened with a code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import httpx
import pytest
from aiohttp import web
from kubeloop.client import KubeClient
from kubeloop.errors import Unreachable
from kubeloop.resources import Resource
from llmservice_cli.errors import CliError, WrongUsage
from llmservice_cli.ui import command

from tests.support.forward_proxy import forward_proxy
from tests.support.http_servers import application
from tests.support.kubeconfig import kubeconfig
from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.cli.chat_world import forwarding
from tests.unit.cli.test_status import pod as pod_of_chat
from tests.unit.cli_world import Command, Ran

SYSTEM = "/api/v1/namespaces/llmservice-system/pods"
PATH = "/sign-in/code?code=abc"


class Page:
    """What the command finds at the other end."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answer: Any = {"path": PATH}
        self.code = 200

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.headers["Host"], await request.json() if request.can_read_body else None))
        return web.json_response(self.answer, status=self.code)


@pytest.fixture
async def page(api_server: ApiServer) -> AsyncIterator[Page]:
    made = Page()
    async with application(made.handle, 1) as url:
        ready = pod_of_chat("page-1")
        ready["metadata"] |= {
            "namespace": "llmservice-system",
            "labels": {"app.kubernetes.io/name": "llmservice-operator-ui"},
        }
        api_server.objects = {f"{SYSTEM}/page-1": ready}
        api_server.answers[f"{SYSTEM}/page-1/portforward"] = forwarding(url)
        yield made


class Opened:
    """The browser, and what is done with the address that it gets."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.address: asyncio.Future[str] = self._loop.create_future()
        self.may_return = threading.Event()
        self.may_return.set()

    async def by(self, command: Coroutine[Any, Any, Ran]) -> tuple[asyncio.Task[Ran], str]:
        """The command as it runs, and the address once it is open. Raises what the command ends with before."""
        running = asyncio.create_task(command)
        both: set[asyncio.Future[Any]] = {running, self.address}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        return running, await self.address

    def __call__(self, address: str) -> bool:
        self._loop.call_soon_threadsafe(self.address.set_result, address)
        assert self.may_return.wait(PATIENCE), "nobody uses the page meanwhile"
        return True


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    made = Opened()
    monkeypatch.setattr("webbrowser.open", made)
    return made


async def test_a_browser_is_opened_with_a_code_and_its_connections_are_carried(
    page: Page, opened: Opened, llmservice: Command
) -> None:
    running, address = await opened.by(llmservice.within("ui"))
    base, _, path = address.partition("/sign-in")
    assert base.startswith("http://127.0.0.1:")
    assert f"/sign-in{path}" == PATH
    assert page.asked == [(base.removeprefix("http://"), {"token": "t0ken", "namespace": "team"})]
    async with httpx.AsyncClient() as browser:
        assert (await browser.get(address)).json() == {"path": PATH}
    running.cancel()
    assert (await running).code == 0


async def test_a_browser_that_runs_until_it_is_closed_is_served(
    page: Page, opened: Opened, llmservice: Command
) -> None:
    opened.may_return.clear()
    running, address = await opened.by(llmservice.within("ui"))
    try:
        async with httpx.AsyncClient(timeout=PATIENCE) as browser:
            assert (await browser.get(address)).json() == {"path": PATH}
    finally:
        opened.may_return.set()
    running.cancel()
    await running


async def test_the_address_can_be_printed_instead(
    page: Page, opened: Opened, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = asyncio.Event()
    monkeypatch.setattr(command, "_until_gone", lambda *_: shown.wait())
    shown.set()
    ran = await llmservice.within("ui", "--no-open")
    assert ran.out.startswith("http://127.0.0.1:")
    assert ran.out.strip().endswith(PATH)
    assert "t0ken" not in ran.out + ran.err
    assert not opened.address.done()


async def test_a_client_certificate_is_no_token(
    page: Page, api_server: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "nobody").mkdir()
    async with application(api_server.answer, 1) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "nobody", {}, namespace="team", server=url)))
        with pytest.raises(CliError, match="no token") as refused:
            await llmservice.within("ui", "--no-open")
    assert "--service-account NAMESPACE/NAME" in refused.value.remedy
    assert page.asked == []


async def test_a_service_accounts_token_is_asked_for(
    page: Page, opened: Opened, api_server: ApiServer, llmservice: Command
) -> None:
    where = "/api/v1/namespaces/team/serviceaccounts/viewer/token"
    api_server.answers[f"POST {where}"] = {"status": {"token": "short"}}
    running, _ = await opened.by(llmservice.within("ui", "--service-account", "team/viewer"))
    running.cancel()
    await running
    assert page.asked[0][1] == {"token": "short", "namespace": ""}, "the account's own namespace comes first"
    (body,) = [body for _, path, _, body in api_server.requests if path == where]
    assert body["spec"] == {"expirationSeconds": 3600}
    api_server.answers[f"POST {where}"] = 403
    with pytest.raises(CliError) as refused:
        await llmservice.within("ui", "--service-account", "team/viewer")
    assert "create on serviceaccounts/token in namespace team" in refused.value.remedy


@pytest.mark.parametrize("name", ["viewer", "/viewer", "team/", "team/viewer/x"])
async def test_a_service_account_has_a_namespace_and_a_name(name: str, page: Page, llmservice: Command) -> None:
    with pytest.raises(WrongUsage, match="not written as NAMESPACE/NAME"):
        await llmservice.within("ui", "--service-account", name)


async def test_only_the_namespace_that_is_named_is_trusted_with_a_token(
    page: Page, api_server: ApiServer, llmservice: Command
) -> None:
    stranger = api_server.objects.pop(f"{SYSTEM}/page-1")
    api_server.objects["/api/v1/namespaces/team/pods/page-1"] = stranger
    with pytest.raises(CliError, match="there is no page in namespace llmservice-system") as refused:
        await llmservice.within("ui")
    assert "ui.enabled=true" in refused.value.remedy
    assert page.asked == []


async def test_a_page_that_is_not_ready(page: Page, api_server: ApiServer, llmservice: Command) -> None:
    api_server.objects[f"{SYSTEM}/page-1"]["status"]["conditions"][0]["status"] = "False"
    with pytest.raises(CliError, match="is not ready"):
        await llmservice.within("ui")


ANSWERS: dict[str, tuple[int, Any, str]] = {
    "refused": (401, {"message": "Unauthorized\x1b[2J"}, r"refuses to sign you in: HTTP 401, .*Unauthorized"),
    "another program": (200, {"hello": 1}, "what answers is not the page: path is missing"),
    "an address elsewhere": (200, {"path": "//evil.example/"}, "what answers is not the page: it names the path"),
    "a list": (200, [], "what answers is not the page"),
    "too much": (200, {"path": "a" * 50_000}, "it sends more than 16384 bytes"),
}


@pytest.mark.parametrize(("code", "answer", "said"), ANSWERS.values(), ids=ANSWERS)
async def test_what_is_no_page(code: int, answer: Any, said: str, page: Page, llmservice: Command) -> None:
    page.code, page.answer = code, answer
    with pytest.raises(CliError, match=said) as refused:
        await llmservice.within("ui")
    assert "\x1b" not in refused.value.message


async def test_it_ends_when_the_pod_does_and_no_browser_asks(
    page: Page, opened: Opened, api_server: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LOOKS_EVERY", 0.05)
    running, _ = await opened.by(llmservice.within("ui"))
    del api_server.objects[f"{SYSTEM}/page-1"]
    with pytest.raises(CliError, match="pod page-1 of the page has ended"):
        await asyncio.wait_for(running, PATIENCE)


async def test_it_ends_when_the_pod_does(
    page: Page, opened: Opened, api_server: ApiServer, llmservice: Command
) -> None:
    running, address = await opened.by(llmservice.within("ui"))
    del api_server.objects[f"{SYSTEM}/page-1"]
    api_server.answers[f"{SYSTEM}/page-1/portforward"] = 404
    async with httpx.AsyncClient() as browser:
        with pytest.raises(httpx.HTTPError):
            await browser.get(address)
    with pytest.raises(CliError, match="pod page-1 of the page has ended") as refused:
        await running
    assert "run llmservice ui again" in refused.value.remedy


@pytest.mark.parametrize(("code", "said"), [(403, "warning: User"), (500, "warning: "), (None, "warning: ")])
async def test_a_pod_that_cannot_be_looked_at_for_a_moment_ends_nothing(
    code: int | None,
    said: str,
    page: Page,
    opened: Opened,
    api_server: ApiServer,
    llmservice: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = asyncio.Event()
    get = KubeClient.get

    async def watched(self: KubeClient, resource: Resource, namespace: str, name: str) -> Any:
        try:
            if code is None:
                raise Unreachable("the network is down")
            return await get(self, resource, namespace, name)
        finally:
            looked.set()

    running, address = await opened.by(llmservice.within("ui"))
    monkeypatch.setattr(KubeClient, "get", watched)
    carried = api_server.answers[f"{SYSTEM}/page-1/portforward"]
    api_server.answers |= {f"{SYSTEM}/page-1/portforward": 503, **({f"{SYSTEM}/page-1": code} if code else {})}
    async with httpx.AsyncClient() as browser:
        with pytest.raises(httpx.HTTPError):
            await browser.get(address)
        await asyncio.wait_for(looked.wait(), PATIENCE)
        api_server.answers[f"{SYSTEM}/page-1/portforward"] = carried
        assert (await browser.get(address)).json() == {"path": PATH}
    running.cancel()
    ran = await running
    assert (ran.code, said in ran.err) == (0, True), ran.err


async def test_a_connection_that_failed_is_told_once(
    page: Page, opened: Opened, api_server: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, has_looked, get = 0, asyncio.Event(), KubeClient.get

    async def watched(self: KubeClient, resource: Resource, namespace: str, name: str) -> Any:
        nonlocal looks
        looks += 1
        if looks == 5:
            has_looked.set()
        return await get(self, resource, namespace, name)

    running, address = await opened.by(llmservice.within("ui"))
    monkeypatch.setattr(command, "LOOKS_EVERY", 0.02)
    monkeypatch.setattr(KubeClient, "get", watched)
    api_server.answers[f"{SYSTEM}/page-1/portforward"] = 503
    async with httpx.AsyncClient() as browser:
        with pytest.raises(httpx.HTTPError):
            await browser.get(address)
    await asyncio.wait_for(has_looked.wait(), PATIENCE)
    running.cancel()
    assert (await running).err.count("warning: ") == 1


async def test_a_port_that_is_taken(page: Page, llmservice: Command) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(CliError, match=f"port {port} of 127.0.0.1 cannot be used"):
            await llmservice.within("ui", "--port", str(port))
    finally:
        server.close()


@pytest.mark.parametrize("url", ["http://llm.example.com", "ftp://localhost", "llm.example.com"])
async def test_a_token_is_sent_by_tls_only(url: str, page: Page, llmservice: Command) -> None:
    with pytest.raises(WrongUsage, match=r"is not https://"):
        await llmservice.within("ui", "--url", url)


@pytest.mark.parametrize(
    ("excepted", "is_asked"), [("*.corp.example", False), ("10.0.0.0/8", False), ("other.example", True)]
)
async def test_a_page_is_reached_without_the_proxy_that_no_proxy_excepts(
    excepted: str, is_asked: bool, api_server: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "10.255.255.1" if "/" in excepted else "page.corp.example"
    monkeypatch.setattr(command, "TIMEOUT", httpx.Timeout(1.0))
    with forward_proxy() as proxy:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, excepted)
        with pytest.raises(CliError, match="does not answer"):
            await llmservice.within("ui", "--url", f"https://{host}:9")
        assert bool(proxy.asked) == is_asked


async def test_a_page_that_is_reached_from_here(
    opened: Opened, api_server: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Page()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # would get the token
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with application(made.handle, 1) as url:
        ran = await llmservice.within("ui", "--url", f"{url}/anything")
    assert ran.code == 0
    assert await opened.address == url + PATH
    assert made.asked[0][1] == {"token": "t0ken", "namespace": "team"}
    assert not any("pods" in path for _, path, _, _ in api_server.requests)
