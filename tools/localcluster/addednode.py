"""Further real nodes, a second and a third: each has a kubelet, a containerd and a kube-proxy in a network and a mount
namespace of its own.

`holder` is a process that does nothing but keep these two namespaces; everything else enters them. When the last
process has ended, the kernel takes away the namespaces, their mounts, their bridge and their end of the link.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster import addons, cluster, components, identity, lock, network, pki, preflight, processes, traces
from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.imagecopy import ImageStore, copy
from localcluster.install import CPU_IMAGE, OPERATOR_IMAGE, STAND_IN_IMAGE
from localcluster.kube import Kubectl
from localcluster.paths import ClusterPaths, cache_root
from localcluster.place import ADDED, EVICTION, SECOND, Place, added, ctr_command, first
from localcluster.processes import Component, write_atomically
from localcluster.progress import Progress

# What runs on any node of the tests. vLLM's is asked for: its files are links, but so many that they take seconds.
IMAGES = ("registry.local/pause:1", OPERATOR_IMAGE, STAND_IN_IMAGE)
# Its own /run and what the kubelet keeps at fixed places: those of the host are the first node's.
MAKE = """
mount --make-rshared /
mkdir -p /var/lib/kubelet /var/log/containers
for d in /run /var/lib/kubelet /var/log/containers; do mount -t tmpfs tmpfs $d; done
mkdir -p /run/lock
ip link set lo up
exec sleep infinity
"""
MADE = b"sleep\0infinity\0"
SETTINGS = """
ip link show cni0 >/dev/null 2>&1 || ip link add cni0 type bridge
ip addr replace "$1/24" dev cni0
ip link set cni0 up
ip addr replace "$2/30" dev uplink
ip link set uplink up
ip route replace default via "$3"
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
"""


def is_added(paths: ClusterPaths, name: str) -> bool:
    return processes.running(paths, _holder(name)) is not None


def _holder(name: str) -> str:
    return f"{name}-holder"


def enter(paths: ClusterPaths, place: Place) -> tuple[str, ...]:
    """What a command begins with that runs in the node's network and mounts; empty for the first node."""
    return () if place.link is None else _enter(paths, place.name)


def _enter(paths: ClusterPaths, name: str) -> tuple[str, ...]:
    record = processes.running(paths, _holder(name))
    if record is None:
        raise ClusterError(f"{name} is not running", f"start it: python -m localcluster node add {name}")
    return ("nsenter", "-t", str(record.identity.pid), "--net", "--mount", "--")


def start_on(paths: ClusterPaths, host: cluster.Host, place: Place, component: Component) -> None:
    """A component of a node, in its network and mounts."""
    environment = cluster.component_environment(paths, host)
    if place.link is not None:
        environment[identity.NODE_MARK] = place.name
        # By its real path: a rebuilt program is another one, and the first word is nsenter.
        program = os.path.realpath(component.command[0])
        command = (*_enter(paths, place.name), program, *component.command[1:])
        component = Component(component.name, command, component.inputs)
    processes.start(paths, component, environment)


def _hold(paths: ClusterPaths, host: cluster.Host, name: str) -> None:
    if is_added(paths, name):
        return
    # What is left of an earlier life would keep the old namespaces.
    processes.end(identity.of_node(paths, name), grace=0)
    command = ("unshare", "--net", "--mount", "--propagation", "private", "bash", "-ec", MAKE)
    environment = {**cluster.component_environment(paths, host), identity.NODE_MARK: name}
    processes.start(paths, Component(_holder(name), command), environment)
    proc = Path(f"/proc/{_enter(paths, name)[2]}/cmdline")
    made = "the node's namespaces are made"
    processes.wait_until(made, lambda: proc.read_bytes() == MADE, paths, _holder(name), timeout=30, interval=0.02)


def _connect(paths: ClusterPaths, place: Place) -> None:
    """A link between the host and the node, and a way for each to the other's pods."""
    assert place.link is not None
    near, far = place.link
    enter = _enter(paths, place.name)
    if not processes.succeeds((*enter, "ip", "link", "show", "uplink")):
        traces.disconnect(paths, place)  # the kernel takes the end of a lost node away when it gets to it
        peer = ("peer", "name", "uplink", "netns", enter[2])
        run("ip", "link", "add", place.interface, "type", "veth", *peer)
    run("ip", "addr", "replace", f"{near}/30", "dev", place.interface)
    run("ip", "link", "set", place.interface, "up")
    run(*enter, "bash", "-ec", SETTINGS, "bash", place.gateway, far, near)
    network.route_to(place.pods, far)


