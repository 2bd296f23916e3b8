"""Weights that are read into memory before vLLM asks for them: which, how much, and what is in the way."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from llmservice_runtime.supervisor import read_ahead
from llmservice_runtime.supervisor.read_ahead import BLOCK_BYTES, SHARE, ReadAhead, budget, reading_ahead

GIB = 1 << 30
PLENTY = 1 << 40


def model(folder: Path, **sizes: int) -> Path:
    """Files by name, without their suffix; sparse."""
    for name, size in sizes.items():
        with (folder / f"{name}.safetensors").open("wb") as file:
            file.truncate(size)
    return folder


def read(folder: Path, bytes_of_memory: int = PLENTY) -> int:
    reader = ReadAhead(folder, bytes_of_memory)
    reader.start()
    return reader.join()


def test_all_weights_are_read_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 100)
    assert read(model(tmp_path, one=3 * BLOCK_BYTES + 1, two=BLOCK_BYTES, empty=0)) == 4 * BLOCK_BYTES + 1


def test_in_the_order_of_the_shards_until_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    lock = threading.Lock()

    def preadv(descriptor: int, buffers: list[bytearray], offset: int) -> int:
        with lock:
            seen.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, offset))  # noqa: PTH115 - no file
        return BLOCK_BYTES

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(read_ahead, "THREADS", 1)
    model(tmp_path, b=2 * BLOCK_BYTES, a=2 * BLOCK_BYTES, c=BLOCK_BYTES)
    assert read(tmp_path, 3 * BLOCK_BYTES) == 3 * BLOCK_BYTES
    assert seen == [("a.safetensors", 0), ("a.safetensors", BLOCK_BYTES), ("b.safetensors", 0)]


def test_links_of_a_cache_are_followed(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    model(blobs, blob=10)
    (tmp_path / "model.safetensors").symlink_to("blobs/blob.safetensors")
    assert read(tmp_path) == 10


def test_what_is_no_file_is_left_to_vllm(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").mkdir()
    os.mkfifo(tmp_path / "b.safetensors")
    (tmp_path / "c.safetensors").symlink_to("nowhere")
    assert read(model(tmp_path, d=7)) == 7
    assert read(tmp_path / "missing") == 0


def test_it_ends_with_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, release = threading.Event(), threading.Event()

    def preadv(*_: object) -> int:
        began.set()
        release.wait(20)
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    before = threading.active_count()
    with reading_ahead(str(model(tmp_path, a=1000 * BLOCK_BYTES)), "auto", tmp_path):
        assert began.wait(20)
        threads = [thread for thread in threading.enumerate() if thread.daemon and thread.name.endswith("(_read)")]
    release.set()
    for thread in threads:
        thread.join(20)
    assert threading.active_count() <= before, "after at most one block more each"


@pytest.mark.parametrize("load_format", ["dummy", "runai_streamer", "tensorizer"])
def test_formats_that_read_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_format: str) -> None:
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("it reads"))
    with reading_ahead(str(model(tmp_path, a=1)), load_format, tmp_path):
        pass


BUDGETS: list[tuple[str, int | None, str | None, int, int]] = [
    ("no limit", None, None, 10 * GIB, 10 * GIB),
    ("a limit of the kernel's word", None, "max", 10 * GIB, 10 * GIB),
    ("a container's limit", 2 * GIB, str(6 * GIB), 10 * GIB, 4 * GIB),
    ("a limit that is reached", 6 * GIB, str(6 * GIB), 10 * GIB, 0),
    ("a full node", 1 * GIB, str(6 * GIB), 0, 0),
]


@pytest.mark.parametrize(
    ("used", "limit", "available", "wanted"), [b[1:] for b in BUDGETS], ids=[b[0] for b in BUDGETS]
)
def test_memory_for_weights(tmp_path: Path, used: int | None, limit: str | None, available: int, wanted: int) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable: {available >> 10} kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used or 0}\n")
    assert budget(tmp_path, meminfo) == int(wanted * SHARE)


def test_without_figures_nothing_is_read(tmp_path: Path) -> None:
    assert budget(tmp_path, tmp_path / "none") == 0
    (tmp_path / "meminfo").write_text("nonsense")
    assert budget(tmp_path, tmp_path / "meminfo") == 0
