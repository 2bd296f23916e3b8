"""How fast, how quiet and how large the operator is with many services, beside the control plane on one machine.

The nodes are simulated (kwok), everything else is real: API server, etcd, controller manager, scheduler. The operator
runs as a process of this machine with the rights of the installed one, which rests meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import aiohttp
import yaml

from benchmarks.scale.audit import AuditTail
from benchmarks.scale.figures import Figures, goals, table
from benchmarks.scale.place import nothing_left, simulated_nodes
from benchmarks.scale.process import Operator, kubeconfig
from benchmarks.scale.run import Plan, Scene, run
from benchmarks.scale.services import Writer, is_ours, manifest, nodes_for
from benchmarks.scale.watch import LARGEST_EVENT, Observer
from localcluster.network import NODE
from localcluster.paths import ClusterPaths
from tests.chaos import proxy
from tests.chaos.faults import Kind, Weather
from tests.support.audit import OPERATOR_USER
from tests.support.cluster import Cluster, administrator
from tests.support.nodes import cordoned
from tests.support.operator import scale_operator
from tests.support.ports import free_port

BAD = Weather({Kind.THROTTLED: 1 / 300, Kind.SERVER_ERROR: 1 / 300, Kind.DROPPED: 1 / 300})
"""One request in a hundred."""
EXAMPLES = """\
examples (after `make cluster`; `make bench-scale N=1000` does both):
  python -m benchmarks.scale --services 1000
  python -m benchmarks.scale --services 1000 --faults
  python -m benchmarks.scale --services 1000 --inspect
  python -m benchmarks.scale --services 500 --rate 10 --json arriving.json
  python -m benchmarks.scale --services 100 --profile where-time-goes.svg
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--services", type=int, default=100, metavar="N", help="how many LLMServices (default: 100)")
    made.add_argument("--rate", type=float, metavar="R", help="R arrive each second while the operator runs")
    made.add_argument("--faults", action="store_true", help="1%% of its requests are answered 429 or 5xx, or dropped")
    made.add_argument(
        "--inspect",
        action="store_true",
        help="the services leave out model.architecture: each asks its neighbours for the facts, and makes a Job",
    )
    made.add_argument("--idle-seconds", type=float, default=60.0, metavar="S", help="how long it is left alone (60)")
    made.add_argument("--edits", type=int, default=100, metavar="N", help="how many edits are timed (100)")
    made.add_argument("--profile", type=Path, metavar="FILE", help="a flame graph of the operator until all are Ready")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    made.add_argument("--counts-only", action="store_true", help="a missed time is no failure: only counts are")
    return made


@contextlib.contextmanager
def api_server_address(cluster: Cluster, faults: bool) -> Iterator[str | None]:
    """Where the operator sends its requests; None: to the API server itself."""
    if not faults:
        yield None
        return
    pki, port = cluster.paths.pki, free_port()
    config = yaml.safe_load(cluster.paths.kubeconfig.read_text())["clusters"][0]["cluster"]
    trusted = ssl.create_default_context(cadata=base64.b64decode(config["certificate-authority-data"]).decode())
    between = proxy.FaultyWay(config["server"], trusted, seed=7)
    with proxy.serving(between, "127.0.0.1", port, pki / "apiserver.crt", pki / "apiserver.key"):
        between.turn(BAD)
        yield f"https://127.0.0.1:{port}"
    print(f"faults: {dict(between.struck)}; passed: {between.passed}", file=sys.stderr)


async def measured(cluster: Cluster, plan: Plan, config: Path) -> Figures:
    server, context = administrator(cluster.paths)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    operator = Operator(config)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=LARGEST_EVENT) as session:
        observer, writer = (
            Observer(session, server),
            Writer(session, server, partial(manifest, inspected=plan.inspected)),
        )
        audit = AuditTail(cluster.paths.audit_log, OPERATOR_USER, is_ours)
        following = asyncio.create_task(audit.follow(), name="audit log")
        try:
            await writer.make_namespaces(plan.services)
            return await run(plan, Scene(cluster.paths, operator, observer, writer, audit))
        finally:
            await observer.stop()
            await operator.stop()
            operator.close()
            following.cancel()
            audit.close()


def bench(plan: Plan, paths: ClusterPaths, report: Callable[[Figures], None]) -> Figures:
    """With all that it needs, and nothing of it afterwards; `report` gets the figures before that is removed."""
    cluster = Cluster.connect(paths)
    with (
        cluster.api,
        tempfile.TemporaryDirectory() as folder,
        simulated_nodes(paths, nodes_for(plan.services)),
        scale_operator(cluster, 0),
        cordoned(cluster, NODE),  # its kubelet cannot pull the images of what is simulated
        nothing_left(cluster),
        api_server_address(cluster, plan.faults) as server,
    ):
        config = kubeconfig(cluster, Path(folder), server)
        found = asyncio.run(measured(cluster, plan, config))
        report(found)
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """1 where a goal is missed."""
    arguments = parser().parse_args(argv)
    plan = Plan(
        services=arguments.services,
        rate=arguments.rate,
        faults=arguments.faults,
        inspected=arguments.inspect,
        idle_seconds=arguments.idle_seconds,
        edits=arguments.edits,
        profile=arguments.profile,
    )

    def report(found: Figures) -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(found.to_json(), indent=1) + "\n")
        print(table(found))
        print(json.dumps(found.to_json(), indent=1), flush=True)

    found = bench(plan, ClusterPaths.of_this_clone(), report)
    missed = [goal for goal in goals(found) if not goal.is_met]
    return int(any(goal.is_count or not arguments.counts_only for goal in missed))


if __name__ == "__main__":
    sys.exit(main())
