"""Copies this package into a volume of the server container; run by the init container."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).parent


def install(directory: Path) -> Path:
    """Copy the package into a directory, atomically; an existing copy is replaced. Returns its path."""
    target = directory / PACKAGE.name
    # In the same directory, where a rename is atomic; other directories may be read-only.
    staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=directory))
    try:
        copy = staging / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile)
        _readable_for_all(copy)
        if target.exists():
            target.rename(staging / "previous")
        copy.rename(target)
    finally:
        shutil.rmtree(staging)
    return target


def _readable_for_all(folder: Path) -> None:
    """The server may run under another UID than the init container."""
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)  # noqa: PTH101 - one line less than Path's
