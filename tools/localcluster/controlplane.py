"""A control plane of the oldest Kubernetes that the operator is for, in a network of its own beside the cluster.

It has no kubelet: kwok's nodes take the pods and say that they run. A command runs beside it, in the same network, with
KUBECONFIG and PATH for it; when the command ends, everything of it ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from localcluster import addons, builds, cluster, components, configs, network, pki, preflight, processes
from localcluster.commands import run
from localcluster.kube import Kubectl
from localcluster.paths import ClusterPaths, cache_root
from localcluster.processes import write_atomically
from localcluster.programs import OLDEST_KUBERNETES, Group
from localcluster.progress import Progress

EXAMPLES = """\
examples:
  python -m localcluster oldest kubectl version
  python -m localcluster oldest .venv/bin/pytest tests/contract
"""
NODES, GPUS = 2, 8
_INSIDE = "LLMSERVICE_LOCALCLUSTER_INSIDE"
"""Set where the network is the control plane's own."""


def paths_of(paths: ClusterPaths) -> ClusterPaths:
    """Where the control plane of a clone has its files."""
    return ClusterPaths(paths.state / "oldest-kubernetes")


@contextmanager
def running(paths: ClusterPaths, host: cluster.Host) -> Iterator[ClusterPaths]:
    """An empty one, in the network of this process."""
    own = paths_of(paths)
    _stop(own)  # what a killed run left
    shutil.rmtree(own.root, ignore_errors=True)
    for group in (Group.CLUSTER, Group.SIMULATION, Group.OLDEST_KUBERNETES):
        # The last one's programs take the place of the cluster's of the same name.
        builds.ensure(host.store, group, own, host.environment, host.progress)
    try:
        with host.progress.step(f"starting Kubernetes {OLDEST_KUBERNETES} without a kubelet"):
            own.etcd.mkdir(parents=True, mode=0o700)
            write_atomically(own.config / "audit.json", configs.audit_policy())
            write_atomically(own.config / "kwok.yaml", configs.simulation())
            pki.ensure(own)
            run("ip", "link", "set", "lo", "up")
            network.ensure_bridge()  # with the address that the API server advertises
            cluster.start_control_plane(own, host)
            kubectl = Kubectl(own)
            processes.start(own, components.kwok(own), cluster.component_environment(own, host))
            addons.simulate_nodes(kubectl, NODES, GPUS)
            ready = "the simulated nodes are Ready"
            processes.wait_until(ready, lambda: addons.simulated_are_ready(kubectl), own, "kwok", timeout=120)
        yield own
    finally:
        _stop(own)


def _stop(own: ClusterPaths) -> None:
    for record in reversed(processes.records(own)):
        processes.stop(own, record.name)


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m localcluster oldest",
        description=f"Run a command beside a control plane of Kubernetes {OLDEST_KUBERNETES}, with KUBECONFIG for it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="and its arguments")
    words = parser.parse_args(argv).words
    if not words:
        parser.error("the command is missing")
    preflight.require_root(os.geteuid())
    if _INSIDE not in environment:
        again = ("unshare", "--net", "--", sys.executable, "-m", "localcluster", "oldest", *words)
        return subprocess.run(again, env={**environment, _INSIDE: "1"}, check=False).returncode
    host = cluster.Host(environment, cache_root(environment, Path.home()), progress)
    with running(paths, host) as own:
        inside = {
            "KUBECONFIG": str(own.kubeconfig),
            "PATH": f"{own.bin}:{environment.get('PATH', '')}",
            # By address, which is that of the cluster too.
            "KUBECACHEDIR": str(own.state / "kubectl-cache"),
        }
        return subprocess.run(words, env={**environment, **inside}, check=False).returncode
