"""Which fields need a restart when they change, and the hashes of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from llmservice_operator.api.constants import REVISION_LABEL
from llmservice_operator.api.remembered import of_spec
from llmservice_operator.api.service import parse_spec
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.build.meta import Manifest, digest
from llmservice_operator.build.sources import adapter_stores

Json = Mapping[str, Any]

# Everything that is not listed needs no restart. Left out on purpose: model.architecture and accelerator.memory on
# GPUs are facts for checks; of the cache only another claim needs a restart; the drain timeout waits for the next
# rollout, since a restart would cost more than a shorter or longer drain is worth; of the adapters only whether there
# may be any, and what has to be mounted for them, since the supervisor loads and unloads them.
_REACHED_BY = {"hf_token_secret_ref", "s3", "gcs", "azure"}
_MODEL = {"uri", "served_model_names", "trust_remote_code", "runner", "convert", "chat_template"} | _REACHED_BY
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
    "multimodal": True,
    "accelerator": True,
    "endpoint": {"api_key_secret_ref"},
    "runtime": True,
    "pod_template": True,
}


@of_spec
def revision_key(spec: LLMServiceSpec) -> str:
    """A hash of the spec's fields that need a restart, and of nothing else: no settings, no version of the operator.

    A default that is written out is the same as one that is left out.
    """
    fields = spec.model_dump(mode="json", include=_RESTARTING, exclude_defaults=True)
    if spec.accelerator.type != "cpu":
        fields.get("accelerator", {}).pop("memory", None)
    cache = spec.model.cache
    fields["cache"] = cache.claim_name or (cache.size is not None)
    fields["start_cache"] = spec.start_cache is not None
    # An empty `lora` and an adapter both start vLLM with LoRA.
    fields["lora"] = [fields.get("lora") or {}, adapter_stores(spec)] if spec.is_lora_on else None
    return digest({key: value for key, value in fields.items() if value})


def recorded_spec(spec: LLMServiceSpec) -> dict[str, Any]:
    """The fields that need a restart, as users write them; recorded with the template for a rollback."""
    include = dict.fromkeys((*_RESTARTING, "start_cache"), True) | {"endpoint": {"api_key_secret_ref"}}
    fields = spec.model_dump(mode="json", by_alias=True, include=include, exclude_defaults=True)
    return fields | {"lora": fields.get("lora") or {}} if spec.is_lora_on else fields


def returned_to(spec: LLMServiceSpec, recorded: Json) -> LLMServiceSpec:
    """The spec with the recorded values of exactly the fields that the key covers; InvalidSpec where this release
    cannot read them.

    Pods of the recorded revision serve those of the current adapters that they have room for.
    """
    fields = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    made = dict(fields)
    for section, restarting in _RESTARTING.items():
        name = to_camel(section)
        now, then = fields.get(name) or {}, recorded.get(name) or {}
        made[name] = then if restarting is True else _with_recorded(now, then, set(map(to_camel, restarting)))
    made["model"] = _with_recorded_claim(made["model"], (recorded.get("model") or {}).get("cache") or {})
    if (made["accelerator"] or {}).get("type") != "cpu":
        made["accelerator"] = _with_recorded(made["accelerator"], fields.get("accelerator") or {}, {"memory"})
    # Whether pods mount this claim is the revision's, its size and class are of now.
    if "startCache" not in recorded:
        made.pop("startCache", None)
    elif "startCache" not in made:
        made["startCache"] = recorded["startCache"]
    if "lora" not in recorded:
        made.pop("adapters", None)
        made.pop("lora", None)
    elif spec.is_lora_on and recorded["lora"] == (fields.get("lora") or {}):
        made["lora"] = fields.get("lora")  # an empty one says no more than an adapter
    return parse_spec({name: value for name, value in made.items() if value or (name == "lora" and value is not None)})


def _with_recorded(now: Json, then: Json, names: Collection[str]) -> dict[str, Any]:
    """A section whose values of these names, and their absence, are those of then."""
    kept = {name: value for name, value in now.items() if name not in names}
    return kept | {name: value for name, value in then.items() if name in names}


_CLAIM = {"claimName", "size", "storageClassName", "accessModes"}


def _with_recorded_claim(model: Json, then: Json) -> dict[str, Any]:
    """Whether the pods mount a claim for models, and which, is the revision's; all else of the cache is of now."""
    now: Json = model.get("cache") or {}
    if _claim(now) == _claim(then):
        return dict(model)
    cache = _with_recorded(now, then, _CLAIM)
    return {**model, "cache": cache if _claim(then) else {}}


def _claim(cache: Json) -> str | bool:
    """As the key has it: a claim of the user's, one that the operator makes, or none."""
    return cache.get("claimName") or ("size" in cache)


def spec_digest(spec: LLMServiceSpec, update_requested: str | None) -> str:
    """A hash of the spec and the requested update, without replicas: identifies the spec of a failure."""
    fields = spec.model_dump(mode="json", exclude={"scaling", "paused"}, exclude_defaults=True)
    return digest([fields, update_requested])


def revision_label(key: str, template: Manifest, update_requested: str | None) -> str:
    """The label of a revision that is not the first of its key: a hash with the template."""
    return digest([key, update_requested, template])


def labelled(template: Manifest, label: str) -> Manifest:
    """The template with the revision label."""
    metadata = template["metadata"]
    return template | {"metadata": metadata | {"labels": metadata["labels"] | {REVISION_LABEL: label}}}
