"""Services that fail, each in its own way: what is to be reported it, and when it went wrong."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmservice_runtime.contract import FETCH_CONTAINER

from localcluster.install import STAND_IN_IMAGE
from tests.support.cluster import JSON, condition, is_ready

Cause = Callable[[JSON], float | None]
"""From a pod or a Deployment to when it went wrong: seconds of the epoch, None while it did not."""


def at(stamp: str) -> float:
    return dt.datetime.fromisoformat(stamp).timestamp()


def ends(pod: JSON) -> Iterator[tuple[JSON, JSON]]:
    """Each container's status with the end of its last run, init containers first."""
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if done := container["state"].get("terminated") or container.get("lastState", {}).get("terminated"):
            yield container, done


def ended(pod: JSON) -> float | None:
    """The first end of a container that did not end well."""
    failed = (done for container, done in ends(pod) if container["name"] == "server" or done["exitCode"])
    return next((at(done["finishedAt"]) for done in failed), None)


def ended_thrice(pod: JSON) -> float | None:
    for container, done in ends(pod):
        if container["restartCount"] + (0 if "running" in container["state"] else 1) >= 3:
            return at(done["finishedAt"])
    return None


def since(obj: JSON, kind: str, status: str) -> float | None:
    """When a condition got this status; None where it has another."""
    found = condition(obj, kind) or {}
    return at(found["lastTransitionTime"]) if found.get("status") == status else None


def unready_again(pod: JSON) -> float | None:
    """When a server that runs, and was ready, was no longer."""
    servers = [one for one in pod.get("status", {}).get("containerStatuses", []) if one["name"] == "server"]
    began = next((one["state"].get("running", {}).get("startedAt") for one in servers), None)
    moment = since(pod, "Ready", "False")
    return moment if began and moment and moment > at(began) else None


def unplaced(pod: JSON) -> float | None:
    return since(pod, "PodScheduled", "False")


def placed(pod: JSON) -> float | None:
    """From here on the kubelet tries to mount its volumes."""
    return since(pod, "PodScheduled", "True")


def no_pod(deployment: JSON) -> float | None:
    return since(deployment, "ReplicaFailure", "True")


def waits(pod: JSON) -> float | None:
    """The kubelet keeps no time of it: when it was seen."""
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if container["state"].get("waiting", {}).get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return time.time()
    return None


def failure_of(service: JSON) -> str | None:
    reason: str | None = service.get("status", {}).get("failure", {}).get("reason")
    return reason


def serves(service: JSON) -> bool:
    return is_ready(service) and failure_of(service) is None


def why_not_ready(service: JSON) -> str:
    ready = condition(service, "Ready")
    return f"{ready['reason']}: {ready['message']}" if ready else ""


@dataclass(frozen=True)
class Failing:
    """A service that fails, and what is reported it. ValueError where nothing would be asked of a text."""

    reason: str
    words: str
    """In the message."""
    remedy: str
    """In the remedy."""
    cause: Cause
    spec: Mapping[str, Any] = field(default_factory=dict)
    behaviour: Mapping[str, Any] | None = None
    prompt: str = ""
    """Asked of the service once it is ready."""
    is_slow: bool = False
    """Nobody waits for it before the next ones are made."""
    first: tuple[str, ...] = ()
    """Reasons that are reported before it is known for what it is, an Event each."""

    def __post_init__(self) -> None:
        if not (self.words and self.remedy):
            raise ValueError(f"every text holds the empty one: what do message and remedy of {self.reason} say?")

    @property
    def events(self) -> Counter[str]:
        """Every Warning that the service gets, by reason."""
        return Counter((*self.first, self.reason))


def env(**values: str) -> JSON:
    return {"runtime": {"env": [{"name": name, "value": value} for name, value in values.items()]}}


def placement(**spec: Any) -> JSON:
    return {"podTemplate": {"spec": spec}}


