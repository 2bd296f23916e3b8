"""What the children share: names, labels and owner references; of pods the security, as `restricted` asks."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from llmservice_api.constants import API_VERSION, KIND, MANAGED_BY_LABEL, OPERATOR, SERVICE_LABEL
from llmservice_api.service import LLMService

from llmservice_operator.manifests.settings import Settings

Manifest = dict[str, Any]

INSTANCE_LABEL = "app.kubernetes.io/instance"


class Owner(Protocol):
    """What the metadata of a child say of its LLMService, whose spec may be invalid."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


def selector(service: LLMService) -> dict[str, str]:
    """Labels that select a service's pods; a Deployment's selector is immutable, so there is one label only."""
    return {SERVICE_LABEL: service.name}


def labels(service: Owner) -> dict[str, str]:
    """Labels that every child carries."""
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
        # Argo CD that tracks by this label would take a child without an owner for one that Git no longer has, and
        # delete it, in an Application of the service's name. Empty, since a label that is left out stays where it is.
        meta["labels"][INSTANCE_LABEL] = ""
    else:
        # No blockOwnerDeletion: it needs a right on finalizers and delays deletion.
        meta["ownerReferences"] = [
            {"apiVersion": API_VERSION, "kind": KIND, "name": service.name, "uid": service.uid, "controller": True}
        ]
    return meta


def adapters_config_name(service: LLMService) -> str:
    """Name of the ConfigMap with the list of adapters."""
    return f"{service.name}-adapters"


def digest(value: Any) -> str:
    """The first 10 hex digits of the SHA-256 of a JSON value; the order of keys does not count."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def operator_container(settings: Settings, name: str, command: tuple[str, ...], **fields: Any) -> Manifest:
    """A container of the operator's image; `fields` are further ones, as Kubernetes spells them."""
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
    """imagePullSecrets: those of the settings, then the user's, each once."""
    ours = [{"name": name} for name in dict.fromkeys(settings.image_pull_secrets)]
    return ours + [secret for secret in llm.spec.runtime.image_pull_secrets if secret not in ours]


def pod_security(llm: LLMService, settings: Settings) -> Manifest:
    """securityContext of the server's pod, and of every other pod that reads the same files."""
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as_user is not None:
        security |= {
            "runAsUser": settings.run_as_user,
            "fsGroup": settings.run_as_user,
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    return security | llm.spec.pod_template.spec.security_context
