"""What fetches: our code, that of another commit, and the tools that people use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from benchmarks.fetch.measured import Command
from benchmarks.fetch.page import OURS
from benchmarks.fetch.places import NAME, ROOT, Place, plain_environment, program
from localcluster.paths import cache_root

AWSCLI = "awscli==1.46.2"
S5CMD = "v2.3.0"


@dataclass(frozen=True)
class Tool:
    """One of them: for which kinds of places, and the command that fetches a place's model into a folder."""

    name: str
    kinds: Sequence[str]
    verifies: str
    """What it compares the bytes that came with."""
    argv: Callable[[Place, Path], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = ROOT

    def command(self, place: Place, folder: Path, through: int | None = None) -> Command:
        """All of it; `through`: the port that the bytes come through."""
        home = {"HF_HOME": str(folder / "home"), "HOME": str(folder)}
        given = place.environment if through is None or place.through is None else place.through(through)
        return Command(self.argv(place, folder), {**plain_environment(), **home, **given, **self.environment}, self.cwd)


def ours(root: Path, name: str = OURS) -> Tool:
    """The fetch of a checkout, with the packages of this one's environment."""
    module = "llmservice_fetch" if (root / "fetch").is_dir() else "llmservice_runtime"

    def argv(place: Place, folder: Path) -> Sequence[str]:
        places = (f"--cache={folder / 'cache'}", f"--links={folder / 'links'}")
        return (sys.executable, "-m", module, "fetch", f"--fetch=model={place.uri}", *places)

    kinds = ("hf", "s3", "gs", "az") if name == OURS else ("hf", "s3")
    paths = ":".join(str(root / part) for part in ("runtime", "fetch"))
    return Tool(name, kinds, "size, published hash", argv, {"PYTHONPATH": paths}, root)


def others(kinds: Sequence[str]) -> list[Tool]:
    """What is compared with, and can be had here."""
    hf = str(Path(sys.executable).with_name("hf"))
    quiet = {"HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    found = [
        Tool("hf download", ("hf",), "size", lambda _, to: (hf, "download", NAME, "--cache-dir", f"{to}/c"), quiet)
    ]
    if "s3" in kinds:
        found += [Tool("s5cmd cp", ("s3",), "size", _s5cmd(str(program("s5cmd"))))]
        found += [Tool("aws s3 cp", ("s3",), "size", _aws(_awscli()))]
    return found


def _s5cmd(path: str) -> Callable[[Place, Path], Sequence[str]]:
    # The endpoint is S3_ENDPOINT_URL or a flag, not the variable that AWS's own tools know.
    script = 'exec "$0" --endpoint-url "$AWS_ENDPOINT_URL_S3" cp "$1/*" "$2/"'
    return lambda place, folder: ("/bin/sh", "-c", script, path, place.uri, str(folder))


def _aws(path: str) -> Callable[[Place, Path], Sequence[str]]:
    return lambda place, folder: (path, "s3", "cp", "--recursive", "--no-progress", place.uri, str(folder / "model"))


def _awscli() -> str:
    """In an environment of its own: it does not go together with the Kubernetes client's python-dateutil."""
    home = cache_root(os.environ, Path.home()) / AWSCLI.replace("==", "-")
    if not (home / "bin" / "aws").exists():
        uv = str(ROOT / "tools" / "scripts" / "uv")
        subprocess.run([uv, "venv", "--quiet", "--clear", str(home)], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), AWSCLI], check=True)
    return str(home / "bin" / "aws")


def versions() -> dict[str, str]:
    names = ("huggingface_hub", "hf_xet", "obstore")
    return {**{name: version(name) for name in names}, "s5cmd": S5CMD, "awscli": AWSCLI.partition("==")[2]}
