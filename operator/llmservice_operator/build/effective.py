"""The values in force for what the user left out, in the spec's own shape."""

from __future__ import annotations

from typing import Any

from llmservice_runtime.flags import compute_dtype, quantization_method

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.deployment import progress_deadline_seconds
from llmservice_operator.build.engine import engine_options, image, vllm_version
from llmservice_operator.build.resources import accelerator_resource
from llmservice_operator.build.settings import Settings
from llmservice_operator.planner.gpus import find

DEFAULT_GPU_MEMORY_UTILIZATION = 0.92
_ON_CPU = (128, 2048)


def effective(llm: LLMService, settings: Settings) -> dict[str, Any]:
    """What cannot be known before vLLM reads the model is left out."""
    spec, options = llm.spec, engine_options(llm)
    parallelism = spec.parallelism
    return {
        "model": _known(servedNames=list(llm.served_names), revision=options.revision),
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
        "batching": _batching(llm),
        "accelerator": _accelerator(llm),
        "rollout": {"strategy": spec.rollout.strategy, "progressDeadlineSeconds": progress_deadline_seconds(llm)},
        "drain": {"timeoutSeconds": spec.drain.timeout_seconds},
        "endpoint": {"port": spec.endpoint.port},
        "runtime": _known(image=image(llm, settings), version=vllm_version(llm, settings)),
    }


def _batching(llm: LLMService) -> dict[str, Any]:
    batching, defaults = llm.spec.batching, _batch_defaults(llm)
    seqs, tokens = defaults or (None, None)
    return _known(
        maxNumSeqs=batching.max_num_seqs or seqs,
        maxNumBatchedTokens=batching.max_num_batched_tokens or tokens,
        maxModelLen=batching.max_model_len,
        maxNumQueuedRequests=batching.max_num_queued_requests,
        chunkedPrefill=batching.chunked_prefill,
        prefixCaching=batching.prefix_caching,
        schedulingPolicy=batching.scheduling_policy or "fcfs",
        blockSize=batching.block_size,
    )


def _batch_defaults(llm: LLMService) -> tuple[int, int] | None:
    """vLLM's own, by the accelerator's memory; None while more than one answer is possible."""
    if llm.spec.accelerator.type == "cpu":
        return _ON_CPU
    gpus = [find(product) for product in llm.spec.accelerator.product or ()]
    answers = {_by_memory(gpu.product, gpu.memory_gib) if gpu is not None else None for gpu in gpus}
    return answers.pop() if len(answers) == 1 else None


def _by_memory(product: str, gib: int) -> tuple[int, int]:
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
