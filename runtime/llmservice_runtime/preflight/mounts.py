"""Maps a path to its mount; in a pod, each volume is a mount."""

from __future__ import annotations

import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_PLACE = 4
"""Column of the mount's path in mountinfo."""


def mount_of(path: Path) -> Path:
    """The innermost mount of an absolute, unresolved path; the root where mounts cannot be listed."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return Path("/")
    mounts = {Path(_ESCAPED.sub(_byte, line.split(b" ")[_PLACE]).decode(errors="surrogateescape")) for line in lines}
    return next((parent for parent in (path, *path.parents) if parent in mounts), Path("/"))


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])
