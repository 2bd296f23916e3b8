"""Which changes need a restart, and the hashes that say so."""

from __future__ import annotations

from typing import Any

from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.build.meta import REVISION_LABEL, Manifest, digest
from llmservice_operator.build.sources import adapter_stores

# Everything that is not listed needs no restart. Left out on purpose: model.architecture and accelerator.memory on
# GPUs are facts for checks; of the cache only which claim it is reaches the pod; the drain timeout waits for the next
# rollout, since a restart would cost more than a shorter or longer drain is worth; of the adapters only whether there
# may be any, and what has to be mounted for them, since the supervisor loads and unloads them.
_MODEL = {"uri", "served_names", "token_secret_ref", "trust_remote_code", "s3", "runner", "convert", "chat_template"}
_RESTARTING: dict[str, Any] = {
    "model": _MODEL,
    "precision": True,
    "parallelism": True,
    "batching": True,
    "attention": True,
    "compilation": True,
    "context_extension": True,
    "speculative_decoding": True,
    "lora": True,
    "generation": True,
    "accelerator": True,
    "endpoint": {"api_key_secret_ref"},
    "runtime": True,
    "pod_template": True,
}


def revision_key(spec: LLMServiceSpec) -> str:
    """A hash of the spec's fields that need a restart, and of nothing else: no settings, no version of the operator.

    A default that is written out is the same as one that is left out.
    """
    fields = spec.model_dump(mode="json", include=_RESTARTING, exclude_defaults=True)
    if spec.accelerator.type != "cpu":
        fields.get("accelerator", {}).pop("memory", None)
    cache = spec.model.cache
    fields["cache"] = cache.claim_name or (cache.size is not None)
    # An empty `lora` says as much as an adapter.
    fields["lora"] = [fields.get("lora") or {}, adapter_stores(spec)] if spec.is_lora_on else None
    return digest({key: value for key, value in fields.items() if value})


def revision_label(key: str, template: Manifest, update_requested: str | None) -> str:
    """The name of a template. An update that was asked for has another template under the same key."""
    return key if update_requested is None else digest([key, update_requested, template])


def labelled(template: Manifest, label: str) -> Manifest:
    """The template with the name that its pods carry."""
    metadata = template["metadata"]
    return template | {"metadata": metadata | {"labels": metadata["labels"] | {REVISION_LABEL: label}}}
