"""Bring the cluster up from whatever state it is in, and take it down without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster import (
    addons,
    builds,
    components,
    configs,
    identity,
    lock,
    mounts,
    network,
    pki,
    preflight,
    processes,
    traces,
)
from localcluster.errors import ClusterError
from localcluster.kube import Kubectl
from localcluster.paths import ClusterPaths, cache_root
from localcluster.place import ADDED, Place, ctr_command, first
from localcluster.processes import Component, write_atomically
from localcluster.programs import Group
from localcluster.progress import Progress

# What Go's module and build caches take, and the programs themselves.
BUILD_DISK = 12 * preflight.GIB
RUN_DISK = 2 * preflight.GIB
# Seconds for the containers to end after their pods were deleted; then they are killed.
POD_GRACE = 30
CONTROL_PLANE = ("kube-controller-manager", "kube-scheduler")
KWOK_GPUS = 8
NODE_COMPONENTS = ("kwok", "kubelet", "kube-proxy", "coredns", "buildkitd", "containerd")
NEEDED = ("etcd", "kube-apiserver", *CONTROL_PLANE, "containerd", "kubelet", "kube-proxy", "coredns")


@dataclass(frozen=True)
class Options:
    """Accelerators that are not there. None: as at the last `up`."""

    gpus: int | None = None
    kwok_nodes: int | None = None
    kwok_gpus: int | None = None
    """Of each simulated node."""

    def over(self, remembered: Options) -> Options:
        return Options(
            remembered.gpus if self.gpus is None else self.gpus,
            remembered.kwok_nodes if self.kwok_nodes is None else self.kwok_nodes,
            remembered.kwok_gpus if self.kwok_gpus is None else self.kwok_gpus,
        )


@dataclass(frozen=True)
class Host:
    """What the cluster takes from its surroundings."""

    environment: Mapping[str, str]
    cache: Path
    progress: Progress

    @classmethod
    def current(cls) -> Host:
        return cls(dict(os.environ), cache_root(os.environ, Path.home()), Progress())

    @property
    def store(self) -> builds.Store:
        return builds.Store(self.cache)


def _options_file(paths: ClusterPaths) -> Path:
    return paths.state / "options.json"


def remembered_options(paths: ClusterPaths) -> Options:
    try:
        return Options(**json.loads(_options_file(paths).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return Options()


def _our_pids(paths: ClusterPaths) -> frozenset[int]:
    return frozenset(item.pid for item in identity.ours(paths))


def _require_machine(paths: ClusterPaths, host: Host) -> None:
    """No other clone has it; what another left behind when it crashed or was deleted is taken away first."""
    other = lock.other_clone(paths)
    if other is None:
        return
    theirs = ClusterPaths(other)
    if not theirs.is_deleted and identity.ours(theirs):
        raise lock.conflict(other)
    with host.progress.step(f"removing what the cluster of {other} left behind"):
        _remove_traces(theirs)


def check(paths: ClusterPaths, host: Host, groups: tuple[Group, ...]) -> None:
    """Everything that can be known to fail, before anything is made."""
    preflight.require_root(os.geteuid())
    to_build = [group for group in groups if not host.store.has(group)]
    if to_build:
        preflight.require_disk(host.cache, preflight.free_at(host.cache), BUILD_DISK, "building the programs")
    preflight.require_disk(paths.state, preflight.free_at(paths.state), RUN_DISK, "the cluster")
    packages = list(preflight.missing_packages(preflight.TOOLS))
    if to_build:
        packages += preflight.missing_packages(preflight.BUILD_TOOLS)
        packages += [] if preflight.has_seccomp_headers() else [preflight.SECCOMP_PACKAGE]
    preflight.ensure_packages(packages, host.progress)
    _require_machine(paths, host)
    preflight.require_ports(_our_pids(paths))
    if network.BRIDGE in network.interfaces() and not network.is_known_host(paths):
        raise ClusterError(
            f"there is a network interface {network.BRIDGE} that this cluster did not make",
            f"is another Kubernetes here? If not: ip link del {network.BRIDGE}",
        )


def component_environment(paths: ClusterPaths, host: Host) -> dict[str, str]:
    return {**host.environment, "PATH": f"{paths.bin}:{host.environment.get('PATH', '')}"}


def _start(paths: ClusterPaths, host: Host, *wanted: Component) -> None:
    for component in wanted:
        processes.start(paths, component, component_environment(paths, host))


def _prepare(paths: ClusterPaths) -> None:
    place = first(paths)
    for folder in (paths.etcd, place.kubelet, place.containerd, place.pod_logs, paths.models, paths.runtime):
        folder.mkdir(parents=True, exist_ok=True)
    paths.etcd.chmod(0o700)
    resolv = Path("/etc/resolv.conf")
    servers = configs.upstream(resolv.read_text()) if resolv.exists() else ()
    files = {
        **node_files(paths, place),
        paths.config / "audit.json": configs.audit_policy(),
        paths.config / "kwok.yaml": configs.simulation(),
        paths.config / "Corefile": configs.corefile(paths, servers),
    }
    for path, text in files.items():
        write_atomically(path, text)


def node_files(paths: ClusterPaths, place: Place) -> dict[Path, str]:
    """The configuration of a node's components."""
    return {
        place.containerd_config: configs.containerd(paths, place),
        place.cni_config / "10-pods.conflist": configs.pod_network(place),
        place.kubelet_config: configs.kubelet(paths, place),
        place.proxy_config: configs.kube_proxy(paths, place),
    }


