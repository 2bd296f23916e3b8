"""How long from a pod's creation to Ready and to the first token: an LLMService beside a bare vLLM of the same flags.

All run in the running cluster (`make cluster`), in turn, so that a slow minute of the machine hits all; the ratios are
what to look at. The bare Deployment is the LLMService's own pod without the supervisor: the same image, security and
volumes, vLLM's own /health as its readiness. Its caches are cold (the pod's own, as in a pod that somebody writes by
hand) or warm (kept in a folder of the node). A second start of the LLMService has its spec.startCache. The last kind is
a request to a service at zero, held by an activator: from its sending to its answer.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from llmservice_api.constants import selector_text, start_cache_claim_name
from llmservice_vllm.modules import ENTRY

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.pairs import PAIRS
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.keda import autoscaling_installed
from tests.support.on_demand import ON_DEMAND, OnDemand
from tests.support.services import llmservice, merge
from tests.support.volumes import volume_for

NAMESPACE = "bench-first-answer"
FIRST, SECOND, ZERO = "LLMService, first", "LLMService, second", "LLMService, second, request at zero"
COLD, WARM = "bare vLLM, cold", "bare vLLM, warm"
KINDS = (FIRST, SECOND, ZERO, COLD, WARM)
COMPILED = {"precision": None, "compilation": None, "startCache": {"size": "1Gi"}, "scaling": {"replicas": 0}}
# What vLLM's log says where a phase ends, and the phase.
PHASES = (
    ("pod, and imports of the API server", "[api_utils.py", "version"),
    ("configuration, and imports of the engine", "Initializing a V1 LLM engine", ""),
    ("imports of the worker", "Starting to load model", ""),
    ("weights", "Warming up model", ""),
    ("compilation", "Warming up done", ""),
    ("HTTP server", "Application startup complete", ""),
)


@dataclass(frozen=True)
class Start:
    """Seconds from the scaling to one replica, or from the request at zero."""

    kind: str
    ready: float
    first_token: float
    phases: dict[str, float]


def bare_manifests(ours: JSON, name: str, caches: Path | None) -> list[JSON]:
    """The Deployment of a service as somebody would write it by hand: no supervisor, no init container."""
    template = copy.deepcopy(ours["spec"]["template"])
    pod = template["spec"]
    pod.pop("initContainers")
    (server,) = pod["containers"]
    words: list[str] = server.pop("command") + server.pop("args", [])
    flags = [word for word in words[words.index("--") + 1 :] if "llmservice_runtime" not in word]
    server["command"] = ["python3", "-m", ENTRY, *(flag for flag in flags if flag != "--middleware")]
    added = ("PYTHONPATH", "VLLM_USE_AOT_COMPILE", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS")
    server["env"] = [entry for entry in server["env"] if entry["name"] not in added]
    server.pop("startupProbe")
    server["readinessProbe"] = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1}
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "start-cache"]
    server["volumeMounts"] = [mount for mount in server["volumeMounts"] if mount["name"] != "start-cache"]
    if caches is not None:
        kept = next(volume for volume in pod["volumes"] if volume["name"] == "cache")
        kept.pop("emptyDir")
        kept["hostPath"] = {"path": str(caches), "type": "Directory"}
    labels = {"app": name}
    template["metadata"] = {"labels": labels}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": "http"}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service},
    ]


class Lab:
    """The namespace with the service, the bare Deployments, and a client."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._client = ClientPod.start(cluster, NAMESPACE)
        self.volumes = [
            volume_for(cluster, NAMESPACE, start_cache_claim_name(name), folder / name) for name in ("ours", "zero")
        ]
        cluster.apply(llmservice("ours", **COMPILED), NAMESPACE)
        cluster.apply(llmservice("zero", **merge(COMPILED, ON_DEMAND)), NAMESPACE)
        self._zero = OnDemand(cluster, NAMESPACE, "zero")
        eventually("its Deployment", lambda: cluster.get("deployments", NAMESPACE, "ours") is not None, 60)
        ours = cluster.must_get("deployments", NAMESPACE, "ours")
        warm = folder / "warm"
        warm.mkdir(mode=0o777)
        warm.chmod(0o777)
        for name, caches in (("cold", None), ("warm", warm)):
            for manifest in bare_manifests(ours, name, caches):
                cluster.apply(manifest, NAMESPACE)

    def start(self, kind: str) -> Start:
        """One start from zero to the first token; zero again afterwards."""
        if kind == FIRST:
            for kept in (self._folder / "ours").iterdir():
                shutil.rmtree(kept)
        if kind in (FIRST, SECOND):
            return self._start(kind, "llms/ours", selector_text("ours"), self._is_service_ready)
        if kind == ZERO:
            return self._request_at_zero()
        name = kind.rpartition(" ")[2]
        return self._start(kind, f"deploy/{name}", f"app={name}", lambda: self._is_available(name))

    def _start(self, kind: str, target: str, selector: str, is_ready: Callable[[], bool]) -> Start:
        wall, begun = time.time(), time.monotonic()
        self._scale(target, 1)
        eventually(f"{target} is ready", is_ready, 600)
        ready = time.monotonic() - begun
        self._first_token(target.rpartition("/")[2])
        first_token = time.monotonic() - begun
        log = self._log(selector)
        self._scale(target, 0)
        eventually("no pod", lambda: not self._cluster.list("pods", NAMESPACE, selector), 120)
        return Start(kind, ready, first_token, phases(log, wall, ready))

    def _request_at_zero(self) -> Start:
        self._zero.down()
        wall, begun = time.time(), time.monotonic()
        answer = self._zero.post({"model": "zero", "prompt": PAIRS[0][0], "max_tokens": 1}, timeout=600)
        answer.raise_for_status()
        seconds = time.monotonic() - begun
        return Start(ZERO, seconds, seconds, phases(self._log(selector_text("zero")), wall, seconds))

    def _log(self, selector: str) -> str:
        (pod,) = self._cluster.list("pods", NAMESPACE, selector)
        name = pod["metadata"]["name"]
        return self._cluster.kubectl("logs", name, "-n", NAMESPACE, "-c", "server", "--timestamps")

    def _scale(self, target: str, replicas: int) -> None:
        self._cluster.kubectl("scale", target, f"--replicas={replicas}", "-n", NAMESPACE)

    def _is_service_ready(self) -> bool:
        return bool(self._cluster.must_get("llmservices", NAMESPACE, "ours")["status"].get("readyReplicas"))

    def _is_available(self, name: str) -> bool:
        return bool(self._cluster.must_get("deployments", NAMESPACE, name).get("status", {}).get("availableReplicas"))

    def _first_token(self, service: str) -> None:
        body = {"model": "ours", "messages": [{"role": "user", "content": PAIRS[0][0]}], "max_tokens": 1}
        answer = self._client.request(f"http://{service}.{NAMESPACE}.svc/v1/chat/completions", body)
        if answer.status != 200:
            raise RuntimeError(f"{service} answered {answer.status}: {answer.body}")


