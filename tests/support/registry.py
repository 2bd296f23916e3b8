"""Image registries: one that has nothing or lets nobody in, and one that is silent before it answers."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from localcluster.paths import ClusterPaths
from localcluster.place import ctr_command, first
from tests.support.http_servers import threaded


class _WithoutTLS(BaseHTTPRequestHandler):
    """On loopback containerd asks without TLS, once it was told that there is none."""

    def handle_one_request(self) -> None:
        """Who asks for TLS first is told in plain words, as Go's servers do."""
        if self.rfile.peek(1)[:1] == b"\x16":  # type: ignore[attr-defined]  # a buffered reader
            self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            self.close_connection = True
            return
        super().handle_one_request()


@contextmanager
def registry(status: int) -> Iterator[str]:
    """`host:port` of a registry that answers each request with a status."""

    class Handler(_WithoutTLS):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

    with threaded(Handler) as port:
        yield f"127.0.0.1:{port}"


@dataclass
class SilentRegistry:
    """No connection to it comes about, as where a firewall drops packets, until `answer` is called."""

    paths: ClusterPaths
    image: str
    """Of the node: what the registry has is made of its layers."""
    _until_answer: ExitStack
    _afterwards: ExitStack
    port: int = field(init=False)

    def __post_init__(self) -> None:
        silent = self._until_answer.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        self.port = silent.getsockname()[1]
        for _ in range(8):  # the kernel drops what comes while so many wait to be accepted
            waiting = self._until_answer.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", self.port))

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self) -> None:
        """With an image of its own: one that the kubelet has pulled once it checks under its other names as well."""
        listed = self._containerd("images", "ls", f"name=={self.image}")
        manifest = json.loads(self._content(re.findall(r"sha256:[0-9a-f]{64}", listed.decode())[0]))
        config = json.loads(self._content(manifest["config"]["digest"]))
        config["config"].setdefault("Labels", {})["llmservice.dev/from"] = self.host
        changed = json.dumps(config).encode()
        manifest["config"] |= {"digest": _digest(changed), "size": len(changed)}
        by_tag = json.dumps(manifest).encode()
        own = {_digest(changed): changed, _digest(by_tag): by_tag}
        content = self._content

        class Handler(_WithoutTLS):
            def do_GET(self) -> None:
                self._send(with_body=True)

            def do_HEAD(self) -> None:
                self._send(with_body=False)

            def _send(self, *, with_body: bool) -> None:
                what, _, name = self.path.rpartition("/")
                is_manifest = what.endswith("/manifests")
                digest = name if ":" in name else _digest(by_tag)
                found = own[digest] if digest in own else content(digest)
                self.send_response(200)
                self.send_header("Content-Type", manifest["mediaType"] if is_manifest else "application/octet-stream")
                self.send_header("Content-Length", str(len(found)))
                self.send_header("Docker-Content-Digest", digest)
                self.end_headers()
                if with_body:
                    self.wfile.write(found)

        self._until_answer.close()
        self._afterwards.enter_context(threaded(Handler, port=self.port))

    def _content(self, digest: str) -> bytes:
        return self._containerd("content", "get", digest)

    def _containerd(self, *words: str) -> bytes:
        command = (*ctr_command(self.paths, first(self.paths)), *words)
        return subprocess.run(command, check=True, capture_output=True).stdout


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@contextmanager
def silent_registry(paths: ClusterPaths, image: str) -> Iterator[SilentRegistry]:
    """For the block. The node keeps what it pulled."""
    with ExitStack() as afterwards, ExitStack() as until_answer:
        yield SilentRegistry(paths, image, until_answer, afterwards)
