"""What a release consists of, after it was made: `release.json`, and the checksums of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from release.references import Reference

RECORD = "release.json"
CHECKSUMS = "SHA256SUMS"
BUNDLE = f"{CHECKSUMS}.sigstore.json"


@dataclass(frozen=True)
class Artifact:
    """One thing that users take: an image or a chart in a registry, or a file.

    `reference` (by tag and digest) is empty for files; `file` is empty for images, and the archive for a chart. `sbom`
    and `provenance` are files beside it.
    """

    kind: str
    reference: str
    file: str
    sbom: str
    provenance: str

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.reference or self.file


@dataclass(frozen=True)
class Record:
    """The content of release.json."""

    version: str
    commit: str
    signed: bool
    artifacts: tuple[Artifact, ...]
    base_images: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str) -> Record:
        """From JSON; refuses anything of another shape."""
        try:
            read: dict[str, Any] = json.loads(text)
            artifacts = tuple(Artifact(**row) for row in read.pop("artifacts"))
            record = cls(artifacts=artifacts, **read)
        except (ValueError, TypeError, KeyError) as problem:
            raise ClusterError(
                f"{RECORD} cannot be read: {problem}", "Take the release's files as they were made."
            ) from None
        for artifact in artifacts:
            if artifact.reference and not Reference.parse(artifact.reference).digest:
                raise ClusterError(f"{RECORD} names {artifact.reference} without a digest")
        return record


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def checksums(folder: Path, names: Iterable[str]) -> str:
    """As sha256sum writes and reads them."""
    return "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(names))


def files(folder: Path) -> tuple[str, ...]:
    """The names of all files of a release but the checksums and what is made of those."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(name for name in found if name not in (CHECKSUMS, BUNDLE) and not name.startswith("logs/")))


def differences(folder: Path, listed: str) -> tuple[str, ...]:
    """What in the folder is not as the checksums say, one sentence each."""
    wanted: dict[str, str] = {}
    for line in listed.splitlines():
        digest, _, name = line.partition("  ")
        path = Path(name)
        if not name or path.is_absolute() or ".." in path.parts:
            return (f"{CHECKSUMS} has a line that names no file of the release: {line!r}",)
        wanted[name] = digest
    present = set(files(folder))
    changed = [name for name in sorted(present & set(wanted)) if sha256(folder / name) != wanted[name]]
    return (
        *(f"{name} is missing" for name in sorted(set(wanted) - present)),
        *(f"{name} is not listed in {CHECKSUMS}" for name in sorted(present - set(wanted))),
        *(f"{name} differs from its checksum" for name in changed),
    )
