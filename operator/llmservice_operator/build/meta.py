"""Names, labels and owner references of all children."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from llmservice_operator.api.constants import API_VERSION, KIND, MANAGED_BY_LABEL, OPERATOR, SERVICE_LABEL
from llmservice_operator.api.service import LLMService

Manifest = dict[str, Any]


def selector(service: LLMService) -> dict[str, str]:
    """Selects a service's pods; immutable for ever, so it holds nothing else."""
    return {SERVICE_LABEL: service.name}


def selector_text(name: str) -> str:
    """The same as `kubectl -l` and autoscalers write it."""
    return f"{SERVICE_LABEL}={name}"


def labels(service: LLMService) -> dict[str, str]:
    """Labels that every child carries."""
    return {
        "app.kubernetes.io/name": "llmservice",
        "app.kubernetes.io/instance": service.name,
        "app.kubernetes.io/component": "server",
        MANAGED_BY_LABEL: OPERATOR,
        SERVICE_LABEL: service.name,
    }


def metadata(service: LLMService, name: str, *, owned: bool = True) -> Manifest:
    """Metadata of a child; without an owner reference it outlives the LLMService."""
    meta: Manifest = {"name": name, "namespace": service.namespace, "labels": labels(service)}
    if owned:
        # blockOwnerDeletion would need a right on finalizers and slows deletion down for nothing.
        meta["ownerReferences"] = [
            {"apiVersion": API_VERSION, "kind": KIND, "name": service.name, "uid": service.uid, "controller": True}
        ]
    return meta


def adapters_config_name(service: LLMService) -> str:
    """The ConfigMap that says which adapters are to be served."""
    return f"{service.name}-adapters"


def digest(value: Any) -> str:
    """A short name for a value of JSON: the same for equal ones, whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
