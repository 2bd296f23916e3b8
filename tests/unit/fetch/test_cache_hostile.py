"""A cache that another writer of the same claim prepared: nothing of it leads out of its folder, or into the model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_fetch.failed import FetchFailed
from llmservice_fetch.files import Listing
from llmservice_runtime.bounded_json import Refused

from tests.support.fetching import Claim, model_files
from tests.support.hub import Hub, Repo, serving

REPO = "hub/models--org--tiny"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving(Hub({"org/tiny": Repo(model_files())})) as running:
        yield running


class Shared(Claim):
    """A home beside the cache, and what another tenant does to the cache."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        super().__init__(folder, hub)
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "kept").write_text("mine")
        self.evil = self.root / "blobs" / ("e" * 40)
        self.evil.write_text("import os")

    def add(self, **fields: object) -> None:
        """One file more, whose content is there."""
        item = {"path": "x", "size": 9, "blob": self.evil.name, "digest": None, "version": "", **fields}
        self.change_listing(lambda document: document["files"].append(item))

    def everything(self) -> set[str]:
        """All names outside of the cache and of the links that the pod asked for."""
        outside = (path for path in self.home.parent.rglob("*") if path.name not in ("cache", "links"))
        return {str(path) for path in outside if not path.is_relative_to(self.fetcher.cache)
                and not path.is_relative_to(self.fetcher.links)}  # fmt: skip


@pytest.fixture
def claim(tmp_path: Path, hub: Hub) -> Shared:
    return Shared(tmp_path, hub)


LISTED: dict[str, list[object]] = {
    "path": [
        *("../../../../../home/.profile", "/tmp/planted-by-a-listing", "a/../../../../../../home/x.py", "./x.py"),
        *("a//x.py", "..\\..\\x.py", "x\0.py", "x\n.py", "/".join(["x" * 100] * 50), "x" * 300, 7, "config.json"),
    ],
    "blob": ["../../../../home/kept", "/etc/hostname", "..", "e" * 40 + ".incomplete", ".e"],
    "size": [-1, 1e400, "9"],
    "digest": [{"algorithm": "crc32", "value": "0" * 8}, {"algorithm": "sha256", "value": "0"}],
    "version": ["a\r\nHost: evil"],
}  # fmt: skip
SIZES = {"../../../../home/kept": 4, "/etc/hostname": Path("/etc/hostname").stat().st_size, "..": 0}
DOCUMENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another revision than its name": lambda document: document.update(revision="../../../../home/revision"),
    "too many files": lambda document: document.update(files=document["files"] * 15_000),
    "no files": lambda document: document.pop("files"),
    "files that are text": lambda document: document.update(files="config.json"),
    "a file that is a list": lambda document: document["files"].append([1]),
    "deep nesting": lambda document: document.update(more=json.loads("[" * 500 + "]" * 500)),
}


@pytest.mark.parametrize("field", LISTED)
def test_a_listing_that_lies_is_not_used(claim: Shared, field: str) -> None:
    path = claim.root / ".llmservice" / f"{claim.repo.commit}.json"
    before, sound = claim.everything(), path.read_text()
    for value in LISTED[field]:
        size = {"size": SIZES[str(value)]} if str(value) in SIZES else {}
        claim.add(**{field: value}, **size)
        with pytest.raises(Refused):
            Listing.from_json(path.read_text())
        path.write_text(sound)
    claim.add(**{field: LISTED[field][0]})
    claim.fetcher.run_here(claim.uri)
    assert claim.everything() == before
    assert claim.served() == claim.repo.files, "the listing was not fetched anew"


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_document_that_is_no_listing_is_not_used(claim: Shared, case: str) -> None:
    before = claim.everything()
    claim.change_listing(DOCUMENTS[case])
    claim.fetcher.run_here(claim.uri)
    assert claim.everything() == before
    assert claim.served() == claim.repo.files


BRANCHES = ["../../../home", "a/b", "", "x" * 4096, "\0", "..", "."]


