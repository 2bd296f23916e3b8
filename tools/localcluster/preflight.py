"""Fail early and clearly: what this machine lacks, before anything is built or started."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.identity import pids
from localcluster.progress import Progress

GIB = 1 << 30

# Tool, and the Debian package that has it. runc is built in C against libseccomp, so its headers are tools too.
TOOLS: Mapping[str, str] = {
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "socat": "socat",
    "ethtool": "ethtool",
    "openssl": "openssl",
    "mount": "mount",
    "debootstrap": "debootstrap",
}
# gcc alone comes without the C library's headers, which runc and the pause image are compiled with.
BUILD_TOOLS: Mapping[str, str] = {"gcc": "build-essential", "pkg-config": "pkg-config", "git": "git"}
BROWSER: Mapping[str, str] = {"chromium": "chromium"}
"""Of the tests of the web page alone, which install it when they run: 81 MB of download and 290 MB of disk, without the
libraries that it needs."""
SECCOMP_PACKAGE = "libseccomp-dev"
ENDING = 5.0
"""Seconds that a process which was killed may take to close its sockets."""

# Whom we would collide with, and what listens there in our cluster.
PORTS: Mapping[int, str] = {
    2379: "etcd",
    2380: "etcd",
    6443: "kube-apiserver",
    10248: "kubelet",
    10249: "kube-proxy",
    10250: "kubelet",
    10256: "kube-proxy",
    10257: "kube-controller-manager",
    10259: "kube-scheduler",
}


def require_root(uid: int) -> None:
    if uid != 0:
        raise ClusterError(
            "the local cluster needs root: it makes network interfaces, mounts and control groups",
            "run it with sudo, or use a cluster of your own: make demo KUBECONTEXT=name",
        )


def require_disk(folder: Path, free: int, needed: int, purpose: str) -> None:
    if free < needed:
        raise ClusterError(
            f"{folder} has {free / GIB:.1f} GiB free, and {purpose} needs {needed / GIB:.0f} GiB",
            f"free {(needed - free) / GIB:.1f} GiB there",
        )


def free_at(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def missing_packages(tools: Mapping[str, str], find: Callable[[str], str | None] = shutil.which) -> tuple[str, ...]:
    """Debian packages of the tools that are not there."""
    return tuple(sorted({package for tool, package in tools.items() if find(tool) is None}))


def has_seccomp_headers(run: Callable[..., subprocess.CompletedProcess[bytes]] = subprocess.run) -> bool:
    if shutil.which("pkg-config") is None:
        return False
    return run(["pkg-config", "--exists", "libseccomp"], check=False).returncode == 0


def ensure_packages(wanted: Iterable[str], progress: Progress) -> None:
    """Installs Debian packages where that is possible, and else says what to install."""
    packages = sorted(set(wanted))
    if not packages:
        return
    command = f"apt-get install -y {' '.join(packages)}"
    apt = shutil.which("apt-get")
    if apt is None:
        raise ClusterError(
            f"missing tools; their Debian packages are: {' '.join(packages)}", "install them by your own means"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with progress.step(f"installing {' '.join(packages)}"):
        steps = ([apt, "update", "-q"], [apt, "install", "-y", "-q", "--no-install-recommends", *packages])
        for step in steps:
            done = subprocess.run(step, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise ClusterError(f"cannot install {' '.join(packages)}: {done.stderr.strip()[-400:]}", f"try: {command}")


def listeners(table: str) -> list[tuple[int, int]]:
    """Port and inode of each listening socket in the text of /proc/net/tcp or tcp6; a port may have several."""
    rows = (line.split() for line in table.splitlines()[1:])
    return [(int(row[1].rpartition(":")[2], 16), int(row[9])) for row in rows if len(row) > 9 and row[3] == "0A"]


def _holder(inode: int, proc: Path) -> tuple[int, str] | None:
    """Whose socket it is; None when we may not see it (another network namespace or container)."""
    target = f"socket:[{inode}]"
    for pid in pids(proc):
        folder = proc / str(pid)
        try:
            if any(str(entry.readlink()) == target for entry in (folder / "fd").iterdir()):
                return pid, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return None


@dataclass(frozen=True)
class Taken:
    """A port that we need and somebody else has."""

    port: int
    component: str
    pid: int | None
    command: str

    def __str__(self) -> str:
        who = "a process that we cannot see" if self.pid is None else f"process {self.pid} ({self.command[:80]})"
        return f"port {self.port} (for {self.component}) is held by {who}"


def taken_ports(
    ours: frozenset[int], ports: Mapping[int, str] = PORTS, proc: Path = Path("/proc")
) -> tuple[Taken, ...]:
    """Ports held by processes that are not in `ours`."""
    found: dict[int, Taken] = {}
    for table in ("tcp", "tcp6"):
        path = proc / "net" / table
        for port, inode in listeners(path.read_text()) if path.exists() else ():
            if port in ports and port not in found:
                pid, command = _holder(inode, proc) or (None, "")
                if pid not in ours:
                    found[port] = Taken(port, ports[port], pid, command)
    return tuple(found[port] for port in sorted(found))


def require_ports(ours: frozenset[int]) -> None:
    """ClusterError where others hold ports. Of a process that is ending, a socket is listed a moment longer than it."""
    deadline = time.monotonic() + ENDING
    while (taken := taken_ports(ours)) and any(item.pid is None for item in taken) and time.monotonic() < deadline:
        time.sleep(0.05)
    if taken:
        raise ClusterError("; ".join(str(item) for item in taken), "stop that process, or use another machine")
