"""The operator installed with routing for as long as tests need it, and what a routed service looks like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from llmservice_api.constants import ROUTER_LABEL
from llmservice_api.holding import SERVICE_NAME_LABEL
from llmservice_vllm import metrics

from localcluster import images, install
from localcluster.progress import Progress
from tests.support.cluster import JSON, Cluster, is_ready
from tests.support.host import processes_of
from tests.support.patience import PATIENCE

ROUTED: JSON = {"mode": "router"}
COUNTS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


@contextmanager
def routing_installed(cluster: Cluster) -> Iterator[None]:
    """The operator afterwards as it was."""
    images.build_all(cluster.paths, Progress(), only=("router",))
    target = install.local_target(cluster.paths, os.environ)
    install.install(target, Progress(), routing=True)
    try:
        yield
    finally:
        install.install(target, Progress())


def routers(cluster: Cluster, namespace: str, name: str) -> list[JSON]:
    """Pods of the router that are to stay."""
    found = cluster.list("pods", namespace, f"{ROUTER_LABEL}={name}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def ready_routers(cluster: Cluster, namespace: str, name: str) -> list[JSON]:
    return [pod for pod in routers(cluster, namespace, name) if is_ready(pod)]


def leads_to(cluster: Cluster, namespace: str, name: str) -> set[str]:
    """Addresses that get the Service's requests, by all of its slices."""
    return {
        address
        for each in cluster.list("endpointslices", namespace, f"{SERVICE_NAME_LABEL}={name}")
        for endpoint in each.get("endpoints") or ()
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    }


def addresses(pods: list[JSON]) -> set[str]:
    return {pod["status"]["podIP"] for pod in pods}


def program_of(pod: JSON, name: str) -> int:
    """The process of a router's pod with this name in its command line."""
    return min(pid for pid, line in processes_of(pod).items() if name in line)


def counted(cluster: Cluster, namespace: str, name: str) -> dict[str, float]:
    """COUNTS of all replicas of a service."""
    found = dict.fromkeys(COUNTS, 0.0)
    for pod in cluster.pods(namespace, name):
        if "deletionTimestamp" in pod["metadata"]:
            continue
        page = httpx.get(f"http://{pod['status']['podIP']}:8000/metrics", timeout=PATIENCE, trust_env=False).text
        for each, value in metrics.totals(page, COUNTS).items():
            found[each] += value
    return found


def is_by_prompts(url: str, name: str) -> bool:
    """vllm-router answers, of which this header is: kube-proxy learns of the changed Service after the operator."""
    body = {"model": name, "prompt": "Hello", "max_tokens": 1}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False)
    return "Access-Control-Allow-Origin" in answer.headers