@pytest.mark.parametrize("text", BRANCHES)
def test_a_branch_that_points_elsewhere_is_not_followed(claim: Shared, text: str) -> None:
    claim.fetcher.run_here("model=hf://org/tiny")
    (claim.root / "refs" / "main").write_text(text)
    with pytest.raises(FetchFailed):
        claim.fetcher.with_(HF_HUB_OFFLINE="1").run_here("model=hf://org/tiny")


def _home_for(*parts: str) -> Callable[[Shared], None]:
    """One of the cache's folders is a link to the home."""

    def plant(claim: Shared) -> None:
        place = claim.fetcher.cache.joinpath(*parts)
        if place.exists():
            place.rename(claim.fetcher.cache / "moved")
        place.symlink_to(claim.home)

    return plant


def _nested(claim: Shared) -> None:
    claim.add(path="inner/x.py")
    (claim.root / "snapshots" / claim.repo.commit / "inner").symlink_to(claim.home)


def _file_for(name: str) -> Callable[[Shared], None]:
    """A file that is written is a link to one of the home."""

    def plant(claim: Shared) -> None:
        place = claim.root / name
        place.unlink(missing_ok=True)
        place.symlink_to(claim.home / "kept")

    return plant


def _partial(claim: Shared) -> None:
    blob = (claim.root / "snapshots" / claim.repo.commit / "model.safetensors").resolve()
    blob.unlink()
    blob.with_name(f"{blob.name}.incomplete").symlink_to(claim.home / "kept")


def _blob(claim: Shared) -> None:
    blob = (claim.root / "snapshots" / claim.repo.commit / "model.safetensors").resolve()
    (claim.home / "model").write_bytes(bytes(blob.stat().st_size))
    blob.unlink()
    blob.symlink_to(claim.home / "model")


def _pipe(claim: Shared) -> None:
    path = claim.root / ".llmservice" / f"{claim.repo.commit}.json"
    path.unlink()
    os.mkfifo(path)


PLANTED: dict[str, Callable[[Shared], None]] = {
    "the hub's folder": _home_for("hub"),
    "the model's folder": _home_for(*REPO.split("/")),
    "blobs": _home_for(*REPO.split("/"), "blobs"),
    "snapshots": _home_for(*REPO.split("/"), "snapshots"),
    "refs": _home_for(*REPO.split("/"), "refs"),
    "our own folder": _home_for(*REPO.split("/"), ".llmservice"),
    "a folder in a snapshot": _nested,
    "the lock": _file_for(".llmservice/lock"),
    "the progress": _file_for(".llmservice/progress"),
    "the progress to be": _file_for(".llmservice/.progress.new"),
    "a branch": _file_for("refs/main"),
    "a partial file": _partial,
    "a blob": _blob,
    "a pipe for a listing": _pipe,
}


def _refusal(claim: Shared, uri: str) -> str | None:
    try:
        claim.fetcher.run_here(uri)
    except FetchFailed as refused:
        return refused.failure.remedy
    return None


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_link_is_never_followed(claim: Shared, case: str) -> None:
    PLANTED[case](claim)
    before = claim.everything()
    weights = (claim.home / "model").read_bytes() if (claim.home / "model").exists() else b""
    for uri in (claim.uri, "model=hf://org/tiny"):
        remedy = _refusal(claim, uri)
        assert remedy is None or "spec.model.cache" in remedy
        # The model as it was served before, or as it is served now.
        assert set(claim.served()) - {"inner/x.py"} <= set(claim.repo.files)
        assert remedy or claim.served().items() >= claim.repo.files.items()
    assert claim.everything() == before
    assert (claim.home / "kept").read_text() == "mine"
    assert not (claim.home / "model").exists() or (claim.home / "model").read_bytes() == weights


def test_what_nobody_listed_is_not_served(claim: Shared) -> None:
    snapshot = claim.root / "snapshots" / claim.repo.commit
    (snapshot / "modeling_planted.py").write_text("import os")
    (snapshot / "model-2.safetensors").symlink_to(claim.evil)
    claim.fetcher.run_here(claim.uri)
    assert claim.served() == claim.repo.files
