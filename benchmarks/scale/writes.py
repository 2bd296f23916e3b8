"""CPU milliseconds that one write costs the API server and etcd, for each write that a new service needs.

The objects are what the operator would write for a service of the scale benchmark, in the running cluster, with no
operator beside; each is also made by a plain POST or merge patch, which says what server-side apply costs on top.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import aiohttp

from benchmarks.scale.process import control_plane
from benchmarks.scale.services import API, manifest, sent
from benchmarks.stages import new, ready
from localcluster.paths import ClusterPaths
from tests.support.cluster import Cluster, administrator
from tests.support.operator import scale_operator

JSON = dict[str, Any]
Send = Callable[[str, str, JSON | None, str], Awaitable[Any]]

NAMESPACE = "scale-writes"
AT_ONCE = 4
PLAIN, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"
BY = "?fieldManager=bench"
PATHS = {
    "ControllerRevision": f"/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
}
SERVICES = f"{API}/namespaces/{NAMESPACE}/llmservices"


def children() -> list[JSON]:
    """Without owner, and without replicas: what controllers do about them would be counted too."""
    world = new(1)
    made = []
    for apply in world.decide(world.observed()).apply:
        child = json.loads(json.dumps(apply.manifest))
        child["metadata"].pop("ownerReferences", None)
        if child["kind"] == "Deployment":
            child["spec"]["replicas"] = 0
        made.append(child)
    return made


def named(obj: Mapping[str, Any], name: str) -> JSON:
    made = copy.deepcopy(dict(obj))
    made["metadata"] = {**made["metadata"], "name": name, "namespace": NAMESPACE}
    return made


def writes(send: Send) -> list[tuple[str, Callable[[int], Awaitable[Any]]]]:
    """What is measured, in an order in which each finds what it needs."""
    status = dict(ready(1).obj["status"])

    def an_llmservice(number: int) -> Awaitable[Any]:
        return send("POST", SERVICES, named(manifest(number), f"s{number}"), PLAIN)

    def a_status(round_: int, kind: str, query: str) -> Callable[[int], Awaitable[Any]]:
        def write(number: int) -> Awaitable[Any]:
            body: JSON = {"status": {**status, "observedGeneration": round_}}
            if kind == APPLY:
                body |= {"apiVersion": manifest(0)["apiVersion"], "kind": manifest(0)["kind"]}
            return send("PATCH", f"{SERVICES}/s{number}/status{BY}{query}", body, kind)

        return write

    def applied(child: JSON, number: int) -> Awaitable[Any]:
        return send("PATCH", f"{PATHS[child['kind']]}/a{number}{BY}", named(child, f"a{number}"), APPLY)

    def posted(child: JSON, number: int) -> Awaitable[Any]:
        return send("POST", f"{PATHS[child['kind']]}{BY}", named(child, f"p{number}"), PLAIN)

    return [
        ("LLMService, POST", an_llmservice),
        ("its status, apply: the first", a_status(1, APPLY, "&force=true")),
        ("its status, apply: the next", a_status(2, APPLY, "&force=true")),
        ("its status, merge patch", a_status(3, MERGE, "2")),
        *((f"{child['kind']}, apply", partial(applied, child)) for child in children()),
        *((f"{child['kind']}, POST", partial(posted, child)) for child in children()),
    ]


async def measured(cluster: Cluster, count: int) -> dict[str, dict[str, float]]:
    """By write: milliseconds of each process."""
    server, context = administrator(cluster.paths)
    found: dict[str, dict[str, float]] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=AT_ONCE)) as session:

        async def send(method: str, path: str, body: JSON | None, content_type: str) -> Any:
            return await sent(session, method, server + path, body, content_type)

        for what, write in writes(send):
            before = control_plane(cluster.paths)
            for first in range(0, count, AT_ONCE):
                await asyncio.gather(*(write(number) for number in range(first, min(count, first + AT_ONCE))))
            after = control_plane(cluster.paths)
            found[what] = {
                name: round((after[name] - before[name]) * 1000 / count, 1) for name in ("kube-apiserver", "etcd")
            }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale.writes",
        description=__doc__,
        epilog="example (after `make cluster`): python -m benchmarks.scale.writes --writes 200",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--writes", type=int, default=100, metavar="N", help="of each kind (100)")
    arguments = parser.parse_args(argv)
    cluster = Cluster.connect(ClusterPaths.of_this_clone())
    with cluster.api, scale_operator(cluster, 0):
        cluster.kubectl("create", "namespace", NAMESPACE)
        try:
            found = asyncio.run(measured(cluster, arguments.writes))
        finally:
            cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    print(f"{'write':32} {'API server':>10} {'etcd':>8}   (ms of CPU each)")
    for what, used in found.items():
        print(f"{what:32} {used['kube-apiserver']:10.1f} {used['etcd']:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
