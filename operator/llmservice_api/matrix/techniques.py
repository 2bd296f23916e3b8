"""Incompatible combinations of parallelism, speculation, adapters, batching, compilation and context."""

from __future__ import annotations

from collections.abc import Iterator

from llmservice_runtime.contract import FailureReason
from llmservice_vllm.facts import HEADS

from llmservice_api.matrix.dimensions import DIMENSIONS, MANY, OFF, ON, ONE, Check, Incompatibility, others, when
from llmservice_api.reasons import Reason

NEEDS_DRAFT_MODEL = ("draftModel", *HEADS)
"""Speculation methods that need weights beside the model's."""

_SPECULATIONS = others("speculation", "none")
_DRAWN = others("cudaGraphs", "none")
PIECEWISE = ("piecewise", "fullAndPiecewise")
"""CUDA graph modes without attention."""


def rows() -> Iterator[Incompatibility]:
    yield from _parallelism()
    yield from _speculation()
    yield from _adapters()
    yield from _batching()
    yield from _pooling()
    yield from _context()
    yield from _stages_on_cpus()
    yield from _compilation()
    yield from _memory()


def _parallelism() -> Iterator[Incompatibility]:
    yield Incompatibility(
        when(expertParallel=ON, experts="dense"),
        "expertParallel",
        "the model has no experts to spread",
        "Remove spec.parallelism.expertParallel",
        "vllm/config/model.py: _verify_with_expert_parallelism",
        {"expertParallel": OFF},
        Check.ENGINE,
    )
    yield Incompatibility(
        when(expertParallel=ON, tensorParallel=ONE, dataParallel=ONE),
        "expertParallel",
        "experts are spread over tensor and data parallel ranks, and there is one",
        "Set spec.parallelism.tensorParallelSize or dataParallelSize above 1, or remove expertParallel",
        "the operator's own: vLLM takes it and changes nothing",
        reason=Reason.INVALID_SPEC,
    )


def _speculation() -> Iterator[Incompatibility]:
    source = "vllm/config/speculative.py"
    yield Incompatibility(
        when(speculation=NEEDS_DRAFT_MODEL, draftModel="absent"),
        "draftModel",
        "the method guesses with other weights than the model's",
        "Set spec.speculativeDecoding.model.uri, or the method to ngram",
        f"{source}: __post_init__",
        {"speculation": "ngram"},
        Check.ENGINE,
        Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(speculation="ngram", draftModel="given"),
        "draftModel",
        "ngram guesses from the prompt and has no model",
        "Remove spec.speculativeDecoding.model, or set the method to draftModel",
        "the operator's own: vLLM ignores it",
        reason=Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(speculation=others("speculation", "none", "ngram"), promptLookup=others("promptLookup", "absent")),
        "promptLookup",
        "only ngram looks tokens up in the prompt",
        "Remove spec.speculativeDecoding.promptLookupMin and promptLookupMax, or set the method to ngram",
        "the operator's own: vLLM ignores them",
        reason=Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(speculation="ngram", promptLookup="min above max"),
        "promptLookup",
        "the fewest tokens to match are more than the most",
        "Lower spec.speculativeDecoding.promptLookupMin or raise promptLookupMax",
        f"{source}: __post_init__",
        {"promptLookup": "min to max"},
        Check.ENGINE,
        Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(speculation="ngram", draftParallel=others("draftParallel", "absent")),
        "draftParallel",
        "ngram has no draft model to spread",
        "Remove spec.speculativeDecoding.draftTensorParallelSize",
        "the operator's own: vLLM ignores it",
        reason=Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(speculation=NEEDS_DRAFT_MODEL, draftParallel="another"),
        "draftParallel",
        "the draft runs on one GPU, or on as many as the model",
        "Set spec.speculativeDecoding.draftTensorParallelSize to 1 or to tensorParallelSize",
        f"{source}: _verify_and_get_draft_tp",
        {"draftParallel": "1"},
        Check.ENGINE,
    )
    yield Incompatibility(
        when(speculation=_SPECULATIONS, runner="pooling"),
        "speculation",
        "a pooling model writes no tokens that could be guessed",
        "Remove spec.speculativeDecoding, or set spec.model.runner to generate",
        "the operator's own: vLLM takes it and guesses nothing",
    )


