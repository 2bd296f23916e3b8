"""Connections of peers that are gone end, and those of peers that send pings themselves do not. Times are 200 times
shorter than in a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from llmservice_activator import server

from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import World, certificates, running, service

__all__ = ["certificates"]

SHORTER = 200
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1


WHOLE = dict(server.OPTIONS)
ANSWERS = ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [(name, value // SHORTER if name.endswith("_ms") else value) for name, value in WHOLE.items()]
    monkeypatch.setattr(server, "OPTIONS", tuple(options))


@pytest.fixture
def unhurried(shorter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an answer there is as much time as in a cluster: the peer is a task of a busy machine."""
    options = [(name, WHOLE[name] if name in ANSWERS else value) for name, value in server.OPTIONS]
    monkeypatch.setattr(server, "OPTIONS", tuple(options))


@dataclass
class Peer:
    """One HTTP/2 connection, frame by frame."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def next(self) -> tuple[int, int, bytes]:
        """The next frame: type, flags and payload. IncompleteReadError at the end."""
        head = await self.reader.readexactly(9)
        return head[3], head[4], await self.reader.readexactly(int.from_bytes(head[:3]))

    async def ping(self, *, from_server: bool) -> bytes:
        """The payload of the next ping, or answer to one; settings are acknowledged on the way."""
        async with asyncio.timeout(PATIENCE):
            while True:
                kind, flags, payload = await self.next()
                assert kind != GOAWAY, payload
                if kind == PING and bool(flags & ACK) != from_server:
                    return payload
                if kind == SETTINGS and not flags & ACK:
                    self.send(SETTINGS, ACK)

    def send(self, kind: int, flags: int = 0, payload: bytes = b"") -> None:
        self.writer.write(len(payload).to_bytes(3) + bytes((kind, flags, 0, 0, 0, 0)) + payload)


@contextlib.asynccontextmanager
async def connected(world: World) -> AsyncIterator[Peer]:
    folder = world.folder / "keda"
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("localhost", world.scaler.port, ssl=context)
    peer = Peer(reader, writer)
    writer.write(PREFACE)
    peer.send(SETTINGS)
    try:
        yield peer
    finally:
        writer.transport.abort()


async def test_a_peer_that_answers_no_ping_is_disconnected(certificates: Path) -> None:
    async with running(ApiServer(service()), certificates) as world, connected(world) as peer:
        await peer.ping(from_server=True)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while True:
                    await peer.next()


@pytest.mark.usefixtures("unhurried")
async def test_a_peer_that_answers_stays_however_little_it_asks(certificates: Path) -> None:
    async with running(ApiServer(service()), certificates) as world, connected(world) as peer:
        for number in range(5):
            payload = await peer.ping(from_server=True)
            await asyncio.sleep(0 if number else 0.3)  # longer than `shorter` alone would have it
            peer.send(PING, ACK, payload)


@pytest.mark.usefixtures("unhurried")
async def test_pings_of_a_client_are_answered(certificates: Path) -> None:
    """One each 30 s, as KEDA sends them to its own server; by default the third would end the connection."""
    async with running(ApiServer(service()), certificates) as world, connected(world) as peer:
        for number in range(6):
            await asyncio.sleep(30 / SHORTER)
            peer.send(PING, 0, number.to_bytes(8))
            assert await peer.ping(from_server=False) == number.to_bytes(8)
