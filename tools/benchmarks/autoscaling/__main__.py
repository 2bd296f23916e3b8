"""What the activator and the operator cost with many services that scale with their load, nearly all of them at zero.

API server, etcd and controllers are real, nodes are simulated (kwok), and the benchmark answers for the pods. Operator
and activator run as processes of this machine with the rights of the installed ones, which rest meanwhile, as does
KEDA: the benchmark asks the activator as KEDA does. Each tenth service has a replica with a request in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import yaml
from llmservice_api.holding import FIRST_PORT, LAST_PORT
from llmservice_cli.text import table as in_columns

from benchmarks.autoscaling.figures import Figures, goals, rest
from benchmarks.autoscaling.run import PORT_LEASE, Activator, Plan, Scene, listened, run
from benchmarks.autoscaling.services import ScaleObserver, autoscaled, is_at_zero, pods_here, supervisors
from benchmarks.scale.audit import AuditTail
from benchmarks.scale.figures import judged
from benchmarks.scale.place import nothing_left, simulated_nodes
from benchmarks.scale.process import Operator, kubeconfig
from benchmarks.scale.services import PREFIX, Writer, is_ours, nodes_for
from benchmarks.scale.watch import LARGEST_EVENT
from localcluster import keda
from localcluster.network import NODE
from localcluster.paths import ClusterPaths
from localcluster.scaler import KEDA_NAMESPACE
from tests.support.audit import OPERATOR_USER
from tests.support.certificates import Authority
from tests.support.cluster import COLLECTIONS, JSON, Cluster, administrator
from tests.support.keda import ACTIVATOR, autoscaling_installed, without_pods
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, scale_operator

SLICE, RESERVED = "bench-activator", "bench/host/port"
EXAMPLES = """\
examples (after `make cluster`; KEDA and the chart's autoscaling are installed where they are missing):
  python -m benchmarks.autoscaling --services 1000
  python -m benchmarks.autoscaling --services 100 --wakes 50
  python -m benchmarks.autoscaling --services 1000 --idle-seconds 600 --json figures.json
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--services", type=int, default=100, metavar="N", help="how many LLMServices (default: 100)")
    made.add_argument("--idle-seconds", type=float, default=60.0, metavar="S", help="how long only KEDA asks (60)")
    made.add_argument("--wakes", type=int, default=20, metavar="N", help="services at zero that get a request (20)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    made.add_argument("--counts-only", action="store_true", help="a missed time is no failure: only counts are")
    return made


@contextlib.contextmanager
def installed(cluster: Cluster) -> Iterator[None]:
    """The chart with autoscaling, whose rights the processes use; what is there already stays."""
    if cluster.get("deployments", OPERATOR_NAMESPACE, ACTIVATOR):
        yield
    else:
        with autoscaling_installed(cluster):
            yield


@contextlib.contextmanager
def resting(cluster: Cluster) -> Iterator[None]:
    """No operator, no activators, and nobody who acts on ScaledObjects."""
    with (
        without_pods(cluster, KEDA_NAMESPACE, keda.OPERATOR),
        scale_operator(cluster, 0),
        without_pods(cluster, OPERATOR_NAMESPACE, ACTIVATOR),
    ):
        yield


@contextlib.contextmanager
def emptied(cluster: Cluster) -> Iterator[None]:
    """Afterwards no ScaledObject is left for KEDA to take up."""
    try:
        yield
    finally:
        found = {each["metadata"]["namespace"] for each in _all(cluster, "scaledobjects")}
        for namespace in sorted(filter(is_ours, found)):
            cluster.kubectl("delete", "scaledobjects", "--all", "-n", namespace, "--timeout=600s", timeout=700)


@contextlib.contextmanager
def ports_of_their_own(cluster: Cluster) -> Iterator[None]:
    """In a pod nobody else has a port. Here the ones that others listen on are reserved meanwhile, by their Leases."""
    names = [f"{PORT_LEASE}{port}" for port in sorted(listened()) if FIRST_PORT <= port <= LAST_PORT]
    leases = [
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": {"holderIdentity": RESERVED},
        }
        for name in names
    ]
    cluster.apply_all(leases, OPERATOR_NAMESPACE)
    try:
        yield
    finally:
        # kubectl deletes five a second, and a thousand would outlast its time.
        for lease in cluster.list("leases", OPERATOR_NAMESPACE):
            name = lease["metadata"]["name"]
            if name.startswith(PORT_LEASE) and _is_of_the_run(lease["spec"].get("holderIdentity", "")):
                cluster.api.delete(f"{COLLECTIONS['leases']}/namespaces/{OPERATOR_NAMESPACE}/leases/{name}")


def _is_of_the_run(holder: str) -> bool:
    return holder == RESERVED or holder.startswith(PREFIX)


def _all(cluster: Cluster, plural: str) -> list[JSON]:
    found: list[JSON] = json.loads(cluster.kubectl("get", plural, "-A", "-o", "json"))["items"]
    return found


@contextlib.contextmanager
def activator_here(cluster: Cluster) -> Iterator[None]:
    """The operator finds one activator: the process of this machine."""
    node = json.loads(cluster.kubectl("get", "node", NODE, "-o", "json"))
    address = next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
    labels = {"kubernetes.io/service-name": ACTIVATOR, "endpointslice.kubernetes.io/managed-by": "llmservice.test"}
    conditions = {"ready": True, "serving": True, "terminating": False}
    made = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": SLICE, "labels": labels},
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": conditions, "nodeName": NODE}],
        "ports": [{"name": "scaler", "port": 9443, "protocol": "TCP"}],
    }
    cluster.apply(made, OPERATOR_NAMESPACE)
    try:
        yield
    finally:
        cluster.kubectl("delete", "endpointslice", SLICE, "-n", OPERATOR_NAMESPACE, "--ignore-not-found")


