"""The taught model under the user's cache folder, keyed by everything that it is made of."""

import hashlib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

from localcluster.paths import REPOSITORY, cache_root
from localcluster.tinymodel.config import CHAT, TinyConfig
from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.variants import Variant

Progress = Callable[[str], None]

# The files that decide about CHAT's weights, and so about every variant's too; the others only carry them around.
TAUGHT_BY = ("config.py", "pairs.py", "teach.py", "tokenizer.py")


def model_key(model: TinyConfig | Variant, versions: Mapping[str, str], sources: Mapping[str, bytes]) -> str:
    """A name for the model that changes with its sizes, its sources and the libraries that teach it."""
    digest = hashlib.sha256(json.dumps([_values(model), dict(sorted(versions.items()))]).encode())
    for name, content in sorted(sources.items()):
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def model_folder(model: TinyConfig | Variant = CHAT, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the made model lies, or will. Needs none of the libraries that make it."""
    key = model_key(model, _library_versions(REPOSITORY / "uv.lock"), _own_sources(model))
    return cache_root(environ, Path.home()) / "models" / key


def cached_model(
    progress: Progress, model: TinyConfig | Variant = CHAT, environ: Mapping[str, str] = os.environ
) -> Path:
    """The folder of the made model; it is made now if it was not before."""
    folder = model_folder(model, environ)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        made = Path(scratch) / "model"
        _make_into(made, model, progress, environ)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run made the same model first
                raise
    return folder


def copy_model(out: Path, progress: Progress, model: TinyConfig | Variant = CHAT) -> None:
    """Put the made model into `out`."""
    shutil.copytree(cached_model(progress, model), out, dirs_exist_ok=True)


def _make_into(out: Path, model: TinyConfig | Variant, progress: Progress, environ: Mapping[str, str]) -> None:
    from localcluster.tinymodel.build import build, told

    if isinstance(model, TinyConfig):
        from localcluster.tinymodel.teach import make

        progress(told(make(model, PAIRS, out, progress)))
    else:
        progress(build(model, lambda: cached_model(progress, environ=environ), out, progress))


def _values(model: TinyConfig | Variant) -> object:
    """All that the model is made of besides the sources; what a variant says about itself changes no weight."""
    values = asdict(model)
    if isinstance(model, TinyConfig):
        return values
    del values["summary"]
    return [type(model).__name__, values, asdict(CHAT)]


@cache
def _library_versions(lock: Path) -> dict[str, str]:
    """The versions of what decides about the weights, as the lock file pins them."""
    packages = tomllib.loads(lock.read_text())["package"]
    return {row["name"]: row["version"] for row in packages if row["name"] in ("tokenizers", "torch", "transformers")}


def _own_sources(model: TinyConfig | Variant) -> dict[str, bytes]:
    more = () if isinstance(model, TinyConfig) else model.sources
    return {name: (Path(__file__).parent / name).read_bytes() for name in (*TAUGHT_BY, *more)}
