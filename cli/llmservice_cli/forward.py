"""HTTP to one port of a pod, as `kubectl port-forward` reaches it, without the Authorization header being taken away.

The API server's http proxy removes that header, so a request with an API key has to come this way. A connection is a
websocket to the pod's `portforward` (v4.channel.k8s.io: channel 0 is the data, channel 1 the errors). HTTP clients
get a Unix socket in a folder that only this user can enter: a TCP port would be open to everybody on the machine.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
from kubeloop.credentials import Credentials
from kubeloop.errors import Forbidden, KubeError, Unreachable, from_status
from kubeloop.resources import POD
from llmservice_runtime.bounded_json import clean

from .api import USER_AGENT
from .cluster import Connection
from .errors import CliError

PROTOCOL = "v4.channel.k8s.io"
RIGHT = "get and create on pods/portforward"
DATA, ERROR = 0, 1
PORT_BYTES = 2
"""The first frame of each channel is the number of its port."""
CHUNK = 64 * 2**10
MOST_FRAME = 2**20
"""Bytes of a frame; Kubernetes sends up to 32 KiB."""
LONGEST_ERROR = 500
OPEN_SECONDS = 15.0
ONE_AT_A_TIME = httpx.Limits(max_connections=1)
LONGEST_FOLDER = 70
"""Bytes of the folder for temporary ones: a Unix socket's path has at most 103 on some systems."""


@dataclass(frozen=True, slots=True)
class PodPort:
    """Where connections lead."""

    namespace: str
    pod: str
    port: int

    @property
    def path(self) -> str:
        return f"{POD.path(self.namespace, self.pod, 'portforward')}?ports={self.port}"


@dataclass
class Forward:
    """One pod's port. `error` is why the latest connection failed, where it did: HTTP clients only see its end."""

    credentials: Credentials
    to: PodPort
    session: aiohttp.ClientSession
    error: KubeError | None = None
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each `error`."""
    most: int | None = None
    """Bytes that are taken from the pod, over all connections; None: any number."""
    _taken: int = 0
    _connections: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it: the protocol has no half-closed ones."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._carry(reader, writer)
        except KubeError as error:
            self.error = error
            self.failed.set()
        except asyncio.CancelledError:
            pass  # by `close`, which awaits it; nobody else waits for this task
        finally:
            self._connections.discard(task)
            writer.close()

    async def close(self) -> None:
        """End all connections."""
        connections = tuple(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with await self._open() as socket:
                both = [asyncio.create_task(_up(reader, socket)), asyncio.create_task(self._down(socket, writer))]
                try:
                    done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in both:
                        task.cancel()
                    await asyncio.gather(*both, return_exceptions=True)
                for task in done:
                    if not task.cancelled() and (error := task.exception()) is not None:
                        raise error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"the port-forward to pod {self.to.pod} broke off: {error}") from error

    async def _open(self) -> aiohttp.ClientWebSocketResponse:
        token = await self.credentials.token()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await self.session.ws_connect(
                    self.credentials.server + self.to.path,
                    protocols=(PROTOCOL,),
                    headers={"Authorization": f"Bearer {token}"} if token else {},
                    max_msg_size=MOST_FRAME,
                )
        except TimeoutError:
            raise Unreachable(f"no port-forward to pod {self.to.pod} within {OPEN_SECONDS:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 401:
                self.credentials.token.forget()
            raise refusal(error.status, self.to) from error

    async def _down(self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        channels = Channels()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise Unreachable(f"the port-forward to pod {self.to.pod} is none: it sends {message.type.name}")
            if data := channels.take(message.data):
                self._taken += len(data)
                if self.most is not None and self._taken > self.most:
                    raise Unreachable(f"pod {self.to.pod}, port {self.to.port}: more than {self.most >> 20} MiB")
                writer.write(data)
                await writer.drain()
            if channels.error:
                raise Unreachable(f"pod {self.to.pod}, port {self.to.port}: {channels.error}")


async def _up(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(CHUNK):
        await socket.send_bytes(bytes([DATA]) + data)


@dataclass
class Channels:
    """The frames of one connection, as they come."""

    error: str = ""
    """What the kubelet says on the error channel; empty while nothing."""
    _left: dict[int, int] = field(default_factory=lambda: {DATA: PORT_BYTES, ERROR: PORT_BYTES})

    def take(self, frame: bytes) -> bytes:
        """The pod's bytes in it. Frames of other channels are ignored."""
        if not frame or frame[0] not in self._left:
            return b""
        channel, content = frame[0], frame[1:]
        skipped = min(self._left[channel], len(content))
        self._left[channel] -= skipped
        if channel == DATA:
            return content[skipped:]
        self.error = " ".join(clean(self.error + content[skipped:].decode(errors="replace")).split())[:LONGEST_ERROR]
        return b""


def refusal(status: int, to: PodPort) -> KubeError:
    """Why the API server opens no port-forward."""
    if status == 403:
        message = f"a port-forward to pod {to.pod} in namespace {to.namespace} needs {RIGHT}"
        return Forbidden(message, right=RIGHT, remedy=f"ask for the rights {RIGHT} in namespace {to.namespace}")
    if status == 404:
        return Unreachable(f"pod {to.pod} in namespace {to.namespace} is gone")
    message = f"the API server refuses the port-forward to pod {to.pod}: HTTP {status}"
    return from_status(status, {"kind": "Status", "message": message}, right=RIGHT)


@asynccontextmanager
async def at_socket(
    connection: Connection, to: PodPort, *, most: int | None = None
) -> AsyncIterator[tuple[Path, Forward]]:
    """A Unix socket whose connections lead to the pod's port, from which at most so many bytes are taken."""
    credentials = connection.credentials
    context = credentials.ssl_context()
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=True if context is None else context),
        headers={"User-Agent": USER_AGENT},
        proxy=credentials.proxy,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=OPEN_SECONDS),
    )
    forward = Forward(credentials, to, session, most=most)
    with ExitStack() as stack:
        async with session:
            try:
                path = Path(stack.enter_context(_folder())) / "pod"
                server = await asyncio.start_unix_server(forward.serve, path, limit=CHUNK)
            except OSError as error:
                raise CliError(
                    f"no Unix socket for the port-forward can be made: {error}",
                    "set TMPDIR to a folder with a short path in which you may write",
                ) from error
            try:
                yield path, forward
            finally:
                server.close()
                await forward.close()


@asynccontextmanager
async def forwarded(
    connection: Connection,
    to: PodPort,
    *,
    timeout: httpx.Timeout,
    headers: Mapping[str, str] | None = None,
    limits: httpx.Limits = ONE_AT_A_TIME,
) -> AsyncIterator[tuple[httpx.AsyncClient, Forward]]:
    """A client whose connections lead to the pod's port. Where a request of it fails, `Forward.error` may say why."""
    async with at_socket(connection, to) as (path, forward):
        transport = httpx.AsyncHTTPTransport(uds=str(path), limits=limits)
        base = f"http://{to.pod}.{to.namespace}:{to.port}"
        async with httpx.AsyncClient(
            transport=transport, base_url=base, timeout=timeout, headers=headers, trust_env=False
        ) as http:
            yield http, forward


def _folder() -> tempfile.TemporaryDirectory[str]:
    """A new one for this user; in /tmp where the path of TMPDIR is too long for a socket."""
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    return tempfile.TemporaryDirectory(prefix="llmservice-", dir="/tmp" if is_long else None)
