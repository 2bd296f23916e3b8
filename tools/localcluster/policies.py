"""NetworkPolicies in force on the running nodes, by kube-router: the bridge alone enforces none."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from localcluster import addednode, builds, cluster, network, pki, preflight, processes
from localcluster.kube import running_kubectl
from localcluster.network import SERVICES
from localcluster.paths import ClusterPaths, cache_root
from localcluster.place import ADDED, Place, added, first
from localcluster.processes import Component
from localcluster.programs import Group
from localcluster.progress import Progress

PROGRAM = "kube-router"
TOOLS: Mapping[str, str] = {"ipset": "ipset"}
_IDENTITY = pki.Certificate(PROGRAM, f"/O=system:masters/CN={PROGRAM}", f"DNS:{PROGRAM}")
_HEALTH_PORT = 20244


def _component(paths: ClusterPaths, place: Place) -> Component:
    """Of its three parts only the one for policies: routes and Services are the bridge's and kube-proxy's."""
    return Component(
        place.component(PROGRAM),
        (
            f"{paths.bin}/{PROGRAM}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            f"--kubeconfig={paths.kubeconfig_of(PROGRAM)}",
            f"--hostname-override={place.name}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--health-port={_HEALTH_PORT}",
        ),
    )


def _places(paths: ClusterPaths) -> list[Place]:
    """Of the nodes that run."""
    return [first(paths), *(added(paths, name) for name in ADDED if addednode.is_added(paths, name))]


def enforce(paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """On the nodes that run now; one that is added later needs it again. What runs already is left alone."""
    running_kubectl(paths)
    host = cluster.Host(environment, cache_root(environment, Path.home()), progress)
    preflight.ensure_packages(preflight.missing_packages(TOOLS), progress)
    builds.ensure(host.store, Group.NETWORK_POLICIES, paths, environment, progress)
    pki.ensure_certificate(paths, _IDENTITY)
    with progress.step("enforcing NetworkPolicies"):
        for place in _places(paths):
            component = _component(paths, place)
            addednode.start_on(paths, host, place, component)
            health = partial(processes.answers, f"http://{place.address}:{_HEALTH_PORT}/healthz")
            what = f"policies are in force on {place.name}"
            processes.wait_until(what, health, paths, component.name, timeout=60)


def stop(paths: ClusterPaths, progress: Progress) -> None:
    """No policy is in force any more; nothing where none was."""
    with progress.step("no longer enforcing NetworkPolicies"):
        for place in _places(paths):
            processes.stop(paths, place.component(PROGRAM))
            network.remove_policies(addednode.enter(paths, place))


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    """`python -m localcluster policies`."""
    parser = argparse.ArgumentParser(
        prog="python -m localcluster policies",
        description="Enforce NetworkPolicies on the running nodes, which the cluster's network does not by itself.",
        epilog="""examples:
  python -m localcluster policies           build kube-router (minutes, once for all clones) and start it on each node
  python -m localcluster node add && python -m localcluster policies
                                            a node that is added later needs it, too
  python -m localcluster policies --off     stop it, and take its rules away""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--off", action="store_true", help="enforce none any more")
    chosen = parser.parse_args(argv)
    preflight.require_root(os.geteuid())
    if chosen.off:
        stop(paths, progress)
    else:
        enforce(paths, environment, progress)
    return 0
