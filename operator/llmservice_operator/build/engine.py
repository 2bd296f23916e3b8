"""From the spec to vLLM's command line and its image."""

from __future__ import annotations

import re

from llmservice_runtime.contract import SOURCE_DIR
from llmservice_runtime.flags import EngineOptions
from llmservice_runtime.options import ServeOptions

from llmservice_operator.api.service import LLMService
from llmservice_operator.api.uri import ClaimSource, FileSource, HubSource
from llmservice_operator.build.settings import DEFAULT_VLLM_VERSION, Settings

_TAG = re.compile(r":v?(\d+\.\d+\.\d+)(?:[-+._][\w.-]*)?(?:@sha256:[0-9a-f]+)?$")


def model_argument(llm: LLMService) -> tuple[str, str | None]:
    """What vLLM is told to load, and its revision on the hub."""
    match llm.spec.model.source:
        case HubSource(repo, revision):
            return repo, revision
        case ClaimSource(_, path):
            return (f"{SOURCE_DIR}/{path}" if path else SOURCE_DIR), None
        case FileSource(path):
            return path, None


def engine_options(llm: LLMService) -> EngineOptions:
    """Every knob that decides the command line; what the user left out stays vLLM's to decide."""
    spec = llm.spec
    model, revision = model_argument(llm)
    precision, parallelism, batching = spec.precision, spec.parallelism, spec.batching
    return EngineOptions(
        model=model,
        revision=revision,
        served_names=llm.served_names,
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
        max_model_len=batching.max_model_len,
        max_num_queued_requests=batching.max_num_queued_requests,
        chunked_prefill=batching.chunked_prefill,
        prefix_caching=batching.prefix_caching,
        scheduling_policy=batching.scheduling_policy,
        block_size=batching.block_size,
        gpu_memory_utilization=spec.accelerator.gpu_memory_utilization,
        extra_args=spec.runtime.extra_args,
    )


def serve_options(llm: LLMService, settings: Settings) -> ServeOptions:
    """What the supervisor is told."""
    return ServeOptions(
        accelerator=llm.spec.accelerator.type,
        expected_version=vllm_version(llm, settings),
        weights=llm.spec.precision.weights,
        drain_seconds=llm.spec.drain.timeout_seconds,
    )


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
    tag = _TAG.search(image(llm, settings) or "")
    return tag[1] if tag else DEFAULT_VLLM_VERSION
