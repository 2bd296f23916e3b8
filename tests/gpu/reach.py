"""Somebody's cluster with GPUs, reached with kubectl alone: is there one, and what does a service in it answer?"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_api.constants import CRD_NAME

from tests.support.cluster import CommandFailed
from tests.support.serving import Endpoint

JSON = dict[str, Any]
RESOURCE = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
# A first start pulls an image of several gigabytes and fetches the model.
READY_WITHIN = 1800
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class NoGpu(Exception):
    """Why nothing can be tried here."""


@dataclass(frozen=True)
class Kube:
    """kubectl and the context that it talks to."""

    program: str
    context: str

    def command(self, *arguments: str) -> list[str]:
        return [self.program, f"--context={self.context}", *arguments]

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 300) -> str:
        """Its output. CommandFailed where it fails."""
        return _run(self.command(*arguments), stdin, timeout)

    def json(self, *arguments: str) -> JSON:
        """What it gets, parsed."""
        parsed: JSON = json.loads(self.run(*arguments, "--output=json"))
        return parsed


@dataclass(frozen=True)
class GpuCluster:
    """A cluster with the operator and at least one GPU."""

    kube: Kube
    most_gpus: int
    """Of one node."""
    product: str | None
    """Of that node; None where it has no label."""


def find(environment: Mapping[str, str]) -> GpuCluster:
    """The cluster of KUBECONTEXT, else of kubectl's current context. NoGpu says why there is none to try things on."""
    kube = _kube(environment)
    try:
        nodes = kube.json("get", "nodes", "--request-timeout=10s")["items"]
    except CommandFailed as error:
        raise NoGpu(f"context {kube.context} does not answer: {error}") from None
    gpus, product = max((_gpus(node) for node in nodes), default=(0, ""))
    if not gpus:
        raise NoGpu(f"no node of context {kube.context} offers {RESOURCE} ({len(nodes)} nodes)")
    try:
        kube.run("get", "crd", CRD_NAME, "--request-timeout=10s")
    except CommandFailed as error:
        raise NoGpu(f"the operator is not installed in context {kube.context}: {error}") from None
    return GpuCluster(kube, gpus, product or None)


def _kube(environment: Mapping[str, str]) -> Kube:
    program = shutil.which("kubectl", path=environment.get("PATH", ""))
    if program is None:
        raise NoGpu("no kubectl on PATH")
    if context := environment.get("KUBECONTEXT"):
        return Kube(program, context)
    try:
        return Kube(program, _run([program, "config", "current-context"], None, 30).strip())
    except CommandFailed:
        raise NoGpu("no Kubernetes context: set KUBECONTEXT, or choose one with kubectl config use-context") from None


def _gpus(node: JSON) -> tuple[int, str]:
    offered = int(node["status"].get("allocatable", {}).get(RESOURCE, 0))
    return offered, node["metadata"].get("labels", {}).get(PRODUCT_LABEL, "")


def _run(command: list[str], stdin: str | None, timeout: float) -> str:
    done = subprocess.run(command, input=stdin, text=True, capture_output=True, timeout=timeout, check=False)
    if done.returncode:
        raise CommandFailed(f"{' '.join(command[2:])}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@dataclass(frozen=True)
class GpuServer(Endpoint):
    """A ready LLMService with GPUs, through a forwarded port."""

    status: JSON
    log: str
    """All that vLLM said until it was ready."""


@contextlib.contextmanager
def serving(kube: Kube, namespace: str, manifest: JSON) -> Iterator[GpuServer]:
    """Apply, wait until Ready, reach it, and take it away afterwards: GPUs are dear."""
    name = manifest["metadata"]["name"]
    here = f"--namespace={namespace}"
    kube.run("apply", "--server-side", here, "--filename=-", stdin=json.dumps(manifest))
    try:
        status = _ready(kube, here, name)
        log = kube.run("logs", here, f"deployment/{name}", "--container=server")
        with forwarded(kube, here, f"service/{name}", manifest["spec"].get("endpoint", {}).get("port", 80)) as url:
            yield GpuServer(name, url, status, log)
    finally:
        kube.run("delete", "llms", name, here, "--timeout=60s")
        pods = f"--selector=llmservice.dev/service={name}"
        kube.run("wait", "pods", here, pods, "--for=delete", "--timeout=280s")


def _ready(kube: Kube, here: str, name: str) -> JSON:
    """The status once the service is Ready; a failure that the operator tells ends the wait."""
    deadline = time.monotonic() + READY_WITHIN
    while not _waited(kube, here, name, "condition=Ready", 20):
        status: JSON = kube.json("get", "llms", name, here).get("status", {})
        refused = {"type": "Accepted", "status": "False"}
        hopeless = any(refused.items() <= condition.items() for condition in status.get("conditions", []))
        if hopeless or "failure" in status or time.monotonic() > deadline:
            raise AssertionError(f"{name} is not Ready:\n{json.dumps(status, indent=1)}")
    # What vLLM reported comes a moment later.
    assert _waited(kube, here, name, "jsonpath={.status.measured.startSeconds}", 60), "nothing was measured"
    ready: JSON = kube.json("get", "llms", name, here)["status"]
    return ready


def _waited(kube: Kube, here: str, name: str, what: str, seconds: int) -> bool:
    try:
        kube.run("wait", f"llms/{name}", here, f"--for={what}", f"--timeout={seconds}s")
    except CommandFailed:
        return False
    return True


@contextlib.contextmanager
def forwarded(kube: Kube, here: str, target: str, port: int) -> Iterator[str]:
    """An address on loopback that leads to a port of a Service."""
    command = kube.command("port-forward", here, "--address=127.0.0.1", target, f":{port}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = _FORWARDED.search(first)
            if found is None:
                raise CommandFailed(f"port-forward {target}: {first.strip()}")
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
