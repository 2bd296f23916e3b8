"""The NetworkPolicies of the chart and of replicas over several nodes, in force on two nodes: nothing that the product
needs is kept off, and strangers are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import yaml
from llmservice_runtime.contract import GROUP_PORT, HTTP_PORT, STATE_PORT

from localcluster import install, keda, policies
from localcluster.progress import Progress
from tests.e2e.conftest import own_namespace
from tests.e2e.scaled_to_zero import another_namespace_with
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.documents import ROOT, blocks_of
from tests.support.groups import TWO_NODES, WideService, install_lws
from tests.support.host import engine_of, processes_of
from tests.support.keda import ACTIVATOR
from tests.support.nodes import NODES, added_node
from tests.support.on_demand import OnDemand, on_demand
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, operator_pods, scale_operator
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

pytestmark = pytest.mark.full

PAGE = ROOT / "docs/serving/several-nodes.md"
UI = f"{OPERATOR}-ui"
SERVICES, ADMITTED, OTHERS = "e2e-policies", "e2e-policies-admitted", "e2e-policies-others"
"""Namespaces: of the services, and of clients that the chart's values name and do not name."""
LABEL, VALUE = "policies.test/clients", "admitted"
_FROM = f"[0].namespaceSelector.matchLabels.{LABEL.replace('.', chr(92) + '.')}"
VALUES: Mapping[str, str] = {
    "networkPolicy.enabled": "true",
    "ui.enabled": "true",
    **{f"{peers}{_FROM}": VALUE for peers in ("networkPolicy.metricsFrom", "networkPolicy.holdingFrom", "ui.from")},
}
WIDE = stand_in("wide", {"start_seconds": 2}, parallelism=TWO_NODES)
CHOSEN_PORT = 29555
"""As the system may choose one for a rank of vLLM."""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"


@pytest.fixture(scope="module", autouse=True)
def enforced(cluster: Cluster) -> Iterator[None]:
    """Before the chart is installed: its pods have no moment without."""
    target, progress = install.local_target(cluster.paths, os.environ), Progress()
    install_lws(cluster)
    keda.install(cluster.paths, os.environ, progress)
    with added_node(cluster):
        policies.enforce(cluster.paths, os.environ, progress)
        try:
            install.install(target, progress, autoscaling=True, groups=True, more=VALUES)
            yield
        finally:
            policies.stop(cluster.paths, progress)
            install.install(target, progress)


@dataclass(frozen=True)
class Clients:
    """A pod in a namespace that the values name, one in another, and one beside the services."""

    admitted: ClientPod
    other: ClientPod
    neighbour: ClientPod


@pytest.fixture(scope="module")
def clients(cluster: Cluster, enforced: None) -> Iterator[Clients]:
    with (
        own_namespace(cluster, ADMITTED),
        own_namespace(cluster, OTHERS),
        another_namespace_with(cluster, SERVICES, [WIDE]),
    ):
        cluster.kubectl("label", "namespace", ADMITTED, f"{LABEL}={VALUE}")
        yield Clients(*(ClientPod.start(cluster, each) for each in (ADMITTED, OTHERS, SERVICES)))


@pytest.fixture(scope="module")
def wide(cluster: Cluster, clients: Clients) -> WideService:
    """A replica over two nodes that serves."""
    service = WideService(cluster, SERVICES, "wide")
    service.await_served()
    return service


def reaches(client: JSON | ClientPod, pod: JSON, port: int) -> bool:
    """Whether a connection from the one pod to the other's port is taken."""
    if isinstance(client, ClientPod):
        client = client.cluster.must_get("pods", client.namespace, "client")
    inside = next(iter(processes_of(client)))
    command = ("nsenter", "-t", str(inside), "--net", sys.executable, "-c", CONNECT, pod["status"]["podIP"], str(port))
    return subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def listening(pod: JSON, port: int) -> Iterator[None]:
    """Something in the pod's network takes connections."""
    inside = ("nsenter", "-t", str(engine_of(pod)), "--net")
    with subprocess.Popen((*inside, sys.executable, "-m", "http.server", str(port)), stderr=subprocess.DEVNULL) as it:
        try:
            eventually(f"port {port} is open", partial(reaches, pod, pod, port), PATIENCE)
            yield
        finally:
            it.terminate()


