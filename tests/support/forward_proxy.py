"""A forward proxy on loopback: it tunnels what CONNECT asks for, and passes plain requests on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class ForwardProxy:
    """Its address, and the first line of every request."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """Addresses of hosts that only it knows."""


@contextmanager
def forward_proxy() -> Iterator[ForwardProxy]:
    """Run one until the end of the block."""
    proxy, listener = ForwardProxy(), socket.create_server(("127.0.0.1", 0))
    proxy.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=_accept, args=(listener, proxy))
    thread.start()
    try:
        yield proxy
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def _accept(listener: socket.socket, proxy: ForwardProxy) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, proxy), daemon=True).start()


def _serve(client: socket.socket, proxy: ForwardProxy) -> None:
    with client, suppress(OSError):
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := client.recv(65536)):
                return
            head += data
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode().split(" ")
        proxy.asked.append(f"{method} {target}")
        proxy.headers.append(rest.decode())
        parts = urlsplit(target if "://" in target else f"//{target}")
        host = str(parts.hostname)
        with socket.create_connection((proxy.names.get(host, host), parts.port or 80)) as server:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
                # One request a connection, so that every one of them is seen.
                server.sendall(f"{method} {path} {version}\r\nConnection: close\r\n".encode() + rest)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
