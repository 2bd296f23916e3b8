"""`make release`: build, push, describe, sign. What is made is also described in a folder, for `make release-check`."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from localcluster.buildkit import Recipe
from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.progress import Progress
from release import chart, krew, provenance, python_package, sbom
from release.images import release_builder
from release.plan import CHART_FOLDER, DEFAULT_IMAGES, ImagePlan, Part, Plan, Source, base_of, images_to_resolve
from release.record import BUNDLE, CHECKSUMS, RECORD, Artifact, Record, checksums, files, sha256
from release.references import Reference
from release.registry import Registry
from release.signing import PROVENANCE_TYPE, SBOM_TYPE, Signer
from release.tools import Tools

LOCK_FILES = ("uv.lock", "runtime/requirements-cpu.txt", "tools/scripts/requirements-build.txt")


@dataclass(frozen=True)
class Options:
    """What the caller chose. `mirror`: where base and default vLLM images are looked up in place of their registry."""

    output: Path
    state: Path
    insecure: bool = False
    mirror: str = ""
    keep_tags: bool = False
    signer: Signer | None = None


@dataclass(frozen=True)
class Maker:
    """One release under way: `root` holds the commit's files and nothing else."""

    plan: Plan
    source: Source
    root: Path
    options: Options
    tools: Tools
    progress: Progress

    def make(self) -> Record:
        """All of it; the folder of the release is complete when this returns."""
        self._fresh_folder()
        inputs = self._inputs()
        made: list[Artifact] = []
        if Part.PYTHON in self.plan.parts:
            made += self._python(inputs)
        images = self._images(inputs)
        made += [artifact for artifact, _ in images.values()]
        if Part.CHART in self.plan.parts:
            made.append(self._chart(inputs, {part: reference for part, (_, reference) in images.items()}))
        bases = {name: reference.digest for name, reference in inputs.images.items()}
        record = Record(self.plan.version, self.source.commit, self.options.signer is not None, tuple(made), bases)
        (self.output / RECORD).write_text(record.text())
        self._sign(record)
        return record

    @property
    def output(self) -> Path:
        """The folder of this release."""
        return self.options.output

    def _fresh_folder(self) -> None:
        there = {path.name for path in self.output.iterdir()} if self.output.exists() else set()
        if there and not there >= {"logs", "sbom", "provenance"}:
            raise ClusterError(f"{self.output} holds something else", "Name another folder: --output FOLDER")
        shutil.rmtree(self.output, ignore_errors=True)
        for name in ("logs", "sbom", "provenance"):
            (self.output / name).mkdir(parents=True)

    def _inputs(self) -> provenance.Inputs:
        bases: dict[str, Reference] = {}
        for name in dict.fromkeys(map(self._base, self.plan.images)):
            with self.progress.step(f"digest of the base image {name}"):
                bases[name] = self._resolved(name)
        hashes = {name: sha256(self.root / name) for name in LOCK_FILES}
        builder = provenance.builder_of(self.tools.environment)
        return provenance.Inputs(self.source, self.plan.version, hashes, bases, builder)

    def _base(self, image: ImagePlan) -> str:
        return base_of((self.root / image.dockerfile).read_text())

    def _resolved(self, name: str) -> Reference:
        place = Reference.parse(name).in_mirror(self.options.mirror)
        # Others' registries are asked with TLS, whatever is said of the one that the release goes to.
        registry = Registry(self.tools, self.options.insecure and bool(self.options.mirror))
        return place if place.digest else place.with_digest(registry.digest(place))

    def _python(self, inputs: provenance.Inputs) -> list[Artifact]:
        with self.progress.step("wheel and sdist"):
            wheel, sdist = python_package.build(self.root, self.tools, self.output, self.source.epoch)
            requirements = python_package.extras_pinned(self.root, self.tools)
            document = sbom.of_wheel(
                wheel, requirements, self.plan.version, sha256(wheel), self.tools, self.source.epoch
            )
            plugin = krew.archive(wheel, self.root / "LICENSE", self.plan.version, self.source.epoch)
            (self.output / krew.MANIFEST).write_text(krew.manifest(plugin, self.plan.version, self.source.uri))
        described = self._write("sbom/python.cdx.json", document)
        return [
            Artifact(kind, "", path.name, described, self._provenance(path.name, path.name, sha256(path), inputs))
            for kind, path in (("wheel", wheel), ("sdist", sdist), ("plugin", plugin))
        ]

    def _images(self, inputs: provenance.Inputs) -> dict[Part, tuple[Artifact, Reference]]:
        if not self.plan.images:
            return {}
        with release_builder(self.tools, self.options.state, self.output / "logs") as builder:
            pushed = {}
            for image in self.plan.images:
                reference = self.plan.reference(image)
                base = inputs.images[self._base(image)]
                recipe = Recipe(str(reference), self.root / image.dockerfile, self.root, target=image.target)
                with self.progress.step(f"image {reference}") as step:
                    digest = builder.push(recipe, base, self.source.epoch, insecure=self.options.insecure, step=step)
                pushed[image] = reference.with_digest(digest)
        return {image.part: (self._image(image, reference, inputs), reference) for image, reference in pushed.items()}

    def _image(self, image: ImagePlan, reference: Reference, inputs: provenance.Inputs) -> Artifact:
        with self.progress.step(f"SBOM of {image.name}"):
            document = sbom.of_image(
                reference, image.tag, self.tools, self.source.epoch, insecure=self.options.insecure
            )
        stated = self._provenance(image.name, reference.name, reference.digest, inputs, self._base(image))
        return Artifact("image", str(reference), "", self._write(f"sbom/{image.name}.cdx.json", document), stated)

    def _chart(self, inputs: provenance.Inputs, images: dict[Part, Reference]) -> Artifact:
        values = (self.root / CHART_FOLDER / "values.yaml").read_text()
        with self.progress.step(f"chart {self.plan.chart}"):
            digests = self._default_images(values)
            text = chart.resolved_values(
                values, images[Part.OPERATOR], images.get(Part.CPU), images.get(Part.ROUTER), digests
            )
            archive = chart.package(self.root, text, self.source.uri, self.tools, self.output, self.source.epoch)
            digest = chart.push(archive, self.plan.charts, self.tools, insecure=self.options.insecure)
            reference = self.plan.chart.with_digest(digest)
            made = yaml.safe_load(text)
            written = (*(made["services"][key] for key in DEFAULT_IMAGES), made["routing"]["image"])
            defaults = [Reference.parse(each) for each in written if each]
            named = dict.fromkeys((images[Part.OPERATOR], *defaults))
            document = sbom.of_chart(archive, named, self.plan.version, self.tools, self.source.epoch)
        stated = self._provenance("chart", reference.name, digest, inputs)
        return Artifact("chart", str(reference), archive.name, self._write("sbom/chart.cdx.json", document), stated)

    def _default_images(self, values: str) -> dict[str, str]:
        if self.options.keep_tags:
            return {}
        return {name: self._resolved(name).digest for name in images_to_resolve(yaml.safe_load(values))}

    def _provenance(self, file: str, name: str, digest: str, inputs: provenance.Inputs, base: str | None = None) -> str:
        text = provenance.statement(name, digest.removeprefix("sha256:"), inputs, base)
        return self._write(f"provenance/{file}.intoto.json", text)

    def _write(self, place: str, text: str) -> str:
        (self.output / place).write_text(text)
        return place

    def _sign(self, record: Record) -> None:
        """Everything in the registry by digest; the files by the signature of their checksums."""
        sums = self.output / CHECKSUMS
        sums.write_text(checksums(self.output, files(self.output)))
        signer = self.options.signer
        if signer is None:
            self.progress.line("not signed: no key was given")
            return
        for artifact in record.artifacts:
            if artifact.reference:
                with self.progress.step(f"signatures of {artifact.reference}"):
                    self._attest(signer, artifact)
        signer.file(sums, self.output / BUNDLE)

    def _attest(self, signer: Signer, artifact: Artifact) -> None:
        reference = Reference.parse(artifact.reference)
        signer.image(reference)
        signer.attest(reference, SBOM_TYPE, self.output / artifact.sbom)
        stated = json.loads((self.output / artifact.provenance).read_text())
        with tempfile.NamedTemporaryFile("w", suffix=".json") as predicate:
            json.dump(stated["predicate"], predicate)
            predicate.flush()
            signer.attest(reference, PROVENANCE_TYPE, Path(predicate.name))