def phases(log: str, began: float, ready: float) -> dict[str, float]:
    """Seconds of each phase, from the times of the log's lines; the last one ends where the start was Ready."""
    found: dict[str, float] = {}
    before = began
    for phase, words, more in PHASES:
        at = next((_time(line) for line in log.splitlines() if words in line and more in line), None)
        if at is not None:
            found[phase] = round(at - before, 2)
            before = at
    return found | {"probes, endpoint, status": round(began + ready - before, 2)}


def _time(line: str) -> float:
    """The kubelet's nanoseconds are more than datetime reads."""
    stamp = line.partition(" ")[0]
    return datetime.fromisoformat(f"{stamp[:26]}+00:00").timestamp()


def summary(starts: Sequence[Start]) -> dict[str, Any]:
    """Medians by kind, their phases, and the ratios of the times to the first token."""
    kinds = [kind for kind in KINDS if any(start.kind == kind for start in starts)]

    def median(kind: str, read: Callable[[Start], float]) -> float:
        return round(float(statistics.median(read(start) for start in starts if start.kind == kind)), 2)

    times = {kind: {"ready": median(kind, lambda s: s.ready), "first token": _token(starts, kind)} for kind in kinds}
    names = [*(name for name, _, _ in PHASES), "probes, endpoint, status"]
    by_phase = {name: {kind: median(kind, lambda s, n=name: s.phases.get(n, 0.0)) for kind in kinds} for name in names}  # type: ignore[misc]
    ratios = {f"{SECOND} / {kind}": round(_token(starts, SECOND) / _token(starts, kind), 2) for kind in (COLD, WARM)}
    return {"median seconds": times, "phases": by_phase, "ratios": ratios, "runs": [asdict(s) for s in starts]}


def _token(starts: Sequence[Start], kind: str) -> float:
    return round(float(statistics.median(start.first_token for start in starts if start.kind == kind)), 2)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_answer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: make cluster && python -m benchmarks.first_answer --runs 5",
    )
    parser.add_argument("--runs", type=int, default=3, help="starts of each kind (default 3; two minutes each)")
    options = parser.parse_args(argv)
    cluster = Cluster.connect(ClusterPaths.of_this_clone())
    with cluster.api, tempfile.TemporaryDirectory() as folder, autoscaling_installed(cluster):
        cluster.kubectl("create", "namespace", NAMESPACE)
        starts: list[Start] = []
        lab = Lab(cluster, Path(folder))
        try:
            # The first of each fills its caches, and the node's.
            for run in range(options.runs + 1):
                for kind in KINDS:
                    start = lab.start(kind)
                    print(f"run {run}: {start}", file=sys.stderr, flush=True)
                    starts += [start] if run else []
        finally:
            cluster.kubectl("delete", "llms", "--all", "-n", NAMESPACE, "--timeout=120s")
            eventually("no ScaledObject is left", lambda: not cluster.list("scaledobjects", NAMESPACE), 60)
            cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
            cluster.kubectl("delete", "pv", *lab.volumes, "--wait=false")
    print(json.dumps(summary(starts), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