@pytest.mark.parametrize("rank", [0, 1], ids=["the leader", "a worker"])
def test_strangers_reach_the_ports_for_everybody_of_a_group_and_no_other(
    clients: Clients, wide: WideService, rank: int
) -> None:
    pods = wide.members()
    member, peer = pods[rank], pods[1 - rank]
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == set(NODES)
    with listening(member, CHOSEN_PORT):
        assert reaches(peer, member, CHOSEN_PORT)
        for stranger in (clients.neighbour, clients.admitted, clients.other):
            assert not reaches(stranger, member, CHOSEN_PORT)
            assert not reaches(stranger, member, GROUP_PORT)
            assert reaches(stranger, member, STATE_PORT)
            assert reaches(stranger, pods[0], HTTP_PORT)
    assert reaches(peer, pods[0], GROUP_PORT)


def test_the_operator_reads_what_pods_report_and_leads_again_after_a_restart(
    cluster: Cluster, wide: WideService
) -> None:
    with scale_operator(cluster, 0):
        pass
    cluster.apply(stand_in("single"), SERVICES)
    cluster.wait_condition(SERVICES, "single", "Ready", "True", timeout=PATIENCE)

    def is_measured() -> bool:
        measured = cluster.status(SERVICES, "single").get("measured") or {"reason": "not yet"}
        return "reason" not in measured

    eventually("what vLLM measured", is_measured, PATIENCE)
    eventually("the members' steps", lambda: wide.steps() == ["Running", "Running"], PATIENCE)


def test_only_admitted_clients_read_metrics_and_the_page(cluster: Cluster, clients: Clients) -> None:
    (activator, *_), (ui,) = (
        cluster.list("pods", OPERATOR_NAMESPACE, f"app.kubernetes.io/name={name}") for name in (ACTIVATOR, UI)
    )
    for pod, port in ((operator_pods(cluster)[0], "metrics"), (activator, "metrics"), (ui, "http")):
        assert reaches(clients.admitted, pod, port_of(pod, port))
        assert not reaches(clients.other, pod, port_of(pod, port))
    for port in ("scaler", "internal"):
        assert not reaches(clients.admitted, activator, port_of(activator, port))
    token = cluster.kubectl("create", "token", "default", "-n", ADMITTED, "--duration=1h").strip()
    answer = clients.admitted.request(f"http://{UI}.{OPERATOR_NAMESPACE}.svc/sign-in/token", {"token": token})
    assert answer.status == 200, "it has asked the API server"


def port_of(pod: JSON, name: str) -> int:
    (container,) = pod["spec"]["containers"]
    port: int = next(each["containerPort"] for each in container["ports"] if each["name"] == name)
    return port


def test_a_service_at_zero_starts_for_admitted_clients_and_goes_back_to_zero(
    cluster: Cluster, clients: Clients
) -> None:
    cluster.apply(on_demand("demanded"), SERVICES)
    service = OnDemand(cluster, SERVICES, "demanded")
    service.at_zero()
    url, body = f"http://demanded.{SERVICES}.svc/v1/completions", {"model": "demanded", "prompt": "Hello"}
    host = cluster.must_get("services", SERVICES, "demanded")["spec"]["clusterIP"]
    behind = {"status": {"podIP": host}}
    assert not reaches(clients.other, behind, 80)
    assert service.is_at_zero(), "nobody who may not was heard"
    assert clients.admitted.request(url, body).status == 200
    service.serves()
    assert clients.other.request(url, body).status == 200, "with a replica the chart's values say nothing of it"
    service.at_zero()


def test_a_group_serves_by_the_policy_that_the_page_shows(cluster: Cluster, clients: Clients) -> None:
    """In place of the operator's."""
    (policy,) = (yaml.safe_load(each) for each in blocks_of(PAGE, "yaml") if "kind: NetworkPolicy" in each)
    name = policy["spec"]["podSelector"]["matchLabels"]["llmservice.dev/service"]
    target, values = install.local_target(cluster.paths, os.environ), {**VALUES, "groups.networkPolicy": "false"}
    install.install(target, Progress(), autoscaling=True, groups=True, more=values)
    cluster.apply(policy, SERVICES)
    cluster.apply(stand_in(name, {"start_seconds": 2}, parallelism=TWO_NODES), SERVICES)
    cluster.wait_condition(SERVICES, name, "Ready", "True", timeout=PATIENCE)
    pods = WideService(cluster, SERVICES, name).members()
    assert cluster.get("networkpolicies", SERVICES, name) is None
    assert not reaches(clients.neighbour, pods[0], GROUP_PORT)
    assert not reaches(clients.neighbour, pods[0], HTTP_PORT), "clients are admitted by policies of their own"
