"""The operator installed with routing for as long as tests need it, and what a routed service looks like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from llmservice_api.constants import ROUTER_LABEL
from llmservice_api.holding import SERVICE_NAME_LABEL

from localcluster import images, install
from localcluster.progress import Progress
from tests.support.cluster import JSON, Cluster, is_ready
from tests.support.host import processes_of

ROUTED: JSON = {"mode": "router"}


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
