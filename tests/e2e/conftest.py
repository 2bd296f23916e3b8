"""The running cluster (`make cluster`), and namespaces as a careful platform team makes them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localcluster import controlplane
from localcluster.paths import ClusterPaths
from tests.e2e._chart import OTHER, TEAM
from tests.support.client import ClientPod
from tests.support.cluster import Cluster
from tests.support.measured import Record, keep
from tests.support.operator import restarts, scale_operator
from tests.support.patience import KUBECTL_TIMEOUT

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell without job control: what the tests start would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "team"},
    # A quota on these makes the API server refuse every container that leaves one of the requests out.
    "spec": {"hard": {"requests.cpu": "16", "requests.memory": "96Gi", "pods": "20"}},
}


def this_cluster() -> ClusterPaths:
    """This clone's; beside a control plane of the oldest Kubernetes, that one."""
    paths = ClusterPaths.of_this_clone()
    oldest = controlplane.paths_of(paths)
    return oldest if os.environ.get("KUBECONFIG") == str(oldest.kubeconfig) else paths


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    paths = this_cluster()
    if not paths.kubeconfig.exists():
        pytest.fail("no cluster is running: make cluster")
    connected = Cluster.connect(paths)
    with connected.api:
        yield connected


def make_namespace(cluster: Cluster, name: str) -> None:
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true", KUBECTL_TIMEOUT)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    cluster.apply(QUOTA, name)


@contextmanager
def own_namespace(cluster: Cluster, name: str) -> Iterator[str]:
    """A namespace as `make_namespace` makes it, deleted without waiting at the end of the block."""
    make_namespace(cluster, name)
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test's own: restricted, with a quota, gone afterwards."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].strip("-")
    with own_namespace(cluster, name):
        yield name


@pytest.fixture(scope="session")
def shared_namespace(cluster: Cluster) -> Iterator[str]:
    """The namespace of the services that several tests share."""
    with own_namespace(cluster, "e2e-shared") as name:
        yield name


@pytest.fixture(scope="session")
def client(cluster: Cluster, shared_namespace: str) -> ClientPod:
    return ClientPod.start(cluster, shared_namespace)


@pytest.fixture(scope="module")
def operator_rests(cluster: Cluster) -> Iterator[None]:
    """The installed operator has no pod, so that who acts is plain."""
    with scale_operator(cluster, 0):
        yield


@contextmanager
def release_namespaces(cluster: Cluster) -> Iterator[None]:
    """TEAM and OTHER, restricted and with quotas; their releases are uninstalled before and after."""
    _clear(cluster)
    for name in (TEAM, OTHER):
        make_namespace(cluster, name)
    yield
    _clear(cluster)


@pytest.fixture
def two_namespaces(cluster: Cluster, operator_rests: None) -> Iterator[None]:
    """TEAM and OTHER of one test."""
    with release_namespaces(cluster):
        yield


def _clear(cluster: Cluster) -> None:
    for namespace in (TEAM, OTHER):
        for release in json.loads(cluster.helm("list", "-n", namespace, "-o", "json")):
            cluster.helm("uninstall", release["name"], "-n", namespace, "--wait", "--timeout", "60s")
    cluster.kubectl("delete", "namespace", TEAM, OTHER, "--ignore-not-found", "--wait=false")


MEASURED = pytest.StashKey[dict[str, dict[str, Any]]]()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Keep what the test measured."""

    def write(**figures: Any) -> None:
        keep(request.node.nodeid, figures)
        request.config.stash.setdefault(MEASURED, {})[request.node.nodeid] = figures

    return write


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was measured, a line for each test."""
    measured = config.stash.get(MEASURED, {})
    if measured:
        terminalreporter.section("measured")
    for test, figures in measured.items():
        terminalreporter.line(f"{test.rpartition('/')[2]}: {json.dumps(figures)}")

    if {"failed", "error"} & terminalreporter.stats.keys():
        _tell_restarts(terminalreporter)


def _tell_restarts(terminalreporter: pytest.TerminalReporter) -> None:
    """What failed while the operator's container started again failed for that reason, perhaps."""
    paths = ClusterPaths.of_this_clone()
    if not paths.kubeconfig.exists():
        return
    connected = Cluster.connect(paths)
    with connected.api:
        for pod, how in restarts(connected).items():
            terminalreporter.section(f"the operator's container was started again: {pod}")
            terminalreporter.line(how)
