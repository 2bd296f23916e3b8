"""From the spec to vLLM's command line and its image."""

from __future__ import annotations

from typing import Literal

from llmservice_runtime.contract import ADAPTERS_DIR, ADAPTERS_KEY, API_KEYS_FILE, CHAT_TEMPLATE_DIR, START_SECONDS
from llmservice_runtime.fetching.credentials import is_credential
from llmservice_runtime.flags import EngineOptions, GenerationDefaults, LoRA, Speculation
from llmservice_runtime.options import ServeOptions

from llmservice_operator.api.multimodal import ANY_DOMAIN
from llmservice_operator.api.service import LLMService
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.build.chosen import NOTHING, Chosen
from llmservice_operator.build.settings import DEFAULT_VLLM_VERSION, Settings
from llmservice_operator.build.sources import draft_path, fetched, model_path
from llmservice_operator.planner.quantity import gibibytes
from llmservice_operator.planner.versions import image_version

CHAT_TEMPLATE_FILE = f"{CHAT_TEMPLATE_DIR}/template.jinja"


def engine_options(llm: LLMService, chosen: Chosen = NOTHING) -> EngineOptions:
    """Every knob that decides the command line; what neither the user nor the plan says stays vLLM's to decide."""
    spec = llm.spec
    precision, parallelism, batching = spec.precision, spec.parallelism, spec.batching
    compilation, generation = spec.compilation, spec.generation
    return EngineOptions(
        model=model_path(spec),
        served_names=llm.served_names,
        runner=spec.model.runner,
        convert=spec.model.convert,
        chat_template=None if spec.model.chat_template is None else CHAT_TEMPLATE_FILE,
        trust_remote_code=spec.model.trust_remote_code,
        weights=precision.weights,
        dtype=precision.dtype,
        quantization=precision.quantization,
        kv_cache=precision.kv_cache,
        tensor_parallel_size=parallelism.tensor_parallel_size,
        pipeline_parallel_size=parallelism.pipeline_parallel_size,
        data_parallel_size=parallelism.data_parallel_size,
        enable_expert_parallel=parallelism.enable_expert_parallel,
        max_num_seqs=batching.max_num_seqs,
        max_num_batched_tokens=batching.max_num_batched_tokens,
        max_model_len=max_model_len(llm, chosen),
        max_num_queued_requests=batching.max_num_queued_requests,
        max_num_queued_tokens=batching.max_num_queued_tokens,
        chunked_prefill=batching.chunked_prefill,
        long_prefill_token_threshold=batching.long_prefill_token_threshold,
        prefix_caching=batching.prefix_caching,
        prefix_caching_hash_algo=batching.prefix_caching_hash_algo,
        scheduling_policy=batching.scheduling_policy,
        block_size=batching.block_size,
        kv_offloading_gib=None if batching.kv_offloading_size is None else gibibytes(batching.kv_offloading_size),
        kv_offloading_backend=batching.kv_offloading_backend,
        attention_backend=spec.attention.backend,
        enforce_eager=compilation.enforce_eager,
        compilation_mode=compilation.mode,
        cuda_graphs=compilation.cuda_graphs,
        optimization_level=compilation.optimization_level,
        speculation=_speculation(spec),
        lora=_lora(spec),
        tool_call_parser=generation.tool_call_parser,
        reasoning_parser=generation.reasoning_parser,
        seed=generation.seed,
        generation_defaults=GenerationDefaults(**dict(generation.defaults)),
        allowed_media_domains=_media_domains(spec),
        sleep_mode=spec.runtime.sleep_mode,
        gpu_memory_utilization=spec.accelerator.gpu_memory_utilization,
        extra_args=spec.runtime.extra_args,
    )


def max_model_len(llm: LLMService, chosen: Chosen) -> int | Literal["auto"] | None:
    """`auto` is what the plan found; vLLM finds it by itself where there is no plan."""
    asked = llm.spec.batching.max_model_len
    return chosen.max_model_len or asked if asked == "auto" else asked


def _speculation(spec: LLMServiceSpec) -> Speculation | None:
    asked = spec.speculative_decoding
    if asked is None:
        return None
    return Speculation(**dict(asked) | {"model": draft_path(spec)})


def _lora(spec: LLMServiceSpec) -> LoRA | None:
    if not spec.is_lora_on:
        return None
    return LoRA() if spec.lora is None else LoRA(**dict(spec.lora))


def _media_domains(spec: LLMServiceSpec) -> tuple[str, ...] | None:
    domains = spec.multimodal.allowed_media_domains
    return None if ANY_DOMAIN in domains else domains


def serve_options(llm: LLMService, settings: Settings, chosen: Chosen = NOTHING) -> ServeOptions:
    """What the supervisor is told."""
    start = chosen.start or {}
    extension = llm.spec.context_extension
    return ServeOptions(
        accelerator=llm.spec.accelerator.type,
        expected_version=vllm_version(llm, settings),
        weights=llm.spec.precision.weights,
        drain_seconds=llm.spec.drain.timeout_seconds,
        start_seconds=start.get("budgetSeconds", START_SECONDS),
        usual_seconds=start.get("usualSeconds", 0),
        fetch=tuple(f"{name}={uri}" for name, uri in fetched(llm.spec).items()),
        context_extension=None if extension is None else extension.argument,
        adapters_file=adapters_file(llm.spec),
        api_keys_file=None if llm.spec.endpoint.api_key_secret_ref is None else API_KEYS_FILE,
        keep_variable=tuple(variable["name"] for variable in llm.spec.runtime.env if is_credential(variable["name"])),
    )


def adapters_file(spec: LLMServiceSpec) -> str | None:
    """The mounted list of adapters; None while LoRA is off."""
    return f"{ADAPTERS_DIR}/{ADAPTERS_KEY}" if spec.is_lora_on else None


def image(llm: LLMService, settings: Settings) -> str | None:
    """The server's image; None where neither the spec nor the settings name one."""
    if llm.spec.runtime.image is not None:
        return llm.spec.runtime.image
    return {
        "nvidia": settings.default_gpu_image,
        "amd": settings.default_amd_image,
        "cpu": settings.default_cpu_image,
    }[llm.spec.accelerator.type]


def vllm_version(llm: LLMService, settings: Settings) -> str:
    """Whose flag table applies: as stated, else as the image's tag says, else the one this operator was made for."""
    if llm.spec.runtime.version is not None:
        return llm.spec.runtime.version.removeprefix("v")
    return image_version(image(llm, settings) or "") or DEFAULT_VLLM_VERSION