def _ctr(paths: ClusterPaths, *words: str) -> tuple[str, ...]:
    return (*ctr_command(paths, first(paths)), *words)


def _start_containerd(paths: ClusterPaths, host: Host) -> None:
    _start(paths, host, components.containerd(paths, first(paths)))
    command = _ctr(paths, "version")
    processes.wait_until("containerd answers", lambda: processes.succeeds(command), paths, "containerd", timeout=60)


def start_control_plane(paths: ClusterPaths, host: Host) -> None:
    """Until the API is ready; its keys and configuration are there."""
    _start(paths, host, components.etcd(paths))
    health = f"{components.ETCD}/readyz"
    processes.wait_until("etcd is ready", lambda: processes.answers(health), paths, "etcd", timeout=60)
    _start(paths, host, components.apiserver(paths))
    kubectl = Kubectl(paths)
    processes.wait_until("the API is ready", kubectl.is_ready, paths, "kube-apiserver", timeout=120)
    _start(paths, host, components.controller_manager(paths), components.scheduler(paths))
    kubectl.apply(addons.dns_objects())


def _start_node(paths: ClusterPaths, host: Host) -> None:
    place = first(paths)
    node = (components.kubelet(paths, place), components.kube_proxy(paths, place))
    _start(paths, host, *node, components.coredns(paths))
    await_node(paths, place)
    # A benchmark or a test that was killed may have left it cordoned, and then nothing ever starts on it.
    Kubectl(paths).run("uncordon", place.name)
    processes.wait_until(
        "coredns is ready", lambda: processes.answers("http://127.0.0.1:10653/ready"), paths, "coredns", timeout=60
    )


def await_node(paths: ClusterPaths, place: Place) -> None:
    """Until the node is Ready and its kube-proxy answers."""
    kubectl = Kubectl(paths)

    def ready() -> bool:
        return kubectl.succeeds("wait", "--for=condition=Ready", f"node/{place.name}", "--timeout=5s")

    processes.wait_until("the node is Ready", ready, paths, place.component("kubelet"), timeout=120)
    name, health = place.component("kube-proxy"), f"http://{place.proxy_health}/healthz"
    processes.wait_until(f"{name} is ready", lambda: processes.answers(health), paths, name, timeout=60)


def _accelerators(paths: ClusterPaths, host: Host, options: Options) -> None:
    kubectl = Kubectl(paths)
    if options.gpus is not None:
        with host.progress.step(f"advertising {options.gpus} GPUs"):
            count = options.gpus
            addons.advertise_gpus(kubectl, count)
            shown = "the GPUs are allocatable"
            processes.wait_until(shown, lambda: addons.has_gpus(kubectl, count), paths, "kubelet", timeout=60)
    if options.kwok_nodes is not None:
        with host.progress.step(f"simulating {options.kwok_nodes} GPU nodes"):
            if options.kwok_nodes:
                builds.ensure(host.store, Group.SIMULATION, paths, host.environment, host.progress)
                _start(paths, host, components.kwok(paths))
            addons.simulate_nodes(kubectl, options.kwok_nodes, options.kwok_gpus or KWOK_GPUS)
            if options.kwok_nodes:
                shown = "the simulated nodes are Ready"
                processes.wait_until(shown, lambda: addons.simulated_are_ready(kubectl), paths, "kwok", timeout=120)
            else:
                processes.stop(paths, "kwok")


def up_containerd(paths: ClusterPaths, host: Host) -> None:
    """Only what image builds need, so that they may go on while the rest of the programs compile."""
    check(paths, host, (Group.IMAGES,))
    builds.ensure(host.store, Group.IMAGES, paths, host.environment, host.progress)
    with lock.exclusive(), host.progress.step("starting containerd"):
        lock.claim(paths)
        network.remember_host(paths)
        _prepare(paths)
        _start_containerd(paths, host)


