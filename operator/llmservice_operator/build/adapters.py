"""The ConfigMap with the list of adapters, which the kubelet shows to the supervisors while they serve."""

from __future__ import annotations

from llmservice_runtime.adapters import adapter_list
from llmservice_runtime.contract import ADAPTERS_KEY

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest, adapters_config_name, metadata
from llmservice_operator.build.sources import adapter_path


def is_wanted(llm: LLMService) -> bool:
    """Even an empty list takes adapters away that were there before."""
    return llm.spec.is_lora_on


def listed(llm: LLMService) -> str:
    """The list, as supervisors read it; in the order of the names, since that of the spec says nothing."""
    return adapter_list.to_json(
        [
            adapter_list.Adapter(adapter.name, adapter.uri, adapter_path(llm.spec, adapter))
            for adapter in sorted(llm.spec.adapters, key=lambda adapter: adapter.name)
        ]
    )


def digest(llm: LLMService) -> str | None:
    """By which a pod's report of the list is known; None while LoRA is off."""
    return adapter_list.digest(listed(llm)) if is_wanted(llm) else None


def adapters_config(llm: LLMService) -> Manifest:
    """NAME-adapters."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(llm, adapters_config_name(llm)),
        "data": {ADAPTERS_KEY: listed(llm)},
    }
