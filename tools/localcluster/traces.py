"""What an added node has on the host: control groups, a link, a route, and its state folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from localcluster import identity, mounts, network, processes
from localcluster.paths import ClusterPaths
from localcluster.place import ADDED, SECOND, Place, added

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


def has_node(paths: ClusterPaths, name: str) -> bool:
    """Whether it was added, be it without power."""
    return (paths.state / name).exists()


def disconnect(paths: ClusterPaths, place: Place) -> None:
    """Takes its link and its route away."""
    others = (added(paths, name) for name in ADDED if name != place.name)
    network.disconnect(place.pods, place.interface, [other.interface for other in others])


def remove_node(paths: ClusterPaths, name: str = SECOND) -> None:
    """Everything of it on this machine. Does nothing when there was none."""
    place = added(paths, name)
    processes.end(identity.of_node(paths, name), grace=0)
    for record in processes.records(paths):
        if record.name.startswith(f"{name}-"):
            processes.stop(paths, record.name)
    disconnect(paths, place)
    for top in _hierarchies(CGROUPS):
        mounts.remove_group(Path(f"{top}{place.cgroup_root}"))
    shutil.rmtree(paths.state / name, ignore_errors=True)
