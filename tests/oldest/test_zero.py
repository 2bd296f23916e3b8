"""To zero and back beside the oldest Kubernetes: the operator's slices and an activator that holds a request.

Pods of simulated nodes have addresses that this network answers at: the activator and a server of this process do.
KEDA's kinds are there, and nobody works on them: what its autoscaler writes, the test writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from llmservice_runtime.contract import HTTP_PORT, REQUESTS_BEGUN, REQUESTS_IN_FLIGHT, STATE_PORT

from benchmarks.scale.process import kubeconfig
from localcluster import builds, keda, scaler, upstream
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.e2e._chart import CHART
from tests.e2e.conftest import own_namespace
from tests.oldest.test_life import NAME, service
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.http_servers import threaded
from tests.support.keda import ACTIVATOR
from tests.support.local_operator import LocalOperator
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE
from tests.support.patience import PATIENCE
from tests.support.ports import free_port

SLICES = "endpointslice.kubernetes.io/managed-by=llmservice.dev"
AUTOSCALED = {"minReplicas": 0, "maxReplicas": 2, "target": {"concurrencyPerReplica": 8}}


class Pod(BaseHTTPRequestHandler):
    """What a model's pod would answer: vLLM a prompt, the supervisor how many requests it has in flight."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b'{"choices": [{"text": "hello"}]}')

    def do_GET(self) -> None:
        self._answer(f"{REQUESTS_IN_FLIGHT} 0\n{REQUESTS_BEGUN} 0\n".encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass(frozen=True)
class Activator:
    address: str
    hosts: Path
    """Its /etc/hosts."""

    def is_behind(self, service: JSON, port: str) -> None:
        """What DNS and kube-proxy do where they run: it asks itself by the Service's name, as clients do, before the
        last pod goes."""
        name, spec = service["metadata"], service["spec"]
        with self.hosts.open("a") as file:
            file.write(f"{spec['clusterIP']} {name['name']}.{name['namespace']}.svc\n")
        subprocess.run(["ip", "route", "replace", "local", spec["clusterIP"], "dev", "lo"], check=True)
        rule = ("-d", spec["clusterIP"], "-p", "tcp", "--dport", str(spec["ports"][0]["port"]), "-j", "DNAT")
        to = ("--to-destination", f"{self.address}:{port}")
        subprocess.run(["iptables", "-w", "-t", "nat", "-A", "OUTPUT", *rule, *to], check=True)


@pytest.fixture(scope="module")
def activator(
    cluster: Cluster, operator: LocalOperator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Activator]:
    """The only one: a simulated pod of the chart's, and a process of this machine in its place."""
    store = builds.Store(cache_root(os.environ, Path.home()))
    source = builds.module_folder(store, Group.KEDA, keda.KEDA.module, os.environ, Progress())
    kinds = [each for each in upstream.manifests(cluster.paths, source) if each["kind"] == "CustomResourceDefinition"]
    for each in ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scaler.KEDA_NAMESPACE}}, *kinds):
        cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(each))
    folder = tmp_path_factory.mktemp("activator")
    trust = scaler.provide(cluster.kubectl, folder / "pki", OPERATOR_NAMESPACE, ACTIVATOR)
    toleration = {"key": "kwok.x-k8s.io/node", "operator": "Exists"}
    values = [f"{name}={value}" for name, value in {**trust, "autoscaling.enabled": "true"}.items()]
    values += ["autoscaling.replicas=1", "nodeSelector.type=kwok"]
    cluster.helm(
        *("upgrade", OPERATOR, str(CHART), "-n", OPERATOR_NAMESPACE, "--reuse-values", "--set", ",".join(values)),
        *("--set-json", f"tolerations={json.dumps([toleration])}"),
    )
    operator.reload(cluster)

    def address() -> str:
        pods = cluster.list("pods", OPERATOR_NAMESPACE, "app.kubernetes.io/component=activator")
        return next((str(pod["status"].get("podIP", "")) for pod in pods), "")

    found = str(eventually("the activator's pod", address, 60))
    subprocess.run(["ip", "route", "replace", "local", f"{found.rpartition('.')[0]}.0/24", "dev", "lo"], check=True)
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    tls = folder / "tls"
    tls.mkdir()
    for name, content in (("tls.crt", "server.crt"), ("tls.key", "server.key"), ("ca.crt", "ca.crt")):
        (tls / name).write_bytes((folder / "pki" / content).read_bytes())
    command = (
        *("unshare", "--mount", "--", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)),
        *(sys.executable, "-m", "llmservice_activator", f"--tls={tls}", f"--service={ACTIVATOR}", "--grace=0"),
        *(f"--kubeconfig={kubeconfig(cluster, folder, account=ACTIVATOR)}", "--internal-port=9091"),
        *(f"--health-port={free_port()}", f"--metrics-port={free_port()}"),
    )
    named = {"POD_NAME": "activator", "POD_NAMESPACE": OPERATOR_NAMESPACE, "POD_IP": found}
    with (folder / "activator.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **named}, stdout=log, stderr=log)
        try:
            yield Activator(found, hosts)
        finally:
            process.terminate()
            process.wait(PATIENCE)
            cluster.helm("rollback", OPERATOR, "-n", OPERATOR_NAMESPACE)
            operator.reload(cluster)


def leads_to(cluster: Cluster, namespace: str) -> list[tuple[str, int]]:
    """Addresses and ports of the operator's slices of the service."""
    return [
        (address, port["port"])
        for found in cluster.list("endpointslices", namespace, f"{SLICES},kubernetes.io/service-name={NAME}")
        for endpoint in found["endpoints"] or ()
        for address in endpoint["addresses"]
        for port in found["ports"] or ()
    ]


def test_a_request_at_zero_is_held_starts_a_replica_and_is_answered(cluster: Cluster, activator: Activator) -> None:
    everywhere = "0.0.0.0"
    with (
        own_namespace(cluster, "oldest-zero") as namespace,
        threaded(Pod, everywhere, port=HTTP_PORT),
        threaded(Pod, everywhere, port=STATE_PORT),
    ):
        cluster.kubectl("delete", "resourcequota", "team", "-n", namespace)
        cluster.apply(service(scaling={"autoscaling": AUTOSCALED}), namespace)
        cluster.wait_condition(namespace, NAME, "Available", "True", timeout=60)
        eventually("a ScaledObject", lambda: cluster.get("scaledobjects", namespace, NAME), 60)
        port = eventually("a port", lambda: cluster.status(namespace, NAME).get("holding", {}).get("port"), 60)
        activator.is_behind(cluster.must_get("services", namespace, NAME), str(port))
        cluster.kubectl("scale", f"llms/{NAME}", "--replicas=0", "-n", namespace)
        eventually("no pod", lambda: not cluster.pods(namespace, NAME), 60)
        (where,) = eventually("a slice that leads to the activator", lambda: leads_to(cluster, namespace), 60)
        assert where[0] == activator.address
        with ThreadPoolExecutor(1) as client:
            body = {"model": NAME, "prompt": "hi"}
            url = f"http://{where[0]}:{where[1]}/v1/completions"
            asked = client.submit(httpx.post, url, json=body, timeout=PATIENCE, trust_env=False)
            answer = asked.result()
        assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "hello")
        assert len(cluster.pods(namespace, NAME)) == 1
        eventually("the slice is gone", lambda: not leads_to(cluster, namespace), 60)
        cluster.kubectl("delete", "llmservices.llmservice.dev", NAME, "-n", namespace)
        eventually("no ScaledObject", lambda: not cluster.list("scaledobjects", namespace), 60)
