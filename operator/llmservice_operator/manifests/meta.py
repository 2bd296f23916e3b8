"""Names, labels and owner references of the children; security settings of pods, as `restricted` requires."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from llmservice_api.constants import (
    API_SERVER_LABEL,
    API_VERSION,
    KIND,
    MANAGED_BY_LABEL,
    OPERATOR,
    RANK_LABEL,
    SERVICE_LABEL,
)
from llmservice_api.service import LLMService

from llmservice_operator.manifests.settings import Settings

Manifest = dict[str, Any]

INSTANCE_LABEL = "app.kubernetes.io/instance"


class Owner(Protocol):
    """The part of an LLMService that a child's metadata need; its spec may be invalid."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


def selector(service: LLMService) -> dict[str, str]:
    """Labels that select a service's pods. A Deployment's selector is immutable, so there is one label only."""
    return {SERVICE_LABEL: service.name}


def serving_selector(service: LLMService, nodes: int, *, is_every_pod: bool = False) -> dict[str, str]:
    """Labels of the pods that answer requests: of a group over several nodes its leader, or every pod."""
    if nodes == 1:
        return selector(service)
    return selector(service) | ({API_SERVER_LABEL: "true"} if is_every_pod else {RANK_LABEL: "0"})


def answers_on_every_pod(template: Manifest) -> bool:
    """Whether each pod of a group answers requests, by the pod template."""
    return API_SERVER_LABEL in ((template.get("metadata") or {}).get("labels") or {})


def nodes_of(template: Manifest) -> int:
    """Nodes of one replica, by the pod template: a record of a revision has no spec."""
    containers = (template.get("spec") or {}).get("containers") or ()
    words = (word for container in containers for word in container.get("args") or ())
    found = next((word for word in words if str(word).startswith(_NODES)), f"{_NODES}1")
    return int(found.removeprefix(_NODES))


_NODES = "--nodes="


def labels(service: Owner) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "llmservice",
        INSTANCE_LABEL: service.name,
        "app.kubernetes.io/component": "server",
        MANAGED_BY_LABEL: OPERATOR,
        SERVICE_LABEL: service.name,
    }


def metadata(service: Owner, name: str, *, owned: bool = True) -> Manifest:
    """Metadata of a child; without an owner reference it outlives the LLMService."""
    meta: Manifest = {"name": name, "namespace": service.namespace, "labels": labels(service)}
    if not owned:
        # Argo CD that tracks by this label would delete a child without an owner, in an Application of the service's
        # name. Empty and not absent, since an apply does not remove a label.
        meta["labels"][INSTANCE_LABEL] = ""
    else:
        # No blockOwnerDeletion: it needs permission on finalizers and delays deletion.
        meta["ownerReferences"] = [
            {"apiVersion": API_VERSION, "kind": KIND, "name": service.name, "uid": service.uid, "controller": True}
        ]
    return meta


def adapters_config_name(service: LLMService) -> str:
    return f"{service.name}-adapters"


def digest(value: Any) -> str:
    """The first 10 hex digits of the SHA-256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def operator_container(settings: Settings, name: str, command: tuple[str, ...], **fields: Any) -> Manifest:
    """A container of the operator's image; `fields` are further ones, in Kubernetes' spelling."""
    pull_policy = settings.image_pull_policy
    return {
        "name": name,
        "image": settings.operator_image,
        "command": list(command),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({} if pull_policy is None else {"imagePullPolicy": pull_policy}),
        **fields,
    }


def pull_secrets(llm: LLMService, settings: Settings) -> list[dict[str, Any]]:
    """imagePullSecrets: those of the settings, then the user's, without duplicates."""
    ours = [{"name": name} for name in dict.fromkeys(settings.image_pull_secrets)]
    return ours + [secret for secret in llm.spec.runtime.image_pull_secrets if secret not in ours]


def pod_security(llm: LLMService, settings: Settings) -> Manifest:
    """securityContext of the server's pod, and of other pods that read the same files."""
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as_user is not None:
        security |= {
            "runAsUser": settings.run_as_user,
            "fsGroup": settings.run_as_user,
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    return security | llm.spec.pod_template.spec.security_context
