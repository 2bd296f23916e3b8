"""KEDA and the operator with autoscaling in the local cluster, for as long as tests need them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from localcluster import install, keda
from localcluster.install import local_target
from localcluster.progress import Progress
from localcluster.scaler import KEDA_NAMESPACE
from tests.support.cluster import JSON, Cluster, condition, eventually
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE

ACTIVATOR = f"{OPERATOR}-activator"
"""The Deployment that is KEDA's scaler."""
SETTLED_WITHIN = 90.0


@contextmanager
def autoscaling_installed(cluster: Cluster) -> Iterator[None]:
    """KEDA, and the operator installed with autoscaling; the operator afterwards as it was. KEDA stays.

    Processes may need it at the same time: what is installed already stays as it is, and the last one ends it.
    """
    target = local_target(cluster.paths, os.environ)
    with (cluster.paths.runtime / "autoscaling.users").open("w") as users:
        with _one_at_a_time(cluster):
            if _is_last(users):
                keda.install(cluster.paths, os.environ, Progress())
                install.install(target, Progress(), autoscaling=True)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with _one_at_a_time(cluster):
                if _is_last(users):
                    install.install(target, Progress())


@contextmanager
def _one_at_a_time(cluster: Cluster) -> Iterator[None]:
    with (cluster.paths.runtime / "autoscaling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_last(users: IO[str]) -> bool:
    """Whether no other process holds the file: it is the first, or the last, to need it.

    A lock ends with its process, so a killed one counts no more.
    """
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(users, fcntl.LOCK_UN)
        return False
    return True


@contextmanager
def without_pods(cluster: Cluster, namespace: str, *deployments: str) -> Iterator[None]:
    """These Deployments have no pod for a while; afterwards as many as before, and ready."""
    before = {name: cluster.must_get("deployments", namespace, name)["spec"]["replicas"] for name in deployments}
    for name in deployments:
        _scale(cluster, namespace, name, 0)
    try:
        yield
    finally:
        for name, replicas in before.items():
            _scale(cluster, namespace, name, replicas)


@contextmanager
def without_scaler(cluster: Cluster) -> Iterator[None]:
    """Nobody answers KEDA."""
    with without_pods(cluster, OPERATOR_NAMESPACE, ACTIVATOR):
        yield


@contextmanager
def without_keda(cluster: Cluster) -> Iterator[None]:
    """KEDA is installed and none of it runs."""
    with without_pods(cluster, KEDA_NAMESPACE, *keda.DEPLOYMENTS):
        yield


def _scale(cluster: Cluster, namespace: str, name: str, replicas: int) -> None:
    cluster.kubectl("scale", f"deployment/{name}", f"--replicas={replicas}", "-n", namespace)

    def settled() -> bool:
        status = cluster.must_get("deployments", namespace, name).get("status", {})
        return {status.get("replicas", 0), status.get("readyReplicas", 0)} == {replicas}

    eventually(f"{replicas} ready pods of {name}", settled, SETTLED_WITHIN)


def has_scaled_object(cluster: Cluster, namespace: str, name: str) -> bool:
    """Whether there is a ScaledObject that works: its HPA gets what it asks for."""
    found: JSON = cluster.get("scaledobjects", namespace, name) or {}
    state: str = (condition(found, "HPAActive") or {}).get("status", "")
    return state == "True"
