"""Git repositories over HTTP on loopback, as `git http-backend` serves them: for deployment tools that pull."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.http_servers import threaded

_AUTHOR = {
    "GIT_AUTHOR_NAME": "team", "GIT_AUTHOR_EMAIL": "team@example.com",
    "GIT_COMMITTER_NAME": "team", "GIT_COMMITTER_EMAIL": "team@example.com",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


@dataclass(frozen=True)
class GitRepository:
    """A repository with the branch `main`, and where it is served."""

    folder: Path
    url: str

    def commit(self, files: Mapping[str, str]) -> str:
        """The hash of a new commit, whose files are these and no others."""
        self._git("rm", "-r", "--quiet", "--ignore-unmatch", ".")
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        return _run(self.folder, *words)


def _run(folder: Path, *words: str) -> str:
    environment = {**os.environ, **_AUTHOR}
    return subprocess.run(
        ("git", "-C", str(folder), *words), env=environment, check=True, capture_output=True, text=True
    ).stdout


@contextmanager
def git_server(folder: Path) -> Iterator[GitRepository]:
    """A new repository in `folder`/repository, served until the end of the block."""
    work = folder / "repository"
    work.mkdir()
    _run(work, "init", "--quiet", "--initial-branch=main")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            done = subprocess.run(
                ("git", "http-backend"), input=body, env=environment, check=True, capture_output=True
            )  # fmt: skip
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in {**fields, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the standard library's names

    with threaded(Handler) as port:
        yield GitRepository(work, f"http://127.0.0.1:{port}/repository/.git")
