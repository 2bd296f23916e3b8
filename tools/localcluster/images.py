"""The images of the local cluster, built from the project's own Dockerfiles straight into the cluster's store."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster import builds
from localcluster.buildkit import Builder, Recipe, running_builder
from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.imagecache import keep, restore
from localcluster.imagecopy import ImageStore
from localcluster.install import CPU_IMAGE, OPERATOR_IMAGE, ROUTER_IMAGE, STAND_IN_IMAGE
from localcluster.paths import ClusterPaths, cache_root
from localcluster.place import ctr_command, first
from localcluster.programs import Group
from localcluster.progress import Progress
from localcluster.rootfs import base_key, base_layout
from localcluster.tinymodel.cache import model_folder

INPUTS_LABEL = "llmservice.dev/inputs"
GIGABYTE = 10**9
# Disk that the vLLM image takes, with 2 GB of air. Built: packages, layer and unpacked image, 15 GB when measured; from
# the cache: the layer's archive, dropped once it is unpacked, and the unpacked image, 10 GB.
VLLM_BUILT_NEEDS = 17 * GIGABYTE
VLLM_CACHED_NEEDS = 12 * GIGABYTE
OPERATOR_CACHE_MEGABYTES = 2000


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its name in the store, its Dockerfile, and the files below the repository that it is made of.

    `packages` are the Debian packages of its base, the same as the Dockerfile's; none: it has no base.
    """

    name: str
    reference: str
    dockerfile: str
    inputs: tuple[str, ...]
    packages: tuple[str, ...] = ()
    has_model: bool = False
    kept: bool = False
    programs: Group | None = None
    """The group of programs that it holds; their folder is what it is built from."""


PAUSE = Image("pause", "registry.local/pause:1", "tools/localcluster/pause/Dockerfile", ("tools/localcluster/pause",))
_PYTHON = ("ca-certificates", "python3", "python3-venv")
VLLM = Image(
    "vllm",
    CPU_IMAGE,
    "runtime/Dockerfile.cpu",
    ("runtime/requirements-cpu.txt", "tools/scripts/requirements-build.txt"),
    (*_PYTHON, "libgomp1", "libnuma1", "libpython3-dev", "g++"),
    has_model=True,
    kept=True,
)
OPERATOR = Image(
    "operator",
    OPERATOR_IMAGE,
    "operator/Dockerfile",
    (
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "uv.lock",
        "tools/scripts/requirements-build.txt",
        "operator/kubeloop",
        "operator/llmservice_api",
        "operator/llmservice_planner",
        "operator/llmservice_operator",
        "runtime/llmservice_runtime",
        "runtime/llmservice_vllm",
        "runtime/llmservice_fetch",
        "cli/llmservice_cli",
        "operator/llmservice_activator",
        "cli/llmservice_ui",
    ),
    _PYTHON,
)
STAND_IN = Image(
    "stand-in",
    STAND_IN_IMAGE,
    "tools/localcluster/stand-in/Dockerfile",
    ("tools/localcluster/stand-in/Dockerfile.dockerignore", "tests/support/stand_in", "tests/unit/fixtures/vllm_logs"),
    _PYTHON,
)
KEDA = Image(
    "keda",
    "registry.local/keda:dev",
    "tools/localcluster/go-keda/Dockerfile",
    ("tools/localcluster/go-keda/go.mod", "tools/localcluster/go-keda/go.sum"),
    programs=Group.KEDA,
)
LWS = Image(
    "lws",
    "registry.local/lws:dev",
    "tools/localcluster/go-lws/Dockerfile",
    ("tools/localcluster/go-lws/go.mod", "tools/localcluster/go-lws/go.sum"),
    programs=Group.LWS,
)
ENDPOINT_PICKER = Image(
    "endpoint-picker",
    "registry.local/endpoint-picker:dev",
    "tools/localcluster/go-gateway/Dockerfile",
    ("tools/localcluster/go-gateway/go.mod", "tools/localcluster/go-gateway/go.sum"),
    programs=Group.ENDPOINT_PICKER,
)
PROMETHEUS = Image(
    "prometheus",
    "registry.local/prometheus:dev",
    "tools/localcluster/go-prometheus/Dockerfile",
    ("tools/localcluster/go-prometheus/go.mod", "tools/localcluster/go-prometheus/go.sum"),
    programs=Group.PROMETHEUS,
)
PROMETHEUS_OPERATOR = Image(
    "prometheus-operator",
    "registry.local/prometheus-operator:dev",
    "tools/localcluster/go-prometheus-operator/Dockerfile",
    ("tools/localcluster/go-prometheus-operator/go.mod", "tools/localcluster/go-prometheus-operator/go.sum"),
    programs=Group.PROMETHEUS_OPERATOR,
)
ROUTER = Image(
    "router",
    ROUTER_IMAGE,
    "runtime/Dockerfile.router",
    (
        "runtime/Dockerfile.router.dockerignore",
        "runtime/requirements-router.txt",
        "tools/scripts/requirements-build.txt",
        "runtime/llmservice_router",
        "runtime/llmservice_runtime",
        "runtime/llmservice_vllm",
    ),
    _PYTHON,
)
# The small ones first: the control plane's pods wait for pause, and dropping vLLM's build cache drops all of it.
IMAGES: tuple[Image, ...] = (PAUSE, VLLM, OPERATOR, STAND_IN)
ON_REQUEST: tuple[Image, ...] = (ROUTER, KEDA, LWS, ENDPOINT_PICKER, PROMETHEUS, PROMETHEUS_OPERATOR)
"""Built only when named: few tests need them, and the programs of most take minutes to compile."""


