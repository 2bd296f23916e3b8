"""A large file in several parts at once: exact, resumed, bounded in memory, and alone where a server knows no parts."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from llmservice_fetch import http, transfer
from llmservice_fetch.failed import FetchFailed, HTTPStatusError
from llmservice_fetch.transfer import Partial

from tests.support.fetching import Fetcher, end_of, model_files, partial_bytes
from tests.support.http_servers import threaded
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import until

MB = 1_000_000
PART = 100_000
# The same in a process that a test can kill.
SMALL_PARTS = (
    sys.executable,
    "-c",
    f"from llmservice_fetch import transfer; transfer.PART_BYTES = transfer.PROBE_BYTES = {PART}\n"
    "import sys; from llmservice_fetch.__main__ import main; sys.exit(main(sys.argv[1:]))",
)


@pytest.fixture
def hub() -> Iterator[Hub]:
    # 60 parts: up to 3 of them wait for an earlier one.
    with serving(Hub({"org/large": Repo(model_files({"model.safetensors": 60 * PART}))})) as running:
        yield running


@pytest.fixture
def fetcher(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetcher:
    monkeypatch.setattr(transfer, "PART_BYTES", PART)
    monkeypatch.setattr(transfer, "PROBE_BYTES", PART)
    monkeypatch.setattr(transfer, "STRETCH_BYTES", 10 * PART)
    # However fast it is: no connection is fast enough.
    monkeypatch.setattr(transfer, "FAST_BYTES_PER_SECOND", math.inf)
    return Fetcher(tmp_path, {"HF_ENDPOINT": hub.url})


def check(hub: Hub, fetcher: Fetcher) -> None:
    got = (fetcher.links / "model" / "model.safetensors").read_bytes()
    assert got == hub.repos["org/large"].files["model.safetensors"]


def starts(hub: Hub) -> list[int]:
    return sorted(asked.start for asked in hub.contents())


def test_each_byte_is_asked_for_once(hub: Hub, fetcher: Fetcher) -> None:
    documents = fetcher.run_here("model=hf://org/large")
    check(hub, fetcher)
    size = len(hub.repos["org/large"].files["model.safetensors"])
    assert starts(hub) == list(range(0, size, PART))
    assert hub.sent["model.safetensors"] == size
    done = [document["transfer"]["bytesDone"] for document in documents if "transfer" in document]
    assert done == sorted(done)
    heads = [asked for asked in hub.asked if asked.method == "HEAD"]
    assert len(heads) == 1, "its address is asked for once, whatever number of parts read it"


def test_a_fast_connection_stays_the_only_one(hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FAST_BYTES_PER_SECOND", 0.0)
    fetcher.run_here("model=hf://org/large")
    check(hub, fetcher)
    size = len(hub.repos["org/large"].files["model.safetensors"])
    assert starts(hub) == [0, *range(PART, size, 10 * PART)]


def test_a_part_that_is_cut_goes_on_alone(hub: Hub, fetcher: Fetcher) -> None:
    hub.repos["org/large"].cut_at["model.safetensors"] = 70_000
    fetcher.run_here("model=hf://org/large")
    check(hub, fetcher)
    size = len(hub.repos["org/large"].files["model.safetensors"])
    (again,) = set(starts(hub)) - set(range(0, size, PART))
    assert 0 < again % PART <= 70_000


@pytest.mark.parametrize("parts", [8, 1], ids=["one file", "many files at once"])
def test_a_server_that_knows_no_parts_is_read_in_a_stream(
    hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """A stretch that does not begin where it should would begin anew for ever."""
    monkeypatch.setattr(transfer, "PARTS", parts)
    hub.ignores_ranges = True
    fetcher.run_here("model=hf://org/large")
    check(hub, fetcher)
    assert parts > 1 or len(hub.contents()) <= 3


def test_an_address_that_is_over_is_asked_for_again(hub: Hub, fetcher: Fetcher) -> None:
    hub.address_lasts = 25
    fetcher.run_here("model=hf://org/large")
    check(hub, fetcher)
    assert sum(1 for asked in hub.asked if asked.method == "HEAD") >= 3


def killable(fetcher: Fetcher) -> subprocess.Popen[str]:
    """A fetch with small parts, in a process of its own."""
    places = (f"--cache={fetcher.cache}", f"--links={fetcher.links}")
    command = [*SMALL_PARTS, "fetch", *places, "--fetch=model=hf://org/large"]
    environment = {**fetcher.environment, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def test_a_kill_in_the_middle_costs_less_than_a_tenth(hub: Hub, fetcher: Fetcher) -> None:
    hub.bytes_per_second = 1 * MB
    process = killable(fetcher)
    size = len(hub.repos["org/large"].files["model.safetensors"])
    await until(lambda: partial_bytes(fetcher.cache) > size / 2)
    process.kill()
    end_of(process)
    there = partial_bytes(fetcher.cache)
    hub.bytes_per_second = None
    before = len(hub.contents())
    fetcher.run_here("model=hf://org/large")
    check(hub, fetcher)
    assert min(asked.start for asked in hub.contents()[before:]) == there
    # What was sent before the kill and is not on the disk: parts in memory, at most 5%, and what was in the sockets.
    read_twice = max(asked.start for asked in hub.contents()[:before]) + PART - there
    assert read_twice <= 0.1 * size


def test_the_first_failure_ends_all_parts(hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Event()

    class Refusing(Partial):
        def append(self, chunk: bytes | memoryview) -> None:
            refused.set()
            raise HTTPStatusError(404, "http://x")

    monkeypatch.setattr(transfer, "Partial", Refusing)
    with pytest.raises((FetchFailed, HTTPStatusError)):
        fetcher.run_here("model=hf://org/large")
    assert refused.is_set()


@contextmanager
def sparse(size: int) -> Iterator[str]:
    """A mirror whose only large file is as many zeros, which take no room; its hash is told by nobody."""
    zeros = bytes(1 << 20)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(0, size, 200)

        def do_GET(self) -> None:
            if self.path.startswith("/api/"):
                body = b'{"id": "org/zeros", "sha": "c0ffee", "siblings": [{"rfilename": "model.bin"}]}'
                self._head(200, len(body), {"Content-Type": "application/json"})
                self.wfile.write(body)
                return
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            self._answer(int(first), int(last) + 1, 206)

        def _answer(self, start: int, end: int, status: int) -> None:
            span = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if status == 206 else {}
            self._head(status, end - start, {"ETag": '"zeros"', "X-Repo-Commit": "c0ffee", **span})
            for at in range(start, end if self.command == "GET" else start, len(zeros)):
                self.wfile.write(zeros[: end - at])

        def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(length)}.items():
                self.send_header(name, value)
            self.end_headers()

    with threaded(Handler) as port:
        yield f"http://127.0.0.1:{port}"


PEAK = r"""
import os, re, sys
from pathlib import Path
from llmservice_fetch import transfer
from llmservice_fetch.hub import Hub
from llmservice_fetch.transfer import Meter
from llmservice_fetch.store import Store
transfer.FAST_BYTES_PER_SECOND = float("inf")
origin = Hub.of("org/zeros", "spec.model.uri", os.environ)
listing, store = origin.listing(), Store(Path(sys.argv[1]), "m")
store.prepare()
transfer.Download(origin, listing, store, Meter("model"), print).fetch(listing.files)
# What getrusage says may be the parent's.
print(int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10)
"""


def peak_mib(size: int, folder: Path) -> int:
    """Memory of a process that fetches one file. Its bytes are thrown away as soon as it ends."""
    with sparse(size) as url:
        environment = {"HF_ENDPOINT": url, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(folder)], env=environment, capture_output=True, text=True, timeout=600
        )
    assert done.returncode == 0, done.stderr
    (blob,) = (folder / "m" / "blobs").iterdir()
    assert blob.stat().st_size == size
    blob.unlink()
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize(
    "size", [pytest.param(400 * MB, id="400 MB"), pytest.param(2000 * MB, id="2 GB", marks=pytest.mark.full)]
)
def test_memory_does_not_grow_with_the_file(size: int, tmp_path: Path) -> None:
    assert peak_mib(size, tmp_path) < 200


def test_parts_share_connections(hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    fetcher.run_here("model=hf://org/large")
    pool = http._pool(None, *http.trusted_files()).connection_from_url(hub.storage_url)
    assert len(hub.contents()) > 60
    assert pool.num_connections <= transfer.PARTS
