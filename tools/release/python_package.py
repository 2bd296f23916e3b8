"""The wheel and the source distribution, the same bytes for the same commit."""

from __future__ import annotations

import email
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from localcluster.errors import ClusterError
from release.tools import Tools


def build(root: Path, tools: Tools, output: Path, epoch: int) -> tuple[Path, Path]:
    """The wheel and the sdist in `output`; the build backend is that of requirements-build.txt, its hash checked."""
    uv, requirements = (
        str(root / "tools" / "scripts" / "uv"),
        str(root / "tools" / "scripts" / "requirements-build.txt"),
    )
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        python = f"{scratch}/venv/bin/python"
        tools.run(uv, "venv", "--quiet", "--python", sys.executable, f"{scratch}/venv")
        tools.run(uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", requirements)
        build_words = ("-m", "hatchling", "build", "-d", str(output))
        tools.run(python, *build_words, cwd=root, more={"SOURCE_DATE_EPOCH": str(epoch)})
    (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
    return wheel, sdist


def wheel_version(wheel: Path) -> str:
    """The version in the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        if len(names) != 1:
            raise ClusterError(f"{wheel.name} is not a wheel: it has {len(names)} METADATA files")
        return str(email.message_from_bytes(archive.read(names[0]))["Version"])


def extras_pinned(root: Path, tools: Tools, extras: Sequence[str] = ("operator", "cli")) -> str:
    """The packages of the wheel's extras as uv.lock pins them, one requirement a line."""
    words = [word for extra in extras for word in ("--extra", extra)]
    return tools.run(
        str(root / "tools" / "scripts" / "uv"), "export", "--quiet", "--frozen", "--offline", "--no-dev",
        "--no-emit-project", "--no-annotate", "--no-header", "--no-hashes", *words, cwd=root,
    )  # fmt: skip
