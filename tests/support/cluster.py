"""The local cluster as the tests see it: kubectl for what a user does, plain HTTP for what a test watches."""

from __future__ import annotations

import base64
import builtins
import json
import os
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from localcluster.paths import ClusterPaths
from tests.support.patience import PATIENCE, at_most

T = TypeVar("T")
JSON = dict[str, Any]

GROUP = "llmservice.dev"
COLLECTIONS: Mapping[str, str] = {
    "llmservices": f"/apis/{GROUP}/v1alpha1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "controllerrevisions": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "pods": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "events": "/api/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "leases": "/apis/coordination.k8s.io/v1",
    "resourcequotas": "/api/v1",
    "scaledobjects": "/apis/keda.sh/v1alpha1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "leaderworkersets": "/apis/leaderworkerset.x-k8s.io/v1",
    "resourceclaimtemplates": "/apis/resource.k8s.io/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "httproutes": "/apis/gateway.networking.k8s.io/v1",
    "inferencepools": "/apis/inference.networking.k8s.io/v1",
}


SOMEBODY = "somebody-else"
"""The field manager of edits by somebody who is not the operator."""


class CommandFailed(AssertionError):
    """A command of a test ended with an error that the test did not expect; carries both outputs."""


def eventually(what: str, look: Callable[[], T | None], timeout: float) -> T:
    """What `look` returns once it is truthy; AssertionError that says what was last seen.

    `timeout`: seconds that it takes at most on a fast machine. What takes longer says what the machine was doing, and
    only what takes longer than `patience.at_most` fails.
    """
    began, limit, doing = time.monotonic(), at_most(timeout), ""
    while True:
        seen = look()
        if seen:
            return seen
        waited = time.monotonic() - began
        if waited > timeout and not doing:
            doing = _doing()
            print(f"more than {timeout:.0f} s: {what}; {doing}")
        if waited > limit:
            raise AssertionError(
                f"not within {limit:.0f} s: {what}; last seen: {seen!r}; after {timeout:.0f} s: {doing}"
            )
        time.sleep(0.2)


def _doing() -> str:
    """What machine and cluster are busy with."""
    pressure = Path("/proc/pressure/cpu")
    waiting = pressure.read_text().splitlines()[0] if pressure.exists() else "unknown"
    said = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, CPU pressure {waiting}"
    paths = ClusterPaths.of_this_clone()
    if not paths.kubeconfig.exists():
        return said
    command = (str(paths.bin / "kubectl"), f"--kubeconfig={paths.kubeconfig}", "--request-timeout=10s", "get", "pods")

    def pods(*words: str) -> tuple[list[str], str]:
        """What was answered, and why nothing was."""
        done = subprocess.run((*command, *words), text=True, capture_output=True, check=False)
        return done.stdout.split(), done.stderr.strip().rpartition("\n")[2]

    operators, why = pods(
        "-A", "-l", "app.kubernetes.io/name=llmservice-operator", "-o", "jsonpath={.items[*].status.podIP}"
    )
    pending, _ = pods("-A", "-o", "name", "--field-selector=status.phase=Pending")
    queues = ", ".join(f"{operator} {_queue(operator)}" for operator in operators)
    return f"{said}, pending pods: {', '.join(pending) or 'none'}, queue of the operators: {queues or why or 'none'}"


def _queue(operator: str) -> str:
    """What waits in the work queue of the operator at an address."""
    try:
        text = httpx.get(f"http://{operator}:9090/metrics", trust_env=False).raise_for_status().text
    except httpx.HTTPError as error:
        return str(error)
    found = (line.split()[1] for line in text.splitlines() if line.startswith("llmservice_queue_depth "))
    return next(found, "unknown")


