"""A loopback port in front of a server, which counts the bytes of its answers and holds them to a pace."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_CHUNK = 128 << 10


@dataclass
class Proxy:
    """What went through."""

    port: int
    bytes_per_second: float
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    due: float = 0.0
    """When the next byte may go, on the monotonic clock."""

    def account(self, count: int) -> None:
        """Wait for the turn of so many bytes, and count them."""
        with self.lock:
            now = time.monotonic()
            wait = max(0.0, self.due - now)
            self.due = max(now, self.due) + count / self.bytes_per_second
            self.sent += count
        if wait:
            time.sleep(wait)

    def quiet(self) -> int:
        """The bytes in all, once no connection sends any more: their client was killed."""
        while True:
            before = self.sent
            time.sleep(0.25)
            if self.sent == before:
                return before


@contextmanager
def proxied(upstream: int, bytes_per_second: float) -> Iterator[Proxy]:
    """In front of a loopback port until the end of the block."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        proxy = Proxy(listener.getsockname()[1], bytes_per_second)
        accepting = threading.Thread(target=_accept, args=(listener, upstream, proxy), daemon=True)
        accepting.start()
        try:
            yield proxy
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket, upstream: int, proxy: Proxy) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # the end of the block
            return
        # Little lies between the server's count and the client: a kill loses what is under way.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
        threading.Thread(target=_serve, args=(client, upstream, proxy), daemon=True).start()


def _serve(client: socket.socket, upstream: int, proxy: Proxy) -> None:
    with client, socket.create_connection(("127.0.0.1", upstream)) as server:
        asking = threading.Thread(target=_copy, args=(client, server, None), daemon=True)
        asking.start()
        _copy(server, client, proxy)
        asking.join()


def _copy(source: socket.socket, target: socket.socket, proxy: Proxy | None) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    with suppress(OSError):
        while count := source.recv_into(buffer):
            if proxy is not None:
                proxy.account(count)
            target.sendall(buffer[:count])
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
