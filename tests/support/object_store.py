"""A real S3 server (VersityGW, on a folder) on a loopback or bridge address, and what an uploader does with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import obstore
from obstore.store import S3Store

from localcluster.builds import Store, build
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.support.cloud_stores import running
from tests.support.ports import free_port

REGION = "us-east-1"
PART_BYTES = 6_000_000


class Credentials(NamedTuple):
    """An access key."""

    access_key: str
    secret_key: str


ROOT = Credentials("AKIAROOTOFTHESTORE", "s3cr3t/of+the/store=for-tests")


@dataclass(frozen=True)
class ObjectStore:
    """A running server on a folder, with its first account."""

    url: str
    data: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs, as the operator would set it."""
        keys = {"AWS_ACCESS_KEY_ID": ROOT.access_key, "AWS_SECRET_ACCESS_KEY": ROOT.secret_key}
        return {"AWS_ENDPOINT_URL_S3": self.url, "AWS_REGION": REGION, **keys}

    def make_bucket(self, bucket: str) -> None:
        """An empty one."""
        (self.data / bucket).mkdir()

    def put(self, bucket: str, key: str, content: bytes, *, in_parts: bool = False) -> None:
        """An object whose ETag is its MD5, or says nothing of its content where it is uploaded in parts."""
        store = S3Store(
            bucket,
            endpoint=self.url,
            region=REGION,
            access_key_id=ROOT.access_key,
            secret_access_key=ROOT.secret_key,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        obstore.put(store, key, content, use_multipart=in_parts, chunk_size=PART_BYTES)

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """A model on disk."""
        for path in sorted(folder.iterdir()):
            if path.is_file():
                self.put(bucket, f"{prefix}/{path.name}", path.read_bytes())


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
    url = f"http://{address}:{port}"
    with running(command, environment, url):
        yield ObjectStore(url, data)
