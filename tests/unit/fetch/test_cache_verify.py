"""spec.model.cache.verify: Hash. A cache is compared with the origin before it is served."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from llmservice_fetch.command import Verification
from llmservice_fetch.files import Digest, RemoteFile
from llmservice_fetch.store import Store
from llmservice_fetch.transfer import Meter, RetryPolicy
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.contract import TransferStep

from tests.support.fetching import Claim, model_files
from tests.support.hub import Hub, Repo, serving


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {f"model-{number}.safetensors": 400_000 + number for number in range(6)}
    with serving(Hub({"org/tiny": Repo(model_files(files))})) as running:
        yield running


class Damaged(Claim):
    """A cache whose blobs change."""

    def blob(self, name: str) -> Path:
        return (self.fetcher.links / "model" / name).resolve()

    def damage(self, name: str) -> bytes:
        """Other bytes, as many."""
        content = bytearray(self.blob(name).read_bytes())
        content[-1] ^= 1
        self.blob(name).write_bytes(content)
        return bytes(content)

    def forge(self, name: str) -> None:
        """Other bytes, and a listing that says so."""
        content = self.damage(name)
        digest = hashlib.sha256(content).hexdigest()
        self.blob(name).rename(self.blob(name).with_name(digest))
        named = {"blob": digest, "digest": {"algorithm": "sha256", "value": digest}}
        self.change_listing(lambda document: [item.update(named) for item in document["files"] if item["path"] == name])


@pytest.fixture
def claim(tmp_path: Path, hub: Hub) -> Damaged:
    return Damaged(tmp_path, hub)


def test_by_default_only_sizes_are_compared(claim: Damaged) -> None:
    other = claim.damage("model-3.safetensors")
    claim.fetcher.run_here(claim.uri)
    assert claim.served()["model-3.safetensors"] == other
    assert claim.hub.asked == []


def test_what_is_damaged_is_fetched_again(claim: Damaged) -> None:
    claim.damage("model-3.safetensors")
    ended = claim.fetcher.succeeds(claim.uri, options=("--verify=hash",))
    assert claim.served() == claim.repo.files
    assert len(claim.hub.contents()) == 1
    assert "other contents than hf://org/tiny published: model-3.safetensors" in ended.log
    size = sum(map(len, claim.repo.files.values()))
    steps = [(each.step, each.bytes_done, each.bytes_total) for each in ended.transfers]
    assert (TransferStep.VERIFYING, size, size) in steps
    verified = steps.index((TransferStep.VERIFYING, size, size))
    assert TransferStep.DOWNLOADING in [step for step, *_ in steps[verified:]]


def test_a_forged_listing_is_found_where_the_origin_answers(claim: Damaged) -> None:
    claim.forge("model-3.safetensors")
    claim.fetcher.run_here(claim.uri, verify="hash")
    assert claim.served() == claim.repo.files


def test_what_is_whole_is_read_and_not_fetched(claim: Damaged) -> None:
    claim.fetcher.succeeds(claim.uri, options=("--verify=hash",))
    assert claim.hub.contents() == []
    assert claim.served() == claim.repo.files


OFFLINE = {
    "nothing": ((), None),
    "damaged": (("damage",), R.MODEL_CORRUPT),
    "forged, which only the origin could tell": (("forge",), None),
}


@pytest.mark.parametrize("case", OFFLINE)
def test_without_its_origin_a_cache_is_compared_with_its_own_listing(claim: Damaged, case: str) -> None:
    changes, reason = OFFLINE[case]
    for change in changes:
        getattr(claim, change)("model-3.safetensors")
    ended = claim.fetcher.with_(HF_HUB_OFFLINE="1").run(claim.uri, options=("--verify=hash",))
    assert (ended.failure and ended.failure.reason) == reason, ended.words
    assert "compared with its own listing" in ended.log
    if ended.failure:
        assert "model-3.safetensors" in ended.failure.message
        assert "spec.model.cache" in ended.failure.remedy
        assert claim.blob("model-3.safetensors").exists(), "nothing is deleted that cannot be had again"


@dataclass
class Origin:
    """A bucket that knows no hash of some objects."""

    digests: dict[str, Digest]
    uri: str = "s3://bucket/model"
    asked: list[str] = field(default_factory=list)

    def digest(self, file: RemoteFile) -> Digest | None:
        return self.digests.get(file.path)


def test_files_without_a_published_hash_are_named_as_such(tmp_path: Path) -> None:
    store = Store(tmp_path, "s3/bucket")
    store.prepare()
    files = [RemoteFile(name, 3, f"blob-{name}") for name in ("a", "b", "c", "absent")]
    for file in files[:3]:
        store.blob(file).write_bytes(b"abc")
    digests = {"a": Digest("md5", hashlib.md5(b"abc").hexdigest()), "b": Digest("md5", "0" * 32)}
    said: list[str] = []
    meter = Meter("model")
    Verification(Origin(digests), store, meter, said.append, RetryPolicy(), is_fresh=True).run(files)  # type: ignore[arg-type]
    assert said == [
        "s3://bucket/model publishes no hash of 1 files: only sizes compared",
        "the cache held other contents than s3://bucket/model published: b; fetching them",
    ]
    assert [file.path for file in store.missing(files)] == ["b", "absent"]
    assert meter.snapshot().bytes_done == 6


def test_what_cannot_be_fetched_again_is_not_served(claim: Damaged) -> None:
    claim.damage("model-3.safetensors")
    claim.repo.damaged.add("model-3.safetensors")
    failure = claim.fetcher.fails(claim.uri, verify="hash")
    assert failure.reason is R.MODEL_CORRUPT
