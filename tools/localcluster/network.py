"""The bridge, and what the components leave on the host: interfaces, iptables chains, kernel settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.paths import ClusterPaths
from localcluster.processes import write_atomically

NODE = "node-a"
BRIDGE = "cni0"
GATEWAY = "10.244.0.1"
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"

# Every node's pods.
ALL_PODS = "10.244.0.0/16"
# Named like those of the CNI plugins, so that `down` finds it after any crash.
_PODS_CHAIN = "CNI-POD-TO-POD"
_SERVICES_CHAIN = "CNI-NO-SERVICE"

# kubelet, kube-proxy and the bridge plugin set these and never set them back.
SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
)
# Answers of one pod to another stay on the bridge; without this they keep the pod's address where the asker
# expects the Service's, and are dropped.
_BRIDGE_CALLS = "net/bridge/bridge-nf-call-iptables"
_OUR_CHAIN = re.compile(r"^(KUBE-|CNI-)")
_POLICY_CHAIN = re.compile(r"^KUBE-(ROUTER|NWPLCY|POD-FW)-")
_POLICY_SET = re.compile(r"^(KUBE-(SRC|DST)|TMP)-")


@dataclass(frozen=True)
class HostBefore:
    """How the host was before the first `up`, so that `down` can leave it so."""

    settings: Mapping[str, str]
    chains: frozenset[str]

    def to_json(self) -> str:
        return json.dumps({"settings": dict(self.settings), "chains": sorted(self.chains)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> HostBefore:
        raw = json.loads(text)
        return cls(raw["settings"], frozenset(raw["chains"]))


def chains_of(saved: str) -> frozenset[str]:
    """Names of the chains in the output of iptables-save that kubelet, kube-proxy or CNI plugins make."""
    names = (line[1:].split()[0] for line in saved.splitlines() if line.startswith(":"))
    return frozenset(name for name in names if _OUR_CHAIN.match(name))


def removal(saved: str, keep: frozenset[str], of: re.Pattern[str] = _OUR_CHAIN) -> str:
    """Input for `iptables-restore --noflush` that takes out chains, by default ours, and every rule that jumps to
    them."""
    script: list[str] = []
    table: list[str] = []
    chains: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            script.append(line)
            table, chains = [], []
        elif line.startswith(":"):
            name = line[1:].split()[0]
            if of.match(name) and name not in keep:
                chains.append(name)
        elif line.startswith("-A "):
            chain, target = line.split()[1], re.search(r" -[jg] (\S+)", line)
            if chain not in chains and target is not None and target.group(1) in chains:
                table.append("-D " + line.removeprefix("-A "))
        elif line == "COMMIT":
            # Emptied first: a chain that another still jumps to cannot be deleted.
            table += [f"-F {name}" for name in chains] + [f"-X {name}" for name in chains]
            script += [*table, line]
    return "\n".join(script) + "\n" if any(line.startswith("-") for line in script) else ""


def _families() -> Iterable[str]:
    return (family for family in ("iptables", "ip6tables") if shutil.which(f"{family}-save") is not None)


def _saved(family: str) -> str:
    # A kernel without IPv6 has no such tables, and so nothing of ours in them.
    done = subprocess.run([f"{family}-save"], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def _before_file(paths: ClusterPaths) -> Path:
    return paths.state / "host-before.json"


def remember_host(paths: ClusterPaths) -> None:
    """Once: an `up` after a crash must not take our own leftovers for the host's."""
    if _before_file(paths).exists():
        return
    present = (name for name in (*SETTINGS, _BRIDGE_CALLS) if (Path("/proc/sys") / name).exists())
    settings = {name: (Path("/proc/sys") / name).read_text().strip() for name in present}
    chains = frozenset().union(*(chains_of(_saved(family)) for family in _families()))
    write_atomically(_before_file(paths), HostBefore(settings, chains).to_json())


def is_known_host(paths: ClusterPaths) -> bool:
    return _before_file(paths).exists()


def interfaces() -> dict[str, str]:
    """Each interface and the bridge that it hangs on, if any.

    Of the network of this process: /sys has those of the network in which it was mounted.
    """
    return {each["ifname"]: each.get("master", "") for each in json.loads(run("ip", "-json", "link", "show"))}


def _filter_bridged() -> None:
    setting = Path("/proc/sys") / _BRIDGE_CALLS
    if not setting.exists() and shutil.which("modprobe") is not None:
        subprocess.run(["modprobe", "br_netfilter"], capture_output=True, check=False)
    if not setting.exists():
        raise ClusterError(
            "this kernel has no br_netfilter, without which Services do not work between pods",
            "load it on the host (modprobe br_netfilter); a container cannot do that by itself",
        )
    setting.write_text("1")


def ensure_bridge() -> None:
    """The node's address must be there before the kubelet starts, else its node has no InternalIP."""
    if BRIDGE not in interfaces():
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "replace", f"{GATEWAY}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    (Path("/proc/sys") / "net/ipv4/ip_forward").write_text("1")
    _filter_bridged()
    _keep_services_inside()


