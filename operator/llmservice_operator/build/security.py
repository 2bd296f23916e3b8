"""What `restricted` asks of pods and containers, and as whom they run."""

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


def pod_security(llm: LLMService, settings: Settings) -> Manifest:
    """Of the server's pod, and of whatever else reads the files that it reads."""
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as_user is not None:
        security |= {
            "runAsUser": settings.run_as_user,
            "fsGroup": settings.run_as_user,
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    return security | llm.spec.pod_template.spec.security_context
