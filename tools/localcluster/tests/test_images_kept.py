"""Images that another clone takes instead of building them."""

import errno
import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from localcluster import imagecache
from localcluster.errors import ClusterError

REFERENCE = "registry.local/x:1"


class FakeStore:
    """containerd's folder, with one image in it; two of its steps changed no file, so it names a layer twice."""

    def __init__(self, root: Path, layer: bytes = b"the layer") -> None:
        self.root = root
        self.blobs = root / "io.containerd.content.v1.content" / "blobs" / "sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self.layer = self.add(layer)
        self.empty = self.add(b"")
        self.config = self.add(b'{"os": "linux"}')
        manifest = {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"digest": self.config},
            "layers": [{"digest": self.empty}, {"digest": self.layer}, {"digest": self.empty}],
        }
        self.manifest = self.add(json.dumps(manifest).encode())

    def add(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (self.blobs / digest).write_bytes(content)
        return f"sha256:{digest}"

    def every_digest(self) -> tuple[str, ...]:
        return self.manifest, self.config, self.layer, self.empty

    def blob(self, digest: str) -> Path:
        return self.blobs / digest.removeprefix("sha256:")


@pytest.fixture
def store(tmp_path: Path) -> FakeStore:
    return FakeStore(tmp_path / "containerd")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "images" / "vllm" / "inputs1"


def test_a_kept_layer_takes_no_disk(store: FakeStore, folder: Path) -> None:
    assert imagecache.keep(store.root, REFERENCE, store.manifest, folder)
    kept = folder / "blobs" / "sha256" / store.layer.removeprefix("sha256:")
    assert kept.samefile(store.blob(store.layer))


def test_only_the_newest_image_is_kept(store: FakeStore, folder: Path) -> None:
    imagecache.keep(store.root, REFERENCE, store.manifest, folder)
    newer = FakeStore(store.root, b"another layer")
    imagecache.keep(store.root, REFERENCE, newer.manifest, folder.parent / "inputs2")
    assert [one.name for one in folder.parent.iterdir()] == ["inputs2"]


def test_a_cache_on_another_disk_keeps_nothing(store: FakeStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    assert not imagecache.keep(store.root, REFERENCE, store.manifest, folder)
    assert list(folder.parent.iterdir()) == []


def test_what_is_sent_is_an_oci_archive_of_that_name(store: FakeStore, folder: Path, tmp_path: Path) -> None:
    imagecache.keep(store.root, REFERENCE, store.manifest, folder)
    sent = tmp_path / "sent.tar"
    imagecache.restore(folder, ("sh", "-c", f"cat > {sent}"))
    with tarfile.open(sent) as archive:
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        names = set(archive.getnames())
    assert index["manifests"][0]["annotations"] == {"io.containerd.image.name": REFERENCE}
    assert index["manifests"][0]["digest"] == store.manifest
    blobs = {f"blobs/sha256/{d.removeprefix('sha256:')}" for d in store.every_digest()}
    assert names == {"oci-layout", "index.json", *blobs}


@pytest.mark.parametrize(
    ("command", "layer"),
    [
        pytest.param("cat > /dev/null; echo no space left >&2; exit 1", b"small", id="at the end"),
        pytest.param("echo no space left >&2; exit 1", bytes(8 << 20), id="in the middle"),
    ],
)
def test_an_import_that_fails_says_why_and_what_to_do(tmp_path: Path, folder: Path, command: str, layer: bytes) -> None:
    store = FakeStore(tmp_path / "containerd", layer)
    imagecache.keep(store.root, REFERENCE, store.manifest, folder)
    with pytest.raises(ClusterError, match=f"no space left\n  Build it anew: rm -r {folder}"):
        imagecache.restore(folder, ("sh", "-c", command))
