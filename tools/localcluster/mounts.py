"""What the cluster mounted and which control groups it made."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

from localcluster.paths import ClusterPaths

_ESCAPE = re.compile(r"\\(\d{3})")


def points_below(mountinfo: str, folders: tuple[Path, ...]) -> tuple[str, ...]:
    """Mount points in the folders, the last mounted first, which is the order to undo them in."""
    found = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            point = _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
            if any(point.startswith(f"{folder}/") for folder in folders):
                found.append(point)
    return tuple(reversed(found))


def ours(paths: ClusterPaths) -> tuple[str, ...]:
    return points_below(Path("/proc/self/mountinfo").read_text(), (paths.state, paths.runtime))


def undo(paths: ClusterPaths) -> None:
    for point in ours(paths):
        # Lazy: its processes have ended, but the kernel may not have let go of their files yet.
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def remove_pod_groups(groups: Path = Path("/sys/fs/cgroup")) -> None:
    """Empty groups of pods; one that still holds a process stays, for rmdir refuses it."""
    for top in (*groups.glob("kubepods"), *groups.glob("*/kubepods")):
        remove_group(top)


def remove_group(top: Path) -> None:
    """A control group and those below it, where they hold no process."""
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def remove_dead_log_links(folder: Path, pod_logs: Path) -> None:
    """The kubelet links every container's log under /var/log/containers, whatever its settings say."""
    if not folder.is_dir():
        return
    for link in folder.iterdir():
        if link.is_symlink() and str(link.readlink()).startswith(f"{pod_logs}/"):
            link.unlink()
