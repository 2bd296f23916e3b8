"""`llmservice render --for epp`: what an endpoint picker of a service needs, with the names that its pool asks for.

The picker of the Gateway API's inference extension (1.5) finds block sizes and loads in the replicas' metrics, so that
nothing of the service is repeated here. The operator makes none of these: it may grant nobody anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from llmservice_api.constants import ENDPOINT_PICKER_PORT, INFERENCE_POOL
from llmservice_api.errors import Problem
from llmservice_api.service import LLMService
from llmservice_operator.manifests.gateway import picker_name
from llmservice_operator.manifests.meta import CONTAINER_SECURITY

from llmservice_cli.manifests import Json

NAME_FIELD = "spec.routing.endpointPicker.name"
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035: the CRD takes what other objects may be called, too."""
_HEALTH_PORT, _METRICS_PORT = 9003, 9090
_READ = ["get", "list", "watch"]
_EXPERIMENTAL = "inference.networking.x-k8s.io"
_MORE_SECONDS = 30
"""Beyond the requests of the replicas, which go through it."""


def name_problem(name: str) -> Iterator[Problem]:
    """Where no Service can have it."""
    if not _SERVICE_NAME.fullmatch(name):
        remedy = "Write at most 63 lowercase letters, digits and -, first a letter and no - at the end."
        yield Problem(NAME_FIELD, f"{name!r} is no name of a Service.", remedy)


def picker(service: LLMService, image: str) -> list[Json]:
    """Objects for `kubectl apply`, of a service with a pool."""
    name = picker_name(service)
    labels = {"app.kubernetes.io/name": "endpoint-picker", "app.kubernetes.io/instance": name}

    def made(api: str, kind: str, **fields: Any) -> Json:
        meta = {"name": name, "namespace": service.namespace, "labels": labels}
        return {"apiVersion": api, "kind": kind, "metadata": meta, **fields}

    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": _READ},
        {"apiGroups": [INFERENCE_POOL.group], "resources": [INFERENCE_POOL.plural], "verbs": _READ},
        {
            "apiGroups": [_EXPERIMENTAL],
            "resources": ["inferenceobjectives", "inferencemodelrewrites"],
            "verbs": _READ,
        },
    ]
    rbac, group = "rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": service.namespace}
    port = service.spec.routing.endpoint_picker.port
    grpc = {"name": "grpc", "port": port, "targetPort": "grpc", "protocol": "TCP", "appProtocol": "http2"}
    template = {"metadata": {"labels": labels}, "spec": _pod(service, name, image)}
    return [
        made("v1", "ServiceAccount"),
        made(group, "Role", rules=rules),
        made(group, "RoleBinding", roleRef={"apiGroup": rbac, "kind": "Role", "name": name}, subjects=[subject]),
        made("v1", "Service", spec={"selector": labels, "ports": [grpc]}),
        made(
            "apps/v1",
            "Deployment",
            # One knows what each replica was sent; with two, each would know a part.
            spec={
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": template,
            },
        ),
    ]


def _pod(service: LLMService, name: str, image: str) -> Json:
    # The Service alone has the port of the spec, which may be one of the others, or one that root alone may open.
    probe = {"grpc": {"port": _HEALTH_PORT, "service": "inference-extension"}}
    arguments = [
        f"--pool-name={service.name}",
        f"--pool-namespace={service.namespace}",
        f"--grpc-port={ENDPOINT_PICKER_PORT}",
        f"--grpc-health-port={_HEALTH_PORT}",
        f"--metrics-port={_METRICS_PORT}",
        "--tracing=false",
    ]
    ports = {"grpc": ENDPOINT_PICKER_PORT, "grpc-health": _HEALTH_PORT, "metrics": _METRICS_PORT}
    container = {
        "name": "epp",
        "image": image,
        "args": arguments,
        "env": [
            {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
            for variable, field in (("NAMESPACE", "namespace"), ("POD_NAME", "name"))
        ],
        "ports": [{"name": each, "containerPort": number} for each, number in ports.items()],
        "readinessProbe": probe | {"periodSeconds": 2},
        "livenessProbe": probe | {"periodSeconds": 10, "initialDelaySeconds": 5},
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": CONTAINER_SECURITY,
    }
    return {
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": service.spec.drain.timeout_seconds + _MORE_SECONDS,
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    }