GPUS = {"type": "nvidia", "resourceName": "e2e.example/gpu"}
MEMORY = "spec.runtime.resources"
LOG = "kubectl logs --previous"
# The stand-in's engine dies with these words, which a real one wrote.
DYING = "CPU Generator does not use offset"
GUEST = {
    "name": "licence",
    "image": STAND_IN_IMAGE,
    "command": ["python3", "-c", "print('no licence for this machine', flush=True); raise SystemExit(3)"],
    "terminationMessagePolicy": "FallbackToLogsOnError",
}
VOLUME = {
    "volumes": [{"name": "settings", "configMap": {"name": "nobody-made-it"}}],
    "volumeMounts": [{"name": "settings", "mountPath": "/settings"}],
}
# Over Python's own library: the supervisor ends before its first line.
EMPTY = {
    "volumes": [{"name": "empty", "emptyDir": {}}],
    "volumeMounts": [{"name": "empty", "mountPath": "/usr/lib/python3.11"}],
}
CASES: dict[str, Failing] = {
    # what takes longest comes first: all run beside each other
    "hang": Failing(
        "EngineHung", "does not move", "spec.batching.maxNumSeqs", unready_again, prompt="@hang", is_slow=True
    ),
    "exit-0-serving": Failing("EngineDied", "ended with exit code 0", LOG, ended, prompt="@exit0"),
    "dies-serving": Failing("EngineDied", DYING, LOG, ended, prompt="@die"),
    "hub-unreachable": Failing(
        "ModelDownloadFailed",
        "127.0.0.1:9",
        "proxy",
        ended,
        {"model": {"uri": "hf://team/tiny"}, **env(HF_ENDPOINT="http://127.0.0.1:9")},
        is_slow=True,
    ),
    "crash-loop": Failing(
        "CrashLoop", "again and again", LOG, ended_thrice, placement(**EMPTY), is_slow=True, first=("Unknown",)
    ),
    "stopped-start": Failing(
        "StartTimeout",
        # Long enough for it to get as far as the weights beside thirty others.
        "budget of 5 s",
        "spec.model.cache",
        ended,
        env(LLMSERVICE_START_SECONDS="5", LLMSERVICE_STALL_SECONDS="15"),
        {"stalls_at": 0},
        is_slow=True,
    ),
    "no-gpu": Failing(
        "InsufficientGPUs",
        "asks for 8 e2e.example/gpu; free are 3 NVIDIA-L4; at most 3 on one node; held by holder (1).",
        "spec.parallelism",
        unplaced,
        {"accelerator": GPUS, "parallelism": {"tensorParallelSize": 8}, "precision": None},
    ),
    "no-cpu": Failing(
        "InsufficientResources",
        "Insufficient cpu",
        MEMORY,
        unplaced,
        {"runtime": {"resources": {"requests": {"cpu": "32"}}}},
    ),
    "taint": Failing(
        "UntoleratedTaint", "taint", "tolerations", unplaced, placement(nodeSelector={"e2e-failures": "tainted"})
    ),
    "selector": Failing(
        "NoMatchingNode", "affinity/selector", "nodeSelector", unplaced, placement(nodeSelector={"no": "node"})
    ),
    "quota": Failing(
        "QuotaExceeded", "quota team", "quota", no_pod, {"runtime": {"resources": {"requests": {"cpu": "900"}}}}
    ),
    "webhook": Failing("AdmissionUnavailable", "failed calling webhook", "failurePolicy: Ignore", no_pod),
    "no-claim": Failing(
        "VolumeUnavailable", '"nowhere"', "spec.model.uri", unplaced, {"model": {"uri": "pvc://nowhere/tiny"}}
    ),
    "unbound-claim": Failing(
        "VolumeUnavailable", "unbound", "spec.model.uri", unplaced, {"model": {"uri": "pvc://unbound/tiny"}}
    ),
    "no-volume": Failing("VolumeUnavailable", "nobody-made-it", "volumes", placed, placement(**VOLUME)),
    "no-secret": Failing(
        "ContainerConfigInvalid",
        '"nobody-made-it"',
        "reference",
        waits,
        {"runtime": {"env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "nobody-made-it", "key": "k"}}}]}},
    ),
    "no-key-secret": Failing(
        "VolumeUnavailable",
        '"nobody-made-it"',
        "spec.endpoint.apiKeySecretRef",
        placed,
        {"endpoint": {"apiKeySecretRef": {"name": "nobody-made-it", "key": "key"}}},
    ),
    "no-hub-secret": Failing(
        "ContainerConfigInvalid",
        f'Container {FETCH_CONTAINER}: CreateContainerConfigError: secret "nobody-made-it" not found',
        "reference",
        waits,
        {"model": {"uri": "hf://team/tiny", "hfTokenSecretRef": {"name": "nobody-made-it", "key": "k"}}},
    ),
    "no-image": Failing("ImageNotFound", "not found", "spec.runtime.image", waits, {"runtime": {"image": "{missing}"}}),
    "denied-image": Failing(
        "ImagePullDenied", "403 Forbidden", "imagePullSecrets", waits, {"runtime": {"image": "{denied}"}}
    ),
    "never-pulled": Failing(
        "ImageNotFound",
        "registry.local/no-such-image",
        "imagePullPolicy",
        waits,
        {"runtime": {"image": "registry.local/no-such-image:v0.32.0", "imagePullPolicy": "Never"}},
    ),
    "init": Failing(
        "InitContainerFailed",
        "licence ended with exit code 3",
        "initContainers",
        ended,
        placement(initContainers=[GUEST]),
    ),
    "flag-value": Failing(
        "InvalidFlag", "--max-num-seqs: invalid int", "spec.runtime.extraArgs", ended, behaviour={"fails": "bad-value"}
    ),
    "no-model": Failing(
        "ModelNotFound", "/models/none", "spec.model.uri", ended, {"model": {"uri": "file:///models/none"}}
    ),
    "gated": Failing(
        "ModelAccessDenied",
        "team/gated",
        "spec.model.hfTokenSecretRef",
        ended,
        {"model": {"uri": "hf://team/gated"}, **env(HF_ENDPOINT="{hub}")},
    ),
    "unreadable": Failing(
        "WeightsUnreadable", "model.safetensors", "chmod", ended, behaviour={"fails": "unreadable-weights"}
    ),
    "architecture": Failing(
        "UnsupportedArchitecture",
        "NoSuchModelForCausalLM",
        "newer vLLM",
        ended,
        behaviour={"fails": "unsupported-architecture"},
    ),
    "version": Failing("VersionMismatch", "0.32.0", "spec.runtime.version", ended, {"runtime": {"version": "0.31.0"}}),
    "kv-cache": Failing(
        "KVCacheTooSmall",
        "7.63 GiB KV cache is needed",
        "spec.batching.maxModelLen",
        ended,
        behaviour={"fails": "kv-cache-too-small"},
    ),
    "driver": Failing(
        "DriverMismatch",
        # By the labels of its node, beside what vLLM says.
        "(node node-a has driver 550.54.15, which supports CUDA 12.4)",
        "spec.runtime.image",
        ended,
        behaviour={"fails": "driver-too-old"},
    ),
    "gpu-memory": Failing(
        "GPUOutOfMemory", "out of memory", "spec.precision", ended, behaviour={"fails": "gpu-out-of-memory"}
    ),
    "host-memory": Failing(
        "MemoryLimitExceeded",
        "memory limit",
        MEMORY,
        ended,
        # The gibibyte of shared memory comes on top.
        {"runtime": {"resources": {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}}},
        {"first_request": "memory"},
    ),
    "exit-0": Failing("StartupFailed", "ended with exit code 0", LOG, ended, behaviour={"fails": "exit-0"}),
    "first-request": Failing("EngineDied", DYING, LOG, ended, behaviour={"first_request": "die"}),
    "cpu-feature": Failing(
        "CPUFeatureMissing", "AVX-512 or AMX", "spec.precision.kvCache", ended, behaviour={"fails": "cpu-feature"}
    ),
    "sigill": Failing(
        "IllegalInstruction", "Illegal instruction", "float32", ended, behaviour={"first_request": "sigill"}
    ),
}
