"""An image from one containerd of this machine in another's store, without a second copy of its files.

Each layer is made anew in the target's snapshotter and filled with hard links to the source's files. Nobody writes to a
committed layer, so two stores may hold the same bytes; either may drop its names when it likes. The layers' archives
are not copied: an image that is unpacked does not need them.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from localcluster.imagecache import layout_files


@dataclass(frozen=True)
class ImageStore:
    """A containerd: `command` is how to call ctr for it."""

    command: tuple[str, ...]

    def ctr(self, *words: str, stdin: bytes | None = None) -> bytes:
        done = subprocess.run((*self.command, *words), input=stdin, capture_output=True, check=False)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            remedy = "Is its containerd running? python -m localcluster up --only containerd"
            raise ClusterError(f"ctr {' '.join(words[:3])} failed: {said}", remedy)
        return done.stdout

    def digests(self) -> dict[str, str]:
        """Each image's name and the digest of its manifest."""
        rows = [line.split() for line in self.ctr("images", "ls").decode().splitlines()[1:]]
        return {row[0]: row[2] for row in rows}

    def remove_replaced(self) -> int:
        """Remove the images that lost their name to a newer build, and return how many.

        containerd's CRI plugin lists each image by the digest of its configuration too, and that entry would keep
        the layers. Containers that run from such an image keep their own layers.
        """
        digests = self.digests()
        named = {digest for name, digest in digests.items() if not name.startswith("sha256:")}
        replaced = [name for name, digest in digests.items() if digest not in named]
        if replaced:
            self.ctr("images", "rm", "--sync", *replaced)
        return len(replaced)

    def snapshots(self) -> frozenset[str]:
        return frozenset(line.split()[0] for line in self.ctr("snapshots", "ls").decode().splitlines()[1:])

    def content(self, digest: str) -> bytes:
        return self.ctr("content", "get", digest)

    def layers(self, chain: str) -> tuple[Path, ...]:
        """The folders of a committed snapshot and of those below it, the lowest first."""
        key = f"looked-at-{chain}"
        if key in self.snapshots():
            self.ctr("snapshots", "rm", key)  # from an interrupted look
        # Not `view`: ctr marks only what it prepares as not to be collected as garbage.
        self.ctr("snapshots", "prepare", key, chain)
        try:
            return lower_folders(self.ctr("snapshots", "mounts", "/mnt", key).decode())
        finally:
            self.ctr("snapshots", "rm", key)

    def add_layer(self, chain: str, parent: str, source: Path) -> None:
        key = f"linked-{chain}"
        if key in self.snapshots():
            self.ctr("snapshots", "rm", key)  # from an interrupted copy
        self.ctr("snapshots", "prepare", key, parent)
        target = upper_folder(self.ctr("snapshots", "mounts", "/mnt", key).decode())
        subprocess.run(("cp", "-al", f"{source}/.", f"{target}/"), check=True, capture_output=True)
        self.ctr("snapshots", "commit", chain, key)


def chains(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """The names that containerd gives to the unpacked layers, the lowest first (the image format's chain ids)."""
    found: list[str] = []
    for diff in diff_ids:
        both = f"{found[-1]} {diff}" if found else ""
        found.append(f"sha256:{hashlib.sha256(both.encode()).hexdigest()}" if found else diff)
    return tuple(found)


def lower_folders(mount: str) -> tuple[Path, ...]:
    """The layers in the mount command that `ctr snapshots mounts` prints for what lies on them, the lowest first."""
    overlay = re.search(r"lowerdir=([^,\s]+)", mount)
    if overlay is not None:
        return tuple(Path(folder) for folder in reversed(overlay.group(1).split(":")))
    return (_bound(mount),)


def upper_folder(mount: str) -> Path:
    """Where what is written into an active snapshot goes."""
    overlay = re.search(r"upperdir=([^,\s]+)", mount)
    return Path(overlay.group(1)) if overlay is not None else _bound(mount)


def _bound(mount: str) -> Path:
    """A single layer needs no overlay: its folder itself is mounted."""
    found = re.search(r"mount -t bind (\S+)", mount)
    if found is None:
        raise ClusterError(f"this mount command of containerd is not understood: {mount.strip()}")
    return Path(found.group(1))


def archive(reference: str, digest: str, manifest: bytes, config: bytes) -> bytes:
    """An OCI archive of an image without its layers."""
    described: dict[str, Any] = json.loads(manifest)
    layout = layout_files(reference, described["mediaType"], digest, len(manifest))
    files = {
        **{name: text.encode() for name, text in layout.items()},
        _blob(digest): manifest,
        _blob(described["config"]["digest"]): config,
    }
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def copy(source: ImageStore, target: ImageStore, reference: str, digest: str) -> None:
    """Makes the source's image the target's; layers that the target has already are left alone."""
    manifest = source.content(digest)
    config = source.content(json.loads(manifest)["config"]["digest"])
    names = chains(json.loads(config)["rootfs"]["diff_ids"])
    present = target.snapshots()
    folders = source.layers(names[-1])
    for (parent, chain), folder in zip(pairwise(("", *names)), folders, strict=True):
        if chain not in present:
            target.add_layer(chain, parent, folder)
    target.ctr("images", "import", "--local", "--no-unpack", "-", stdin=archive(reference, digest, manifest, config))
