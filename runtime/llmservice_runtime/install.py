"""Copies this package and llmservice_vllm to a volume of the server container; run by the init container."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import llmservice_vllm

PACKAGES = (Path(__file__).parent, Path(llmservice_vllm.__file__).parent)
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "extract.py", "messages.*")


def install(directory: Path) -> list[Path]:
    """Copy the packages into a directory, each atomically, replacing existing copies. Returns their paths."""
    # In the same directory, where a rename is atomic; other directories may be read-only.
    staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=directory))
    try:
        for package in PACKAGES:
            copy = staging / package.name
            shutil.copytree(package, copy, ignore=_LEFT_OUT, copy_function=shutil.copyfile)
            _readable_for_all(copy)
        return [_replaced(directory / package.name, staging / package.name) for package in PACKAGES]
    finally:
        shutil.rmtree(staging)


def _replaced(target: Path, copy: Path) -> Path:
    if target.exists():
        target.rename(copy.with_name(f"previous-{copy.name}"))
    return copy.rename(target)


def _readable_for_all(folder: Path) -> None:
    """The server may run with another UID than the init container."""
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)  # noqa: PTH101  # shorter than Path's