def _git(root: Path, *words: str) -> str:
    return run("git", "-C", str(root), *words, remedy="A release is made of a commit of a clone.").strip()


def source_of(root: Path) -> Source:
    """The commit that is checked out."""
    commit, epoch = _git(root, "log", "-1", "--format=%H %ct").split()
    remotes = _git(root, "remote").splitlines()
    uri = _git(root, "remote", "get-url", remotes[0]) if remotes else ""
    return Source(commit, int(epoch), provenance.without_credentials(uri))


def unpacked(archive: Path, target: Path) -> None:
    """By tar: Python 3.11.2's own unpacking, Debian 12's, cannot refuse names that lead out of the folder."""
    target.mkdir(exist_ok=True)
    subprocess.run(("tar", "-xpf", str(archive), "-C", str(target)), check=True, capture_output=True)


@contextmanager
def checkout(root: Path, source: Source, progress: Progress) -> Iterator[Path]:
    """The commit's files in a folder of their own: what is not committed is no part of a release."""
    changed = _git(root, "status", "--porcelain")
    if changed:
        progress.line(f"{len(changed.splitlines())} files are not committed: the release is of {source.commit[:12]}")
    with tempfile.TemporaryDirectory(prefix="llmservice-release-") as folder:
        packed = Path(folder) / "source.tar"
        # Modes that no setting of git's or of the user's changes: they are part of what is built.
        _git(root, "-c", "tar.umask=0022", "archive", "--format=tar", f"--output={packed}", source.commit)
        target = Path(folder) / "source"
        unpacked(packed, target)
        packed.unlink()
        yield target


def with_key(options: Options, key: str, tools: Tools, *, logged: bool) -> Options:
    """The options with whoever signs, if anybody does."""
    return replace(options, signer=Signer(key, tools, options.insecure, logged)) if key else options