def settings(cluster: Cluster, folder: Path) -> Path:
    """Those of the installed operator."""
    found = json.loads(cluster.kubectl("get", "configmap", OPERATOR, "-n", OPERATOR_NAMESPACE, "-o", "json"))
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(found["data"]["settings.yaml"])))
    return path


def certificates(folder: Path) -> tuple[Path, Path]:
    """Folders with those of the activator and of KEDA."""
    authority = Authority.make(folder / "authority")
    return authority.issue(folder / "server"), authority.issue(folder / "client")


async def measured(cluster: Cluster, plan: Plan, folder: Path) -> Figures:
    server, context = administrator(cluster.paths)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    tls, client = certificates(folder)
    operator = Operator(kubeconfig(cluster, folder), args=(f"--settings={settings(cluster, folder)}",))
    activator = Activator(kubeconfig(cluster, folder, account=ACTIVATOR), tls)
    account = OPERATOR_USER.removesuffix(OPERATOR) + ACTIVATOR
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=LARGEST_EVENT) as session,
        supervisors(),
    ):
        observer, writer = ScaleObserver(session, server), Writer(session, server, autoscaled)
        of_operator, of_activator = audits = [
            AuditTail(cluster.paths.audit_log, user, _concerns) for user in (OPERATOR_USER, account)
        ]
        following = [asyncio.create_task(audit.follow(), name="audit log") for audit in audits]
        try:
            await writer.make_namespaces(plan.services)
            return await run(plan, Scene(operator, activator, client, observer, writer, of_operator, of_activator))
        finally:
            await observer.stop()
            await activator.stop()
            await operator.stop()
            for process in (operator, activator):
                process.close()
            for task, audit in zip(following, audits, strict=True):
                task.cancel()
                audit.close()


def _concerns(namespace: str) -> bool:
    """Leases of ports are in the operator's own."""
    return is_ours(namespace) or namespace == OPERATOR_NAMESPACE


def bench(plan: Plan, paths: ClusterPaths, report: Callable[[Figures], None]) -> Figures:
    """With all that it needs, and nothing of it afterwards; `report` gets the figures before that is removed."""
    cluster = Cluster.connect(paths)
    replicas = sum(not is_at_zero(number) for number in range(plan.services)) + plan.wakes
    with (
        cluster.api,
        tempfile.TemporaryDirectory() as folder,
        installed(cluster),
        simulated_nodes(paths, nodes_for(replicas)),
        pods_here(),
        nothing_left(cluster),
        resting(cluster),
        ports_of_their_own(cluster),
        activator_here(cluster),
        emptied(cluster),
    ):
        found = asyncio.run(measured(cluster, plan, Path(folder)))
        report(found)
        return found


def main(argv: Sequence[str] | None = None, paths: ClusterPaths | None = None) -> int:
    """1 where a goal is missed."""
    arguments = parser().parse_args(argv)
    plan = Plan(arguments.services, arguments.idle_seconds, arguments.wakes)

    def report(found: Figures) -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(found.to_json(), indent=1) + "\n")
        print(judged(goals(found)))
        print("\n".join(in_columns(("figure", "measured"), rest(found))), flush=True)

    found = bench(plan, paths or ClusterPaths.of_this_clone(), report)
    missed = [goal for goal in goals(found) if not goal.is_met]
    return int(any(goal.is_count or not arguments.counts_only for goal in missed))


if __name__ == "__main__":
    sys.exit(main())
