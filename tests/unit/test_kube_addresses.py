"""`tls-server-name`, `certificate-authority`, `insecure-skip-tls-verify` and `proxy-url`, with each of our clients."""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from aiohttp import web
from kopf._cogs.clients.auth import APIContext
from llmservice_cli.cluster import connect
from llmservice_cli.errors import CliError
from llmservice_operator import handlers
from llmservice_operator.kube.client import AlwaysOpen, KubeClient
from llmservice_operator.kube.credentials import load
from llmservice_operator.kube.errors import Unreachable
from llmservice_operator.kube.resources import POD
from llmservice_operator.kube.transport import Transport

from localcluster import pki
from localcluster.paths import ClusterPaths
from tests.support.kubeconfig import kubeconfig

PATH = POD.path("default", "p")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 and `kubernetes`, and not for 127.0.0.2."""
    paths = ClusterPaths(tmp_path_factory.mktemp("clone"))
    pki.ensure(paths)
    return paths.pki


async def by_the_transport(kubeconfig: str) -> Any:
    async with Transport(await load(kubeconfig=kubeconfig)) as transport:
        return await KubeClient(transport, AlwaysOpen()).get(POD, "default", "p")


async def by_kopf(kubeconfig: str) -> Any:
    context = APIContext(info := await handlers.connection(await load(kubeconfig=kubeconfig)))
    async with context.session as session, session.get(info.server + PATH) as response:
        return await response.json()


def options(kubeconfig: str) -> argparse.Namespace:
    return argparse.Namespace(kubeconfig=kubeconfig, context=None, namespace=None)


async def by_a_command(kubeconfig: str) -> Any:
    async with connect(options(kubeconfig)) as connection:
        return await connection.kube.get(POD, "default", "p")


async def by_bench(kubeconfig: str) -> Any:
    async with connect(options(kubeconfig)) as connection, connection.http() as http:
        return (await http.get(PATH)).json()


Client = Callable[[str], Awaitable[Any]]
CLIENTS = [by_the_transport, by_kopf, by_a_command, by_bench]
FAILURES = (Unreachable, CliError, httpx.ConnectError, OSError)


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None, host: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and what it is asked for."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.json_response({"metadata": {"name": "p"}})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, host, 0, ssl_context=tls)
    await site.start()
    try:
        yield f"http{'s' if tls else ''}://{host}:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def kubeconfig_of(folder: Path, **cluster: Any) -> str:
    return str(kubeconfig(folder, {"token": "t"}, **cluster))


LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]
TRUSTED = {"certificate-authority": "ca.crt"}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("cluster", "answers"),
    [
        pytest.param({**TRUSTED, "tls-server-name": "kubernetes"}, True, id="the name of the certificate"),
        pytest.param({**TRUSTED, "tls-server-name": "other"}, False, id="another name"),
        pytest.param(TRUSTED, False, id="the address"),
        pytest.param({"tls-server-name": "kubernetes"}, False, id="an authority that nobody named"),
        pytest.param({"insecure-skip-tls-verify": True}, True, id="unchecked"),
    ],
)
def test_tls(
    authority: Path, client: Client, cluster: dict[str, Any], answers: bool, loop: Any, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority / "apiserver.crt", authority / "apiserver.key")

    async def ask() -> None:
        async with serving(tls, "127.0.0.2") as (server, asked):
            sent = client(kubeconfig_of(tmp_path, server=server, **cluster))
            if answers:
                assert await sent == {"metadata": {"name": "p"}}
            else:
                with pytest.raises(FAILURES):
                    await sent
            assert asked == ([PATH] if answers else [])

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(ask())


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_proxy_of_the_kubeconfig(client: Client, tmp_path: Path) -> None:
    async with serving(None, "127.0.0.1") as (proxy, asked):
        path = kubeconfig_of(tmp_path, server="http://api.invalid", **{"proxy-url": proxy})
        assert await client(path) == {"metadata": {"name": "p"}}
        assert asked == [f"http://api.invalid{PATH}"]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_proxy_of_the_environment_is_not_used(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand between a laptop and its own cluster, where nobody thought of NO_PROXY."""
    for variable in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    async with serving(None, "127.0.0.1") as (server, asked):
        assert await client(kubeconfig_of(tmp_path, server=server)) == {"metadata": {"name": "p"}}
        assert asked == [PATH]
