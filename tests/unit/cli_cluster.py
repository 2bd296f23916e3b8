"""A kubeconfig of a loopback server that plays the API server for a command; its namespace is `team`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer


@asynccontextmanager
async def api_server(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """`answer` gets every request, whatever its method and path; the user's token is t0ken."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, shutdown_timeout=0) as server:
        use_kubeconfig(str(server.make_url("")).rstrip("/"), folder, monkeypatch)
        yield


def use_kubeconfig(server: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG with this server."""
    config = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t0ken"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