def up(paths: ClusterPaths, options: Options, host: Host) -> None:
    """A running cluster, from no state, a running one, or what a kill or a reboot left."""
    check(paths, host, (Group.IMAGES, Group.CLUSTER))
    for group in (Group.IMAGES, Group.CLUSTER):
        builds.ensure(host.store, group, paths, host.environment, host.progress)
    with lock.exclusive():
        lock.claim(paths)
        network.remember_host(paths)
        wanted = options.over(remembered_options(paths))
        with host.progress.step("starting the control plane"):
            _prepare(paths)
            pki.ensure(paths)
            network.ensure_bridge()
            start_control_plane(paths, host)
        with host.progress.step("starting the node"):
            _start_containerd(paths, host)
            _start_node(paths, host)
            for name in ADDED:
                if not traces.has_node(paths, name):
                    # The last `down` may have found no API server to tell of its end.
                    addons.forget_node(Kubectl(paths), name)
        _accelerators(paths, host, wanted)
        write_atomically(_options_file(paths), json.dumps(vars(wanted)))


def _delete_pods(paths: ClusterPaths) -> None:
    """The orderly way: the kubelet ends the containers and undoes their mounts and networks."""
    kubectl = Kubectl(paths)
    alive = all(processes.running(paths, name) for name in ("etcd", "kube-apiserver", "kubelet", "containerd"))
    if not alive or not kubectl.is_ready():
        return
    here = f"--field-selector=spec.nodeName={network.NODE}"
    kubectl.run("delete", "pods", "-A", here, "--grace-period=1", "--wait=false")
    # Not for the objects: a pod of a Job keeps a finalizer, and who would remove that is stopped already.
    deadline = time.monotonic() + POD_GRACE
    while processes.output(_ctr(paths, "tasks", "list", "--quiet")) and time.monotonic() < deadline:
        time.sleep(0.2)


def _remove_traces(paths: ClusterPaths) -> None:
    """What may be left when components were killed: processes in containers, mounts, interfaces, chains."""
    left = identity.ours(paths)
    # Shims ignore SIGTERM, and the containers' time to end in peace was when their pods were deleted.
    processes.end(left, grace=2)
    for name in ADDED:
        traces.remove_node(paths, name)
    mounts.undo(paths)
    network.restore_host(paths)
    mounts.remove_pod_groups()
    mounts.remove_dead_log_links(Path("/var/log/containers"), first(paths).pod_logs)
    for record in processes.records(paths):
        processes.stop(paths, record.name)
    shutil.rmtree(paths.runtime, ignore_errors=True)
    # The folder of all clones: another's may still be there.
    with contextlib.suppress(OSError):
        paths.runtime.parent.rmdir()
    lock.release(paths)


def down(paths: ClusterPaths, host: Host, *, purge: bool = False) -> None:
    """Stops everything; the image store and etcd's data stay, unless purged."""
    preflight.require_root(os.geteuid())
    with lock.exclusive():
        with host.progress.step("stopping the pods"):
            # First those that would make new ones.
            for name in CONTROL_PLANE:
                processes.stop(paths, name)
            _delete_pods(paths)
        with host.progress.step("stopping the components"):
            for name in (*NODE_COMPONENTS, "kube-apiserver", "etcd"):
                processes.stop(paths, name)
            _remove_traces(paths)
        if purge:
            with host.progress.step(f"removing {paths.state}"):
                shutil.rmtree(paths.state, ignore_errors=True)


@dataclass(frozen=True)
class Status:
    name: str
    pid: int | None
    is_needed: bool

    @property
    def state(self) -> str:
        return "stopped" if self.pid is None else "running"


def status(paths: ClusterPaths) -> tuple[Status, ...]:
    """The components that a cluster is made of, and whatever else was started beside them."""
    beside = tuple(record.name for record in processes.records(paths) if record.name not in NEEDED)
    rows = []
    for name in (*NEEDED, *beside):
        record = processes.running(paths, name)
        rows.append(Status(name, None if record is None else record.identity.pid, name in NEEDED))
    return tuple(rows)


def environment(paths: ClusterPaths, path: str) -> str:
    """Shell lines: `eval "$(python3 -m localcluster env)"`."""
    folders = [folder for folder in path.split(":") if folder and folder != str(paths.bin)]
    return f"export KUBECONFIG='{paths.kubeconfig}'\nexport PATH='{':'.join([str(paths.bin), *folders])}'\n"