def administrator(paths: ClusterPaths) -> tuple[str, ssl.SSLContext]:
    """The API server's address, and TLS as the cluster's administrator."""
    config = yaml.safe_load(paths.kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile() as pair:  # the ssl module reads certificates from files only
        pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n")
        pair.write(base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return cluster["server"], context


def condition(obj: JSON, kind: str) -> JSON | None:
    """One of status.conditions; None where it is not there."""
    conditions = obj.get("status", {}).get("conditions") or ()
    return next((found for found in conditions if found["type"] == kind), None)


def is_ready(obj: JSON) -> bool:
    """Whether the condition Ready of a pod, a node or an LLMService is True."""
    return (condition(obj, "Ready") or {}).get("status") == "True"


@dataclass(frozen=True)
class Cluster:
    """One cluster: how to run kubectl and helm against it, and its API over HTTP."""

    paths: ClusterPaths
    api: httpx.Client

    @classmethod
    def connect(cls, paths: ClusterPaths) -> Cluster:
        server, context = administrator(paths)
        return cls(paths, httpx.Client(base_url=server, verify=context, timeout=PATIENCE, trust_env=False))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": str(self.paths.kubeconfig),
            "PATH": f"{self.paths.bin}:{os.environ['PATH']}",
        }

    def run(self, *command: str, stdin: str | None = None, expect: int | None = 0, timeout: float = 300) -> str:
        """The command's standard output (with standard error when a failure is expected)."""
        done = subprocess.run(
            command,
            input=stdin,
            text=True,
            capture_output=True,
            env=self.environment,
            check=False,
            timeout=at_most(timeout),
        )
        if expect is not None and done.returncode != expect:
            raise CommandFailed(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout if expect == 0 else done.stdout + done.stderr

    def kubectl(self, *args: str, stdin: str | None = None, expect: int | None = 0, timeout: float = 300) -> str:
        return self.run(str(self.paths.bin / "kubectl"), *args, stdin=stdin, expect=expect, timeout=timeout)

    def helm(self, *args: str, expect: int | None = 0) -> str:
        return self.run(str(self.paths.bin / "helm"), *args, expect=expect)

    def apply(self, manifest: Mapping[str, Any], namespace: str) -> None:
        self.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))

    def apply_all(self, manifests: Iterable[Mapping[str, Any]], namespace: str) -> None:
        """With one process of kubectl."""
        self.apply({"apiVersion": "v1", "kind": "List", "items": [*manifests]}, namespace)

    def get(self, plural: str, namespace: str, name: str) -> JSON | None:
        """The object, or None when there is none."""
        response = self.api.get(f"{COLLECTIONS[plural]}/namespaces/{namespace}/{plural}/{name}")
        if response.status_code == 404:
            return None
        return _body(response)

    def must_get(self, plural: str, namespace: str, name: str) -> JSON:
        found = self.get(plural, namespace, name)
        assert found is not None, f"no {plural} {namespace}/{name}"
        return found

    def list(self, plural: str, namespace: str, selector: str = "") -> Sequence[JSON]:
        path = f"{COLLECTIONS[plural]}/namespaces/{namespace}/{plural}"
        items: Sequence[JSON] = _body(self.api.get(path, params={"labelSelector": selector}))["items"]
        return items

    def patch(self, plural: str, namespace: str, name: str, body: object, kind: str = "merge") -> JSON:
        """A merge, json or strategic-merge patch by somebody who is not the operator."""
        return _body(
            self.api.patch(
                f"{COLLECTIONS[plural]}/namespaces/{namespace}/{plural}/{name}",
                params={"fieldManager": SOMEBODY},
                content=json.dumps(body),
                headers={"Content-Type": f"application/{kind}-patch+json"},
            )
        )

    def pods(self, namespace: str, service: str) -> builtins.list[JSON]:
        """The pods of an LLMService that are not being deleted, oldest first."""
        pods = self.list("pods", namespace, f"llmservice.dev/service={service}")
        stay = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return sorted(stay, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self, namespace: str, service: str) -> JSON:
        """The only pod of an LLMService."""
        (pod,) = self.pods(namespace, service)
        return pod

    def status(self, namespace: str, name: str) -> JSON:
        """status of an LLMService, empty before the operator has seen it."""
        found: JSON = self.must_get("llmservices", namespace, name).get("status", {})
        return found

    def failure(self, namespace: str, name: str) -> JSON:
        """status.failure, empty where there is none."""
        found: JSON = self.status(namespace, name).get("failure") or {}
        return found

    def condition(self, namespace: str, name: str, kind: str) -> JSON | None:
        return condition(self.get("llmservices", namespace, name) or {}, kind)

    def must_have(self, namespace: str, name: str, **conditions: str) -> None:
        """Each of these conditions of the LLMService has this status now."""
        found = {kind: (self.condition(namespace, name, kind) or {}).get("status") for kind in conditions}
        assert found == conditions, self.status(namespace, name)

    def service_url(self, namespace: str, name: str) -> str:
        """Of a service that is Ready, once connections to it are taken: kube-proxy learns of endpoints after the API
        server, and refuses what comes before."""
        spec = self.must_get("services", namespace, name)["spec"]
        address, port = spec["clusterIP"], spec["ports"][0]["port"]

        def is_open() -> bool:
            try:
                socket.create_connection((address, port), timeout=5).close()
            except OSError:
                return False
            return True

        eventually(f"connections to {namespace}/{name}", is_open, 60)
        return f"http://{address}:{port}"

    def wait_condition(
        self, namespace: str, name: str, kind: str, status: str, *, reason: str | None = None, timeout: float = 300
    ) -> JSON:
        """The condition once it has this status (and reason) for the current generation."""

        def look() -> JSON | None:
            service = self.must_get("llmservices", namespace, name)
            found = self.condition(namespace, name, kind)
            current = found is not None and found["observedGeneration"] == service["metadata"]["generation"]
            if found and current and found["status"] == status and reason in (None, found["reason"]):
                return found
            return None

        try:
            return eventually(f"{kind}={status} ({reason or 'any reason'}) of {namespace}/{name}", look, timeout)
        except AssertionError as slow:
            status_now = self.must_get("llmservices", namespace, name).get("status")
            raise AssertionError(f"{slow}\nstatus: {yaml.safe_dump(status_now)}") from slow


def _body(response: httpx.Response) -> JSON:
    if response.is_error:
        raise CommandFailed(f"{response.request.method} {response.request.url}: {response.text}")
    body: JSON = response.json()
    return body