def inputs_hash(root: Path, image: Image, more: Iterable[str] = ()) -> str:
    """Names the content of an image's inputs: equal means that a build would make the same."""
    digest = hashlib.sha256()
    for name in sorted({image.dockerfile, ".dockerignore", *image.inputs}):
        for file in _files(root / name):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(root)}\0{len(content)}\0".encode() + content)
    for word in more:
        digest.update(f"\0{word}".encode())
    return digest.hexdigest()[:32]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


@dataclass(frozen=True, slots=True)
class Store:
    """The cluster's image store."""

    paths: ClusterPaths

    @property
    def _images(self) -> ImageStore:
        return ImageStore(ctr_command(self.paths, first(self.paths)))

    def built_from(self, reference: str) -> str | None:
        """The inputs that the image in the store was built from; None where it is not there."""
        for line in self._images.ctr("images", "ls", f"name=={reference}").decode().splitlines()[1:]:
            labels = dict(pair.partition("=")[::2] for pair in line.split()[-1].split(","))
            return labels.get(INPUTS_LABEL)
        return None

    def digest(self, reference: str) -> str:
        """The digest of an image's manifest."""
        return self._images.digests()[reference]

    def take(self, folder: Path) -> None:
        """Import a kept image. Its layers can be had again, so they are dropped once they are unpacked."""
        restore(folder, (*self._images.command, "images", "import", "--local", "--discard-unpacked-layers", "-"))

    def remove_replaced(self) -> None:
        """Give back the disk of images that a newer build replaced; the kubelet's own collection is off."""
        self._images.remove_replaced()

    def record(self, reference: str, inputs: str) -> None:
        """The label lives and dies with the image, so it cannot speak of one that is gone."""
        self._images.ctr("images", "label", reference, f"{INPUTS_LABEL}={inputs}")

    def forget(self, reference: str) -> None:
        """An interrupted build must not leave the old label on a new image."""
        if self.built_from(reference):
            self.record(reference, "")


def needs_teaching() -> bool:
    """Whether the tiny model must be made first, which takes PyTorch."""
    return not model_folder().is_dir()


def build_all(
    paths: ClusterPaths,
    progress: Progress,
    environment: Mapping[str, str] = os.environ,
    only: Sequence[str] = (),
) -> tuple[str, ...]:
    """Build what is not in the store as it should be; the names of the images that were built."""
    store, cache = Store(paths), cache_root(environment, Path.home())
    with _lock(paths):
        chosen = [image for image in (*IMAGES, *ON_REQUEST) if image.name in only] if only else IMAGES
        wanted = [(image, _expected(paths.root, image)) for image in chosen]
        stale = [(image, inputs) for image, inputs in wanted if store.built_from(image.reference) != inputs]
        for image, inputs in wanted:
            if (image, inputs) not in stale:
                progress.line(f"image {image.reference} is up to date")
        store.remove_replaced()
        for image, inputs in stale:
            if image is VLLM:
                needed = VLLM_CACHED_NEEDS if _cached(image, inputs, cache).is_dir() else VLLM_BUILT_NEEDS
                check_disk(paths.state, needed, lambda path: shutil.disk_usage(path).free)
        unbuilt = [(image, inputs) for image, inputs in stale if not _taken(image, inputs, store, cache, progress)]
        if unbuilt:
            with running_builder(paths, environment) as builder:
                for image, inputs in unbuilt:
                    store.forget(image.reference)
                    _build(image, builder, cache, progress)
                    store.record(image.reference, inputs)
                    _keep(image, inputs, store, cache, progress)
                    builder.prune(0 if image.kept else OPERATOR_CACHE_MEGABYTES)
        store.remove_replaced()
    return tuple(image.name for image, _ in stale)


def _taken(image: Image, inputs: str, store: Store, cache: Path, progress: Progress) -> bool:
    """Whether another clone built it before, and it came from there."""
    folder = _cached(image, inputs, cache)
    if not image.kept or not folder.is_dir():
        return False
    with progress.step(f"image {image.reference} from the cache"):
        store.forget(image.reference)
        store.take(folder)
        store.record(image.reference, inputs)
    return True


