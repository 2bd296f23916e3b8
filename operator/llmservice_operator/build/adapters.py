"""The ConfigMap with the list of adapters, mounted into the pods and updated while they serve."""

from __future__ import annotations

from llmservice_runtime import adapter_list
from llmservice_runtime.contract import ADAPTERS_KEY

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest, adapters_config_name, metadata
from llmservice_operator.build.sources import adapter_path


def is_wanted(llm: LLMService) -> bool:
    """While LoRA is on, also without adapters: an empty list removes earlier ones."""
    return llm.spec.is_lora_on


def listed(llm: LLMService) -> str:
    """The list as supervisors read it, sorted by name: another order in the spec is the same list."""
    return adapter_list.to_json(
        [
            adapter_list.Adapter(adapter.name, adapter.uri, adapter_path(llm.spec, adapter))
            for adapter in sorted(llm.spec.adapters, key=lambda adapter: adapter.name)
        ]
    )


def digest(llm: LLMService) -> str | None:
    """Hash of the list, which pods report when they have read it; None while LoRA is off."""
    return adapter_list.digest(listed(llm)) if is_wanted(llm) else None


def adapters_config(llm: LLMService) -> Manifest:
    """The ConfigMap NAME-adapters."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(llm, adapters_config_name(llm)),
        "data": {ADAPTERS_KEY: listed(llm)},
    }
