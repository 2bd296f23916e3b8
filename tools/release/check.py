"""`make release-check`: every claim of a release, compared with its files and the registry. Lists all problems."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from localcluster.errors import ClusterError
from localcluster.progress import Progress
from release.plan import DEFAULT_IMAGES, by_tag_only
from release.python_package import wheel_version
from release.record import BUNDLE, CHECKSUMS, RECORD, Artifact, Record, differences, sha256
from release.references import Reference
from release.signing import PROVENANCE_TYPE, SBOM_TYPE

JSON = dict[str, Any]


class Images(Protocol):
    """What a registry is asked."""

    def digest(self, reference: Reference) -> str: ...

    def validate(self, reference: Reference) -> None: ...

    def chart(self, reference: Reference) -> bytes: ...


class Signatures(Protocol):
    """What cosign is asked."""

    def image(self, reference: Reference) -> None: ...

    def predicates(self, reference: Reference, kind: str) -> list[Any]: ...

    def file(self, path: Path, bundle: Path) -> None: ...


@dataclass
class Check:
    """One verification. `signatures` is None where nobody's signatures were asked for."""

    folder: Path
    version: str
    registry: str
    images: Images
    signatures: Signatures | None
    progress: Progress
    problems: list[str] = field(default_factory=list)

    def run(self) -> tuple[str, ...]:
        """Everything that is wrong, one sentence each; none: the release is what it says it is."""
        record = self._record()
        if record is None:
            return tuple(self.problems)
        for artifact in record.artifacts:
            if artifact.kind == "wheel":
                self._wheel(artifact, record)
            if artifact.reference:
                self._in_registry(artifact)
            if artifact.kind == "chart":
                self._chart(artifact, record)
            self._described(artifact, record)
        return tuple(self.problems)

    @contextmanager
    def _checking(self, what: str) -> Iterator[None]:
        """What raises in the block is one of the problems."""
        try:
            yield
        except (ClusterError, OSError, ValueError, KeyError, TypeError, tarfile.TarError, yaml.YAMLError) as problem:
            self.problems.append(f"{what}: {problem}")
            self.progress.line(f"FAILED {what}")
        else:
            self.progress.line(f"ok     {what}")

    def _require(self, what: str, found: Callable[[], str]) -> None:
        """`found` says what is wrong; an empty text: nothing."""
        with self._checking(what):
            problem = found()
            if problem:
                raise ClusterError(problem)

    def _record(self) -> Record | None:
        """The record, once its checksums and their signature hold: nothing else may be believed."""
        before = len(self.problems)
        if self.signatures is not None:
            with self._checking(f"signature of {CHECKSUMS}"):
                self.signatures.file(self.folder / CHECKSUMS, self.folder / BUNDLE)
        self._require(
            "checksums of the files", lambda: "; ".join(differences(self.folder, (self.folder / CHECKSUMS).read_text()))
        )
        record = None
        with self._checking(RECORD):
            record = Record.parse((self.folder / RECORD).read_text())
            if record.version != self.version:
                raise ClusterError(f"it is of version {record.version}, not of {self.version}")
            if record.signed and self.signatures is None:
                raise ClusterError("the release is signed", "Verify with its key: KEY=cosign.pub")
            if not record.signed and self.signatures is not None:
                raise ClusterError("the release says that it is not signed", "Verify without KEY, or make it with KEY.")
        return record if len(self.problems) == before else None

    def _wheel(self, artifact: Artifact, record: Record) -> None:
        def found() -> str:
            version = wheel_version(self.folder / artifact.file)
            return "" if version == record.version else f"it is of version {version}, the release of {record.version}"

        self._require(f"wheel {artifact.file}", found)

    def _in_registry(self, artifact: Artifact) -> None:
        stated = Reference.parse(artifact.reference)
        if not stated.name.startswith(f"{self.registry}/"):
            self.problems.append(f"{stated.name} is not below {self.registry}: name the registry of the release")
            return

        def found() -> str:
            present = self.images.digest(Reference(stated.registry, stated.repository, stated.tag))
            return "" if present == stated.digest else f"the tag names {present} now"

        self._require(f"tag of {artifact.reference}", found)
        with self._checking(f"content of {stated.pinned}"):
            self.images.validate(stated)
        if self.signatures is not None:
            self._signed(self.signatures, artifact, stated)

    def _signed(self, signatures: Signatures, artifact: Artifact, stated: Reference) -> None:
        with self._checking(f"signature of {stated.pinned}"):
            signatures.image(stated)
        for kind, file in ((SBOM_TYPE, artifact.sbom), (PROVENANCE_TYPE, artifact.provenance)):
            with self._checking(f"{kind} attestation of {stated.pinned}"):
                document = json.loads((self.folder / file).read_text())
                wanted = document["predicate"] if kind == PROVENANCE_TYPE else document
                if wanted not in signatures.predicates(stated, kind):
                    raise ClusterError(f"no signed one says what {file} says")

    def _chart(self, artifact: Artifact, record: Record) -> None:
        stated = Reference.parse(artifact.reference)

        def same() -> str:
            pulled = hashlib.sha256(self.images.chart(stated)).hexdigest()
            return (
                "" if pulled == sha256(self.folder / artifact.file) else f"the registry's differs from {artifact.file}"
            )

        self._require(f"archive of {stated.pinned}", same)
        self._require(f"images of {artifact.file}", lambda: _images_of(self.folder / artifact.file, record))

    def _described(self, artifact: Artifact, record: Record) -> None:
        """SBOM and provenance are there, and the provenance is about this artifact and this commit."""
        digest = Reference.parse(artifact.reference).digest if artifact.reference else ""

        def found() -> str:
            statement = json.loads((self.folder / artifact.provenance).read_text())
            wanted = digest.removeprefix("sha256:") or sha256(self.folder / artifact.file)
            subjects = [subject["digest"]["sha256"] for subject in statement["subject"]]
            commit = statement["predicate"]["buildDefinition"]["externalParameters"]["commit"]
            if subjects != [wanted]:
                return f"it is about {subjects}, not about {wanted}"
            return "" if commit == record.commit else f"it is of commit {commit}, the release of {record.commit}"

        self._require(f"provenance of {artifact.title}", found)

        def complete() -> str:
            document = json.loads((self.folder / artifact.sbom).read_text())
            if document.get("bomFormat") != "CycloneDX":
                return f"{artifact.sbom} is not CycloneDX"
            return "" if document.get("components") else f"{artifact.sbom} lists nothing"

        self._require(f"SBOM of {artifact.title}", complete)


def chart_values(archive: Path) -> JSON:
    """The values.yaml of a packaged chart."""
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        names = [name for name in tar.getnames() if name.count("/") == 1 and name.endswith("/values.yaml")]
        member = tar.extractfile(names[0]) if names else None
        if member is None:
            raise ClusterError(f"{archive.name} has no values.yaml")
        values: JSON = yaml.safe_load(member.read())
        return values


def _images_of(archive: Path, record: Record) -> str:
    """What is wrong with the images that the chart installs; the release's own are those of its record."""
    values = chart_values(archive)
    loose = by_tag_only(values)
    if loose:
        return f"not by digest: {', '.join(loose)}"
    own = {
        row.digest: row.name for row in (Reference.parse(a.reference) for a in record.artifacts if a.kind == "image")
    }
    operator = values["image"]
    if own.get(operator["digest"]) != operator["repository"]:
        return f"image {operator['repository']}@{operator['digest']} is not one of the release"
    written = {f"services.{key}": values["services"][key] for key in DEFAULT_IMAGES}
    for key, text in (written | {"routing.image": values["routing"]["image"]}).items():
        image = Reference.parse(text) if text else None
        if image is not None and image.name in own.values() and image.digest not in own:
            return f"{key} {image} is not one of the release"
    return ""
