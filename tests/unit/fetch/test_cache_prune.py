"""What a shared cache keeps and what it gives up: with the processes of several services, and a kill at every step."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llmservice_fetch import prune, uses
from llmservice_fetch.failed import FetchFailed
from llmservice_fetch.folders import Folder
from llmservice_fetch.store import Store
from llmservice_fetch.uses import Use
from llmservice_runtime import shared_counters
from llmservice_runtime.contract import Phase, State
from llmservice_runtime.supervisor import fetch_phase, metrics

from tests.support.fetching import Fetcher, end_of, model_files, partial_bytes
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import until

MODEL = "hub/models--org--tiny"
HOUR = 3600
MB = 1_000_000


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({"org/tiny": Repo(model_files()), "org/other": Repo(model_files(hidden_size=4))})) as running:
        yield running


class Claim:
    """A cache that several services fetch into; what it says, and what is in it."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.hub, self.folder, self.cache = hub, folder, folder / "cache"
        self.said: list[str] = []

    def service(self, name: str) -> Fetcher:
        """A pod of a service: folders of its own, and the shared cache."""
        own = self.folder / name
        own.mkdir(exist_ok=True)
        self.cache.mkdir(exist_ok=True)
        if not (own / "cache").exists():
            (own / "cache").symlink_to(self.cache)
        return Fetcher(own, {"HF_ENDPOINT": self.hub.url})

    def fetch(self, service: str, uri: str = "hf://org/tiny", hours: int = 24, **environment: str) -> str:
        """A start of its only pod. The revision that it serves then."""
        fetcher = self.service(service).with_(**environment)
        fetcher.run_here(f"model={uri}", service=service, prune_after_hours=hours, pod=service)
        return (fetcher.links / "model").resolve().name

    def publish(self, seed: int) -> None:
        """A new commit with other weights and the same tokenizer."""
        self.hub.repos["org/tiny"].files = model_files({f"model-{seed}.safetensors": 100_000 + seed})

    def wait(self, hours: float) -> None:
        """Everything that the cache dates becomes older."""
        for path in self.cache.rglob("*"):
            if path.is_symlink() or ".llmservice" in path.parts or ".incomplete" in path.name:
                found = path.lstat()
                os.utime(path, (found.st_atime, found.st_mtime - hours * HOUR), follow_symlinks=False)

    def revisions(self, model: str = MODEL) -> set[str]:
        """Those that are there, whole."""
        store = Store(self.cache, model)
        return {name for name in store.revisions() if not store.missing(store.listing(name).files)}

    def blobs(self, model: str = MODEL) -> set[str]:
        return {path.name for path in (self.cache / model / "blobs").iterdir()}

    def prune(self, hours: int = 24) -> prune.Pruned:
        return prune.prune(self.cache, hours, self.said.append)


@pytest.fixture
def claim(tmp_path: Path, hub: Hub) -> Claim:
    return Claim(tmp_path, hub)


def test_a_revision_stays_while_it_is_used_and_goes_after(claim: Claim, capsys: pytest.CaptureFixture[str]) -> None:
    weights = claim.hub.repos["org/tiny"].files["model.safetensors"]
    old = claim.fetch("a")
    claim.publish(2)
    for _ in range(3):
        claim.wait(20)
        uses.renew(claim.cache, "a")
        new = claim.fetch("b")
        assert claim.revisions() == {old, new}, "the pod of service a lives"
    before = claim.blobs()
    claim.wait(25)
    capsys.readouterr()
    assert claim.fetch("b") == new
    assert claim.revisions() == {new}
    assert not (claim.cache / MODEL / "snapshots" / old).exists()
    gone = before - claim.blobs()
    assert len(gone) == 1, "the configuration and the tokenizer are the other revision's as well"
    log = capsys.readouterr().err
    assert "pruned 1 revisions and 0 partial files" in log
    assert f" {len(weights)} bytes freed" in log


def test_the_room_is_told(claim: Claim) -> None:
    claim.fetch("a")
    pruned = claim.prune()
    assert pruned.freed == 0
    assert pruned.used == sum(path.stat().st_size for path in (claim.cache / MODEL / "blobs").iterdir())
    assert pruned.available > 0
    state = fetch_phase.with_progress(State(Phase.FETCHING), pruned.room)
    assert State.from_json(state.to_json()) == state
    assert f'llmservice_server_cache_bytes{{state="used"}} {pruned.used}' in metrics.exposition(
        metrics.Snapshot(state, [0] * shared_counters.SLOTS)
    )