def _adapters() -> Iterator[Incompatibility]:
    yield Incompatibility(
        when(lora=ON, cpuLoras="fewer than maxLoras"),
        "cpuLoras",
        "every adapter of a step is kept in the pod's memory too",
        "Raise spec.lora.maxCpuLoras to maxLoras or more",
        "vllm/config/lora.py: _validate_lora_config",
        {"cpuLoras": "enough"},
        Check.ENGINE,
        Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(lora=ON, speculation=_SPECULATIONS, draftTokens="too few for all guesses"),
        "draftTokens",
        "with adapters, one step must hold maxNumSeqs x (numSpeculativeTokens + 1) tokens",
        "Raise spec.batching.maxNumBatchedTokens, or lower maxNumSeqs or numSpeculativeTokens",
        "vllm/engine/arg_utils.py: create_engine_config",
        {"draftTokens": "enough"},
        Check.ENGINE,
    )
    yield Incompatibility(
        when(accelerator="cpu", lora=ON, compilation=others("compilation", "none")),
        "compilation",
        "with adapters nothing is compiled on CPUs",
        "Remove spec.compilation.mode",
        "vllm/platforms/cpu.py: check_and_update_config",
        {"compilation": "none"},
        Check.IGNORED,
    )


def _batching() -> Iterator[Incompatibility]:
    source = "vllm/config/scheduler.py: verify_max_model_len"
    yield Incompatibility(
        when(sequenceTokens="fewer than maxNumSeqs"),
        "sequenceTokens",
        "every sequence of a step needs a token",
        "Raise spec.batching.maxNumBatchedTokens or lower maxNumSeqs",
        source,
        {"sequenceTokens": "enough"},
        Check.ENGINE,
        Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(chunkedPrefill=OFF, promptTokens="fewer than maxModelLen"),
        "promptTokens",
        "without chunked prefill a whole prompt goes into one step",
        "Raise spec.batching.maxNumBatchedTokens to maxModelLen or more, or remove chunkedPrefill: false",
        source,
        {"chunkedPrefill": ON},
        Check.ENGINE,
        Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(longPrefill="above maxModelLen"),
        "longPrefill",
        "no prompt is longer than maxModelLen",
        "Lower spec.batching.longPrefillTokenThreshold to maxModelLen or less",
        source,
        {"longPrefill": "within"},
        Check.ENGINE,
        Reason.INVALID_SPEC,
    )

    yield Incompatibility(
        when(chunkedPrefill=OFF, longPrefill=others("longPrefill", "absent")),
        "longPrefill",
        "long prompts are held back by chunks",
        "Remove spec.batching.longPrefillTokenThreshold, or chunkedPrefill: false",
        "the operator's own: vLLM takes it and holds nothing back",
        {"chunkedPrefill": ON},
        reason=Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(prefixCaching=OFF, hashAlgorithm="given"),
        "hashAlgorithm",
        "no prefix is cached that could be hashed",
        "Remove spec.batching.prefixCachingHashAlgo, or prefixCaching: false",
        "the operator's own: vLLM ignores it",
        reason=Reason.INVALID_SPEC,
    )
    yield Incompatibility(
        when(kvOffloading=OFF, offloadingBackend="given"),
        "offloadingBackend",
        "nothing is offloaded",
        "Set spec.batching.kvOffloadingSize, or remove kvOffloadingBackend",
        "vllm/config/vllm.py: _post_init_kv_transfer_config ignores it",
        reason=Reason.INVALID_SPEC,
    )


def _pooling() -> Iterator[Incompatibility]:
    """Features that only generating models have."""
    for dimension, why in (
        ("toolCallParser", "a pooling model calls no tools"),
        ("reasoningParser", "a pooling model writes no text"),
        ("generationDefaults", "a pooling model samples no tokens"),
    ):
        yield Incompatibility(
            when(runner="pooling", **{dimension: "given"}),
            dimension,
            why,
            f"Remove {DIMENSIONS[dimension].field}, or set spec.model.runner to generate",
            "the operator's own",
        )
    yield Incompatibility(
        when(runner="generate", convert=("classify", "embed")),
        "convert",
        "only the pooling runner converts a model",
        "Set spec.model.runner to pooling, or remove spec.model.convert",
        "the operator's own: vLLM takes it and converts nothing",
        {"convert": "auto"},
        reason=Reason.INVALID_SPEC,
    )


