"""A folder as an OCI image in the cluster's store: no registry of images is needed for one."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

from localcluster.paths import ClusterPaths
from localcluster.place import ctr_command, first

_TYPES = "application/vnd.oci.image"


def import_folder(paths: ClusterPaths, reference: str, folder: Path, place: str) -> None:
    """Make `reference` an image of one layer, which holds the folder's files below `place`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(folder, arcname=place, filter=_readable)
    blobs = {_digest(layer.getvalue()): layer.getvalue()}

    def stored(kind: str, content: bytes) -> dict[str, object]:
        blobs[_digest(content)] = content
        return {"mediaType": f"{_TYPES}.{kind}", "digest": f"sha256:{_digest(content)}", "size": len(content)}

    diff = f"sha256:{_digest(layer.getvalue())}"
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff]}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPES}.manifest.v1+json",
        "config": stored("config.v1+json", json.dumps(config).encode()),
        "layers": [stored("layer.v1.tar", layer.getvalue())],
    }
    named = stored("manifest.v1+json", json.dumps(manifest).encode())
    named["annotations"] = {"io.containerd.image.name": reference}
    index = {"schemaVersion": 2, "mediaType": f"{_TYPES}.index.v1+json", "manifests": [named]}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", content)
    subprocess.run(
        [*ctr_command(paths, first(paths)), "images", "import", "--local", "-"], input=archive.getvalue(), check=True
    )


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
