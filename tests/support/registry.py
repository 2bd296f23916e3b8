"""An image registry that has nothing, or lets nobody in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.support.http_servers import threaded


@contextmanager
def registry(status: int) -> Iterator[str]:
    """`host:port` of a registry that answers each request with a status. On loopback containerd asks without TLS."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            """Who asks for TLS first is reported in plain words that there is none, as Go's servers do."""
            if self.rfile.peek(1)[:1] == b"\x16":  # type: ignore[attr-defined]  # a buffered reader
                self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                self.close_connection = True
                return
            super().handle_one_request()

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

    with threaded(Handler) as port:
        yield f"127.0.0.1:{port}"
