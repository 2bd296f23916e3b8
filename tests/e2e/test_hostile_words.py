"""A namespace whose pods say what no supervisor says, at their /state and with their last words, and whose tenant
stores what JSON readers refuse. The operator goes on, for that service and for the others, and writes little."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from typing import Any

import pytest
from llmservice_operator.control.token_bucket import EVENT_BURST, EVENT_SECONDS, WRITE_BURST, WRITE_SECONDS

from tests.support.audit import writes_since
from tests.support.client import POD
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.host import pause
from tests.support.operator import operator_metrics, operator_pods
from tests.support.services import idle, stand_in
from tests.support.serving import Metrics

SECONDS = 120

STATE = {
    "version": 1, "phase": "Loading", "started": False, "ready": False, "progress": "", "phaseSeconds": 1,
    "modelNames": [], "measured": {},
}  # fmt: skip
# Of /state, in turn: some are refused, and some flip what a status tells of.
ANSWERS = [
    json.dumps(STATE | {"transfer": {"artifact": "m", "step": "Listing", "bytesDone": "@"}}).replace('"@"', "1e400"),
    json.dumps(STATE | {"usualStartSeconds": "soon", "startBudgetSeconds": [1]}),
    json.dumps(STATE | {"progress": "\\ud800"}).replace("\\\\ud800", "\\ud800"),
    "[" * 60_000,
    *(json.dumps(STATE | {"phase": phase}) for phase in ("Preflight", "Fetching", "Loading", "Smoke")),
    *(
        json.dumps(STATE | {"started": True, "adaptersHash": "h", "adapters": [
            {"name": f"a-{number}", "loaded": False, "message": f"flip {flip}"} for number in range(64)
        ]})
        for flip in range(2)
    ),
]  # fmt: skip

LIAR = """
import http.server, itertools, json, sys
answers = itertools.cycle(json.loads(sys.argv[1]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = next(answers).encode(errors="surrogatepass")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 8081), Handler).serve_forever()
"""
LAST_WORDS = "open('/dev/termination-log', 'w').write('[' * 4096); raise SystemExit(1)"


def disguised(name: str, revision: str, command: list[str], **container: Any) -> JSON:
    """A pod of the tenant's own that looks like one of the service's."""
    pod: JSON = copy.deepcopy(POD)
    pod["metadata"] = {
        "name": name,
        "labels": {
            "app.kubernetes.io/managed-by": "llmservice-operator",
            "llmservice.dev/service": "lied-to",
            "llmservice.dev/revision": revision,
        },
    }
    pod["spec"]["containers"][0] |= {"name": "server", "command": command, **container}
    return pod


def odd_revision(name: str, value: str) -> str:
    labels = '{"llmservice.dev/service":"lied-to"}'
    return (
        f'{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"{name}","labels":{labels}}},'
        f'"revision":99,"data":{{"key":"x","template":{value}}}}}'
    )


def restarts(cluster: Cluster) -> Counter[str]:
    """Of the operator's containers, by pod; another pod is one more."""
    return Counter(
        {
            pod["metadata"]["name"]: status["restartCount"]
            for pod in operator_pods(cluster)
            for status in pod["status"]["containerStatuses"]
        }
    )


@pytest.fixture
def revision(cluster: Cluster, namespace: str) -> str:
    cluster.apply(stand_in("lied-to"), namespace)
    cluster.wait_condition(namespace, "lied-to", "Ready", "True", timeout=90)
    found: str = cluster.status(namespace, "lied-to")["rollout"]["revision"]
    return found


@pytest.mark.full
def test_lies_stop_nobody_and_cost_little(cluster: Cluster, namespace: str, revision: str) -> None:
    before, invalid = restarts(cluster), refused(cluster)
    began = time.time()

    path = f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions"
    for name, value in (("odd-half", '"\\ud800"'), ("odd-deep", "[" * 9000 + "]" * 9000)):
        cluster.kubectl("create", "--raw", path, "-f", "-", stdin=odd_revision(name, value))
    never = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 100_000}
    cluster.apply(
        disguised("liar", revision, ["python", "-c", LIAR, json.dumps(ANSWERS)], startupProbe=never), namespace
    )
    cluster.apply(disguised("last-words", revision, ["python", "-c", LAST_WORDS]), namespace)

    pause(SECONDS)

    assert restarts(cluster) == before
    assert refused(cluster) > invalid
    writes = [request for request in writes_since(cluster, began) if request.namespace == namespace]
    statuses = [request for request in writes if request.resource == "llmservices/status" and request.name == "lied-to"]
    took = time.time() - began
    assert len(statuses) <= WRITE_BURST + took / WRITE_SECONDS + 1
    told = [request for request in writes if request.resource == "events"]
    assert len(told) <= EVENT_BURST + took / EVENT_SECONDS + 1

    # Others' revisions are still seen, and a new service becomes what it is to be.
    cluster.apply(idle("neighbour"), namespace)
    cluster.wait_condition(namespace, "neighbour", "Accepted", "True", timeout=20)
    eventually("the neighbour's Service", lambda: cluster.get("services", namespace, "neighbour"), 20)


def refused(cluster: Cluster) -> float:
    """Answers of pods that were none of a supervisor's."""
    return Metrics(operator_metrics(cluster)).value("llmservice_state_reads_total", result="invalid")
