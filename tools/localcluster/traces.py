"""What a second node has on the host: control groups, a link, a route, and its state folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from localcluster import identity, mounts, network, processes
from localcluster.paths import ClusterPaths
from localcluster.place import SECOND, Place, second

CGROUPS = Path("/sys/fs/cgroup")


def _hierarchies(groups: Path) -> tuple[Path, ...]:
    """The one of control groups v2, or each of v1."""
    if (groups / "cgroup.controllers").exists():
        return (groups,)
    return tuple(entry for entry in groups.iterdir() if (entry / "cgroup.procs").exists())


def make_groups(place: Place, groups: Path = CGROUPS) -> None:
    """The group below which a second kubelet makes its own; it refuses to start without."""
    for top in _hierarchies(groups):
        group = Path(f"{top}{place.cgroup_root}")
        group.mkdir(exist_ok=True)
        if top.name == "cpuset":
            # A new group of this hierarchy has no processor and no memory, and holds nothing until it has both.
            for share in ("cpuset.cpus", "cpuset.mems"):
                (group / share).write_text((top / share).read_text())


def has_second_node(paths: ClusterPaths) -> bool:
    """Whether there is one, be it without power."""
    return (paths.state / SECOND).exists()


def remove_second_node(paths: ClusterPaths) -> None:
    """Everything of it on this machine. Does nothing when there was none."""
    place = second(paths)
    processes.end(identity.of_node(paths, SECOND), grace=0)
    for record in processes.records(paths):
        if record.name.startswith(f"{SECOND}-"):
            processes.stop(paths, record.name)
    network.disconnect(place.pods)
    for top in _hierarchies(CGROUPS):
        mounts.remove_group(Path(f"{top}{place.cgroup_root}"))
    shutil.rmtree(paths.state / SECOND, ignore_errors=True)
