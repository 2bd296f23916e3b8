"""The images of a release: built by BuildKit from the commit's files alone, and pushed as they are built."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster.buildkit import Recipe, build_words, proxies, secrets, what_it_does
from localcluster.commands import run_logged
from localcluster.errors import ClusterError
from localcluster.progress import Step
from release.references import Reference, is_digest
from release.tools import Tools, answering


@dataclass(frozen=True)
class Builder:
    """A BuildKit that answers at `address`."""

    address: str
    tools: Tools
    logs: Path

    def push(self, recipe: Recipe, base: Reference, epoch: int, *, insecure: bool, step: Step) -> str:
        """Build, push under `recipe.reference`, and return the digest of the image's manifest.

        All times in the image are at most `epoch`, so the same files make the same digest.
        """
        log = self.logs / f"{recipe.dockerfile.name}.{recipe.reference.rpartition('/')[2].partition(':')[0]}.log"
        arguments = {**proxies(self.tools.environment), "BASE": base.pinned, "SOURCE_DATE_EPOCH": str(epoch)}
        output = f"type=image,name={recipe.reference},push=true,oci-mediatypes=true,rewrite-timestamp=true"
        with tempfile.NamedTemporaryFile(suffix=".json") as metadata:
            # A cached layer has the times of an earlier build, and is what an earlier state of Debian's archive gave.
            words = (*build_words(recipe, secrets(self.tools.environment), arguments), "--no-cache")
            asked = f"{output},registry.insecure=true" if insecure else output
            run_logged(
                ("buildctl", "--addr", self.address, *words, "--metadata-file", metadata.name, "--output", asked),
                log,
                step,
                what_it_does,
                failure=f"building {step.title} failed",
                environment={**self.tools.environment, "PATH": self.tools.path},
            )
            digest = str(json.loads(Path(metadata.name).read_text()).get("containerimage.digest"))
        if not is_digest(digest):
            raise ClusterError(f"BuildKit names no digest of {recipe.reference}", f"its log: {log}")
        return digest


@contextmanager
def release_builder(tools: Tools, state: Path, logs: Path) -> Iterator[Builder]:
    """The BuildKit of BUILDKIT_HOST, else one of our own for the time of the block, which needs root.

    It has its own worker: no cluster has to run, and no image in a cluster's store takes part. `state` has room for it.
    """
    given = tools.environment.get("BUILDKIT_HOST", "")
    if given:
        yield Builder(given, tools, logs)
        return
    if os.geteuid() != 0:
        raise ClusterError("building images needs root", "Run as root, or set BUILDKIT_HOST to a running BuildKit.")
    for folder in (state, logs):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="llmservice-release-") as runtime,
        tempfile.TemporaryDirectory(dir=state, prefix="buildkit-") as root,
    ):
        address = f"unix://{runtime}/buildkitd.sock"
        command = (
            "buildkitd", "--root", root, "--addr", address,
            "--containerd-worker=false", "--oci-worker=true", "--oci-worker-net", "host",
            "--oci-worker-gc-keepstorage", "8000", "--allow-insecure-entitlement", "network.host",
        )  # fmt: skip
        with answering("buildkitd", command, tools, _probe(address, tools), logs / "buildkitd.log"):
            yield Builder(address, tools, logs)


def _probe(address: str, tools: Tools) -> Callable[[], bool]:
    def probe() -> bool:
        command = ("buildctl", "--addr", address, "debug", "workers")
        environment = {**tools.environment, "PATH": tools.path}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0

    return probe
