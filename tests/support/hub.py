"""A model hub on a loopback or bridge address: the part of the Hugging Face API that downloads need, with its refusals.

tests/unit/project/test_hub_stand_in.py holds it against the real huggingface_hub.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.http_servers import threaded

_CHUNK = 64 << 10
_LARGE = (".safetensors", ".bin")


@dataclass
class Repo:
    """A repository: files of its one commit, who may read it, and what goes wrong with it."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    damaged: set[str] = field(default_factory=set)
    """Files that come with other bytes than their hash says."""
    cut_at: dict[str, int] = field(default_factory=dict)
    """The next answer with this file ends after so many bytes."""
    xet: dict[str, str] = field(default_factory=dict)
    """Files that are in Xet as well, by their hashes there."""

    @property
    def commit(self) -> str:
        """As git would: other files, another commit."""
        tree = sorted((path, git_hash(content)) for path, content in self.files.items())
        return hashlib.sha1(repr(tree).encode()).hexdigest()

    @classmethod
    def of_folder(cls, folder: Path) -> Repo:
        """A model on disk."""
        return cls({path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()})


@dataclass(frozen=True)
class Asked:
    """A request for a file's content, or for a page of the API."""

    method: str
    path: str
    start: int
    authorized: bool


@dataclass
class Hub:
    """The server's state, which tests change while it runs."""

    repos: dict[str, Repo]
    tokens: dict[str, set[str]] = field(default_factory=dict)
    """Which repositories a token may read beside the public ones."""
    lists_names_only: bool = False
    """As mirrors do that know nothing of ?blobs=true."""
    ignores_ranges: bool = False
    """Every answer is the whole file."""
    bytes_per_second: float | None = None
    failures: int = 0
    """So many requests are answered with 503 from now on."""
    retry_after: str = ""
    """What those answers ask for."""
    address_lasts: int | None = None
    """How often an address in the storage is good, until it is asked for again."""
    used: int = 0
    """How often it was used."""
    xet_store: str = ""
    """Where hf_xet finds chunks."""
    asked: list[Asked] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes of large files, by their path in the repository."""
    url: str = ""
    storage_url: str = ""
    """Where large files are redirected to: another name for the same server, as the hub's storage is."""

    def contents(self) -> list[Asked]:
        """The requests for large files' bytes."""
        return [asked for asked in self.asked if asked.method == "GET" and asked.path.startswith("/storage/")]


@contextmanager
def serving(
    hub: Hub, address: str = "127.0.0.1", storage: str = "localhost", tls: ssl.SSLContext | None = None
) -> Iterator[Hub]:
    """Serve on a free port of an address until the end of the block."""
    scheme = "http" if tls is None else "https"
    with threaded(_handler(hub), address, tls) as port:
        hub.url, hub.storage_url = f"{scheme}://{address}:{port}", f"{scheme}://{storage}:{port}"
        yield hub


@lru_cache(maxsize=256)
def git_hash(content: bytes) -> str:
    """The name of a small file."""
    named = hashlib.sha1(b"blob %d\0" % len(content))
    named.update(content)
    return named.hexdigest()


