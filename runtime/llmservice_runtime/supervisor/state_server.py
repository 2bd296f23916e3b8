"""HTTP server of the state port: GET only, one response per connection, a bounded number of connections.

Anyone who reaches the pod may connect, and the kubelet's address is not known. Under load a new connection therefore
replaces the oldest one of the address with the most connections, so that probes get through. Connections are handled
by event loop callbacks, without a task or thread each.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmservice_runtime.contract import LIVE_PATH, METRICS_PATH, READY_PATH, STARTUP_PATH, STATE_PATH, State
from llmservice_runtime.supervisor import metrics

READ_SECONDS = 2.0
"""Longest life of a connection."""
CONNECTIONS = 256
OF_ONE_ADDRESS = 128
HEAD_LIMIT = 8 << 10
_BACKLOG = 1024
_BATCH = 64
"""Connections accepted per loop iteration."""
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""IPv6 is compiled in but disabled on this host."""
_PAUSE_SECONDS = 0.1
"""Before the next accept when the process is out of file descriptors."""


@dataclass(frozen=True)
class Reply:
    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


Respond = Callable[[str], Reply]
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


async def serve(port: int, respond: Respond) -> StateServer:
    """Listen on all addresses, IPv4 and, where available, IPv6. OSError where the port is taken in either family."""
    listeners = [socket.create_server(("", port), backlog=_BACKLOG)]
    if socket.has_ipv6:
        try:
            listeners.append(socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG))
        except OSError as error:
            if error.errno not in _NO_IPV6:
                listeners[0].close()
                raise
    return StateServer(listeners, respond, asyncio.get_running_loop())


class _Connection:
    """An open connection: bytes of the request read so far, bytes of the response still to send."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self.sock, self.host = sock, host
        self.received, self.answer = b"", b""
        self.end: asyncio.TimerHandle | None = None


class StateServer:
    """Listens until it is closed."""

    def __init__(self, listeners: list[socket.socket], respond: Respond, loop: asyncio.AbstractEventLoop) -> None:
        self._listeners, self._respond, self._loop = listeners, respond, loop
        self._waiting: dict[_Connection, None] = {}
        """Open connections, oldest first."""
        self._of_address: Counter[str] = Counter()
        for listener in listeners:
            listener.setblocking(False)
            loop.add_reader(listener, self._accept, listener)

    async def __aenter__(self) -> StateServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for connection in list(self._waiting):
            self._end(connection)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError:
                self._loop.remove_reader(listener)
                self._loop.call_later(_PAUSE_SECONDS, self._resume, listener)
                return
            sock.setblocking(False)
            connection = _Connection(sock, address[0])
            if self._is_done(connection):
                sock.close()
            else:
                self._wait(connection)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _wait(self, connection: _Connection) -> None:
        """Register a connection that needs more reads or writes; close the oldest one above the limits."""
        self._waiting[connection] = None
        self._of_address[connection.host] += 1
        connection.end = self._loop.call_later(READ_SECONDS, self._end, connection)
        if connection.answer:
            self._loop.add_writer(connection.sock, self._ready, connection)
        else:
            self._loop.add_reader(connection.sock, self._ready, connection)
        if self._of_address[connection.host] > OF_ONE_ADDRESS:
            self._end_oldest(connection.host)
        elif len(self._waiting) > CONNECTIONS:
            self._end_oldest(max(self._of_address, key=self._of_address.__getitem__))

    def _end_oldest(self, host: str) -> None:
        self._end(next(connection for connection in self._waiting if connection.host == host))

    def _ready(self, connection: _Connection) -> None:
        had_answer = bool(connection.answer)
        if self._is_done(connection):
            self._end(connection)
        elif connection.answer and not had_answer:
            self._loop.remove_reader(connection.sock)
            self._loop.add_writer(connection.sock, self._ready, connection)

    def _is_done(self, connection: _Connection) -> bool:
        """Read and write without blocking; True when the connection is finished, also after an invalid request."""
        try:
            if not connection.answer:
                received = connection.sock.recv(HEAD_LIMIT)
                connection.received += received
                head, whole, _ = connection.received.partition(b"\r\n\r\n")
                if whole:
                    connection.answer = _encode(self._reply(head))
                elif received and len(connection.received) < HEAD_LIMIT:
                    return False
            if connection.answer:
                connection.answer = connection.answer[connection.sock.send(connection.answer) :]
                if connection.answer:
                    return False
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass  # the client left
        return True

    def _end(self, connection: _Connection) -> None:
        if connection.end is not None:
            connection.end.cancel()
        self._loop.remove_reader(connection.sock)
        self._loop.remove_writer(connection.sock)
        connection.sock.close()
        del self._waiting[connection]
        self._of_address[connection.host] -= 1
        if not self._of_address[connection.host]:
            del self._of_address[connection.host]

    def _reply(self, head: bytes) -> Reply:
        method, _, rest = head.decode("latin-1").partition("\r\n")[0].partition(" ")
        if method not in ("GET", "HEAD"):
            return Reply(405, "GET only\n")
        return self._respond(rest.partition(" ")[0].partition("?")[0])


def _encode(reply: Reply) -> bytes:
    body = reply.body.encode()
    head = (
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def respond(path: str, state: State, slots: Sequence[int], keys: int | None = None) -> Reply:
    """The response to GET `path`: probes (200 or 503), /state (JSON), /metrics (Prometheus); 404 otherwise."""
    if path == STATE_PATH:
        return Reply(200, state.to_json(), "application/json")
    if path == METRICS_PATH:
        return Reply(200, metrics.exposition(metrics.Snapshot(state, slots, keys)), metrics.CONTENT_TYPE)
    conditions = {STARTUP_PATH: state.started, READY_PATH: state.ready, LIVE_PATH: True}
    if path not in conditions:
        return Reply(404, "not found\n")
    word = f"{state.phase} {state.progress}".strip()
    return Reply(200 if conditions[path] else 503, word + "\n")
