"""`tls-server-name`, `certificate-authority`, `insecure-skip-tls-verify` and `proxy-url`, with each of our clients."""

from __future__ import annotations

import asyncio
import contextlib
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
from kubeloop import kopf_source
from kubeloop.client import AlwaysOpen, KubeClient
from kubeloop.credentials import load
from kubeloop.errors import Unreachable
from kubeloop.resources import POD
from kubeloop.transport import Transport
from llmservice_cli.cluster import connect
from llmservice_cli.errors import CliError
from llmservice_cli.options import Scope

from localcluster import pki
from localcluster.paths import ClusterPaths
from tests.support import http_servers
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
    context = APIContext(info := await kopf_source.connection(await load(kubeconfig=kubeconfig)))
    async with context.session as session, session.get(info.server + PATH) as response:
        return await response.json()


def options(kubeconfig: str) -> Scope:
    return Scope(kubeconfig=kubeconfig, context=None, namespace=None)


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
    """Its address, and the paths that were requested."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.json_response({"metadata": {"name": "p"}})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with http_servers.serving(app, host, tls=tls, shutdown_timeout=0) as runner:
        yield f"http{'s' if tls else ''}://{host}:{runner.addresses[0][1]}", asked


def kubeconfig_of(folder: Path, **cluster: Any) -> str:
    return str(kubeconfig(folder, {"token": "t"}, **cluster))


LOOPS = [(client, asyncio.new_event_loop) for client in CLIENTS] + [
    (client, uvloop.new_event_loop) for client in (by_the_transport, by_kopf)
]
TRUSTED = {"certificate-authority": "ca.crt"}
CLUSTERS: dict[str, tuple[dict[str, Any], bool]] = {
    "the name of the certificate": ({**TRUSTED, "tls-server-name": "kubernetes"}, True),
    "another name": ({**TRUSTED, "tls-server-name": "other"}, False),
    "the address": (TRUSTED, False),
    "another authority": ({"tls-server-name": "kubernetes"}, False),
    "unchecked": ({"insecure-skip-tls-verify": True}, True),
}


@pytest.mark.parametrize(("client", "loop"), LOOPS)
@pytest.mark.parametrize("case", CLUSTERS)
def test_tls(authority: Path, client: Client, case: str, loop: Any, tmp_path: Path) -> None:
    cluster, answers = CLUSTERS[case]
    (tmp_path / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority / "apiserver.crt", authority / "apiserver.key")

    async def ask() -> None:
        async with serving(tls, "127.0.0.2") as (server, asked):
            with contextlib.nullcontext() if answers else pytest.raises(FAILURES):
                assert await client(kubeconfig_of(tmp_path, server=server, **cluster)) == {"metadata": {"name": "p"}}
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
    """It would be used between a laptop and its own cluster wherever NO_PROXY is not set."""
    for variable in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    async with serving(None, "127.0.0.1") as (server, asked):
        assert await client(kubeconfig_of(tmp_path, server=server)) == {"metadata": {"name": "p"}}
        assert asked == [PATH]
