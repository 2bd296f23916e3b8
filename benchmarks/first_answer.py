"""How long from `kubectl apply` to Ready and to the first token: an LLMService beside a bare vLLM of the same flags.

Both run in the running cluster (`make cluster`), in turn, so that a slow minute of the machine hits both; the ratio
is what to look at. The bare Deployment is the LLMService's own pod without the supervisor: the same image, security
and volumes, vLLM's own /health as its readiness.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llmservice_operator.build.meta import selector_text

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.pairs import PAIRS
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.services import llmservice

NAMESPACE = "bench-first-answer"
MODULE = ["python3", "-m", "vllm.entrypoints.openai.api_server"]


@dataclass(frozen=True)
class Start:
    kind: str
    ready: float
    first_token: float


def bare_deployment(ours: JSON) -> list[JSON]:
    """The Deployment of a service as somebody would write it by hand: no supervisor, no init container."""
    template = copy.deepcopy(ours["spec"]["template"])
    pod = template["spec"]
    pod.pop("initContainers")
    (server,) = pod["containers"]
    words: list[str] = server.pop("command") + server.pop("args", [])
    flags = [word for word in words[words.index("--") + 1 :] if "llmservice_runtime" not in word]
    server["command"] = MODULE + [flag for flag in flags if flag != "--middleware"]
    server["env"] = [entry for entry in server["env"] if entry["name"] != "PYTHONPATH"]
    server.pop("startupProbe")
    server["readinessProbe"] = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 2}
    labels = {"app": "bare"}
    template["metadata"] = {"labels": labels}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": "http"}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "bare"}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bare"}, "spec": service},
    ]


def gone(cluster: Cluster, selector: str) -> None:
    eventually("no pod", lambda: not cluster.list("pods", NAMESPACE, selector), 120)


def first_token(client: ClientPod, service: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": PAIRS[0][0]}], "max_tokens": 1}
    answer = client.request(f"http://{service}.{NAMESPACE}.svc/v1/chat/completions", body)
    if answer.status != 200:
        raise RuntimeError(f"{service} answered {answer.status}: {answer.body}")


def start_ours(cluster: Cluster, client: ClientPod) -> tuple[Start, JSON]:
    begun = time.monotonic()
    cluster.apply(llmservice("ours"), NAMESPACE)
    cluster.wait_condition(NAMESPACE, "ours", "Ready", "True", timeout=600)
    ready = time.monotonic() - begun
    first_token(client, "ours", "ours")
    total = time.monotonic() - begun
    deployment = cluster.must_get("deployments", NAMESPACE, "ours")
    cluster.kubectl("delete", "llms", "ours", "-n", NAMESPACE)
    gone(cluster, selector_text("ours"))
    return Start("LLMService", ready, total), deployment


def start_bare(cluster: Cluster, client: ClientPod, manifests: Sequence[JSON]) -> Start:
    begun = time.monotonic()
    for manifest in manifests:
        cluster.apply(manifest, NAMESPACE)

    def available() -> bool:
        status = cluster.must_get("deployments", NAMESPACE, "bare").get("status", {})
        return bool(status.get("availableReplicas"))

    eventually("the bare Deployment", available, 600)
    ready = time.monotonic() - begun
    first_token(client, "bare", "ours")
    total = time.monotonic() - begun
    cluster.kubectl("delete", "deployment/bare", "service/bare", "-n", NAMESPACE)
    gone(cluster, "app=bare")
    return Start("bare vLLM", ready, total)


def summary(starts: Sequence[Start]) -> dict[str, Any]:
    def median(kind: str, figure: str) -> float:
        return float(statistics.median(getattr(start, figure) for start in starts if start.kind == kind))

    figures = {
        f"{kind} {figure}": round(median(kind, figure), 1)
        for kind in ("LLMService", "bare vLLM")
        for figure in ("ready", "first_token")
    }
    ratio = median("LLMService", "first_token") / median("bare vLLM", "first_token")
    return {"median seconds": figures, "first token, ours / bare": round(ratio, 2), "runs": [asdict(s) for s in starts]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_answer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: make cluster && python -m benchmarks.first_answer --runs 3",
    )
    parser.add_argument("--runs", type=int, default=3, help="starts of each kind (default 3; about a minute each)")
    options = parser.parse_args(argv)
    cluster = Cluster.connect(ClusterPaths.of_this_clone())
    with cluster.api:
        cluster.kubectl("create", "namespace", NAMESPACE)
        try:
            client = ClientPod.start(cluster, NAMESPACE)
            starts: list[Start] = []
            for run in range(options.runs):
                ours, deployment = start_ours(cluster, client)
                bare = start_bare(cluster, client, bare_deployment(deployment))
                starts += [ours, bare]
                print(f"run {run + 1}: {ours} {bare}", file=sys.stderr)
        finally:
            cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    print(json.dumps(summary(starts), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
