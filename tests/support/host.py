"""What the tests do on the machine itself, and need of it: its CPU, processes of pods, the cluster's components."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest
from llmservice_runtime.preflight import cpu_features

from localcluster import components, place, processes
from localcluster.cluster import Host, component_environment
from localcluster.paths import ClusterPaths
from tests.support.cluster import JSON, Cluster, eventually

GROUPS = Path("/sys/fs/cgroup")
COMPONENTS: Mapping[str, Callable[[ClusterPaths], processes.Component]] = {
    "etcd": components.etcd,
    "kube-apiserver": components.apiserver,
    "kube-controller-manager": components.controller_manager,
    "kubelet": lambda paths: components.kubelet(paths, place.first(paths)),
}


@functools.cache
def cpu_flags() -> frozenset[str]:
    """What /proc/cpuinfo says of this machine's CPU; empty where it says nothing."""
    return cpu_features.read_features() or frozenset()


def need_cpu(*any_of: str) -> None:
    """Skip a test where the CPU has none of these features, as /proc/cpuinfo names them."""
    if cpu_flags().isdisjoint(any_of):
        pytest.skip(f"needs a CPU with {' or '.join(any_of)}, and /proc/cpuinfo lists none of that")


def processes_of(pod: JSON) -> Mapping[int, str]:
    """Process ids on this machine, and command lines, of everything that runs in a pod on the local node."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            if pod["metadata"]["uid"] in (folder / "cgroup").read_text():
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words).decode(errors="replace").strip()
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its threads so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes_of(pid: int) -> int:
    """Of one process; FileNotFoundError and ProcessLookupError where it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def supervisor_of(pod: JSON) -> int | None:
    """The supervisor of a server's pod, once it runs."""
    found = [pid for pid, line in processes_of(pod).items() if "-m llmservice_runtime serve" in line]
    return min(found, default=None)


def engine_of(pod: JSON) -> int | None:
    """vLLM's first process, once it runs."""
    supervisor = supervisor_of(pod)
    children = [
        pid
        for pid, line in processes_of(pod).items()
        if "-m llmservice_runtime.launch" in line and _parent(pid) == supervisor
    ]
    return min(children, default=None)


def _parent(pid: int) -> int | None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def terminate(pod: JSON) -> None:
    """As `kubectl exec POD -- kill -TERM 1` does."""
    os.kill(eventually("a supervisor", lambda: supervisor_of(pod), 30), signal.SIGTERM)


@contextlib.contextmanager
def throttled(pod: JSON, share: float) -> Iterator[None]:
    """All processes of the pod's server together get so much of one processor, as on a machine that others fill."""
    supervisor = supervisor_of(pod)
    assert supervisor is not None
    quota, limit = cpu_quota(Path(f"/proc/{supervisor}/cgroup").read_text(), share)
    before = quota.read_text()
    quota.write_text(limit)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # the pod has ended
            quota.write_text(before)


def cpu_quota(memberships: str, share: float, root: Path = GROUPS) -> tuple[Path, str]:
    """The file that limits a process's group, and the text for a share of one processor; of either kind of cgroups.

    `memberships` is /proc/PID/cgroup. With both kinds (hybrid), the controller is where v1 has it.
    """
    rows = [line.split(":", 2) for line in memberships.splitlines()]
    for _, controllers, path in rows:
        if "cpu" in controllers.split(","):
            quota = Path(f"{root}/cpu{path}/cpu.cfs_quota_us")
            period = quota.with_name("cpu.cfs_period_us").read_text().strip()
            return quota, str(int(int(period) * share))
    (path,) = [path for _, controllers, path in rows if not controllers]
    quota = Path(f"{root}{path}/cpu.max")
    period = quota.read_text().split()[1]
    return quota, f"{int(int(period) * share)} {period}"


def need_control_groups(*controllers: str, root: Path = GROUPS) -> None:
    """Skip a test where the machine lacks one of these hierarchies of control groups v1."""
    missing = [name for name in controllers if not (root / name / "cgroup.procs").exists()]
    if missing:
        pytest.skip(f"needs control groups v1 ({', '.join(missing)}), which this machine has not mounted at {root}")


@contextlib.contextmanager
def without(cluster: Cluster, component: str, how: Literal["stop", "kill"] = "stop") -> Iterator[None]:
    """A component of the cluster is away for a while; it runs and the API server answers afterwards.

    Killed, it has no time to finish what it does, nor to say goodbye.
    """
    paths: ClusterPaths = cluster.paths
    environment = component_environment(paths, Host.current())
    record = processes.running(paths, component)
    assert record is not None, f"{component} did not run"
    if how == "kill":
        processes.kill([record.identity])
    else:
        processes.stop(paths, component)
    try:
        yield
    finally:
        processes.start(paths, COMPONENTS[component](paths), environment)
        eventually(f"{component} and the API server ready", lambda: _is_up(cluster), 60)


def _is_up(cluster: Cluster) -> bool:
    done = cluster.kubectl("get", "--raw", "/readyz", "--request-timeout=2s", expect=None)
    return done.startswith("ok")


def pause(seconds: float) -> None:
    """Let load go on during a disturbance: the one thing that has to be waited for by the clock."""
    time.sleep(seconds)


@contextlib.contextmanager
def losing_packets(*rules: tuple[str, ...]) -> Iterator[None]:
    """What matches one of these rules of iptables (chain, then matches) is dropped without an answer."""
    # By way of a chain with a name that the local cluster's end looks for, should this process be killed meanwhile.
    chain = "CNI-TEST-DROP"

    def iptables(*words: str) -> None:
        subprocess.run(["iptables", "-w", *words], check=True)

    iptables("-N", chain)
    iptables("-A", chain, "-j", "DROP")
    for rule in rules:
        iptables("-I", *rule, "-j", chain)
    try:
        yield
    finally:
        for rule in rules:
            iptables("-D", *rule, "-j", chain)
        iptables("-F", chain)
        iptables("-X", chain)
