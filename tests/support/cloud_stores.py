"""Real servers for gs:// and az://: fake-gcs-server and Azurite, on loopback addresses, and what an uploader does."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

import pytest

from localcluster.builds import Store, build
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.support.cluster import eventually
from tests.support.patience import PATIENCE
from tests.support.ports import free_port

AZURITE = Path(__file__).resolve().parents[2] / "tools" / "localcluster" / "node-azurite"
ACCOUNT, ACCOUNT_KEY = "weights", base64.b64encode(b"the key of the account of the tests").decode()
_VERSION = "2023-11-03"


@dataclass(frozen=True)
class GoogleStore:
    """fake-gcs-server: Google's JSON API to upload with, its XML API to read with. It asks nobody who he is."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs, as the operator would set it."""
        return {"GOOGLE_BASE_URL": self.url}

    def make_bucket(self, bucket: str) -> None:
        """An empty one."""
        self._send("/storage/v1/b?project=tests", json.dumps({"name": bucket}).encode(), "application/json")

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """An object."""
        query = urlencode({"uploadType": "media", "name": key})
        self._send(f"/upload/storage/v1/b/{bucket}/o?{query}", content, "application/octet-stream")

    def _send(self, path: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(self.url + path, data=body, headers={"Content-Type": kind}, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            answer.read()


@dataclass(frozen=True)
class AzureStore:
    """Azurite, which checks shared keys and signatures as Azure does."""

    endpoint: str
    key: str = field(default=ACCOUNT_KEY, repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs, as the operator would set it; without credentials."""
        return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ENDPOINT": self.endpoint}

    def make_bucket(self, container: str, *, public: bool = False) -> None:
        """An empty container."""
        headers = {"x-ms-blob-public-access": "container"} if public else {}
        self._send(f"/{container}", "restype=container", b"", headers)

    def put(self, container: str, key: str, content: bytes) -> None:
        """A blob in one part, whose MD5 the server knows."""
        self._send(f"/{container}/{quote(key)}", "", content, {"x-ms-blob-type": "BlockBlob"})

    def put_in_parts(self, container: str, key: str, *parts: bytes) -> None:
        """A blob of blocks, whose MD5 nobody knows."""
        names = [base64.b64encode(f"{number:04}".encode()).decode() for number in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            self._send(f"/{container}/{quote(key)}", urlencode({"comp": "block", "blockid": name}), part, {})
        blocks = "".join(f"<Latest>{name}</Latest>" for name in names)
        document = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'
        self._send(f"/{container}/{quote(key)}", "comp=blocklist", document.encode(), {})

    def sas(self, container: str, *, rights: str = "rl", hours: float = 1) -> str:
        """A signature that lets its bearer into one container."""
        start, end = (_day(dt.datetime.now(dt.UTC) + dt.timedelta(hours=at)) for at in (hours - 2, hours))
        scope = f"/blob/{ACCOUNT}/{container}"
        parts = [rights, start, end, scope, "", "", "", _VERSION, "c", "", "", "", "", "", "", ""]
        fields = {"sv": _VERSION, "sr": "c", "sp": rights, "st": start, "se": end, "sig": self._signature(parts)}
        return urlencode(fields)

    def _signature(self, lines: Sequence[str]) -> str:
        return base64.b64encode(hmac.digest(base64.b64decode(self.key), "\n".join(lines).encode(), "sha256")).decode()

    def _send(self, path: str, query: str, body: bytes, headers: Mapping[str, str]) -> None:
        now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        own = {"x-ms-date": now, "x-ms-version": _VERSION, **headers}
        kind, length = ("application/octet-stream", str(len(body))) if body else ("", "")
        named = [f"{name}:{own[name]}" for name in sorted(own)]
        resource = f"/{ACCOUNT}/{ACCOUNT}{path}"
        asked = [f"{name}:{value}" for name, value in sorted(parse_qsl(query))]
        lines = ["PUT", "", "", length, "", kind, "", "", "", "", "", "", *named, resource, *asked]
        own |= {"Authorization": f"SharedKey {ACCOUNT}:{self._signature(lines)}"} | (
            {"Content-Type": kind} if kind else {}
        )
        url = f"{self.endpoint}{path}" + (f"?{query}" if query else "")
        request = urllib.request.Request(url, data=body or None, headers=own, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                answer.read()
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"PUT {url}: {refused.code} {refused.read().decode()}") from refused


@contextmanager
def google_store(address: str = "127.0.0.1") -> Iterator[GoogleStore]:
    """Serve from memory until the end of the block. The first call in a clone builds the server (1 min)."""
    store = Store(cache_root(os.environ, Path.home()))
    program = build(store, Group.GOOGLE_STORE, os.environ, Progress()) / "fake-gcs-server"
    port = free_port(address)
    url = f"http://{address}:{port}"
    command = [str(program), "-scheme", "http", "-host", address, "-port", str(port), "-backend", "memory"]
    with running([*command, "-external-url", url, "-public-host", f"{address}:{port}"], {}, url):
        yield GoogleStore(url)


@contextmanager
def azure_store(folder: Path, address: str = "127.0.0.1") -> Iterator[AzureStore]:
    """Serve a folder until the end of the block. The test is skipped without Node.js; the first call installs it."""
    program = _azurite()
    port = free_port(address)
    url = f"http://{address}:{port}"
    command = ["node", str(program), "--silent", "--location", str(folder), "--skipApiVersionCheck"]
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
    with running([*command, "--blobHost", address, "--blobPort", str(port)], accounts, url):
        yield AzureStore(f"{url}/{ACCOUNT}")


def _azurite() -> Path:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs Node.js and npm, for Azurite")
    lock = (AZURITE / "package-lock.json").read_bytes()
    folder = cache_root(os.environ, Path.home()) / "node" / f"azurite-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not folder.exists():
        partial = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.copytree(AZURITE, partial)
        # As locked, with its hashes; none of the packages' own scripts runs.
        subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=partial, check=True)
        partial.rename(folder)
    return folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], url: str) -> Iterator[None]:
    """A server's process, from its first answer to the end of the block."""
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually(f"a server at {url}", lambda: _answers(url, process), 60)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"the server at {url} ended"
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _day(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
