"""python3 -m localcluster up | down | status | env | binaries"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys

from localcluster import builds, cluster
from localcluster.errors import ClusterError
from localcluster.paths import ClusterPaths
from localcluster.programs import KUBERNETES, Group
from localcluster.progress import Progress

EXAMPLES = {
    "up": """examples:
  python3 -m localcluster up                       a cluster of one real node
  python3 -m localcluster up --gpus 8              the node says that it has 8 GPUs (nothing can compute on them)
  python3 -m localcluster up --kwok-nodes 100      and 100 simulated nodes with 8 GPUs each
  python3 -m localcluster up --only containerd     just enough to build images
  eval "$(python3 -m localcluster env)"; kubectl get nodes""",
    "down": """examples:
  python3 -m localcluster down                     stop everything; images and objects are there at the next up
  python3 -m localcluster down --purge             and remove .cluster, images included""",
    "status": """examples:
  python3 -m localcluster status                   each component; exit status 1 when one is not running""",
    "env": """examples:
  eval "$(python3 -m localcluster env)"            then: kubectl get pods -A""",
    "binaries": """examples:
  python3 -m localcluster binaries                 build what `up` needs, start nothing
  python3 -m localcluster binaries --group images  only containerd, runc and BuildKit""",
}

# Commands with a parser of their own: their module's `main` gets the words after the name.
DELEGATED = {
    "images": ("localcluster.images", "Build the images into the cluster's store."),
    "install": ("localcluster.install", "Install or upgrade the operator's chart in the running cluster."),
    "node": ("localcluster.addednode", "Add or remove further real nodes."),
    "oldest": ("localcluster.controlplane", "Run a command beside a control plane of the oldest Kubernetes."),
    "keda": ("localcluster.keda", "Install KEDA in the running cluster, or remove it."),
    "lws": ("localcluster.lws", "Install LeaderWorkerSet in the running cluster, or remove it."),
    "prometheus": ("localcluster.prometheus", "Install the Prometheus operator and a Prometheus, or remove them."),
    "policies": ("localcluster.policies", "Enforce NetworkPolicies on the running nodes, or no longer."),
    "demo": ("localcluster.demo", "From nothing to an answered chat completion."),
}


def count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python3 -m localcluster",
        description=f"Kubernetes {KUBERNETES} on this machine, from binaries built from one pinned go.mod.",
    )
    commands = top.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(name, help=text, description=text, epilog=EXAMPLES[name], formatter_class=form)

    start = command("up", "Build what is missing and start the cluster, or what of it is not running.")
    start.add_argument("--gpus", type=count, metavar="N", help="the real node advertises nvidia.com/gpu: N")
    start.add_argument("--kwok-nodes", type=count, metavar="N", help="N simulated GPU nodes (builds kwok, 1 min)")
    start.add_argument("--kwok-gpus", type=count, metavar="N", help="GPUs of each simulated node (8)")
    start.add_argument("--only", choices=["containerd"], help="start no more than this")
    start.add_argument("--images", action="store_true", help="build the images too, beside the programs")
    stop = command("down", "Stop the cluster and take back everything that it did to the host.")
    stop.add_argument("--purge", action="store_true", help="remove its state and images too")
    command("status", "Show the components.")
    command("env", "Print shell lines that set KUBECONFIG and PATH.")
    make = command("binaries", "Build the programs, start nothing.")
    make.add_argument("--group", action="append", choices=[str(group) for group in Group], help="may be repeated")
    for name, (_, text) in DELEGATED.items():
        commands.add_parser(name, help=text, add_help=False)
    return top


def _binaries(groups: list[str] | None, paths: ClusterPaths, host: cluster.Host) -> None:
    for group in [Group(name) for name in groups or (Group.IMAGES, Group.CLUSTER)]:
        builds.ensure(host.store, group, paths, host.environment, host.progress)


def _status(paths: ClusterPaths) -> int:
    rows = cluster.status(paths)
    for row in rows:
        print(f"{row.name:<26}{row.state:<10}{row.pid or ''}")
    missing = [row.name for row in rows if row.is_needed and row.pid is None]
    if missing:
        print("start what is stopped with: python3 -m localcluster up")
    return 1 if missing else 0


def run(arguments: argparse.Namespace, paths: ClusterPaths) -> int:
    host = cluster.Host.current()
    match arguments.command:
        case "up" if arguments.only == "containerd":
            cluster.up_containerd(paths, host)
        case "up":
            options = cluster.Options(arguments.gpus, arguments.kwok_nodes, arguments.kwok_gpus)
            if arguments.images:
                _up_with_images(options, paths, host)
            else:
                cluster.up(paths, options, host)
        case "down":
            cluster.down(paths, host, purge=arguments.purge)
        case "status":
            return _status(paths)
        case "env":
            print(cluster.environment(paths, os.environ.get("PATH", "")), end="")
        case "binaries":
            _binaries(arguments.group, paths, host)
    return 0


def _up_with_images(options: cluster.Options, paths: ClusterPaths, host: cluster.Host) -> None:
    from localcluster.bringup import bring_up  # only here: the rest needs no images

    bring_up(paths, host)
    if options != cluster.Options():
        cluster.up(paths, options, host)


def _delegate(name: str, words: list[str], paths: ClusterPaths) -> int:
    module, _ = DELEGATED[name]
    main = importlib.import_module(module).main
    return int(main(words, paths, dict(os.environ), Progress()))


def main() -> int:
    words = sys.argv[1:]
    paths = ClusterPaths.of_this_clone()
    try:
        if words and words[0] in DELEGATED:
            return _delegate(words[0], words[1:], paths)
        return run(parser().parse_args(words), paths)
    except (ClusterError, subprocess.SubprocessError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
