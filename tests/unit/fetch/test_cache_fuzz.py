"""Whatever a cache holds, reading, linking and pruning end with an answer, and touch nothing outside of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from llmservice_fetch import command, prune, uses
from llmservice_fetch.files import Digest, Listing, RemoteFile, is_file_path, is_plain
from llmservice_fetch.store import Store
from llmservice_fetch.uses import Use
from llmservice_runtime.bounded_json import Refused

from tests.unit.hostile import texts

REVISION = "a" * 40
FILES = (
    RemoteFile("config.json", 3, "b" * 40, Digest("git-sha1", "b" * 40)),
    RemoteFile("deep/er/model.safetensors", 5, "c" * 64, Digest("sha256", "c" * 64), version='"tag-2"'),
)
LISTING = Listing(REVISION, FILES)

NAMES = st.sampled_from([
    "..", ".", "", "/", "/etc/passwd", "../../../../outside/x", "a/../b", "a//b", "a\\b", "\0", "x\n", "x" * 300,
    "\ud800", ".git/config", "config.json", "config.json/x", "\u202e", "blobs", "a" * 40, "a.incomplete", "-x", "~",
])  # fmt: skip
LISTINGS = texts(json.loads(LISTING.to_json())) | st.builds(
    lambda path, blob: json.dumps({"revision": REVISION, "files": [{"path": path, "size": 1, "blob": blob}]}),
    NAMES,
    NAMES,
)


@given(LISTINGS)
def test_a_listing_is_sound_or_refused(text: str) -> None:
    try:
        listing = Listing.from_json(text)
    except Refused:
        return
    assert is_plain(listing.revision)
    for file in listing.files:
        assert is_file_path(file.path)
        assert is_plain(file.blob)
        assert os.path.normpath(f"/snapshot/{file.path}") == f"/snapshot/{file.path}"
        assert os.path.normpath(f"/blobs/{file.blob}") == f"/blobs/{file.blob}"
        assert 0 <= file.size < 1 << 51
    assert Listing.from_json(listing.to_json()) == listing


PLACES = st.sampled_from([
    "hub", "hub/m", "hub/m/blobs", "hub/m/snapshots", "hub/m/refs", "hub/m/.llmservice", "hub/m/.llmservice/used",
    f"hub/m/snapshots/{REVISION}", f"hub/m/snapshots/{REVISION}/deep", f"hub/m/snapshots/{REVISION}/deep/er",
    f"hub/m/snapshots/{REVISION}/config.json", f"hub/m/blobs/{'b' * 40}", f"hub/m/blobs/{'c' * 64}",
    f"hub/m/blobs/{'c' * 64}.incomplete", f"hub/m/blobs/{'d' * 40}.incomplete", "hub/m/refs/main", "hub/m/refs/other",
    f"hub/m/.llmservice/{REVISION}.json", f"hub/m/.llmservice/{REVISION}.pruned", f"hub/m/.llmservice/{'e' * 40}.json",
    "hub/m/.llmservice/lock", "hub/m/.llmservice/prune-lock", "hub/m/.llmservice/progress",
    "hub/m/.llmservice/used/since", "hub/m/.llmservice/used/pod-x", "other", "other/m/.llmservice",
])  # fmt: skip
LINKS = {"link to outside": "", "link to a file outside": "kept", "link to a new file": "new"}
KINDS = st.sampled_from(["file", "folder", "pipe", *LINKS, "link to itself", "gone"])


def _plant(cache: Path, outside: Path, place: str, kind: str, text: str) -> None:
    """Replace something in the cache; where a parent is in the way, nothing."""
    path = cache / place
    # Not through a link that was planted before.
    if os.path.realpath(path.parent) != str(path.parent):
        return
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    if kind == "gone":
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text(text, errors="replace")
        elif kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link to itself":
            path.symlink_to(path.name)
        else:
            path.symlink_to(outside / LINKS[kind])


def _everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")
    }


def _used(store: Store) -> None:
    """All that a start does with a cache, and a pod that lives."""
    store.prepare()
    store.remember(_Origin(), LISTING)  # type: ignore[arg-type]
    listing = store.recall("main", None) or LISTING
    uses.record(store, Use("model", "main", listing.revision, "x", "pod"), lambda _: None)
    store.bytes_of(FILES[1])
    for file in store.missing(listing.files):
        with store.append(file) as target:
            target.write(b"x")
        store.keep(file)
    store.link(listing.revision, listing.files)
    store.leave_progress("{}")
    store.progress()
    os.close(store.open_lock())


class _Origin:
    uri, asked = "hf://m", "main"


@given(
    st.lists(st.tuples(PLACES, KINDS, LISTINGS | NAMES | st.just(LISTING.to_json())), min_size=1, max_size=4),
    st.booleans(),
)
def test_nothing_outside_of_a_planted_cache_is_touched(planted: list[tuple[str, str, str]], is_first: bool) -> None:
    with tempfile.TemporaryDirectory(dir=_memory()) as name:
        folder = Path(name).resolve()
        cache, outside, links = folder / "cache", folder / "outside", folder / "pod" / "links"
        (outside / "m" / ".llmservice").mkdir(parents=True)
        (outside / "kept").write_text("mine")
        store = Store(cache, "hub/m")
        if not is_first:
            cache.mkdir()
            _used(store)
        for place, kind, text in planted:
            _plant(cache, outside, place, kind, text)
        before = _everything(outside)
        with contextlib.suppress(OSError):
            _used(store)
        known = store.recall("main", None)
        if known is not None:
            command.fill_pod_folder(links, "model", known.revision, store, known.files)
        uses.renew(cache, "pod")
        for now in (None, 1e12):
            prune.prune(cache, 1, lambda _: None, now)
        assert _everything(outside) == before
        assert {path.name for path in folder.iterdir()} <= {"cache", "outside", "pod"}
        assert all(path.is_relative_to(links.parent) for path in (folder / "pod").rglob("*"))


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
