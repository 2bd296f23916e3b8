"""Where models are fetched from: real local servers, with the same files in each."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from localcluster.builds import Store, build
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.support.cloud_stores import azure_store, google_store
from tests.support.hub import Hub, Repo, lfs_hash, serving
from tests.support.object_store import object_store

ROOT = Path(__file__).parents[3]
NAME = "bench/model"
_CONFIG = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "max_position_embeddings": 1024}
_SMALL = {
    "config.json": json.dumps(_CONFIG).encode(),
    "tokenizer.json": json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}).encode(),
}
_BLOCK = 16 << 20


@dataclass(frozen=True)
class Place:
    """A server that has the model: its URI for us, and what every client of it needs in its environment."""

    kind: str
    """Scheme of the URI."""
    title: str
    uri: str
    port: int
    """Where the bytes come from."""
    environment: Mapping[str, str]
    through: Callable[[int], Mapping[str, str]] | None
    """The environment of clients that are to get their bytes through another port; None: it answers at its own only."""
    urls: Sequence[str] = ()
    """Of the files, where they can be read without credentials."""


@contextmanager
def _hub(files: Path, scratch: Path) -> Iterator[Place]:
    """The tests' hub; as the real one it redirects to a storage, here a process that sends with sendfile."""
    content = {path.name: _mapped(path) for path in sorted(files.iterdir())}
    stored = scratch / "storage"
    stored.mkdir()
    for name, mapped in content.items():
        (stored / lfs_hash(mapped)).hardlink_to(files / name)
    command = [sys.executable, "-m", "benchmarks.fetch.storage", str(stored)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        port = int(server.stdout.readline()) if server.stdout else 0
        hub = Hub({NAME: Repo(content)})

        def through(other: int) -> Mapping[str, str]:
            hub.storage_url = f"http://localhost:{other}"
            return environment

        # The hashes are known before anything is measured.
        assert hub.repos[NAME].commit
        with serving(hub):
            environment = {"HF_ENDPOINT": hub.url}
            through(port)
            urls = [f"http://127.0.0.1:{port}/{path.name}" for path in stored.iterdir()]
            yield Place("hf", "hub", f"hf://{NAME}", port, environment, through, urls)
    finally:
        server.kill()
        server.wait()
        for mapped in content.values():
            if isinstance(mapped, mmap.mmap):  # else a deleted file keeps its room on the disk
                mapped.close()


@contextmanager
def _s3(files: Path, scratch: Path) -> Iterator[Place]:
    """VersityGW, filled by s5cmd: in parts where a file is larger than 50 MiB."""
    with object_store(scratch / "s3") as store:
        s5cmd = [str(program("s5cmd")), "--endpoint-url", store.url]
        environment = {**plain_environment(), **store.environment}
        for command in (["mb", "s3://bench"], ["cp", f"{files}/", "s3://bench/model/"]):
            subprocess.run([*s5cmd, *command], env=environment, check=True, stdout=subprocess.DEVNULL)

        def through(other: int) -> Mapping[str, str]:
            return {**store.environment, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{other}"}

        port = urlsplit(store.url).port or 0
        yield Place("s3", "S3 (VersityGW)", "s3://bench/model", port, store.environment, through)


@contextmanager
def _gs(files: Path, _: Path) -> Iterator[Place]:
    """fake-gcs-server, with everything in memory."""
    with google_store() as store:
        store.make_bucket("bench")
        for path in sorted(files.iterdir()):
            store.put("bench", f"model/{path.name}", path.read_bytes())
        port = urlsplit(store.url).port or 0
        yield Place("gs", "Google (fake-gcs-server)", "gs://bench/model", port, store.environment, through=None)


@contextmanager
def _az(files: Path, scratch: Path) -> Iterator[Place]:
    """Azurite on a folder: blobs in blocks, as uploaders make them."""
    with azure_store(scratch / "az") as store:
        store.make_bucket("bench")
        for path in sorted(files.iterdir()):
            content = path.read_bytes()
            blocks = [content[at : at + _BLOCK] for at in range(0, len(content), _BLOCK)]
            store.put_in_parts("bench", f"model/{path.name}", *blocks)
        environment = {**store.environment, "AZURE_STORAGE_ACCOUNT_KEY": store.key}
        server = urlsplit(store.endpoint)

        def through(other: int) -> Mapping[str, str]:
            return {**environment, "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{other}{server.path}"}

        yield Place("az", "Azure (Azurite)", "az://bench/model", server.port or 0, environment, through)


PLACES = {"hf": _hub, "s3": _s3, "gs": _gs, "az": _az}


def make_files(folder: Path, count: int, size: int) -> int:
    """A model of so many weights files, of `size` bytes in all; the bytes of everything."""
    folder.mkdir(parents=True)
    block = os.urandom(_BLOCK)
    for number in range(1, count + 1):
        rest = size // count
        header = json.dumps({"x": {"dtype": "U8", "shape": [rest], "data_offsets": [0, rest]}}).encode()
        with (folder / f"model-{number:05}-of-{count:05}.safetensors").open("wb") as target:
            target.write(len(header).to_bytes(8, "little") + header)
            while rest:
                # No two blocks are the same, to whoever looks for that.
                part = (os.urandom(64) + block)[: min(rest, _BLOCK)]
                rest -= target.write(part)
    for name, content in _SMALL.items():
        (folder / name).write_bytes(content)
    return sum(path.stat().st_size for path in folder.iterdir())


def same(files: Path, fetched: Path) -> bool:
    """Whether each file came somewhere below a folder, with the same bytes."""
    return all(
        any(_hash(found) == _hash(path) for found in fetched.rglob(path.name) if found.is_file())
        for path in files.iterdir()
        if path.suffix == ".safetensors"
    )


def program(name: str) -> Path:
    """A Go program that is measured; built by the first who needs it."""
    return build(Store(cache_root(os.environ, Path.home())), Group.FETCH, os.environ, Progress()) / name


def plain_environment() -> dict[str, str]:
    """Without credentials, endpoints and proxies of whoever measures."""
    dropped = ("HF_", "AWS_", "GOOGLE_", "AZURE_", "HUGGING", "PYTHON")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(dropped) and not name.lower().endswith("_proxy")
    }


def _hash(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _mapped(path: Path) -> Any:
    """What the hub takes for bytes, without the memory."""
    with path.open("rb") as source:
        return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) if path.name not in _SMALL else source.read()
