"""Children of a service whose prompts are routed: the router's Deployment and budget, the Service past it, and the
EndpointSlices that lead to the replicas while no router is ready.

The router finds the replicas by the DNS name of NAME-direct. So it needs no right, and goes on while the operator or
the API server is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llmservice_api.constants import REVISION_LABEL, ROUTER_LABEL, direct_name, router_name
from llmservice_api.holding import REPLICA_SLICES
from llmservice_api.service import LLMService
from llmservice_runtime.contract import (
    HTTP_PORT,
    HTTP_PORT_NAME,
    LIVE_PATH,
    OPERATOR_PYTHON,
    PROPAGATION_SECONDS,
    READY_PATH,
    STATE_PORT,
    STATE_PORT_NAME,
)

from llmservice_operator.manifests.children import service_slices
from llmservice_operator.manifests.meta import (
    CONTAINER_SECURITY,
    Manifest,
    Owner,
    labels,
    metadata,
    pull_secrets,
    selector,
)
from llmservice_operator.manifests.settings import Settings


def children(name: str) -> tuple[tuple[str, str], ...]:
    """Kind and name of each child of the service `name` but its slices."""
    return ("Service", direct_name(name)), ("Deployment", router_name(name)), ("PodDisruptionBudget", router_name(name))


FOLDER = "/run/llmservice-router"
_END_SECONDS = 15
"""Beyond the requests in progress."""


def router_selector(llm: Owner) -> dict[str, str]:
    return {ROUTER_LABEL: llm.name}


def _own_labels(llm: Owner) -> dict[str, str]:
    return labels(llm) | {"app.kubernetes.io/component": "router"}


def direct(llm: LLMService, service: Manifest, revision: str | None) -> Manifest:
    """NAME-direct, headless, with the pods that `service` selects; with a `revision` those of it alone."""
    spec = service["spec"]
    meta = metadata(llm, direct_name(llm.name)) | {"labels": _own_labels(llm)}
    ports = [port | {"port": HTTP_PORT} for port in spec["ports"]]
    selected = spec["selector"] | ({} if revision is None else {REVISION_LABEL: revision})
    headless = {"type": "ClusterIP", "clusterIP": "None", "selector": selected, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": headless}


def routed(llm: LLMService, service: Manifest) -> Manifest:
    """The Service NAME, leading to the router's pods."""
    ports = [port | {"targetPort": HTTP_PORT_NAME} for port in service["spec"]["ports"]]
    return service | {"spec": service["spec"] | {"selector": router_selector(llm), "ports": ports}}


def deployment(llm: LLMService, settings: Settings) -> Manifest:
    of_pod = {key: value for key, value in _own_labels(llm).items() if key not in selector(llm)} | router_selector(llm)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(llm, router_name(llm.name)) | {"labels": _own_labels(llm)},
        "spec": {
            "replicas": llm.spec.routing.router_replicas,
            "selector": {"matchLabels": router_selector(llm)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 2,
            "template": {"metadata": {"labels": of_pod}, "spec": _pod(llm, settings)},
        },
    }


def ended(llm: LLMService, spec: Manifest) -> Manifest:
    """The Deployment with this spec, and no replicas."""
    meta = metadata(llm, router_name(llm.name)) | {"labels": _own_labels(llm)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec | {"replicas": 0}}


def has_policy(spec: Manifest, policy: str) -> bool:
    """Whether pods of a live Deployment with this spec route by it."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return any(_policy(policy) in (each.get("args") or ()) for each in containers)


def _policy(policy: str) -> str:
    return f"--policy={policy}"


def _pod(llm: LLMService, settings: Settings) -> Manifest:
    user = settings.run_as_user
    apart = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": router_selector(llm)},
    }
    spec: Manifest = {
        "containers": [_container(llm, settings)],
        "volumes": [{"name": "run", "emptyDir": {"sizeLimit": "16Mi"}}, {"name": "tmp", "emptyDir": {}}],
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **({} if user is None else {"runAsUser": user, "fsGroup": user}),
        },
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PROPAGATION_SECONDS + llm.spec.drain.timeout_seconds + _END_SECONDS,
        "topologySpreadConstraints": [apart],
        "imagePullSecrets": pull_secrets(llm, settings),
    }
    return {key: value for key, value in spec.items() if value not in (None, "", [], {})}


def _container(llm: LLMService, settings: Settings) -> Manifest:
    assert settings.router_image is not None, "without an image there is no router"
    policy = settings.image_pull_policy
    return {
        "name": "router",
        "image": settings.router_image,
        "command": [*OPERATOR_PYTHON, "llmservice_router"],
        "args": [
            f"--replicas={direct_name(llm.name)}",
            _policy(llm.spec.routing.policy),
            f"--drain-seconds={PROPAGATION_SECONDS + llm.spec.drain.timeout_seconds}",
        ],
        "ports": [
            {"name": HTTP_PORT_NAME, "containerPort": HTTP_PORT, "protocol": "TCP"},
            {"name": STATE_PORT_NAME, "containerPort": STATE_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": _probe(READY_PATH, 2, 2),
        "livenessProbe": _probe(LIVE_PATH, 10, 3),
        "resources": {
            "requests": {"cpu": settings.router_cpu, "memory": settings.router_memory},
            "limits": {"memory": settings.router_memory_limit},
        },
        "volumeMounts": [{"name": "run", "mountPath": FOLDER}, {"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({} if policy is None else {"imagePullPolicy": policy}),
    }


def _probe(path: str, seconds: int, failures: int) -> Manifest:
    asked = {"path": path, "port": STATE_PORT_NAME}
    return {"httpGet": asked, "periodSeconds": seconds, "timeoutSeconds": 10, "failureThreshold": failures}


def budget(llm: LLMService) -> Manifest | None:
    """None with one pod: a budget would block a node drain for ever."""
    if llm.spec.routing.router_replicas <= 1:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(llm, router_name(llm.name)) | {"labels": _own_labels(llm)},
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": router_selector(llm)},
        },
    }


def replica_slices(llm: Owner, pods: Iterable[tuple[str, str]]) -> Iterator[Manifest]:
    """EndpointSlices of the Service NAME with these pods: address and node of each."""
    yield from service_slices(llm, REPLICA_SLICES, HTTP_PORT, sorted(pods))
