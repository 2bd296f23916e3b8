"""BuildKit for the time of the builds: its worker is the cluster's containerd, so an image needs no copy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.commands import run, run_logged
from localcluster.paths import ClusterPaths
from localcluster.place import first
from localcluster.processes import Component, start, stop, succeeds, wait_until
from localcluster.progress import Step
from localcluster.rootfs import OciLayout

DAEMON = "buildkitd"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_STEP = re.compile(r"#\d+ (\[[^]]*\] .*|exporting layers|unpacking to \S+)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image to build: a Dockerfile, the folder that it copies from, and other folders that it knows by name."""

    reference: str
    dockerfile: Path
    context: Path
    folders: Mapping[str, Path] = field(default_factory=dict)
    base: OciLayout | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Builder:
    """A running buildkitd."""

    paths: ClusterPaths
    environment: Mapping[str, str]

    def build(self, recipe: Recipe, log: Path, step: Step, *, keep: bool = True) -> None:
        """Build into the cluster's image store; with `keep` off, only into the build cache."""
        output = f"type=image,name={recipe.reference},unpack=true,compression=uncompressed"
        words = build_words(recipe, secrets(self.environment), proxies(self.environment))
        run_logged(
            (*self._buildctl, *words, *(("--output", output) if keep else ())),
            log,
            step,
            what_it_does,
            failure=f"building {recipe.reference} failed",
            environment=self.environment,
        )

    def prune(self, keep_megabytes: int) -> None:
        """Drop build caches; what an image in the store is made of stays."""
        words = ("prune", "--all", "--keep-storage", str(keep_megabytes))
        run(*self._buildctl, *words, failure="buildctl prune failed", environment=self.environment)

    def answers(self) -> bool:
        """Whether it takes builds."""
        return succeeds((*self._buildctl, "debug", "workers"))

    @property
    def _buildctl(self) -> tuple[str, ...]:
        return str(self.paths.bin / "buildctl"), "--addr", f"unix://{self.paths.buildkit_socket}"


@contextmanager
def running_builder(paths: ClusterPaths, environment: Mapping[str, str]) -> Iterator[Builder]:
    """A builder that ends with the block. Its cache stays beside the image store that it belongs to."""
    inside = {**environment, "PATH": f"{paths.bin}{os.pathsep}{environment.get('PATH', os.defpath)}"}
    paths.buildkit.mkdir(parents=True, exist_ok=True)
    paths.runtime.mkdir(parents=True, exist_ok=True)
    start(paths, Component(DAEMON, daemon_command(paths)), inside)
    try:
        builder = Builder(paths, inside)
        wait_until("BuildKit answers", builder.answers, paths, DAEMON, timeout=60)
        yield builder
    finally:
        stop(paths, DAEMON, grace=30)


def daemon_command(paths: ClusterPaths) -> tuple[str, ...]:
    """Build steps share the host's network: the pods' own may not be there yet when the images are built."""
    return (
        str(paths.bin / "buildkitd"),
        "--root", str(paths.buildkit),
        "--addr", f"unix://{paths.buildkit_socket}",
        "--oci-worker=false",
        "--containerd-worker=true",
        "--containerd-worker-addr", str(first(paths).containerd_socket),
        "--containerd-worker-namespace", paths.containerd_namespace,
        "--containerd-worker-net", "host",
        "--containerd-worker-gc=false",
        "--allow-insecure-entitlement", "network.host",
    )  # fmt: skip


def what_it_does(line: str) -> str | None:
    """The build step that a line of BuildKit's plain progress begins; None for a step's own output."""
    found = _STEP.match(line)
    return re.sub(r"--mount=\S+\s+", "", found[1])[:90] if found else None


def build_words(recipe: Recipe, files: Mapping[str, Path], arguments: Mapping[str, str]) -> tuple[str, ...]:
    """The command line of `buildctl` for one recipe, output aside."""
    words = [
        "build", "--progress", "plain", "--frontend", "dockerfile.v0",
        "--local", f"context={recipe.context}", "--local", f"dockerfile={recipe.dockerfile.parent}",
        "--opt", f"filename={recipe.dockerfile.name}",
        "--opt", "force-network-mode=host", "--allow", "network.host",
    ]  # fmt: skip
    if recipe.target:
        words += ["--opt", f"target={recipe.target}"]
    if recipe.base:
        words += ["--oci-layout", f"base={recipe.base.folder}"]
        words += ["--opt", f"context:debian:bookworm-slim=oci-layout://base@{recipe.base.digest}"]
    for name, folder in sorted(recipe.folders.items()):
        words += ["--local", f"{name}={folder}", "--opt", f"context:{name}=local:{name}"]
    for name, file in sorted(files.items()):
        words += ["--secret", f"id={name},src={file}"]
    for name, value in sorted(arguments.items()):
        words += ["--opt", f"build-arg:{name}={value}"]
    return tuple(words)


def secrets(environment: Mapping[str, str]) -> dict[str, Path]:
    """Files that downloads inside a build may need here: certificate authorities, and pip's configuration."""
    candidates = {
        "ca": environment.get("SSL_CERT_FILE", ""),
        "pip": environment.get("PIP_CONFIG_FILE", "/etc/pip.conf"),
    }
    return {name: Path(file) for name, file in candidates.items() if file and Path(file).is_file()}


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The proxy variables, which BuildKit hands to build steps without keeping them in the image."""
    found = {name: environment.get(name) or environment.get(name.lower()) for name in PROXIES}
    return {name: value for name, value in found.items() if value}
