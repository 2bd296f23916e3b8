"""Renders vLLM's command line and image from the spec."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from llmservice_api.flags import FLAGS
from llmservice_api.service import LLMService
from llmservice_api.spec import ANY_DOMAIN, LLMServiceSpec
from llmservice_planner.quantity import gibibytes
from llmservice_planner.versions import image_version
from llmservice_runtime.contract import (
    ADAPTERS_DIR,
    ADAPTERS_KEY,
    API_KEYS_FILE,
    CHAT_TEMPLATE_DIR,
    DRAIN_MIDDLEWARE,
    HTTP_PORT,
    START_CACHE_DIR,
    START_SECONDS,
)
from llmservice_runtime.credentials import is_credential
from llmservice_runtime.options import ServeOptions
from llmservice_vllm.flags import Flag
from llmservice_vllm.versions import flag_table_or_default

from llmservice_operator.manifests.revision import NO_CHOICES, RevisionChoices, revision_key
from llmservice_operator.manifests.settings import DEFAULT_VLLM_VERSION, Settings
from llmservice_operator.manifests.sources import draft_path, fetched, model_path

CHAT_TEMPLATE_FILE = f"{CHAT_TEMPLATE_DIR}/template.jinja"
# Matches no host, since vLLM compares names in lower case; an empty list would allow all. vLLM's refusals then name the
# field.
NO_MEDIA_DOMAIN = "spec.multimodal.allowedMediaDomains"
# `::` listens on IPv6 and IPv4; the supervisor replaces it on a node without IPv6. The supervisor waits for streams
# before it stops vLLM. With a timeout of 0 vLLM ends the remaining ones at once, with finish_reason "abort", and exits
# in half a second.
_OWN = (
    *("--host", "::", "--port", str(HTTP_PORT), "--middleware", DRAIN_MIDDLEWARE, "--shutdown-timeout", "0"),
    *("--disable-access-log-for-endpoints", "/health,/metrics"),
)


def vllm_arguments(llm: LLMService, version: str, chosen: RevisionChoices = NO_CHOICES) -> tuple[str, ...]:
    """vLLM's arguments after the program, in a fixed order: flags of fields, the operator's own, extraArgs.

    Values that are vLLM's defaults are left out.
    """
    computed = _computed(llm, chosen)
    values: dict[str, Any] = {}
    for flag in FLAGS:
        value = computed[flag.name] if flag.name in computed else flag.read(llm.spec)
        name, _, key = flag.name.partition(".")
        if key:
            values.setdefault(name, {})[key] = value
        else:
            values[name] = value
    spellings = flag_table_or_default(version).by_spelling
    typed = (token for name, value in values.items() for token in _tokens(name, value, spellings.get(name)))
    return (*typed, *_OWN, *llm.spec.runtime.extra_args)


def _tokens(name: str, value: Any, flag: Flag | None) -> Iterator[str]:
    """One flag: nothing for None and empty values, the negation for False, JSON for a mapping, else its value.

    `flag` is of the vLLM version; a flag that the version lacks is refused elsewhere (llmservice_planner/versions.py).
    """
    if isinstance(value, Mapping):
        # Sorted, so that the order of keys in the spec does not change the template.
        given = {key: item for key, item in value.items() if item is not None}
        value = json.dumps(given, sort_keys=True, separators=(",", ":")) if given else None
    if isinstance(value, bool):
        yield name if value else next(iter(flag.negated if flag else ()), f"--no-{name[2:]}")
    elif value not in (None, ()):
        yield name
        yield from value if isinstance(value, tuple) else (str(value),)


def _computed(llm: LLMService, chosen: RevisionChoices) -> dict[str, Any]:
    """Values that differ from their field's, by flag."""
    spec = llm.spec
    return {
        "--model": model_path(spec),
        "--served-model-name": llm.served_model_names,
        "--chat-template": None if spec.model.chat_template is None else CHAT_TEMPLATE_FILE,
        "--dtype": None if spec.precision.compute_dtype == "auto" else spec.precision.compute_dtype,
        "--quantization": spec.precision.method,
        "--max-model-len": max_model_len(llm, chosen),
        "--kv-offloading-size": _kv_offloading_size(spec),
        "--compilation-config.mode": spec.compilation.mode and constant(spec.compilation.mode),
        "--compilation-config.cudagraph_mode": spec.compilation.cuda_graphs and constant(spec.compilation.cuda_graphs),
        "--speculative-config": _speculation(spec),
        "--enable-lora": spec.is_lora_on or None,
        "--override-generation-config": _generation_defaults(spec),
        "--allowed-media-domains": _media_domains(spec),
    }


