"""Volumes of the pod and where the server mounts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmservice_runtime import contract

from llmservice_operator.api.service import LLMService
from llmservice_operator.api.uri import ClaimSource, HubSource
from llmservice_operator.build.environment import CA_DIR
from llmservice_operator.build.meta import cache_claim_name
from llmservice_operator.build.resources import shared_memory_gib
from llmservice_operator.build.settings import Settings

RUNTIME_VOLUME = "runtime"


@dataclass(frozen=True, slots=True)
class Mounted:
    """A volume and its place in the server container."""

    name: str
    source: dict[str, Any]
    path: str
    read_only: bool = False

    def volume(self) -> dict[str, Any]:
        return {"name": self.name, **self.source}

    def mount(self) -> dict[str, Any]:
        mount: dict[str, Any] = {"name": self.name, "mountPath": self.path}
        return mount | {"readOnly": True} if self.read_only else mount


def volumes(llm: LLMService, settings: Settings) -> list[Mounted]:
    """The operator's own volumes; the user's are added behind them."""
    scratch = [
        Mounted("run", {"emptyDir": {}}, contract.RUN_DIR),
        Mounted("home", {"emptyDir": {}}, contract.HOME_DIR),
        Mounted("tmp", {"emptyDir": {}}, contract.TMP_DIR),
        Mounted("cache", {"emptyDir": {}}, contract.CACHE_DIR),
    ]
    return [
        Mounted(RUNTIME_VOLUME, {"emptyDir": {}}, contract.RUNTIME_DIR, read_only=True),
        *scratch,
        *_model(llm),
        *_shared_memory(llm, settings),
        *_ca_bundle(settings),
    ]


def _model(llm: LLMService) -> list[Mounted]:
    match llm.spec.model.source:
        case HubSource():
            return [Mounted("models", _model_cache(llm), contract.MODELS_DIR)]
        case ClaimSource(claim, _):
            # Read-only on both levels: the kubelet then leaves the files' owners alone.
            source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            return [Mounted("source", source, contract.SOURCE_DIR, read_only=True)]
        case _:
            return []


def _model_cache(llm: LLMService) -> dict[str, Any]:
    cache = llm.spec.model.cache
    if not cache.wanted:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": cache.claim_name or cache_claim_name(llm)}}


def _shared_memory(llm: LLMService, settings: Settings) -> list[Mounted]:
    size = shared_memory_gib(llm, settings)
    if size == 0:
        return []
    return [Mounted("dshm", {"emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Gi"}}, contract.SHM_DIR)]


def _ca_bundle(settings: Settings) -> list[Mounted]:
    if settings.ca_bundle is None:
        return []
    return [Mounted("ca-bundle", {"configMap": {"name": settings.ca_bundle.config_map}}, CA_DIR, read_only=True)]
