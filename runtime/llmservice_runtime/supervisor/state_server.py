"""The supervisor's own port: probes and /state. GET only, one answer a connection, a bounded number of connections.

Whoever reaches the pod may connect, and the kubelet comes by the same way, from an address that nobody knows
beforehand. So no newcomer is turned away for those who are there: where too many wait, the oldest one goes, of the
address that has most. A request is answered as soon as its head is there, usually when it is accepted. Neither tasks
nor threads are made for a connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

READ_SECONDS = 2.0
"""From the connection to its end."""
CONNECTIONS = 256
OF_ONE_ADDRESS = 128
HEAD_LIMIT = 8 << 10
_BACKLOG = 1024
_BATCH = 64
"""Newcomers that are looked at before something else has its turn."""
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Compiled in, and switched off."""
_PAUSE_SECONDS = 0.1
"""Until the next try to accept, where the process has no descriptor left."""


@dataclass(frozen=True)
class Reply:
    """What a path answers."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


Respond = Callable[[str], Reply]
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


async def serve(port: int, respond: Respond) -> StateServer:
    """Listen on every address, of both families where the pod has them. OSError where the port is taken in either."""
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
    """One that waits for its request, or to be rid of its answer."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self.sock, self.host = sock, host
        self.heard, self.answer = b"", b""
        self.end: asyncio.TimerHandle | None = None


class StateServer:
    """Listens until it is closed."""

    def __init__(self, listeners: list[socket.socket], respond: Respond, loop: asyncio.AbstractEventLoop) -> None:
        self._listeners, self._respond, self._loop = listeners, respond, loop
        self._waiting: dict[_Connection, None] = {}
        """The oldest first."""
        self._of_address: Counter[str] = Counter()
        for listener in listeners:
            listener.setblocking(False)
            loop.add_reader(listener, self._accept, listener)

    async def __aenter__(self) -> StateServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
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
        """It has not said all yet, or not been told all; somebody else may have to go for it."""
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
        """Read and write what can be; True when nothing is left. One that sends nonsense gets no answer."""
        try:
            if not connection.answer:
                heard = connection.sock.recv(HEAD_LIMIT)
                connection.heard += heard
                head, whole, _ = connection.heard.partition(b"\r\n\r\n")
                if whole:
                    connection.answer = _encode(self._reply(head))
                elif heard and len(connection.heard) < HEAD_LIMIT:
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
