"""The pod that sends the requests of `llmservice probe NAME`. Pure: LLMService and Deployment in, manifest out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmservice_operator.api.constants import API_VERSION, KIND
from llmservice_runtime.contract import RUNTIME_CONTAINER

from llmservice_cli.api import Json
from llmservice_cli.errors import CliError
from llmservice_cli.services import endpoint_of

CONTAINER = "probe"
KEY_VARIABLE = "LLMSERVICE_API_KEY"
NAME_LABEL = {"app.kubernetes.io/name": "llmservice-probe"}
STOP_SECONDS = 60  # what is under way when the probe is stopped may still end


def target_of(service: Json) -> tuple[str, str]:
    """The URL inside the cluster, and the model's name, of an LLMService."""
    metadata, port = service["metadata"], endpoint_of(service).port
    names = (service.get("status", {}).get("endpoint") or {}).get("modelNames") or [metadata["name"]]
    return f"http://{metadata['name']}.{metadata['namespace']}.svc" + (f":{port}" if port != 80 else ""), names[0]


def image_of(deployment: Json | None, name: str) -> tuple[str, list[Json]]:
    """The operator's image, which has this program, as the service's own pods pull it, with their pull secrets."""
    template = {} if deployment is None else deployment["spec"]["template"]["spec"]
    for container in template.get("initContainers") or ():
        if container["name"] == RUNTIME_CONTAINER:
            return container["image"], list(template.get("imagePullSecrets") or ())
    raise CliError(
        f"{name} has no Deployment with the operator's image in it, which the probe runs from",
        f"wait until the service is accepted (llmservice status {name}), or name an image with --image",
    )


def manifest(
    service: Json, *, name: str, image: str, pull_secrets: Sequence[Json], key: Json | None, args: Sequence[str],
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """A pod that `restricted` admits; it ends by itself after `seconds`, and goes with its LLMService."""
    owner = service["metadata"]
    environment: list[dict[str, Any]] = [{"name": "HOME", "value": "/tmp"}]
    if key is not None:
        environment.append({"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": dict(key)}})
    container = {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-m", "llmservice_cli", *args],
        "env": environment,
        # Its work is small, but late is wrong: no limit of CPU, which would hold it back.
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": owner["namespace"],
            "labels": {**NAME_LABEL, "app.kubernetes.io/instance": owner["name"]},
            "ownerReferences": [{"apiVersion": API_VERSION, "kind": KIND, "name": owner["name"], "uid": owner["uid"]}],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(seconds),
            "terminationGracePeriodSeconds": STOP_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": [dict(secret) for secret in pull_secrets],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def start_failure(pod: Json) -> str | None:
    """Why this pod does not start, where it will not by itself; None while it may."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return None


def unscheduled(pod: Json) -> str | None:
    """Why no node takes it, as the scheduler says it."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message', '')}"
    return None


def has_started(pod: Json) -> bool:
    """Whether its container runs, or has run."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any(not status.get("state", {}).get("waiting") for status in statuses)


def has_ended(pod: Json) -> bool:
    """Whether nothing more will come of it."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
