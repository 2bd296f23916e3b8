"""`python -m benchmarks.fetch.storage FOLDER`: the files of a folder over HTTP, by sendfile, on a free loopback port.

A process of its own, so that it shares neither a lock nor an account of CPU with what is measured. Prints its port.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class Server(ThreadingHTTPServer):
    """Many connections may come at once."""

    daemon_threads = True
    request_queue_size = 256


def handler(folder: Path) -> type[BaseHTTPRequestHandler]:

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            return

        def _answer(self) -> None:
            path = folder / Path(urlsplit(self.path).path).name
            try:
                source = path.open("rb")
            except OSError:
                self.send_error(404)
                return
            with source:
                size = os.fstat(source.fileno()).st_size
                start, end, is_part = _span(self.headers.get("Range"), size)
                self.send_response(206 if is_part else 200)
                self.send_header("Content-Length", str(end - start))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", f'"{path.name[:32]}"')
                if is_part:
                    self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
                self.end_headers()
                if self.command == "GET":
                    self._send(source.fileno(), start, end)

        def _send(self, source: int, start: int, end: int) -> None:
            self.wfile.flush()
            try:
                while start < end:
                    start += os.sendfile(self.connection.fileno(), source, start, end - start)
            except OSError:  # whoever asked is gone
                self.close_connection = True

    return Handler


def _span(header: str | None, size: int) -> tuple[int, int, bool]:
    """The first byte, the one behind the last, and whether a part was asked for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", header or "")
    if found is None:
        return 0, size, False
    return int(found[1]), min(size, int(found[2]) + 1) if found[2] else size, True


def main(folder: Path) -> None:
    server = Server(("127.0.0.1", 0), handler(folder))
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