def test_what_a_service_may_return_to_stays_while_it_has_pods(claim: Claim) -> None:
    first = claim.fetch("a", f"hf://org/tiny@{claim.hub.repos['org/tiny'].commit}")
    claim.publish(2)
    second = claim.fetch("a", f"hf://org/tiny@{claim.hub.repos['org/tiny'].commit}")
    claim.fetch("a", "hf://org/other")
    for _ in range(5):
        claim.wait(20)
        uses.renew(claim.cache, "a")
        claim.prune()
    assert claim.revisions() == {first, second}, "recorded templates name these"
    claim.wait(25)
    claim.fetch("b", "hf://org/other")
    assert claim.revisions() == set(), "a has had no pod for longer than it keeps"


def test_only_the_last_uris_of_a_service_are_kept(claim: Claim) -> None:
    served = []
    for seed in range(uses.KEPT_URIS + 2):
        claim.publish(seed)
        served.append(claim.fetch("a", f"hf://org/tiny@{claim.hub.repos['org/tiny'].commit}"))
        claim.wait(25)
    claim.fetch("a", f"hf://org/tiny@{served[-1]}")
    assert claim.revisions() == set(served[-uses.KEPT_URIS :])


def test_the_commit_that_a_branch_had_goes_only_after_the_new_one_is_whole(claim: Claim) -> None:
    old = claim.fetch("a")
    claim.publish(2)
    claim.hub.repos["org/tiny"].damaged.add("model-2.safetensors")
    claim.wait(25)
    with pytest.raises(FetchFailed):
        claim.fetch("a")
    assert old in claim.revisions()
    claim.hub.repos["org/tiny"].damaged.clear()
    new = claim.fetch("a")
    claim.wait(25)
    claim.fetch("a")
    assert claim.revisions() == {new}


def test_what_was_fetched_by_hand_or_by_an_earlier_release_is_not_pruned_at_once(claim: Claim) -> None:
    claim.service("hand").run("model=hf://org/tiny")
    shutil.rmtree(claim.cache / MODEL / ".llmservice" / "used")
    claim.wait(1000)
    claim.fetch("a", "hf://org/other")
    assert len(claim.revisions()) == 1, "nobody has kept uses here for as long"


def test_what_another_program_put_there_stays(claim: Claim) -> None:
    old = claim.fetch("a")
    snapshots, blobs = (claim.cache / MODEL / name for name in ("snapshots", "blobs"))
    weights = (snapshots / old / "model.safetensors").resolve()
    (snapshots / ("f" * 40)).mkdir()
    (snapshots / ("f" * 40) / "model.safetensors").symlink_to(f"../../blobs/{weights.name}")
    (blobs / ("d" * 40)).write_text("onnx")
    (snapshots / old / "model.onnx").symlink_to(f"../../blobs/{'d' * 40}")
    (blobs / ("c" * 64)).write_text("of a download that made no link yet")
    claim.wait(25)
    claim.fetch("b", "hf://org/other")
    assert claim.revisions() == set()
    assert claim.blobs() == {weights.name, "d" * 40, "c" * 64}
    assert [path.name for path in (snapshots / old).iterdir()] == ["model.onnx"]


@pytest.mark.vllm
def test_huggingface_hub_goes_on_with_what_is_left(claim: Claim) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip("needs the vllm dependency group")
    from huggingface_hub import scan_cache_dir

    claim.fetch("a")
    claim.publish(2)
    claim.fetch("a")
    claim.wait(25)
    new = claim.fetch("a")
    found = scan_cache_dir(claim.cache / "hub")
    assert not found.warnings
    assert {revision.commit_hash for repo in found.repos for revision in repo.revisions} == {new}


PARTIALS = {
    "of a listing, old": ("{wanted}.incomplete", 900, True),
    "of no listing, new": ("9" * 64 + ".incomplete", 1, True),
    "of no listing, old": ("9" * 64 + ".incomplete", 25, False),
    "of a process without locks, old": ("{wanted}.incomplete.node-7", 25, False),
    "of a process without locks, new": ("{wanted}.incomplete.node-7", 1, True),
    "of huggingface_hub, old": ("{wanted}.1a2b3c4d.incomplete", 25, False),
    "a staging file, old": (".new-node-7-0", 25, False),
}


@pytest.mark.parametrize("case", PARTIALS)
def test_partial_files(claim: Claim, case: str) -> None:
    name, hours, stays = PARTIALS[case]
    revision = claim.fetch("a")
    weights = (claim.cache / MODEL / "snapshots" / revision / "model.safetensors").resolve()
    path = weights.with_name(name.format(wanted=weights.name))
    path.write_bytes(bytes(1000))
    os.utime(path, (0, time.time() - hours * HOUR))
    uses.renew(claim.cache, "a")
    pruned = claim.prune(hours=10_000)
    assert (path.exists(), pruned.partials, pruned.freed) == (stays, int(not stays), 0 if stays else 1000)


