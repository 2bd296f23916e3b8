"""What pods and containers share: security as `restricted` asks, users, registry logins, the operator's image."""

from __future__ import annotations

from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest
from llmservice_operator.build.settings import Settings

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
