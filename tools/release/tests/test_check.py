"""What `make release-check` finds: a release as it was made has no problem, and each change of it has one."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.errors import ClusterError
from localcluster.progress import Progress
from release import provenance
from release.check import Check
from release.plan import Source
from release.record import BUNDLE, CHECKSUMS, RECORD, Artifact, Record, checksums, files, sha256
from release.references import Reference

REGISTRY = "r.example.com/llm"
OPERATOR, CHART, OTHER = (f"sha256:{letter * 64}" for letter in "abc")
COMMIT = "c" * 40
WHEEL, ARCHIVE = "x-0.1.0-py3-none-any.whl", "llmservice-operator-0.1.0.tgz"
GOOD_VALUES = {
    "image": {"repository": f"{REGISTRY}/llmservice-operator", "digest": OPERATOR},
    "routing": {"image": ""},
    "services": {"defaultGpuImage": f"vllm/vllm-openai:v0.32.0@{OTHER}", "defaultAmdImage": "", "defaultCpuImage": ""},
}
IMAGE_ARTIFACT = Artifact(
    "image",
    f"{REGISTRY}/llmservice-operator:0.1.0@{OPERATOR}",
    "",
    "sbom/image.cdx.json",
    "provenance/image.intoto.json",
)
CHART_ARTIFACT = Artifact(
    "chart",
    f"{REGISTRY}/charts/llmservice-operator:0.1.0@{CHART}",
    ARCHIVE,
    "sbom/chart.cdx.json",
    "provenance/chart.intoto.json",
)
WHEEL_ARTIFACT = Artifact("wheel", "", WHEEL, "sbom/python.cdx.json", "provenance/wheel.intoto.json")
JSON = dict[str, Any]


@dataclass
class World:
    """The files of a release, and what registry and cosign answer about it."""

    folder: Path
    tags: dict[str, str] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    signed: set[str] = field(default_factory=set)
    attested: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    signed_sums: str = ""
    archive: bytes = b""

    def digest(self, reference: Reference) -> str:
        if str(reference) not in self.tags:
            raise ClusterError("crane digest failed", "MANIFEST_UNKNOWN")
        return self.tags[str(reference)]

    def validate(self, reference: Reference) -> None:
        if reference.digest in self.corrupt:
            raise ClusterError("a blob has another hash")

    def chart(self, reference: Reference) -> bytes:
        return self.archive

    def image(self, reference: Reference) -> None:
        if reference.digest not in self.signed:
            raise ClusterError("cosign verify failed", "no signatures found")

    def predicates(self, reference: Reference, kind: str) -> list[Any]:
        return self.attested.get((reference.digest, kind), [])

    def file(self, path: Path, bundle: Path) -> None:
        if not bundle.exists() or path.read_text() != self.signed_sums:
            raise ClusterError("cosign verify-blob failed", "invalid signature")

    def check(self, *, with_key: bool = True, registry: str = REGISTRY, version: str = "0.1.0") -> str:
        progress = Progress(stream=io.StringIO())
        signatures = self if with_key else None
        return "\n".join(Check(self.folder, version, registry, self, signatures, progress).run())

    def sums(self, *, signed: bool = True) -> None:
        """Checksums of what is there now, as somebody who changed a file would write them anew."""
        text = checksums(self.folder, files(self.folder))
        (self.folder / CHECKSUMS).write_text(text)
        if signed:
            self.signed_sums = text

    def record(self, *artifacts: Artifact, signed: bool = True) -> None:
        (self.folder / RECORD).write_text(Record("0.1.0", COMMIT, signed, artifacts).text())
        self.sums()


def packed(values: JSON) -> bytes:
    content = yaml.safe_dump(values).encode()
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        member = tarfile.TarInfo("llmservice-operator/values.yaml")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def wheel(path: Path, version: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.dist-info/METADATA", f"Metadata-Version: 2.4\nName: x\nVersion: {version}\n")


def describe(world: World, artifact: Artifact, digest: str, commit: str = COMMIT) -> None:
    sbom = {"bomFormat": "CycloneDX", "components": [{"name": artifact.title}]}
    (world.folder / artifact.sbom).write_text(json.dumps(sbom))
    inputs = provenance.Inputs(Source(commit, 0, "https://git.example.com/x"), "0.1.0", {}, {}, "builder")
    text = provenance.statement(artifact.title, digest.removeprefix("sha256:"), inputs)
    (world.folder / artifact.provenance).write_text(text)
    if artifact.reference:
        world.attested[digest, "cyclonedx"] = [sbom]
        world.attested[digest, "slsaprovenance1"] = [json.loads(text)["predicate"]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    for name in ("sbom", "provenance", "logs"):
        (tmp_path / name).mkdir()
    (tmp_path / "logs" / "build.log").write_text("not part of a release")
    made = World(tmp_path, signed={OPERATOR, CHART}, archive=packed(GOOD_VALUES))
    for artifact in (IMAGE_ARTIFACT, CHART_ARTIFACT):
        reference = Reference.parse(artifact.reference)
        made.tags[f"{reference.name}:{reference.tag}"] = reference.digest
        describe(made, artifact, reference.digest)
    (tmp_path / ARCHIVE).write_bytes(made.archive)
    wheel(tmp_path / WHEEL, "0.1.0")
    describe(made, WHEEL_ARTIFACT, sha256(tmp_path / WHEEL))
    (tmp_path / BUNDLE).write_text("{}")
    made.record(IMAGE_ARTIFACT, CHART_ARTIFACT, WHEEL_ARTIFACT)
    return made


def test_a_release_as_it_was_made_has_no_problem(world: World) -> None:
    assert world.check() == ""
    world.record(IMAGE_ARTIFACT, CHART_ARTIFACT, WHEEL_ARTIFACT, signed=False)
    assert world.check(with_key=False) == "", "without signatures it is verified without a key"
    assert "says that it is not signed" in world.check()


def append(name: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        (world.folder / name).write_bytes((world.folder / name).read_bytes() + b" ")

    return change


def another_tag(reference: str) -> Callable[[World], None]:
    return lambda world: world.tags.update({reference: OTHER})


def other_values(changed: JSON) -> Callable[[World], None]:
    """Somebody else's chart, with checksums and provenance made to fit."""

    def change(world: World) -> None:
        world.archive = packed({**GOOD_VALUES, **changed})
        (world.folder / ARCHIVE).write_bytes(world.archive)
        world.sums()

    return change


