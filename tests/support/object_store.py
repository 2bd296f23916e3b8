"""A real S3 server (VersityGW, on a folder) on a loopback or bridge address, and what an uploader does with it."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster.builds import Store, build
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.support.cluster import eventually
from tests.support.ports import free_port
from tests.support.s3_sign import Credentials, escape, signed

REGION = "us-east-1"
ROOT = Credentials("AKIAROOTOFTHESTORE", "s3cr3t/of+the/store=for-tests")


@dataclass(frozen=True)
class ObjectStore:
    """A running server and its first account."""

    url: str
    credentials: Credentials = ROOT

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs, as the operator would set it."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_key,
        }

    def make_bucket(self, bucket: str) -> None:
        """An empty one."""
        self._send("PUT", f"/{bucket}")

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """An object in one part, whose ETag is its MD5."""
        self._send("PUT", f"/{bucket}/{escape(key, '/')}", body=content)

    def put_in_parts(self, bucket: str, key: str, *parts: bytes) -> None:
        """An object whose ETag says nothing of its content."""
        path = f"/{bucket}/{escape(key, '/')}"
        started = ET.fromstring(self._send("POST", path, "uploads=")[1])
        upload = started.findtext("{*}UploadId", "")
        tags = []
        for number, part in enumerate(parts, start=1):
            headers, _ = self._send("PUT", path, f"partNumber={number}&uploadId={escape(upload)}", part)
            tags.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{headers['ETag']}</ETag></Part>")
        done = f"<CompleteMultipartUpload>{''.join(tags)}</CompleteMultipartUpload>"
        self._send("POST", path, f"uploadId={escape(upload)}", done.encode())

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """A model on disk."""
        for path in sorted(folder.iterdir()):
            if path.is_file():
                self.put(bucket, f"{prefix}/{path.name}", path.read_bytes())

    def _send(self, method: str, path: str, query: str = "", body: bytes = b"") -> tuple[dict[str, str], bytes]:
        url = f"{self.url}{path}" + (f"?{query}" if query else "")
        headers = signed(method, url, self.credentials, REGION, dt.datetime.now(dt.UTC), body=body)
        request = urllib.request.Request(url, data=body or None, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return dict(answer.headers), answer.read()
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{method} {url}: {refused.code} {refused.read().decode()}") from refused


@contextmanager
def object_store(folder: Path, address: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Serve a folder until the end of the block. The first call in a clone builds the server (2 min)."""
    store = Store(cache_root(os.environ, Path.home()))
    program = build(store, Group.OBJECT_STORE, os.environ, Progress()) / "versitygw"
    port = free_port(address)
    environment = {"ROOT_ACCESS_KEY": ROOT.access_key, "ROOT_SECRET_KEY": ROOT.secret_key, "HOME": str(folder)}
    data = folder / "data"
    data.mkdir(parents=True)
    command = [str(program), "--quiet", "--port", f"{address}:{port}", "--region", REGION, "posix", str(data)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://{address}:{port}"
            eventually("an S3 server", lambda: _answers(url, process), 20)
            yield ObjectStore(url)
        finally:
            process.kill()
            process.wait()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the S3 server ended"
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
