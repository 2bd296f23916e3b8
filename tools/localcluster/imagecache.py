"""Built images in the user's cache, so that another clone takes what the first one built.

The layers are hard links to those in the cluster's image store: a second name for the same bytes, no second copy.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from localcluster.errors import ClusterError

NAME_ANNOTATION = "io.containerd.image.name"
_BLOBS = Path("blobs") / "sha256"
_CONTENT_STORE = Path("io.containerd.content.v1.content") / _BLOBS


def keep(containerd_root: Path, reference: str, digest: str, folder: Path) -> bool:
    """Put the image's files under `folder`, and drop what was kept beside it before; False where links do not work."""
    store = containerd_root / _CONTENT_STORE
    manifest_file = store / _hex(digest)
    manifest = json.loads(manifest_file.read_text())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".keeping-") as scratch:
        blobs = Path(scratch) / "image" / _BLOBS
        blobs.mkdir(parents=True)
        # A set, since steps that change no file make equal layers.
        for blob in {digest, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}:
            try:
                os.link(store / _hex(blob), blobs / _hex(blob))
            except OSError as refused:
                if refused.errno not in (errno.EXDEV, errno.EPERM):
                    raise
                return False  # another disk, or one without links: a copy would cost gigabytes
        layout = layout_files(reference, manifest["mediaType"], digest, manifest_file.stat().st_size)
        for name, text in layout.items():
            (blobs.parent.parent / name).write_text(text)
        for older in folder.parent.glob("[!.]*"):
            shutil.rmtree(older)
        (Path(scratch) / "image").rename(folder)
    return True


def restore(folder: Path, import_command: Sequence[str]) -> None:
    """Send a kept image to `import_command`, which reads an OCI archive from its standard input."""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(import_command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors) as importer,
    ):
        assert importer.stdin is not None
        broken = _send(folder, importer.stdin)
        importer.wait()
        errors.seek(0)
        problem = errors.read().decode(errors="replace").strip()
    if importer.returncode != 0 or broken:
        raise ClusterError(
            f"the image kept in {folder} cannot be taken: {problem or broken}", f"Build it anew: rm -r {folder}"
        )


def _send(folder: Path, pipe: IO[bytes]) -> str:
    """What went wrong on the way; the importer's own words, which it says when it ends early, are better."""
    try:
        with pipe, tarfile.open(fileobj=pipe, mode="w|", bufsize=1 << 20) as archive:
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.add(file, arcname=str(file.relative_to(folder)))
    except BrokenPipeError as broken:
        return str(broken)
    return ""


def layout_files(reference: str, media_type: str, digest: str, size: int) -> dict[str, str]:
    """What stands beside the blobs of an OCI layout with one image, by name; `size` is of its manifest, in bytes."""
    entry = {"mediaType": media_type, "digest": digest, "size": size, "annotations": {NAME_ANNOTATION: reference}}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]})
    return {"oci-layout": '{"imageLayoutVersion": "1.0.0"}', "index.json": index}


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
