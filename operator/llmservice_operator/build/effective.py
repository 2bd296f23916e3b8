"""The values in force for what the user left out, in the spec's own shape."""

from __future__ import annotations

from typing import Any

from llmservice_runtime.flags import compute_dtype, quantization_method

from llmservice_operator.api.adapters import LoRA
from llmservice_operator.api.base import ApiModel
from llmservice_operator.api.generation import Generation
from llmservice_operator.api.remembered import of_service
from llmservice_operator.api.service import LLMService
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.api.techniques import Compilation
from llmservice_operator.api.uri import HubSource
from llmservice_operator.build.chosen import NOTHING, Chosen
from llmservice_operator.build.deployment import progress_deadline_seconds
from llmservice_operator.build.engine import engine_options, image, max_model_len, vllm_version
from llmservice_operator.build.resources import accelerator_resource
from llmservice_operator.build.settings import Settings
from llmservice_operator.planner.gpus import find

DEFAULT_GPU_MEMORY_UTILIZATION = 0.92
_ON_CPU = (128, 2048)


@of_service
def effective(llm: LLMService, settings: Settings, chosen: Chosen = NOTHING) -> dict[str, Any]:
    """What cannot be known before vLLM reads the model is left out."""
    spec, options = llm.spec, engine_options(llm)
    parallelism = spec.parallelism
    return {
        "model": _known(
            servedNames=list(llm.served_names), revision=_revision(spec), runner=options.runner, convert=options.convert
        ),
        "precision": _known(
            weights=spec.precision.weights,
            dtype=compute_dtype(options),
            quantization=quantization_method(options),
            kvCache=spec.precision.kv_cache,
        ),
        "parallelism": {
            "tensorParallelSize": parallelism.tensor_parallel_size,
            "pipelineParallelSize": parallelism.pipeline_parallel_size,
            "dataParallelSize": parallelism.data_parallel_size,
            "enableExpertParallel": parallelism.enable_expert_parallel,
        },
        "batching": _batching(llm, chosen),
        "attention": {"backend": spec.attention.backend},
        "compilation": _compilation(spec.compilation),
        **_asked_for(spec),
        "generation": _generation(spec.generation),
        "accelerator": _accelerator(llm),
        "rollout": {"strategy": spec.rollout.strategy, "progressDeadlineSeconds": progress_deadline_seconds(llm)},
        "drain": {"timeoutSeconds": spec.drain.timeout_seconds},
        "endpoint": {"port": spec.endpoint.port},
        "runtime": _known(
            image=image(llm, settings), version=vllm_version(llm, settings), sleepMode=spec.runtime.sleep_mode
        ),
    }


def _batching(llm: LLMService, chosen: Chosen) -> dict[str, Any]:
    batching, defaults = llm.spec.batching, _batch_defaults(llm, chosen)
    seqs, tokens = defaults or (None, None)
    return _known(
        maxNumSeqs=batching.max_num_seqs or seqs,
        maxNumBatchedTokens=batching.max_num_batched_tokens or tokens,
        maxModelLen=max_model_len(llm, chosen),
        maxNumQueuedRequests=batching.max_num_queued_requests,
        maxNumQueuedTokens=batching.max_num_queued_tokens,
        chunkedPrefill=batching.chunked_prefill,
        longPrefillTokenThreshold=batching.long_prefill_token_threshold or 0,
        prefixCaching=batching.prefix_caching,
        prefixCachingHashAlgo=batching.prefix_caching_hash_algo or "sha256",
        schedulingPolicy=batching.scheduling_policy or "fcfs",
        blockSize=batching.block_size,
        kvOffloadingSize=batching.kv_offloading_size,
        kvOffloadingBackend=batching.kv_offloading_size and (batching.kv_offloading_backend or "native"),
    )


def _revision(spec: LLMServiceSpec) -> str | None:
    source = spec.model.source
    return source.revision if isinstance(source, HubSource) else None


def _compilation(compilation: Compilation) -> dict[str, Any]:
    """Without compiling there is one answer; else level, mode and graphs follow from each other in vLLM."""
    if compilation.enforce_eager:
        return {"enforceEager": True, "mode": "none", "cudaGraphs": "none"}
    return _known(
        enforceEager=False,
        mode=compilation.mode,
        cudaGraphs=compilation.cuda_graphs,
        optimizationLevel=2 if compilation.optimization_level is None else compilation.optimization_level,
    )


def _asked_for(spec: LLMServiceSpec) -> dict[str, Any]:
    """Parts of the spec that are not there unless they are asked for, with the defaults inside them."""
    found: dict[str, Any] = {}
    if spec.context_extension is not None:
        found["contextExtension"] = _dump(spec.context_extension)
    if spec.speculative_decoding is not None:
        found["speculativeDecoding"] = _dump(spec.speculative_decoding)
    if spec.is_lora_on:
        lora = spec.lora or LoRA()
        most = lora.max_loras or 1
        found["lora"] = {
            "maxLoras": most,
            "maxLoraRank": lora.max_lora_rank or 16,
            "maxCpuLoras": lora.max_cpu_loras or most,
        }
    return found


def _generation(generation: Generation) -> dict[str, Any]:
    known = _dump(generation) | {"seed": generation.seed or 0}
    return {name: value for name, value in known.items() if value != {}}


def _dump(part: ApiModel) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


def _batch_defaults(llm: LLMService, chosen: Chosen) -> tuple[int, int] | None:
    """vLLM's own, by the accelerator's memory; None while more than one answer is possible."""
    if llm.spec.accelerator.type == "cpu":
        return _ON_CPU
    products = llm.spec.accelerator.product or () if chosen.gpu is None else (chosen.gpu,)
    gpus = [find(product) for product in products]
    answers = {_by_memory(gpu.product, gpu.memory_gib) if gpu is not None else None for gpu in gpus}
    return answers.pop() if len(answers) == 1 else None


def _by_memory(product: str, gib: float) -> tuple[int, int]:
    if gib >= 160:
        return 1024, 16384
    return (1024, 8192) if gib >= 70 and "A100" not in product else (256, 2048)


def _accelerator(llm: LLMService) -> dict[str, Any]:
    accelerator = llm.spec.accelerator
    if accelerator.type == "cpu":
        return {"type": "cpu", "count": 0}
    utilization = accelerator.gpu_memory_utilization
    return {
        "type": accelerator.type,
        "resourceName": accelerator_resource(llm),
        "count": llm.spec.parallelism.accelerators,
        "gpuMemoryUtilization": DEFAULT_GPU_MEMORY_UTILIZATION if utilization is None else utilization,
    }


def gpus(llm: LLMService) -> int:
    """What all wanted replicas ask for together."""
    return 0 if accelerator_resource(llm) is None else llm.spec.scaling.replicas * llm.spec.parallelism.accelerators


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