@lru_cache(maxsize=256)
def lfs_hash(content: bytes) -> str:
    """The name of a large one: asked for with every request, and slow for the gigabytes of a benchmark."""
    return hashlib.sha256(content).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            hub.asked.append(Asked(self.command, path, _start(self.headers.get("Range")), bool(token)))
            if hub.failures > 0:
                hub.failures -= 1
                self._refuse(503, "", "busy", {"Retry-After": hub.retry_after} if hub.retry_after else {})
            elif found := re.fullmatch(r"/storage/([0-9a-f]{64})", path):
                hub.used += 1
                if hub.address_lasts is not None and hub.used > hub.address_lasts:
                    self._refuse(403, "", "Request has expired")
                else:
                    self._storage(found[1])
            elif token and token not in hub.tokens:
                self._refuse(401, "", "Invalid credentials in Authorization header")
            elif re.fullmatch(r"/api/models/[^/]+/[^/]+/xet-read-token/[0-9a-f]{40}", path):
                expires = int(time.time()) + 3600
                self._json({"accessToken": "xet_ofAnHour", "exp": expires, "casUrl": hub.xet_store})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(?:revision|tree)/(.+)", path):
                self._describe(found[1], found[2], token)
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._resolve(found[1], found[2], found[3], token)
            else:
                self._refuse(404, "", "not found")

        def _repo(self, name: str, revision: str, token: str) -> Repo | None:
            """The repository, if there is one for whoever asks; answers for itself where not."""
            repo = hub.repos.get(name)
            if repo is None or (repo.private and name not in hub.tokens.get(token, ())):
                self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            elif revision not in ("main", repo.commit):
                self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            else:
                return repo
            return None

        def _describe(self, name: str, revision: str, token: str) -> None:
            repo = self._repo(name, revision, token)
            if repo is None:
                return
            if "/tree/" in self.path:
                self._json([_entry("path", path, content) for path, content in repo.files.items()])
                return
            siblings = [_entry("rfilename", path, content) for path, content in repo.files.items()]
            if hub.lists_names_only:
                siblings = [{"rfilename": entry["rfilename"]} for entry in siblings]
            gated = "manual" if repo.gated else False
            self._json({"id": name, "sha": repo.commit, "gated": gated, "private": repo.private, "siblings": siblings})

        def _resolve(self, name: str, revision: str, path: str, token: str) -> None:
            repo = self._repo(name, revision, token)
            if repo is None:
                return
            if repo.gated and name not in hub.tokens.get(token, ()):
                text = f"Access to model {name} is restricted and you are not in the authorized list."
                self._refuse(403 if token else 401, "GatedRepo", text)
                return
            content = repo.files.get(path)
            if content is None:
                self._refuse(404, "EntryNotFound", "Entry not found")
                return
            headers = {"X-Repo-Commit": repo.commit}
            if not path.endswith(_LARGE):
                self._content(content, {**headers, "ETag": f'"{git_hash(content)}"'})
                return
            digest = lfs_hash(content)
            linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{digest}"'}
            location = f"{hub.storage_url}/storage/{digest}?X-Amz-Signature=never-to-be-said"
            hub.used = 0
            if path in repo.xet:
                refresh = f"{hub.url}/api/models/{name}/xet-read-token/{repo.commit}"
                linked |= {"X-Xet-Hash": repo.xet[path], "Link": f'<{refresh}>; rel="xet-auth"'}
            self._head(302, {**headers, **linked, "Location": location, "Content-Length": "0"})

        def _storage(self, digest: str) -> None:
            for repo in hub.repos.values():
                for path, content in repo.files.items():
                    if path.endswith(_LARGE) and lfs_hash(content) == digest:
                        cut = repo.cut_at.pop(path, None) if self.command == "GET" else None
                        if path in repo.damaged:
                            content = bytes([content[0] ^ 1]) + content[1:]
                        # The storage's own tag, which says nothing of the hash.
                        self._content(content, {"ETag": f'"{digest[:32]}"'}, cut=cut, large=path)
                        return
            self._refuse(404, "", "no such object")

        def _content(
            self, content: bytes, headers: Mapping[str, str], *, cut: int | None = None, large: str = ""
        ) -> None:
            asked = None if hub.ignores_ranges else self.headers.get("Range")
            start, size = _start(asked), len(content)
            end = _end(asked, size)
            span = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if asked else {}
            self._head(206 if span else 200, {**headers, **span, "Content-Length": str(end - start)})
            if self.command == "HEAD":
                return
            for offset in range(start, end, _CHUNK):
                chunk = content[offset : min(end, offset + _CHUNK)]
                if cut is not None and offset - start + len(chunk) > cut:
                    self.close_connection = True
                    return
                if large:  # counted first: whoever has it may look at the count
                    hub.sent[large] += len(chunk)
                try:
                    self.wfile.write(chunk)
                except OSError:  # whoever asked is gone
                    self.close_connection = True
                    return
                if large and hub.bytes_per_second:
                    time.sleep(len(chunk) / hub.bytes_per_second)

        def _json(self, document: object) -> None:
            body = json.dumps(document).encode()
            self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
            if self.command == "GET":
                self.wfile.write(body)

        def _refuse(self, status: int, code: str, text: str, more: Mapping[str, str] | None = None) -> None:
            headers = {"X-Error-Code": code, "X-Error-Message": text, **(more or {})}
            self._head(status, {**{k: v for k, v in headers.items() if v}, "Content-Length": "0"})

        def _head(self, status: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    return Handler


def _entry(key: str, path: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {key: path, "size": len(content), "blobId": git_hash(content)}
    if key == "path":
        entry |= {"type": "file", "oid": git_hash(content)}
    if path.endswith(_LARGE):
        digest = lfs_hash(content)
        entry["lfs"] = {"sha256": digest, "oid": digest, "size": len(content), "pointerSize": 134}
    return entry


def _start(header: str | None) -> int:
    """The first byte that is asked for."""
    found = re.match(r"bytes=(\d+)-", header or "")
    return int(found[1]) if found else 0


def _end(header: str | None, size: int) -> int:
    """The byte behind the last one that is asked for."""
    found = re.fullmatch(r"bytes=\d+-(\d+)", header or "")
    return min(size, int(found[1]) + 1) if found else size
