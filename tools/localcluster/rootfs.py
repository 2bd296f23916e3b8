"""A Debian base image without a registry of images: debootstrap, as an OCI layout in the user's cache.

It stands in for `debian:bookworm-slim` where a Dockerfile of this project is built here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.progress import Progress

SUITE = "bookworm"
# What debian:bookworm-slim leaves out too, and what differs from run to run.
UNWANTED = (
    "usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/cache/debconf",
    "var/cache/ldconfig", "var/lib/apt/lists", "var/log",
)  # fmt: skip
KEPT_EMPTY = ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log")
EPOCH = 1577836800  # any fixed time: the same files then make the same digest


@dataclass(frozen=True, slots=True)
class OciLayout:
    """An image in a folder, named by its manifest's digest."""

    folder: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Blob:
    """One content-addressed file of a layout."""

    media_type: str
    digest: str
    size: int

    def descriptor(self) -> dict[str, object]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def base_key(packages: Sequence[str]) -> str:
    """Names the base image with these Debian packages: what it is made of, and this file."""
    recipe = json.dumps([SUITE, packages, UNWANTED]).encode() + Path(__file__).read_bytes()
    return hashlib.sha256(recipe).hexdigest()[:16]


def base_layout(cache: Path, packages: Sequence[str], progress: Progress) -> OciLayout:
    """The base image with these Debian packages; made now if it was not before."""
    folder = cache / "base" / base_key(packages)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            progress.step(f"Debian {SUITE} base with {packages[-1]} (debootstrap)"),
            tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch,
        ):
            _make(Path(scratch), packages, folder)
    index = json.loads((folder / "index.json").read_text())
    return OciLayout(folder, index["manifests"][0]["digest"])


def debian_mirror(sources: Iterable[str]) -> str | None:
    """The Debian archive that this machine installs `SUITE` from; None leaves the choice to debootstrap."""
    for text in sources:
        for uri, suites in [*_deb822(text), *_one_line(text)]:
            if SUITE in suites:
                return uri
    return None


def _deb822(text: str) -> Iterator[tuple[str, list[str]]]:
    for stanza in text.split("\n\n"):
        rows = (line.partition(":") for line in stanza.splitlines() if not line.startswith("#"))
        fields = {name.strip().lower(): value.split() for name, _, value in rows}
        if "deb" in fields.get("types", []) and "main" in fields.get("components", []) and fields.get("uris"):
            yield fields["uris"][0], fields.get("suites", [])


def _one_line(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        words = [word for word in line.split() if not word.startswith("[") and not word.endswith("]")]
        if len(words) >= 4 and words[0] == "deb" and "main" in words[3:]:
            yield words[1], [words[2]]


def apt_sources(etc: Path = Path("/etc/apt")) -> tuple[str, ...]:
    """The text of every file that apt takes its archives from."""
    files = [
        etc / "sources.list",
        *sorted(etc.glob("sources.list.d/*.sources")),
        *sorted(etc.glob("sources.list.d/*.list")),
    ]
    return tuple(file.read_text() for file in files if file.is_file())


def _make(scratch: Path, packages: Sequence[str], folder: Path) -> None:
    root, layout = scratch / "root", scratch / "layout"
    _debootstrap(root, packages)
    for path in UNWANTED:
        shutil.rmtree(root / path, ignore_errors=True)
    for path in KEPT_EMPTY:
        (root / path).mkdir(parents=True, exist_ok=True)
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = _pack(root, scratch / "layer.tar", blobs)
    config = _write(blobs, "application/vnd.oci.image.config.v1+json", {
        "architecture": _architecture(), "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["bash"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    })  # fmt: skip
    manifest = _write(blobs, "application/vnd.oci.image.manifest.v1+json", {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor(), "layers": [layer.descriptor()],
    })  # fmt: skip
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest.descriptor()]}))
    try:
        layout.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another clone made the same one first
            raise


def _debootstrap(root: Path, packages: Sequence[str]) -> None:
    program = shutil.which("debootstrap", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if program is None:
        raise ClusterError("debootstrap is missing", "Install it (Debian: apt-get install debootstrap).")
    mirror = debian_mirror(apt_sources())
    command = [program, "--variant=minbase", f"--include={','.join(packages)}", SUITE, str(root)]
    done = subprocess.run([*command, mirror] if mirror else command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n    ".join((done.stdout + done.stderr).splitlines()[-6:])
        raise ClusterError("debootstrap failed", f"its last lines:\n    {tail}")


def _pack(root: Path, tar: Path, blobs: Path) -> Blob:
    subprocess.run(
        ("tar", "--create", "--file", str(tar), "--directory", str(root), "--sort=name", "--numeric-owner",
         f"--mtime=@{EPOCH}", "--exclude=./dev/*", "."),
        check=True,
    )  # fmt: skip
    with tar.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    size = tar.stat().st_size
    tar.rename(blobs / digest)
    return Blob("application/vnd.oci.image.layer.v1.tar", f"sha256:{digest}", size)


def _write(blobs: Path, media_type: str, value: object) -> Blob:
    content = json.dumps(value).encode()
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return Blob(media_type, f"sha256:{digest}", len(content))


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