def other_record(world: World) -> None:
    (world.folder / RECORD).write_text((world.folder / RECORD).read_text().replace("a" * 64, "c" * 64))
    world.sums(signed=False)


def other_sbom(world: World) -> None:
    """An SBOM that leaves a package out, with new checksums and a signature: the attestation still has the old one."""
    sbom = {"bomFormat": "CycloneDX", "components": [{"name": "harmless"}]}
    (world.folder / IMAGE_ARTIFACT.sbom).write_text(json.dumps(sbom))
    world.sums()


def other_wheel(world: World) -> None:
    wheel(world.folder / WHEEL, "0.2.0")
    world.sums()


def other_commit(world: World) -> None:
    describe(world, IMAGE_ARTIFACT, OPERATOR, "d" * 40)
    world.sums()


IMAGE_TAG, CHART_TAG = f"{REGISTRY}/llmservice-operator:0.1.0", f"{REGISTRY}/charts/llmservice-operator:0.1.0"
GPU_BY_TAG = {**GOOD_VALUES["services"], "defaultGpuImage": "vllm/vllm-openai:v0.32.0"}
OTHER_CPU = {**GOOD_VALUES["services"], "defaultCpuImage": f"{REGISTRY}/llmservice-operator:x@{OTHER}"}
TAMPERED = [
    ("the wheel", append(WHEEL), f"{WHEEL} differs from its checksum"),
    ("the chart's archive", append(ARCHIVE), f"{ARCHIVE} differs from its checksum"),
    ("an SBOM", append("sbom/image.cdx.json"), "sbom/image.cdx.json differs from its checksum"),
    ("a provenance", append("provenance/chart.intoto.json"), "chart.intoto.json differs from its checksum"),
    ("a file less", lambda w: (w.folder / WHEEL).unlink(), f"{WHEEL} is missing"),
    ("a file more", lambda w: (w.folder / "extra.whl").write_text(""), f"extra.whl is not listed in {CHECKSUMS}"),
    ("checksums made anew", lambda w: (append(WHEEL)(w), w.sums(signed=False)), f"signature of {CHECKSUMS}"),
    ("checksums of a path elsewhere", lambda w: (w.folder / CHECKSUMS).write_text("0  ../x\n"), "names no file"),
    ("the record with its checksums", other_record, f"signature of {CHECKSUMS}"),
    ("no signature of the checksums", lambda w: (w.folder / BUNDLE).unlink(), f"signature of {CHECKSUMS}"),
    ("the image's tag", another_tag(IMAGE_TAG), f"the tag names {OTHER} now"),
    ("the chart's tag", another_tag(CHART_TAG), f"the tag names {OTHER} now"),
    ("no image", lambda w: w.tags.pop(IMAGE_TAG), "MANIFEST_UNKNOWN"),
    ("a layer", lambda w: w.corrupt.add(OPERATOR), "a blob has another hash"),
    ("no signature of the image", lambda w: w.signed.discard(OPERATOR), "no signatures found"),
    ("no signature of the chart", lambda w: w.signed.discard(CHART), "no signatures found"),
    ("no SBOM attestation", lambda w: w.attested.pop((OPERATOR, "cyclonedx")), "cyclonedx attestation of"),
    ("no provenance attestation", lambda w: w.attested.pop((CHART, "slsaprovenance1")), "slsaprovenance1 attestation"),
    ("an SBOM that nobody attested", other_sbom, "no signed one says what sbom/image.cdx.json says"),
    ("another chart in the registry", lambda w: setattr(w, "archive", b"other"), "the registry's differs from"),
    ("a chart by tag", other_values({"services": GPU_BY_TAG}), "not by digest: services.defaultGpuImage"),
    (
        "a chart with another operator",
        other_values({"image": {"repository": "evil.example.com/x", "digest": OPERATOR}}),
        "image evil.example.com/x@sha256:aaa",
    ),
    ("a chart with another build", other_values({"services": OTHER_CPU}), "services.defaultCpuImage r.example.com"),
    ("another version of the wheel", other_wheel, "it is of version 0.2.0, the release of 0.1.0"),
    ("provenance of another commit", other_commit, f"it is of commit {'d' * 40}"),
    (
        "provenance of something else",
        lambda w: (shutil.copy(w.folder / CHART_ARTIFACT.provenance, w.folder / IMAGE_ARTIFACT.provenance), w.sums()),
        "it is about ['bbb",
    ),
    (
        "an empty SBOM",
        lambda w: ((w.folder / WHEEL_ARTIFACT.sbom).write_text('{"bomFormat": "CycloneDX"}'), w.sums()),
        "lists nothing",
    ),
    ("a record that is no JSON", lambda w: ((w.folder / RECORD).write_text("{"), w.sums()), "cannot be read"),
    ("a record with other keys", lambda w: ((w.folder / RECORD).write_text('{"x": 1}'), w.sums()), "cannot be read"),
    (
        "a record by tag",
        lambda w: w.record(Artifact("image", IMAGE_TAG, "", "sbom/image.cdx.json", "provenance/image.intoto.json")),
        "without a digest",
    ),
]


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in TAMPERED], ids=[row[0] for row in TAMPERED])
def test_a_changed_release_is_refused(world: World, change: Callable[[World], Any], message: str) -> None:
    change(world)
    assert message in world.check()


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"with_key": False}, "the release is signed"),
        ({"registry": "other.example.com/llm"}, "not below other.example.com/llm"),
        ({"version": "0.2.0"}, "it is of version 0.1.0, not of 0.2.0"),
    ],
)
def test_another_release_than_expected_is_refused(world: World, expected: JSON, message: str) -> None:
    assert message in world.check(**expected)


def test_all_problems_are_found_at_once(world: World) -> None:
    world.signed.clear()
    world.tags[IMAGE_TAG] = OTHER
    assert len(world.check().splitlines()) >= 3