def max_model_len(llm: LLMService, chosen: RevisionChoices) -> int | Literal["auto"] | None:
    """Tokens; `auto` is the plan's value, or vLLM's `auto` without a plan."""
    length = llm.spec.batching.max_model_len
    return chosen.max_model_len or length if length == "auto" else length


def _kv_offloading_size(spec: LLMServiceSpec) -> str | None:
    """GiB, without trailing zeros."""
    size = spec.batching.kv_offloading_size
    return None if size is None else repr(gibibytes(size)).removesuffix(".0")


def snake(word: str) -> str:
    """fullDecodeOnly as full_decode_only."""
    return re.sub("([A-Z])", r"_\1", word).lower()


def constant(word: str) -> str:
    """fullDecodeOnly as FULL_DECODE_ONLY: a member of a vLLM enumeration."""
    return snake(word).upper()


def _speculation(spec: LLMServiceSpec) -> Mapping[str, object] | None:
    section = spec.speculative_decoding
    if section is None:
        return None
    return dict(section) | {"method": snake(section.method), "model": draft_path(spec)}


def _generation_defaults(spec: LLMServiceSpec) -> Mapping[str, object]:
    """With the names of generation_config.json."""
    defaults = dict(spec.generation.defaults)
    return defaults | {"max_new_tokens": defaults.pop("max_tokens")}


def _media_domains(spec: LLMServiceSpec) -> tuple[str, ...] | None:
    """None for every host, which is vLLM's default; the operator's default allows none."""
    domains = spec.multimodal.allowed_media_domains
    return None if ANY_DOMAIN in domains else domains or (NO_MEDIA_DOMAIN,)


def serve_options(llm: LLMService, settings: Settings, chosen: RevisionChoices = NO_CHOICES) -> ServeOptions:
    """Options of the supervisor."""
    start = chosen.start or {}
    extension = llm.spec.context_extension
    return ServeOptions(
        accelerator=llm.spec.accelerator.type,
        expected_version=vllm_version(llm, settings),
        weights=llm.spec.precision.weights,
        drain_seconds=llm.spec.drain.timeout_seconds,
        start_seconds=start.get("budgetSeconds", START_SECONDS),
        usual_seconds=start.get("usualSeconds", 0),
        start_cache=ServeOptions.start_cache if llm.spec.start_cache is None else START_CACHE_DIR,
        revision_key="" if llm.spec.start_cache is None else revision_key(llm.spec),
        fetch=tuple(f"{name}={uri}" for name, uri in fetched(llm.spec).items()),
        context_extension=None if extension is None else extension.argument,
        adapters_file=adapters_file(llm.spec),
        api_keys_file=None if llm.spec.endpoint.api_key_secret_ref is None else API_KEYS_FILE,
        keep_variable=tuple(variable["name"] for variable in llm.spec.runtime.env if is_credential(variable["name"])),
    )


def adapters_file(spec: LLMServiceSpec) -> str | None:
    """The mounted list of adapters; None without LoRA."""
    return f"{ADAPTERS_DIR}/{ADAPTERS_KEY}" if spec.is_lora_on else None


def image(llm: LLMService, settings: Settings) -> str | None:
    """The server's image; None if neither the spec nor the settings name one."""
    if llm.spec.runtime.image is not None:
        return llm.spec.runtime.image
    return {"nvidia": settings.default_gpu_image, "amd": settings.default_amd_image, "cpu": settings.default_cpu_image}[
        llm.spec.accelerator.type
    ]


def vllm_version(llm: LLMService, settings: Settings) -> str:
    """spec.runtime.version, else that of the image's tag, else the default: selects the flag table."""
    if llm.spec.runtime.version is not None:
        return llm.spec.runtime.version.removeprefix("v")
    return image_version(image(llm, settings) or "") or DEFAULT_VLLM_VERSION
