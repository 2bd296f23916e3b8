"""Up, kill, reboot, down: a second cluster beside the shared one, with a network, mounts and groups of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from localcluster import configs, identity, processes
from localcluster.paths import REPOSITORY, ClusterPaths
from localcluster.place import ctr_command, first
from tests.support.host import need_control_groups
from tests.support.patience import KUBECTL_TIMEOUT, at_most

pytestmark = [pytest.mark.cluster, pytest.mark.parallel]

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "unified")
GROUPS = Path("/sys/fs/cgroup")
# A host of its own: network, /run, control groups and what the kubelet keeps at fixed places.
MAKE_HOST = """
mount -t sysfs sysfs /sys; mount -t tmpfs t /sys/fs/cgroup
for c in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir /sys/fs/cgroup/$c; mount -t cgroup -o $c cgroup /sys/fs/cgroup/$c
done
mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
mount --make-rshared /
mkdir -p /var/lib/kubelet /var/log/containers
for d in /run /var/lib/kubelet /var/log/containers; do mount -t tmpfs t $d; done
mkdir /run/lock; ip link set lo up; echo ready; exec sleep infinity
"""
SNAPSHOT = """
ip -brief link | awk '{print $1}' | sort
iptables-save | grep -E '^-A|KUBE|CNI'; ip6tables-save | grep -E '^-A|KUBE|CNI'
grep -E "$1/" /proc/self/mounts
for f in net/ipv4/ip_forward net/ipv4/conf/all/route_localnet net/bridge/bridge-nf-call-iptables; do
  echo $f $(cat /proc/sys/$f)
