"""Which process is ours. A number alone is not enough: after a crash or a reboot it may be somebody else's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.paths import ClusterPaths

# In the environment of every process that we start, and so in its children's (shims too): finds the ones that
# were started a moment before their record would have been written.
MARK = "LLMSERVICE_LOCALCLUSTER"
# Beside it in those of a second node.
NODE_MARK = "LLMSERVICE_LOCALCLUSTER_NODE"


@dataclass(frozen=True)
class Identity:
    """A process: its number, when it started in clock ticks since boot, and which boot that was."""

    pid: int
    start_ticks: int
    boot: str


@dataclass(frozen=True)
class Record:
    name: str
    identity: Identity
    command: tuple[str, ...]
    fingerprint: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Record:
        raw = json.loads(text)
        return cls(raw["name"], Identity(**raw["identity"]), tuple(raw["command"]), raw["fingerprint"])


@dataclass(frozen=True)
class Stat:
    pid: int
    state: str
    parent: int
    start_ticks: int


def parse_stat(text: str) -> Stat:
    """The name stands in parentheses and may hold anything, parentheses and spaces included."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(int(head.split()[0]), fields[0], int(fields[1]), int(fields[19]))


def boot_id(proc: Path = Path("/proc")) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def stat_of(pid: int, proc: Path = Path("/proc")) -> Stat | None:
    try:
        return parse_stat((proc / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def identify(pid: int, proc: Path = Path("/proc")) -> Identity | None:
    stat = stat_of(pid, proc)
    return None if stat is None else Identity(pid, stat.start_ticks, boot_id(proc))


def is_alive(identity: Identity, proc: Path = Path("/proc")) -> bool:
    """Whether this very process runs: not a zombie, and no later one with its number."""
    if identity.boot != boot_id(proc):
        return False
    stat = stat_of(identity.pid, proc)
    return stat is not None and stat.start_ticks == identity.start_ticks and stat.state not in "ZX"


def pids(proc: Path = Path("/proc")) -> Iterator[int]:
    for entry in proc.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _content(path: Path) -> bytes:
    """A file of a process that may end while we look; then it has nothing to say."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError, OSError):
        return b""


def has_mark(environment: bytes, root: Path) -> bool:
    return f"{MARK}={root}".encode() in environment.split(b"\0")


def has_node_mark(environment: bytes, root: Path, node: str) -> bool:
    return has_mark(environment, root) and f"{NODE_MARK}={node}".encode() in environment.split(b"\0")


def runs_in_our_container(mountinfo: str, stores: Path) -> bool:
    """Whether a process's root is an overlay whose layers lie in an image store below `stores`."""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4 and fields[4] == "/":
            return f"upperdir={stores}/" in line
    return False


def ours(paths: ClusterPaths, proc: Path = Path("/proc")) -> tuple[Identity, ...]:
    """Every living process of this clone's cluster: what we started, their shims, and what runs in containers."""
    return _found(lambda environment: has_mark(environment, paths.root), paths.state, proc)


def of_node(paths: ClusterPaths, node: str, proc: Path = Path("/proc")) -> tuple[Identity, ...]:
    """Those of them that a second node is made of."""
    return _found(lambda environment: has_node_mark(environment, paths.root, node), paths.state / node, proc)


def _found(is_marked: Callable[[bytes], bool], stores: Path, proc: Path) -> tuple[Identity, ...]:
    """Processes with the mark, or in a container of an image store below `stores`."""
    found = []
    for pid in pids(proc):
        if pid == os.getpid():
            continue
        folder = proc / str(pid)
        mountinfo = _content(folder / "mountinfo").decode(errors="replace")
        if is_marked(_content(folder / "environ")) or runs_in_our_container(mountinfo, stores):
            identity = identify(pid, proc)
            if identity is not None and is_alive(identity, proc):
                found.append(identity)
    return tuple(found)
