"""One cluster on a machine: its ports, its bridge and its iptables chains exist once."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.identity import boot_id
from localcluster.paths import ClusterPaths
from localcluster.processes import write_atomically

MACHINE_LOCK = Path("/run/llmservice-localcluster.json")


def owner(place: Path = MACHINE_LOCK) -> Path | None:
    """The clone whose cluster this machine runs, or ran before it crashed."""
    try:
        return Path(json.loads(place.read_text())["clone"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def claim(paths: ClusterPaths, place: Path = MACHINE_LOCK) -> None:
    write_atomically(place, json.dumps({"clone": str(paths.root), "boot": boot_id()}, indent=1))


def release(paths: ClusterPaths, place: Path = MACHINE_LOCK) -> None:
    if owner(place) == paths.root:
        place.unlink()


def other_clone(paths: ClusterPaths, place: Path = MACHINE_LOCK) -> Path | None:
    """The other clone that has the machine, whether its cluster still runs or left something behind."""
    found = owner(place)
    return found if found != paths.root else None


def conflict(other: Path) -> ClusterError:
    return ClusterError(
        f"another clone's cluster is running: {other}",
        f"stop it with: make -C {other} cluster-down   (or: cd {other} && python3 -m localcluster down)",
    )


@contextmanager
def exclusive(place: Path = MACHINE_LOCK) -> Iterator[None]:
    """One `up` or `down` at a time on the machine."""
    with place.with_suffix(".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            raise ClusterError(
                "another `localcluster up` or `down` is at work on this machine", "wait until it is done"
            ) from busy
        yield