async def test_a_download_that_runs_is_left_alone(claim: Claim) -> None:
    claim.fetch("a")
    claim.publish(2)
    claim.hub.repos["org/tiny"].files = model_files({"model-2.safetensors": 2 * MB})
    claim.hub.bytes_per_second = 200_000
    options = ("--service=b", "--prune-after-hours=1", "--pod=b")
    process = claim.service("b").start("model=hf://org/tiny", options=options)
    await until(lambda: partial_bytes(claim.cache) > 0)
    claim.wait(10_000)
    before = claim.blobs()
    assert claim.prune(hours=1).freed == 0
    assert before <= claim.blobs()
    claim.hub.bytes_per_second = None
    ended = end_of(process)
    assert ended.code == 0, ended.words


class Killed(BaseException):
    """The process ended here."""


def _dying(real: Callable[..., None], left: list[int]) -> Callable[..., None]:
    """The real function so many times."""

    def act(*arguments: object) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        real(*arguments)

    return act


def _dies_at(claim: Claim, step: int) -> bool:
    """Prune, and be killed before that many changes."""
    left = [step]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "remove", _dying(Folder.remove, left))
        patch.setattr(Folder, "rename", _dying(Folder.rename, left))
        try:
            claim.prune()
        except Killed:
            return True
    return False


def test_a_kill_at_any_step_leaves_a_cache_that_works(claim: Claim) -> None:
    first, second = model_files({"model-1.safetensors": 1000}), model_files({"model-2.safetensors": 1001})
    step, dies = 0, True
    while dies:
        shutil.rmtree(claim.cache, ignore_errors=True)
        claim.hub.repos["org/tiny"].files = first
        old = claim.fetch("a")
        claim.hub.repos["org/tiny"].files = second
        new = claim.fetch("b")
        claim.wait(25)
        uses.renew(claim.cache, "b")
        dies = _dies_at(claim, step)
        assert new in claim.revisions()
        if old in claim.revisions():
            assert claim.fetch("b", f"hf://org/tiny@{old}", HF_HUB_OFFLINE="1") == old
        else:
            with pytest.raises(FetchFailed):
                claim.fetch("b", f"hf://org/tiny@{old}", HF_HUB_OFFLINE="1")
        assert claim.fetch("b") == new
        claim.wait(25 * 30)
        uses.renew(claim.cache, "b")
        claim.prune()
        left = {file.blob for name in claim.revisions() for file in Store(claim.cache, MODEL).listing(name).files}
        assert claim.blobs() == left, "something was left behind"
        step += 1
    assert step > 8


def test_a_use_that_comes_at_the_same_time_is_seen_or_sees(claim: Claim) -> None:
    revision = claim.fetch("a")
    claim.wait(25)
    shutil.copytree(claim.cache, claim.folder / "kept", symlinks=True)
    promises = []
    for number in range(40):
        shutil.rmtree(claim.cache)
        shutil.copytree(claim.folder / "kept", claim.cache, symlinks=True)
        store, start = Store(claim.cache, MODEL), threading.Barrier(2)
        use = Use("model", "main", revision, "b", f"pod-{number}", 24)

        def take(store: Store = store, start: threading.Barrier = start, use: Use = use) -> bool:
            start.wait()
            uses.record(store, use, claim.said.append)
            known = store.recall("main", revision)
            return known is not None and not store.missing(known.files)

        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(take)
            start.wait()
            claim.prune(hours=1)
        promises.append(taken.result())
        assert (revision in claim.revisions()) >= promises[-1], "it was there, and then it was not"


HOSTILE = {
    "not JSON": "{",
    "another revision": json.dumps({"artifact": "model", "asked": "main", "revision": "../..", "hours": 1}),
    "too many hours": json.dumps({"artifact": "m", "asked": "main", "revision": "a" * 40, "hours": 10**9}),
    "too long": "x" * 100_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_use_that_lies_is_not_counted(claim: Claim, case: str) -> None:
    claim.fetch("a")
    (claim.cache / MODEL / ".llmservice" / "used" / "pod-x-y").write_text(HOSTILE[case])
    claim.wait(25)
    claim.prune()
    assert claim.revisions() == set()


def test_a_link_for_the_uses_is_not_followed(claim: Claim, tmp_path: Path) -> None:
    claim.fetch("a")
    used = claim.cache / MODEL / ".llmservice" / "used"
    used.rename(tmp_path / "uses")
    used.symlink_to(tmp_path / "uses")
    claim.wait(25)
    before = sorted(path.name for path in (tmp_path / "uses").iterdir())
    claim.prune()
    assert sorted(path.name for path in (tmp_path / "uses").iterdir()) == before
    assert len(claim.revisions()) == 1
    assert "was not pruned" in claim.said[-1]