done
ls -d /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/*/llmservice-*; ip route
ls /run/netns /run/llmservice-localcluster; true
"""
PODS = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "idle"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "idle"}},
        "template": {
            "metadata": {"labels": {"app": "idle"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "idle", "image": configs.PAUSE, "imagePullPolicy": "Never"}],
            },
        },
    },
}


@pytest.fixture(scope="module", autouse=True)
def _host() -> None:
    """The host within the host is made of these."""
    need_control_groups(*CONTROLLERS)


def eventually(what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + at_most(seconds)
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_removed(top: Path) -> bool:
    """Removes a tree of control groups; a process that is about to end keeps its group a moment longer."""
    try:
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True


@dataclass
class Clone:
    """A clone whose cluster runs on a host of its own."""

    paths: ClusterPaths
    group: str
    holder: subprocess.Popen[str] = field(init=False)

    def boot(self) -> None:
        self.holder = subprocess.Popen(
            self._grouped("unshare", "-n", "-m", "-C", "--propagation", "private", "bash", "-ec", MAKE_HOST),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n"

    def _grouped(self, *command: str) -> list[str]:
        join = "".join(f"echo $$ > {GROUPS}/{name}/{self.group}/cgroup.procs;" for name in CONTROLLERS)
        return ["sh", "-ec", f'{join} exec "$@"', "sh", *command]

    def run(self, *command: str, check: bool = True) -> str:
        inside = self._grouped("nsenter", "-t", str(self.holder.pid), "-n", "-m", "-C", "--wd=" + str(self.paths.root))
        own = os.environ | {"PYTHONPATH": str(self.paths.root / "tools")}  # the clone's localcluster, not this one
        done = subprocess.run([*inside, *command], env=own, capture_output=True, text=True, timeout=at_most(400))
        if check:
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def localcluster(self, *words: str, check: bool = True) -> str:
        return self.run(sys.executable, "-m", "localcluster", *words, check=check)

    def kubectl(self, *words: str) -> str:
        return self.run(f"{self.paths.bin}/kubectl", f"--kubeconfig={self.paths.kubeconfig}", *words)

    def traces(self) -> str:
        left = [f"process {item.pid}" for item in identity.ours(self.paths)]
        return self.run("bash", "-c", SNAPSHOT, "bash", str(self.paths.root)) + "\n".join(left)

    def kill_components(self) -> None:
        for record in processes.records(self.paths):
            if identity.is_alive(record.identity):
                os.kill(record.identity.pid, signal.SIGKILL)

    def kill_everything(self) -> None:
        """Components, shims and what runs in containers."""
        for item in identity.ours(self.paths):
            if item.pid != self.holder.pid and identity.is_alive(item):
                os.kill(item.pid, signal.SIGKILL)
        eventually("killed processes end", lambda: not identity.ours(self.paths))

    def lose_host(self) -> None:
        self.kill_everything()
        self.holder.kill()
        self.holder.communicate()

    def reboot(self) -> None:
        """Processes, mounts, interfaces and /run gone; the records still name the pids of an earlier boot."""
        self.lose_host()
        for record in self.paths.processes.glob("*.json"):
            content = json.loads(record.read_text())
            content["identity"]["boot"] = "an earlier boot"
            record.write_text(json.dumps(content))
        self.boot()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    if not (GROUPS / "cpuset").is_dir():
        pytest.skip("a second kubelet beside the first is set up for control groups v1 only")
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(REPOSITORY / "tools" / "localcluster", root / "tools" / "localcluster")
    clone = Clone(ClusterPaths(root), f"lifecycle-{os.getpid()}")
    for name in CONTROLLERS:
        (GROUPS / name / clone.group).mkdir()
    for name in ("cpus", "mems"):
        share = (GROUPS / "cpuset" / f"cpuset.{name}").read_text()
        (GROUPS / "cpuset" / clone.group / f"cpuset.{name}").write_text(share)
    clone.boot()
    yield clone
    clone.lose_host()
    groups = [GROUPS / name / clone.group for name in CONTROLLERS]
    eventually("its control groups are empty", lambda: all(is_removed(group) for group in groups))


@pytest.fixture(scope="module")
def before(clone: Clone) -> str:
    return clone.traces()


@pytest.fixture(scope="module")
def with_pods(clone: Clone, before: str) -> Clone:
    """Its first `up`, with the shared cluster's pause image and two pods."""
    clone.localcluster("up", "--gpus", "4")
    archive = clone.paths.root / "pause.tar"
    shared = ClusterPaths.of_this_clone()
    # Without --local a stream's last piece may come after ctr has ended.
    command = ctr_command(shared, first(shared))
    subprocess.run(
        [*command, "images", "export", "--local", str(archive), configs.PAUSE], check=True, capture_output=True
    )
    clone.run(*ctr_command(clone.paths, first(clone.paths)), "images", "import", str(archive))
    manifest = clone.paths.root / "idle.json"
    manifest.write_text(json.dumps(PODS))
    clone.kubectl("apply", "-f", str(manifest))
    return clone


def containers(clone: Clone) -> int:
    """What runs in truth: right after an `up` the API still tells how it was before."""
    return clone.run(*ctr_command(clone.paths, first(clone.paths)), "tasks", "list").count("RUNNING")


def serves(clone: Clone) -> None:
    eventually("two pods of two containers run", lambda: containers(clone) == 4)
    clone.kubectl("rollout", "status", "deployment/idle", KUBECTL_TIMEOUT)
    node = json.loads(clone.kubectl("get", "node", "node-a", "-o", "json"))
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert "unschedulable" not in node["spec"]


def lose_second_node(clone: Clone) -> None:
    clone.localcluster("node", "add")
    clone.localcluster("node", "lose")


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda clone: clone.kubectl("cordon", "node-a"), id="a node that was left cordoned"),
        pytest.param(Clone.kill_components, id="every component killed, the pods live on"),
        pytest.param(Clone.kill_everything, id="pods and shims killed too"),
        pytest.param(Clone.reboot, id="a reboot"),
    ],
)
def test_up_recovers_from(with_pods: Clone, harm: Callable[[Clone], object]) -> None:
    serves(with_pods)
    harm(with_pods)
    with_pods.localcluster("up")
    serves(with_pods)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda clone: None, id="a running cluster"),
        pytest.param(Clone.kill_components, id="one whose components were killed"),
        pytest.param(Clone.kill_everything, id="one whose pods were killed too"),
        pytest.param(
            lambda clone: clone.localcluster("node", "add"), id="one with a second node", marks=pytest.mark.full
        ),
        pytest.param(lambda clone: lose_second_node(clone), id="one whose second node lost power"),
    ],
)
def test_down_leaves_nothing(with_pods: Clone, before: str, harm: Callable[[Clone], object]) -> None:
    """And `up` recovers from an orderly down, as each but the first begins."""
    with_pods.localcluster("up")
    serves(with_pods)
    harm(with_pods)
    with_pods.localcluster("down")
    assert with_pods.traces() == before


def test_an_interrupted_up_goes_on(with_pods: Clone) -> None:
    with_pods.localcluster("down")  # again: there is nothing left to end
    for seconds in ("0.7", "2", "4"):
        with_pods.run("timeout", "-s", "KILL", seconds, sys.executable, "-m", "localcluster", "up", check=False)
    with_pods.localcluster("up")
    serves(with_pods)


def test_purged_state_is_gone(with_pods: Clone, before: str) -> None:
    with_pods.localcluster("down", "--purge")
    assert not with_pods.paths.state.exists()
    assert with_pods.traces() == before