def _context() -> Iterator[Incompatibility]:
    yield Incompatibility(
        when(contextExtension="yarn", positions="alibi"),
        "contextExtension",
        "YaRN rescales rotary positions, and the model has ALiBi",
        "Remove spec.contextExtension: ALiBi models take longer texts as they are",
        "the operator's own: vLLM takes it and changes nothing",
        {"contextExtension": "none"},
        reason=Reason(FailureReason.CONTEXT_EXTENSION_INVALID),
    )
    yield Incompatibility(
        when(contextExtension="yarn", positions="rope", contextLength="above the extended"),
        "contextLength",
        "the extension does not reach this length",
        "Raise spec.contextExtension.factor, or lower spec.batching.maxModelLen",
        "vllm/config/model.py: _get_and_verify_max_len",
        {"contextLength": "within"},
        Check.ENGINE,
        Reason(FailureReason.CONTEXT_EXTENSION_INVALID),
    )
    yield Incompatibility(
        when(contextExtension="none", positions="rope", contextLength="above the model's"),
        "contextLength",
        "the model was made for shorter texts",
        "Lower spec.batching.maxModelLen, or set spec.contextExtension",
        "vllm/config/model.py: _get_and_verify_max_len",
        {"contextLength": "within"},
        Check.ENGINE,
        Reason(FailureReason.MAX_MODEL_LEN_TOO_LARGE),
    )


def _stages_on_cpus() -> Iterator[Incompatibility]:
    """An engine with pipeline stages and without compilation starts on CPUs, and fails at its first request
    (tested)."""
    for dimension, value in (("enforceEager", ON), ("compilation", "none"), ("optimizationLevel", "0")):
        yield Incompatibility(
            when(accelerator="cpu", pipelineParallel=MANY, **{dimension: value}),
            dimension,
            "on CPUs the stages get their buffers while vLLM warms compiled code up, and there is none",
            f"Remove {DIMENSIONS[dimension].field}, or set spec.parallelism.pipelineParallelSize to 1",
            "vllm/v1/worker/cpu_model_runner.py: warming_up_model",
        )


def _compilation() -> Iterator[Incompatibility]:
    for dimension, values, what, check in (
        ("compilation", others("compilation", "none"), "compiles nothing", Check.IGNORED),
        ("cudaGraphs", _DRAWN, "records no CUDA graphs", Check.NONE),
        ("optimizationLevel", others("optimizationLevel", "0"), "optimizes nothing", Check.NONE),
    ):
        yield Incompatibility(
            when(enforceEager=ON, **{dimension: values}),
            dimension,
            f"enforceEager {what}, and vLLM ignores the other one",
            "Remove spec.compilation.enforceEager, or the other one",
            "vllm/config/vllm.py: __post_init__",
            {"enforceEager": OFF},
            check,
            Reason.INVALID_SPEC,
        )
    yield Incompatibility(
        when(cudaGraphs=PIECEWISE, compilation=others("compilation", "vllmCompile")),
        "cudaGraphs",
        "pieces are cut by vLLM's own compilation only, and vLLM falls back to graphs without them",
        "Set spec.compilation.mode to vllmCompile, or cudaGraphs to none, full or fullDecodeOnly",
        "vllm/config/vllm.py: without_piecewise",
        {"compilation": "vllmCompile"},
    )
    yield Incompatibility(
        when(cudaGraphs=_DRAWN, compilation="stockTorchCompile"),
        "cudaGraphs",
        "CUDA graphs are not recorded around PyTorch's own compilation, and vLLM turns them off",
        "Set spec.compilation.mode to vllmCompile, or remove cudaGraphs",
        "vllm/config/vllm.py: _disable_cudagraphs_for_v2_stock_torch_compile",
        {"compilation": "vllmCompile"},
    )
    yield Incompatibility(
        when(accelerator="cpu", cudaGraphs=_DRAWN),
        "cudaGraphs",
        "CPUs have no CUDA graphs, and vLLM ignores it",
        "Remove spec.compilation.cudaGraphs",
        "vllm/platforms/cpu.py: check_and_update_config",
        {"cudaGraphs": "none"},
        Check.IGNORED,
    )


def _memory() -> Iterator[Incompatibility]:
    yield Incompatibility(
        when(accelerator="cpu", sleepMode=ON),
        "sleepMode",
        "there is no GPU memory to free on CPUs",
        "Remove spec.runtime.sleepMode, or choose a GPU in spec.accelerator.type",
        "vllm/config/model.py: is_sleep_mode_available",
        {"sleepMode": OFF},
        Check.ENGINE,
    )
    yield Incompatibility(
        when(accelerator="cpu", kvOffloading=ON),
        "kvOffloading",
        "the KV cache is in the node's memory already, and vLLM offloads from GPUs only",
        "Remove spec.batching.kvOffloadingSize, and size the cache with VLLM_CPU_KVCACHE_SPACE in spec.runtime.env",
        "vllm/v1/kv_offload/cpu/spec.py: get_worker",
    )
