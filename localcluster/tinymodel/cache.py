"""The taught model under the user's cache folder, keyed by everything that it is made of."""

import hashlib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from localcluster.paths import REPOSITORY, cache_root
from localcluster.tinymodel.config import CHAT, TinyConfig
from localcluster.tinymodel.pairs import PAIRS

Progress = Callable[[str], None]

# The files that decide about the weights; the others only carry them around.
TAUGHT_BY = ("config.py", "pairs.py", "teach.py", "tokenizer.py")


def model_key(config: TinyConfig, versions: Mapping[str, str], sources: Mapping[str, bytes]) -> str:
    """A name for the model that changes with its sizes, its sources and the libraries that teach it."""
    digest = hashlib.sha256(json.dumps([asdict(config), dict(sorted(versions.items()))]).encode())
    for name, content in sorted(sources.items()):
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def model_folder(config: TinyConfig = CHAT, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the taught model lies, or will. Needs none of the libraries that teach it."""
    key = model_key(config, _library_versions(REPOSITORY / "uv.lock"), _own_sources())
    return cache_root(environ, Path.home()) / "models" / key


def cached_model(progress: Progress, config: TinyConfig = CHAT, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the taught model; it is taught now if it was not before."""
    folder = model_folder(config, environ)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        made = Path(scratch) / "model"
        _teach_into(made, config, progress)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run made the same model first
                raise
    return folder


def copy_model(out: Path, progress: Progress) -> None:
    """Put the taught model into `out`."""
    shutil.copytree(cached_model(progress), out, dirs_exist_ok=True)


def _teach_into(out: Path, config: TinyConfig, progress: Progress) -> None:
    from localcluster.tinymodel.teach import make

    lesson = make(config, PAIRS, out, progress)
    progress(
        f"taught {len(PAIRS)} answers to {lesson.parameters:,} parameters in {lesson.seconds:.0f} s: "
        f"{lesson.steps} steps, loss {lesson.loss:.4f}, smallest margin {lesson.margin:.1f}"
    )


def _library_versions(lock: Path) -> dict[str, str]:
    """The versions of what decides about the weights, as the lock file pins them."""
    packages = tomllib.loads(lock.read_text())["package"]
    return {row["name"]: row["version"] for row in packages if row["name"] in ("tokenizers", "torch", "transformers")}


def _own_sources() -> dict[str, bytes]:
    return {name: (Path(__file__).parent / name).read_bytes() for name in TAUGHT_BY}