def _keep_services_inside() -> None:
    """Refuse what goes to a Service's address and that no rule of kube-proxy took: outside of this machine some gateway
    may answer. kube-proxy changes one table after the other: as a Service gets its first endpoint, it is refused no
    longer, and not yet sent on."""
    if _SERVICES_CHAIN in chains_of(_saved("iptables")):
        return
    run("iptables", "-w", "-N", _SERVICES_CHAIN)
    run("iptables", "-w", "-A", _SERVICES_CHAIN, "-d", SERVICES, "-j", "REJECT")
    for chain in ("FORWARD", "OUTPUT"):
        run("iptables", "-w", "-A", chain, "-j", _SERVICES_CHAIN)


def route_to(pods: str, gateway: str) -> None:
    """The way to another node's pods, and their addresses unhidden there and back."""
    run("ip", "route", "replace", pods, "via", gateway)
    saved = _saved("iptables")
    if _PODS_CHAIN in chains_of(saved):
        return
    # After the Services' own chain, whose marks must be heeded, and before those that hide pods from the world.
    first = next(line for line in saved.splitlines() if line.startswith("-A POSTROUTING"))
    place = "2" if "KUBE-POSTROUTING" in first else "1"
    run("iptables", "-w", "-t", "nat", "-N", _PODS_CHAIN)
    between = ("-s", ALL_PODS, "-d", ALL_PODS)
    run("iptables", "-w", "-t", "nat", "-A", _PODS_CHAIN, *between, "-j", "ACCEPT")
    run("iptables", "-w", "-t", "nat", "-I", "POSTROUTING", place, "-j", _PODS_CHAIN)


def blackhole(pods: str, interface: str) -> None:
    """What goes to a node without power is lost without a word, and after it left this one.

    A route of the kind `blackhole` drops it before: then the kernel forgets which pod kube-proxy had chosen for the
    connection, and each of its SYNs, a second apart, tries its luck again. Behind a cable none has luck. This one's
    other end takes none of them.
    """
    void, end = _void(interface), f"{interface}-end"
    if void not in interfaces():
        run("ip", "link", "add", void, "arp", "off", "type", "veth", "peer", "name", end)
    for each in (void, end):
        run("ip", "link", "set", each, "up")
    run("ip", "route", "replace", pods, "dev", void)


def _void(interface: str) -> str:
    return f"{interface}-void"


def disconnect(pods: str, interface: str, others: Collection[str] = ()) -> None:
    """Takes back a link, or what took its place, and its route, if there is one; with the last of the links, but these
    others, also what unhides addresses."""
    subprocess.run(("ip", "route", "del", pods), capture_output=True, check=False)
    # The kernel may be taking the link away itself, with the namespace of its other end.
    for link in (interface, _void(interface)):
        subprocess.run(("ip", "link", "del", link), capture_output=True, check=False)
    if not set(others).isdisjoint(interfaces()):
        return
    for words in (("-D", "POSTROUTING", "-j", _PODS_CHAIN), ("-F", _PODS_CHAIN), ("-X", _PODS_CHAIN)):
        subprocess.run(("iptables", "-w", "-t", "nat", *words), capture_output=True, check=False)


def _delete_interfaces() -> None:
    present = interfaces()
    if BRIDGE not in present:
        return
    for name, bridge in present.items():
        if bridge == BRIDGE:  # the kernel may be taking it away itself, with the namespace of its other end
            subprocess.run(("ip", "link", "del", name), capture_output=True, check=False)
    run("ip", "link", "del", BRIDGE)


def remove_policies(enter: Sequence[str]) -> None:
    """Takes out what enforces NetworkPolicies on a node: chains, and the sets of addresses that they name. `enter` is
    what a command begins with that runs there."""
    saved = run(*enter, "iptables-save")
    if script := removal(saved, frozenset(), _POLICY_CHAIN):
        run(*enter, "iptables-restore", "--noflush", stdin=script)
    _destroy_sets(enter)


def _destroy_sets(enter: Sequence[str] = ()) -> None:
    if shutil.which("ipset") is not None:
        # It fails where the kernel has no sets.
        listed = subprocess.run((*enter, "ipset", "list", "-name"), capture_output=True, text=True)
        for name in filter(_POLICY_SET.match, listed.stdout.split()):
            run(*enter, "ipset", "destroy", name)


def _delete_chains(keep: frozenset[str]) -> None:
    for family in _families():
        script = removal(_saved(family), keep)
        if script:
            run(f"{family}-restore", "--noflush", stdin=script)


def restore_host(paths: ClusterPaths) -> None:
    """Takes out what the cluster left on the host. Does nothing when there was no cluster."""
    record = _before_file(paths)
    if record.exists():
        before = HostBefore.from_json(record.read_text())
    elif paths.is_deleted:
        # The clone was deleted while its cluster ran, and what it knew about the host with it.
        before = HostBefore({}, frozenset())
    else:
        return
    _delete_chains(before.chains)
    if not any(map(_POLICY_CHAIN.match, before.chains)):  # else another's, which name these sets
        _destroy_sets()
    _delete_interfaces()
    for name, value in before.settings.items():
        (Path("/proc/sys") / name).write_text(value)
    record.unlink(missing_ok=True)
