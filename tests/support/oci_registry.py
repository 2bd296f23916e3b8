"""A real registry of images (CNCF distribution) on loopback, where containerd, BuildKit and Helm ask without TLS."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from localcluster.rootfs import base_layout
from release.tools import Tools, answering, release_tools
from tests.support.ports import free_port

PYTHON_BASE = ("ca-certificates", "python3", "python3-venv")


@dataclass(frozen=True)
class OciRegistry:
    """A running registry: `host` is host:port, `data` the folder of its blobs."""

    host: str
    data: Path
    tools: Tools

    @property
    def mirror(self) -> str:
        """Where `with_upstream_images` puts what releases take from elsewhere."""
        return f"{self.host}/mirror"

    def with_upstream_images(self) -> None:
        """The base that the local cluster builds with, under Debian's name and under that of the GPU image."""
        base = base_layout(cache_root(os.environ, Path.home()), PYTHON_BASE, Progress())
        for name in ("library/debian:bookworm-slim", "vllm/vllm-openai:v0.32.0"):
            self.crane("push", str(base.folder), f"{self.mirror}/{name}")

    def crane(self, *words: str) -> str:
        return self.tools.run("crane", *words).strip()

    def blob(self, digest: str) -> Path:
        """The file that a blob is stored in."""
        name = digest.removeprefix("sha256:")
        return self.data / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


@contextmanager
def oci_registry(folder: Path, *more: Group) -> Iterator[OciRegistry]:
    """Serve a folder until the end of the block, with crane and the programs of these groups among its tools.

    The first call on a machine builds them: a minute, with Group.RELEASE four.
    """
    tools = release_tools(Progress(), [*more, Group.CRANE, Group.REGISTRY])
    host = f"127.0.0.1:{free_port()}"
    config = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": host, "secret": "of-the-tests"},
    }
    (folder / "config.yml").write_text(json.dumps(config))

    def probe() -> bool:
        try:
            with urllib.request.urlopen(f"http://{host}/v2/", timeout=2):
                return True
        except OSError:
            return False

    command = ("registry", "serve", str(folder / "config.yml"))
    with answering("the registry", command, tools, probe, folder / "log"):
        yield OciRegistry(host, folder / "data", tools)
