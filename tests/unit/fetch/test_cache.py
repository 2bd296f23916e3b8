"""The cache on disk when it is full, read-only or without locks; what is chosen of a repository; what is never said."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from llmservice_fetch import store, transfer
from llmservice_fetch.files import RemoteFile, select
from llmservice_fetch.folders import Folder
from llmservice_fetch.http import trust
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.contract import Transfer, TransferStep
from llmservice_runtime.redact import Redactor

from tests.support.fetching import Fetcher, model_files
from tests.support.hub import Hub, Repo, serving

MB = 1_000_000


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    files = {"model-1.safetensors": 3 * MB, "model-2.safetensors": 3 * MB}
    with serving(Hub({"org/tiny": Repo(model_files(files))})) as running:
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A cache on a volume of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "cache"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_told_before_the_weights(hub: Hub, small_disk: Path) -> None:
    hub.asked.clear()
    failure = Fetcher(small_disk, {"HF_ENDPOINT": hub.url}).run("model=hf://org/tiny").failure
    assert failure is not None
    assert failure.reason is R.STORAGE_FULL
    assert "0.01 GiB are still to be fetched" in failure.message
    assert "spec.model.cache.size" in failure.remedy
    assert hub.contents() == []


def test_a_disk_that_fills_meanwhile(hub: Hub, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer.Download, "check_space", lambda *_: None)
    failure = Fetcher(small_disk, {"HF_ENDPOINT": hub.url}).fails("model=hf://org/tiny")
    assert failure.reason is R.STORAGE_FULL
    assert "the volume is full" in failure.message


def test_a_cache_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    failure = Fetcher(tmp_path, {"HF_ENDPOINT": hub.url}).fails("model=hf://org/tiny")
    assert "cannot be written" in failure.message
    assert "fsGroup" in failure.remedy


def test_a_file_system_without_locks_serves_too(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    seen: list[str] = []
    renamed = Folder.rename

    def rename(folder: Folder, name: str, new: str) -> None:
        seen.append(name)
        renamed(folder, name, new)

    monkeypatch.setattr(Folder, "rename", rename)
    fetcher = Fetcher(tmp_path, {"HF_ENDPOINT": hub.url})
    fetcher.run_here("model=hf://org/tiny")
    assert (fetcher.links / "model" / "model-1.safetensors").exists()
    partial = [name for name in seen if ".incomplete" in name]
    assert partial
    assert all(name.endswith(f"-{os.getpid()}") for name in partial), "two processes would write into one file"


def test_a_lock_is_one_processs(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waited: list[str] = []

    def never() -> AbstractContextManager[None]:
        raise AssertionError("nobody holds it")

    with store.exclusive(lambda: os.open(path, os.O_RDWR | os.O_CREAT), tmp_path, waited.append, never) as alone:
        assert alone
        other = subprocess.run(["flock", "--nonblock", str(path), "true"], check=False)
        assert other.returncode == 1
    assert waited == []


def test_the_pace_is_of_what_came_lately() -> None:
    now = 0.0
    counted = transfer.Meter("model", clock=lambda: now)
    counted.begin(TransferStep.DOWNLOADING, done=500, total=2000)
    assert counted.snapshot() == Transfer("model", TransferStep.DOWNLOADING, 500, 2000)
    for second in range(1, 31):
        now = float(second)
        counted.add(10 if second < 10 else 50)
        looked = counted.snapshot()
    assert looked.bytes_done == 500 + 9 * 10 + 21 * 50
    assert looked.bytes_per_second == 50
    assert looked.eta_seconds == 7


CHOSEN = {
    "safetensors before PyTorch's files": (
        {"config.json": 1, "model.safetensors": 9, "pytorch_model.bin": 9, "model.safetensors.index.json": 1},
        "auto", {"config.json", "model.safetensors.index.json"}, {"model.safetensors"},
    ),
    "PyTorch's where there is nothing else": (
        {"config.json": 1, "pytorch_model-1.bin": 9, "training_args.bin": 1, "optimizer.pt": 9},
        "auto", {"config.json"}, {"pytorch_model-1.bin"},
    ),
    "Mistral's own format where it is complete": (
        {"params.json": 1, "tekken.json": 1, "consolidated.safetensors": 9, "model-1.safetensors": 9},
        "auto", {"params.json", "tekken.json"}, {"consolidated.safetensors"},
    ),
    "not without its params.json": (
        {"config.json": 1, "consolidated.safetensors": 9, "model-1.safetensors": 9},
        "auto", {"config.json"}, {"model-1.safetensors"},
    ),
    "what is asked for": (
        {"config.json": 1, "model.safetensors": 9, "pytorch_model.bin": 9},
        "pt", {"config.json"}, {"pytorch_model.bin"},
    ),
    "no weights for dummies": ({"config.json": 1, "model.safetensors": 9}, "dummy", {"config.json"}, set()),
    "no other runtime's copies": (
        {"config.json": 1, "model.safetensors": 9, "onnx/model.onnx": 9, "original/x.safetensors": 9, "tf_model.h5": 9},
        "auto", {"config.json"}, {"model.safetensors"},
    ),
    "each folder for itself": (
        {"config.json": 1, "model.safetensors": 9, "2_Dense/pytorch_model.bin": 9, "tokenizer.bin": 1},
        "auto", {"config.json", "tokenizer.bin"}, {"model.safetensors", "2_Dense/pytorch_model.bin"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOSEN)
def test_what_is_chosen_of_a_repository(case: str) -> None:
    files, load_format, small, weights = CHOSEN[case]
    listed = [RemoteFile(path, size, path) for path, size in files.items()]
    chosen = select(listed, load_format)
    assert tuple({file.path for file in part} for part in chosen) == (small, weights)


def test_an_image_without_certificates_borrows_those_of_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    monkeypatch.setenv("SSL_CERT_DIR", "/no/such/folder")
    assert trust().cert_store_stats()["x509_ca"] > 50


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        pytest.param("HF_TOKEN", "hf_abcdefgh", "hf_abcdefgh", id="a token"),
        pytest.param("AWS_SECRET_ACCESS_KEY", "a/b+c/d=e\n", "a/b+c/d=e", id="with a line break behind it"),
        pytest.param("AWS_ACCESS_KEY_ID", "AKIA12345", "AKIA12345", id="a key"),
        pytest.param("HTTPS_PROXY", "http://me:pass-word@proxy:3128", "pass-word", id="in an address"),
        pytest.param("VLLM_API_KEY", "sk-123456", "sk-123456", id="clients' key"),
    ],
)
def test_credentials_are_taken_out_of_every_line(name: str, value: str, secret: str) -> None:
    redactor = Redactor({name: value, "HOME": "/home/llmservice", "HF_TOKEN_PATH": "/home/llmservice"})
    assert redactor.clean(f"x{secret}y in /home/llmservice") == "x***y in /home/llmservice"