def _cached(image: Image, inputs: str, cache: Path) -> Path:
    return cache / "images" / image.name / inputs


def _keep(image: Image, inputs: str, store: Store, cache: Path, progress: Progress) -> None:
    if not image.kept:
        return
    folder = _cached(image, inputs, cache)
    if not keep(first(store.paths).containerd_root, image.reference, store.digest(image.reference), folder):
        progress.line(f"{image.reference} is not kept for other clones: {cache} is on another file system")


def check_disk(path: Path, needed: int, free: Callable[[Path], int]) -> None:
    """Fail early: a full disk in the middle of a build leaves a cluster that evicts its pods."""
    left = free(path)
    if left < needed:
        raise ClusterError(
            f"{left / GIGABYTE:.0f} GB are free at {path}, and the vLLM image takes {needed / GIGABYTE:.0f} GB",
            "Free some space; `python -m localcluster down --purge` of other clones gives theirs back.",
        )


def _expected(root: Path, image: Image) -> str:
    more = [base_key(image.packages)] if image.packages else []
    more += [model_folder().name] if image.has_model else []
    more += [builds.Store(root).folder(image.programs).name] if image.programs else []
    return inputs_hash(root, image, more)


def _build(image: Image, builder: Builder, cache: Path, progress: Progress) -> None:
    root = builder.paths.root
    log = builder.paths.logs / f"image-{image.name}.log"
    with tempfile.TemporaryDirectory(prefix="llmservice-image-") as scratch, ThreadPoolExecutor(1) as beside:
        taught = beside.submit(_taught_model, progress) if image.has_model else None
        base = base_layout(cache, image.packages, progress) if image.packages else None
        context = _context(image, root, Path(scratch), cache, builder.environment, progress)
        recipe = Recipe(image.reference, root / image.dockerfile, context, base=base)
        with progress.step(f"image {image.reference}") as step:
            if taught is not None:
                _build_engine(builder, recipe, log, step.title, progress)
                recipe = Recipe(image.reference, root / image.dockerfile, context, {"models": taught.result()}, base)
            builder.build(recipe, log, step)


def _build_engine(builder: Builder, recipe: Recipe, log: Path, title: str, progress: Progress) -> None:
    """All but the model's layer: it downloads while the model is taught."""
    engine = Recipe(recipe.reference, recipe.dockerfile, recipe.context, base=recipe.base, target="engine")
    with progress.step(f"{title}, packages") as step:
        builder.build(engine, log.with_suffix(".engine.log"), step, keep=False)


def _taught_model(progress: Progress) -> Path:
    """Taught in a process of its own: PyTorch's memory is given back when it ends."""
    if needs_teaching():
        with progress.step("teaching the tiny model") as step, tempfile.TemporaryDirectory() as scratch:
            command = (sys.executable, "-m", "localcluster.tinymodel", f"{scratch}/model")
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
                assert child.stderr is not None
                lines = []
                for line in child.stderr:
                    lines.append(line.strip())
                    step.detail = line.strip()
        if child.returncode != 0:
            raise ClusterError("the tiny model was not taught", "\n    ".join(lines[-8:]))
    return model_folder()


def _context(
    image: Image, root: Path, scratch: Path, cache: Path, environment: Mapping[str, str], progress: Progress
) -> Path:
    """The folder that an image's Dockerfile copies from."""
    if image.programs:
        return builds.build(builds.Store(cache), image.programs, environment, progress)
    return _pause_context(root, scratch) if image is PAUSE else root


def _pause_context(root: Path, scratch: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ClusterError("a C compiler is missing", "Install one (Debian: apt-get install gcc libc6-dev).")
    source = root / "tools" / "localcluster" / "pause" / "pause.c"
    words = ("-static", "-Os", "-s", "-o", str(scratch / "pause"), str(source))
    run(compiler, *words, failure="the pause program does not compile")
    return scratch


@contextmanager
def _lock(paths: ClusterPaths) -> Iterator[None]:
    """One build at a time for each clone: the second waits, and then finds the first one's images."""
    paths.state.mkdir(parents=True, exist_ok=True)
    with (paths.state / "images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    """`python -m localcluster images`."""
    parser = argparse.ArgumentParser(
        prog="python -m localcluster images",
        description="Build the images into the cluster's store; what is there and unchanged is left alone.",
        epilog="example: python -m localcluster images --only operator",
    )
    names = [image.name for image in (*IMAGES, *ON_REQUEST)]
    parser.add_argument("--only", action="append", choices=names, default=[], help="this image; may be repeated")
    build_all(paths, progress, environment, parser.parse_args(argv).only)
    return 0
