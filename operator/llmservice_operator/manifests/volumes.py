"""Volumes of the pod, and their mounts in the server and the fetch container."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.constants import cache_claim_name, start_cache_claim_name
from llmservice_api.pod_rules import START_CACHE_VOLUME
from llmservice_api.service import LLMService
from llmservice_runtime import contract

from llmservice_operator.manifests.engine import CHAT_TEMPLATE_FILE
from llmservice_operator.manifests.environment import CA_DIR
from llmservice_operator.manifests.meta import adapters_config_name
from llmservice_operator.manifests.resources import shared_memory_gib
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.manifests.sources import Store, needs_models_volume, places

RUNTIME_VOLUME = "runtime"
_SMALL_VOLUMES = ("configMap", "secret", "projected")


@dataclass(frozen=True, slots=True)
class Mounted:
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
    """The operator's volumes in the server container; the user's follow them."""
    return [
        Mounted(RUNTIME_VOLUME, {"emptyDir": {}}, contract.RUNTIME_DIR, read_only=True),
        Mounted("run", {"emptyDir": {}}, contract.RUN_DIR),
        Mounted("home", {"emptyDir": {}}, contract.HOME_DIR),
        Mounted("tmp", {"emptyDir": {}}, contract.TMP_DIR),
        Mounted("cache", {"emptyDir": {}}, contract.CACHE_DIR),
        *_start_cache(llm),
        *_models(llm),
        *_sources(llm),
        *_chat_template(llm),
        *_adapters(llm),
        *_api_keys(llm),
        *_shared_memory(llm, settings),
        *ca_bundle(settings),
    ]


def fetch_volumes(llm: LLMService, settings: Settings) -> list[Mounted]:
    """Volumes of the fetch container, which alone writes models and links; none if nothing may be fetched."""
    if not needs_models_volume(llm.spec):
        return []
    return [
        *(replace(mounted, read_only=False) for mounted in _models(llm)),
        Mounted("fetch-tmp", {"emptyDir": {}}, contract.TMP_DIR),
        *_adapters(llm),
        *ca_bundle(settings),
    ]


def _start_cache(llm: LLMService) -> list[Mounted]:
    """The claim for compiled code; without it the supervisor uses a folder in the pod."""
    if llm.spec.start_cache is None:
        return []
    source = {"persistentVolumeClaim": {"claimName": start_cache_claim_name(llm.name)}}
    return [Mounted(START_CACHE_VOLUME, source, contract.START_CACHE_DIR)]


def _models(llm: LLMService) -> list[Mounted]:
    """Fetched files, in a claim if there is one, and the socket of the fetch container."""
    if not needs_models_volume(llm.spec):
        return []
    return [
        Mounted("models", _model_cache(llm), contract.MODELS_DIR, read_only=True),
        Mounted("fetch", {"emptyDir": {}}, contract.FETCH_DIR, read_only=True),
    ]


def _sources(llm: LLMService) -> list[Mounted]:
    """Claims and images of the model, the draft model and the adapters."""
    pull_policy = llm.spec.runtime.image_pull_policy
    return [
        Mounted(place.volume, source_volume(at, pull_policy), place.path, read_only=True)
        for at, place in places(llm.spec).items()
    ]


def source_volume(at: Store, pull_policy: str | None) -> dict[str, Any]:
    if at.kind == "claim":
        # Read-only on both levels: the kubelet then does not change the files' owners.
        return {"persistentVolumeClaim": {"claimName": at.name, "readOnly": True}}
    return {"image": {"reference": at.name} | ({} if pull_policy is None else {"pullPolicy": pull_policy})}


def _chat_template(llm: LLMService) -> list[Mounted]:
    if (template := llm.spec.model.chat_template) is None:
        return []
    folder, _, file = CHAT_TEMPLATE_FILE.rpartition("/")
    reference = template.config_map_key_ref
    config_map = {"name": reference.name, "items": [{"key": reference.key, "path": file}]}
    return [Mounted("chat-template", {"configMap": config_map}, folder, read_only=True)]


def _adapters(llm: LLMService) -> list[Mounted]:
    """The list of adapters; optional, so that the pod starts without it."""
    if not llm.spec.is_lora_on:
        return []
    listed = {"configMap": {"name": adapters_config_name(llm), "optional": True}}
    return [Mounted("adapters", listed, contract.ADAPTERS_DIR, read_only=True)]


def _api_keys(llm: LLMService) -> list[Mounted]:
    """The clients' keys. A folder and not a file (subPath): the kubelet updates only folders while the pod runs."""
    reference = llm.spec.endpoint.api_key_secret_ref
    if reference is None:
        return []
    folder, _, file = contract.API_KEYS_FILE.rpartition("/")
    secret = {"secretName": reference.name, "items": [{"key": reference.key, "path": file}]}
    return [Mounted("endpoint-keys", {"secret": secret}, folder, read_only=True)]


def _model_cache(llm: LLMService) -> dict[str, Any]:
    cache = llm.spec.model.cache
    if not cache.is_enabled:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": cache.claim_name or cache_claim_name(llm.name)}}


def _shared_memory(llm: LLMService, settings: Settings) -> list[Mounted]:
    size = shared_memory_gib(llm, settings)
    if size == 0:
        return []
    return [Mounted("dshm", {"emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Gi"}}, contract.SHM_DIR)]


def ca_bundle(settings: Settings) -> list[Mounted]:
    """The certificates to trust, if the settings name some."""
    if settings.ca_bundle is None:
        return []
    return [Mounted("ca-bundle", {"configMap": {"name": settings.ca_bundle.config_map}}, CA_DIR, read_only=True)]


def small_users_volumes(llm: LLMService) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The user's volumes that may hold certificates and tokens, with their mounts; others are large or bound to a
    node."""
    given = llm.spec.pod_template.spec
    small = [dict(volume) for volume in given.volumes if any(kind in volume for kind in _SMALL_VOLUMES)]
    names = {volume["name"] for volume in small}
    return small, [dict(mount) for mount in given.volume_mounts if mount["name"] in names]