def store(paths: ClusterPaths, name: str = SECOND) -> ImageStore:
    """The node's images. Its socket is below its own /run."""
    return ImageStore((*_enter(paths, name), *ctr_command(paths, added(paths, name))))


def copy_images(paths: ClusterPaths, name: str, references: Sequence[str] = IMAGES) -> None:
    """Gives the node the first one's images, where it has others or none."""
    source, target = ImageStore(ctr_command(paths, first(paths))), store(paths, name)
    wanted, present = source.digests(), target.digests()
    for reference in references:
        if reference in wanted and present.get(reference) != wanted[reference]:
            copy(source, target, reference, wanted[reference])


def add(
    paths: ClusterPaths,
    host: cluster.Host,
    name: str = SECOND,
    *,
    eviction: Mapping[str, str] = EVICTION,
    engine: bool = False,
) -> None:
    """A node that is Ready and has the images; also from what a crash or a power loss left.

    `eviction`: the kubelet's evictionHard; another one than before restarts the kubelet. `engine`: vLLM's image too.
    """
    if processes.running(paths, "kubelet") is None:
        raise ClusterError("there is no cluster to add a node to", "start it: python -m localcluster up")
    place = added(paths, name, eviction)
    with lock.exclusive(), host.progress.step(f"adding {name}"):
        for folder in (place.kubelet, place.containerd, place.pod_logs):
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in cluster.node_files(paths, place).items():
            write_atomically(path, text)
        pki.ensure_node(paths, place)
        _hold(paths, host, name)
        _connect(paths, place)
        traces.make_groups(place)
        start_on(paths, host, place, components.containerd(paths, place))
        answers = "its containerd answers"
        version = (*store(paths, name).command, "version")
        component = place.component("containerd")
        processes.wait_until(answers, lambda: processes.succeeds(version), paths, component, timeout=60)
        copy_images(paths, name, (*IMAGES, CPU_IMAGE) if engine else IMAGES)
        start_on(paths, host, place, components.kubelet(paths, place))
        start_on(paths, host, place, components.kube_proxy(paths, place))
        cluster.await_node(paths, place)


def lose(paths: ClusterPaths, name: str = SECOND) -> None:
    """As a power loss: nothing more comes from it, and nobody is told. `add` brings it back, as a reboot would."""
    place = added(paths, name)
    # The link first: a killed process's connections are closed, and the others would hear of it.
    network.blackhole(place.pods, place.interface)
    if place.interface in network.interfaces():
        run("ip", "link", "set", place.interface, "down")
    processes.kill(identity.of_node(paths, name))


def remove(paths: ClusterPaths, host: cluster.Host, name: str = SECOND) -> None:
    """Takes the node out of the cluster, and everything of it from the machine."""
    with lock.exclusive(), host.progress.step(f"removing {name}"):
        kubectl = Kubectl(paths)
        if kubectl.is_ready():
            addons.forget_node(kubectl, name)
        traces.remove_node(paths, name)


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m localcluster node",
        description=f"Further real nodes, {' and '.join(ADDED)}, each with a network of its own, beside the running "
        "cluster's first.",
        epilog="example: python -m localcluster node add && kubectl get nodes",
    )
    words = {
        "add": "start it, or what of it is not running, and give it the first node's images",
        "remove": "take it out of the cluster and off the machine",
        "lose": "as a power loss; `add` brings it back",
    }
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in words.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("node", nargs="?", choices=ADDED, default=SECOND, help=f"which one (default: {SECOND})")
        if name == "add":
            command.add_argument("--engine", action="store_true", help="vLLM's image too, not only the stand-in's")
    preflight.require_root(os.geteuid())
    host = cluster.Host(environment, cache_root(environment, Path.home()), progress)
    arguments = parser.parse_args(argv)
    match arguments.command:
        case "add":
            add(paths, host, arguments.node, engine=arguments.engine)
        case "remove":
            remove(paths, host, arguments.node)
        case "lose":
            lose(paths, arguments.node)
    return 0
