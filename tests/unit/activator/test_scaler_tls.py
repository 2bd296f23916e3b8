"""Who may ask the scaler: clients with a certificate of its authority, also after a renewal."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest
from kubeloop.errors import ConfigError
from llmservice_activator import server
from llmservice_activator.server import MutualTls

from tests.support.certificates import Authority
from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import World, certificates, request, running, service

__all__ = ["certificates"]


async def refused(world: World, client: Path, authority: bytes | None = None, *, seconds: float = 2) -> bool:
    """Whether no connection is made within so many seconds, so that no call arrives."""
    async with world.keda(client, authority) as keda:
        try:
            await keda.call("IsActive", request("IsActive"), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return False


async def test_only_clients_of_the_authority_are_answered(certificates: Path, tmp_path: Path) -> None:
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    shutil.copy(certificates / "keda/ca.crt", nobody)
    async with running(ApiServer(service()), certificates) as world:
        assert not await refused(world, certificates / "keda", seconds=PATIENCE)
        assert await refused(world, certificates / "stranger"), "a certificate of another authority"
        assert await refused(world, nobody), "no certificate"
        stranger = (certificates / "others/ca.crt").read_bytes()
        assert await refused(world, certificates / "keda", stranger), "a client that trusts another authority"
        assert b'method="IsActive"} 1.0' in world.page()


async def test_plain_text_is_refused(certificates: Path) -> None:
    async with (
        running(ApiServer(service()), certificates) as world,
        grpc.aio.insecure_channel(f"localhost:{world.scaler.port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/externalscaler.ExternalScaler/IsActive")(request("IsActive"), timeout=2)  # type: ignore[arg-type]
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_a_renewed_certificate_is_used_for_connections_that_begin_later(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "RELOAD_SECONDS", 0.02)
    caplog.set_level(logging.INFO)
    mounted = tmp_path / "mounted"
    shutil.copytree(certificates / "server", mounted)
    new = Authority.make(tmp_path / "new")
    client = new.issue(tmp_path / "client")
    async with running(ApiServer(service()), certificates, tls=mounted) as world, world.keda() as before:
        await before.call("IsActive", request("IsActive"))
        assert await refused(world, client)
        # Half of a renewal: the key is of another certificate. The earlier ones stay in use.
        renewed = new.issue(tmp_path / "renewed")
        shutil.copy(renewed / "tls.key", mounted)
        await world.until(lambda: "cannot read the scaler's renewed certificate" in caplog.text)
        assert not await refused(world, certificates / "keda", seconds=PATIENCE)
        for name in server.CERTIFICATE_FILES:
            shutil.copy(renewed / name, mounted)
        await world.until(lambda: "the scaler's certificate was renewed" in caplog.text)
        assert not await refused(world, client)
        assert await refused(world, certificates / "keda"), "the earlier authority is not accepted any more"
        await before.call("IsActive", request("IsActive"))


@pytest.mark.parametrize("name", server.CERTIFICATE_FILES)
@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_folder_without_a_certificate_names_the_secret(
    certificates: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    folder = tmp_path / "mounted"
    shutil.copytree(certificates / "server", folder)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"autoscaling\.tls\.secretName"):
        MutualTls(folder)


async def test_a_connection_that_says_nothing_hinders_no_other(certificates: Path) -> None:
    async with running(ApiServer(service()), certificates) as world:
        silent = [socket.create_connection(("localhost", world.scaler.port)) for _ in range(50)]
        try:
            async with asyncio.timeout(PATIENCE):
                assert not await refused(world, certificates / "keda", seconds=PATIENCE)
        finally:
            for each in silent:
                each.close()
