"""CPU milliseconds that one write costs the API server and etcd, for each write that a new service needs.

The objects are what the operator would write for a service of the scale benchmark, in the running cluster, with no
operator beside; each is also made by a plain POST or patch, which says what server-side apply costs on top. All take
turns, some writes at a time, each once the controllers are done with the last ones, and the median of the turns is
shown: the API server collects its garbage now and then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
Send = Callable[[str, str, Any, str], Awaitable[Any]]

NAMESPACE = "scale-writes"
PROCESSES = ("kube-apiserver", "etcd")
LOOK_EACH, LITTLE = 0.5, 0.15
"""Seconds between two looks at the control plane, and the share of one core below which it is at rest."""
AT_ONCE, IN_A_TURN = 4, 20
PLAIN, APPLY, JSON_PATCH = "application/json", "application/apply-patch+yaml", "application/json-patch+json"
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
            told = {**status, "observedGeneration": round_}
            body: Any = [{"op": "replace", "path": "/status", "value": told}]
            if kind == APPLY:
                body = {"apiVersion": manifest(0)["apiVersion"], "kind": manifest(0)["kind"], "status": told}
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
        ("its status, JSON patch", a_status(3, JSON_PATCH, "2")),
        *((f"{child['kind']}, apply", partial(applied, child)) for child in children()),
        *((f"{child['kind']}, POST", partial(posted, child)) for child in children()),
    ]


RULES, SCHEMA = "rules", "schema"
CRD, VALIDATIONS = "llmservices.llmservice.dev", "x-kubernetes-validations"


def _without_rules(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_rules(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_rules(each) for key, each in schema.items() if key != VALIDATIONS}


def _open(schema: JSON) -> JSON:
    """Any spec and any status, with the default of the status; `/scale` needs spec.scaling."""
    anything: JSON = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    status = schema["properties"]["status"]
    return {**schema, "properties": {"spec": anything, "status": {**anything, "default": status["default"]}}}


@contextlib.contextmanager
def crd_without(cluster: Cluster, part: str | None) -> Iterator[None]:
    """Its rules, or rules and schema, are taken out meanwhile: what they cost."""
    if part is None:
        yield
        return
    installed = json.loads(cluster.kubectl("get", "crd", CRD, "-o", "json"))
    for key in ("resourceVersion", "managedFields"):
        installed["metadata"].pop(key, None)
    changed = copy.deepcopy(installed)
    for version in changed["spec"]["versions"]:
        schema = _without_rules(version["schema"]["openAPIV3Schema"])
        version["schema"]["openAPIV3Schema"] = _open(schema) if part == SCHEMA else schema
    try:
        cluster.kubectl("replace", "-f", "-", stdin=json.dumps(changed))
        cluster.kubectl("wait", f"crd/{CRD}", "--for=condition=Established")
        yield
    finally:
        cluster.kubectl("replace", "-f", "-", stdin=json.dumps(installed))


async def at_rest(paths: ClusterPaths) -> Mapping[str, float]:
    """CPU seconds of the control plane once controllers are done with what was written before."""
    before = control_plane(paths)
    while True:
        await asyncio.sleep(LOOK_EACH)
        now = control_plane(paths)
        if sum(now.values()) - sum(before.values()) < LITTLE * LOOK_EACH:
            return now
        before = now


async def measured(cluster: Cluster, count: int) -> dict[str, dict[str, float]]:
    """By write: milliseconds of each process."""
    server, context = administrator(cluster.paths)
    turns: dict[str, list[dict[str, float]]] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=AT_ONCE)) as session:

        async def send(method: str, path: str, body: Any, content_type: str) -> Any:
            return await sent(session, method, server + path, body, content_type)

        every = writes(send)
        for begin in range(0, count, IN_A_TURN):
            for what, write in every:
                before = await at_rest(cluster.paths)
                for first in range(begin, begin + IN_A_TURN, AT_ONCE):
                    await asyncio.gather(*(write(number) for number in range(first, first + AT_ONCE)))
                after = control_plane(cluster.paths)
                used = {name: (after[name] - before[name]) * 1000 / IN_A_TURN for name in PROCESSES}
                turns.setdefault(what, []).append(used)
    return {
        what: {name: round(statistics.median(turn[name] for turn in each), 1) for name in PROCESSES}
        for what, each in turns.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale.writes",
        description=__doc__,
        epilog="examples (after `make cluster`):\n"
        "  python -m benchmarks.scale.writes\n"
        "  python -m benchmarks.scale.writes --without rules\n"
        "  python -m benchmarks.scale.writes --without schema --writes 400",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--writes", type=int, default=200, metavar="N", help=f"of each kind, in turns of {IN_A_TURN} (200)"
    )
    parser.add_argument("--without", choices=(RULES, SCHEMA), help="of the CRD: its CEL rules, or rules and schema")
    arguments = parser.parse_args(argv)
    cluster = Cluster.connect(ClusterPaths.of_this_clone())
    with cluster.api, scale_operator(cluster, 0), crd_without(cluster, arguments.without):
        cluster.kubectl("create", "namespace", NAMESPACE)
        try:
            found = asyncio.run(measured(cluster, arguments.writes))
        finally:
            cluster.kubectl("delete", "namespace", NAMESPACE)
    print(f"{'write':32} {'API server':>10} {'etcd':>8}   (ms of CPU each)")
    for what, used in found.items():
        print(f"{what:32} {used['kube-apiserver']:10.1f} {used['etcd']:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
