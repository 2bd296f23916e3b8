"""CEL rules within the sections of the spec that configure vLLM's engine."""

from collections.abc import Mapping
from types import MappingProxyType

from llmservice_vllm import quantization

from llmservice_api.matrix import methods, techniques
from llmservice_api.rule import Rule, cel_list

_FLOATS = cel_list(methods.FLOATS)
_IS_CPU = "has(self.type) && self.type == 'cpu'"
_IS_EAGER = "has(self.enforceEager) && self.enforceEager"

PRECISION = (
    Rule(
        f"!has(self.weights) || !(self.weights in {_FLOATS}) || !has(self.quantization)",
        "contradicts weights, which asks for a float type: remove quantization, or set weights to auto",
        ".quantization",
    ),
    *(
        Rule(
            f"!(has(self.weights) && self.weights == '{weights}' && has(self.quantization)) || "
            f"self.quantization in {cel_list(methods.WEIGHTS_OF[weights])}",
            f"this method does not hold weights in {weights}: choose {choice}, or set weights to auto",
            ".quantization",
        )
        for weights, choice in (
            ("fp8", "fp8_per_tensor, fp8_per_block or the checkpoint's own fp8 method"),
            ("int8", "compressed-tensors, gptq or the checkpoint's own int8 method"),
            ("int4", "awq, gptq or compressed-tensors, as the checkpoint was made"),
        )
    ),
    Rule(
        f"!has(self.weights) || !(self.weights in {_FLOATS}) || !has(self.dtype) || "
        "self.dtype in ['auto', self.weights]",
        "contradicts weights: vLLM holds float weights in the type that it computes in; set one of the two and leave "
        "the other at auto",
        ".dtype",
    ),
    Rule(
        "!has(self.dtype) || self.dtype != 'float32' || (has(self.quantization) ? self.quantization in "
        f"{cel_list(quantization.FLOAT32_METHODS)} : !has(self.weights) || self.weights != 'fp8')",
        "quantized weights are not computed with in float32: set dtype to auto, bfloat16 or float16",
        ".dtype",
    ),
    Rule(
        f"!has(self.quantization) || !(self.quantization in {cel_list(quantization.BFLOAT16_METHODS)}) || "
        "!has(self.dtype) || self.dtype in ['auto', 'bfloat16']",
        "this method computes in bfloat16 only: set dtype to auto or bfloat16",
        ".dtype",
    ),
)

PARALLELISM = (
    Rule(
        "!has(self.expertParallel) || !self.expertParallel || "
        "(has(self.tensorParallelSize) && self.tensorParallelSize > 1) || "
        "(has(self.dataParallelSize) && self.dataParallelSize > 1)",
        "experts are spread over tensor and data parallel ranks, and there is one: set tensorParallelSize or "
        "dataParallelSize above 1, or remove expertParallel",
        ".expertParallel",
    ),
)

BATCHING = (
    Rule(
        "!has(self.maxNumBatchedTokens) || !has(self.maxNumSeqs) || self.maxNumBatchedTokens >= self.maxNumSeqs",
        "must be at least maxNumSeqs, since every sequence of a step needs a token: raise maxNumBatchedTokens or lower "
        "maxNumSeqs",
        ".maxNumBatchedTokens",
    ),
    Rule(
        "!has(self.chunkedPrefill) || self.chunkedPrefill || !has(self.maxNumBatchedTokens) || "
        "!has(self.maxModelLen) || type(self.maxModelLen) != int || "
        "self.maxNumBatchedTokens >= int(self.maxModelLen)",
        "without chunked prefill a whole prompt goes into one step: raise maxNumBatchedTokens to maxModelLen or more, "
        "or remove chunkedPrefill: false",
        ".maxNumBatchedTokens",
    ),
    Rule(
        "!has(self.longPrefillTokenThreshold) || !has(self.maxModelLen) || type(self.maxModelLen) != int || "
        "self.longPrefillTokenThreshold <= int(self.maxModelLen)",
        "no prompt is longer than maxModelLen: lower longPrefillTokenThreshold to maxModelLen or less",
        ".longPrefillTokenThreshold",
    ),
    Rule(
        "!has(self.longPrefillTokenThreshold) || self.longPrefillTokenThreshold == 0 || !has(self.chunkedPrefill) || "
        "self.chunkedPrefill",
        "long prompts are held back by chunks: remove longPrefillTokenThreshold, or chunkedPrefill: false",
        ".longPrefillTokenThreshold",
    ),
    Rule(
        "!has(self.prefixCachingHashAlgo) || !has(self.prefixCaching) || self.prefixCaching",
        "no prefix is cached: remove prefixCachingHashAlgo, or prefixCaching: false",
        ".prefixCachingHashAlgo",
    ),
    Rule(
        "!has(self.kvOffloadingSize) || !self.kvOffloadingSize.matches('^[0.]+[A-Za-z]')",
        "must be more than nothing: remove kvOffloadingSize to keep the KV cache on the GPU alone",
        ".kvOffloadingSize",
    ),
    Rule(
        "!has(self.kvOffloadingBackend) || has(self.kvOffloadingSize)",
        "nothing is offloaded: set kvOffloadingSize, or remove kvOffloadingBackend",
        ".kvOffloadingBackend",
    ),
)

ACCELERATOR = (
    *(
        Rule(f"!({_IS_CPU}) || !has(self.{field})", message, f".{field}")
        for field, message in (
            ("products", "a CPU service asks for no GPU: remove products, or set type to nvidia or amd"),
            ("resourceName", "a CPU service asks for no GPU: remove resourceName, or set type to nvidia or amd"),
            ("memory", "is the memory of one GPU: remove it, and size a CPU service with spec.runtime.resources"),
            (
                "gpuMemoryUtilization",
                "is a share of a GPU's memory: remove it, and size the KV cache of a CPU service with the variable "
                "VLLM_CPU_KVCACHE_SPACE in spec.runtime.env",
            ),
        )
    ),
    Rule(
        "!has(self.resourceName) || (self.resourceName.contains('/') && "
        "!self.resourceName.matches('^([^/]*[.])?kubernetes[.]io/') && !self.resourceName.startsWith('requests.'))",
        "must be a device plugin's resource with its domain, for example nvidia.com/gpu or nvidia.com/mig-3g.40gb",
        ".resourceName",
    ),
)

COMPILATION = (
    *(
        Rule(
            f"!({_IS_EAGER}) || !has(self.{field}) || self.{field} == {value}",
            f"contradicts enforceEager, which {effect}: remove {field} or enforceEager",
            f".{field}",
        )
        for field, value, effect in (
            ("mode", "'none'", "compiles nothing"),
            ("cudaGraphs", "'none'", "records no CUDA graphs"),
            ("optimizationLevel", "0", "optimizes nothing"),
        )
    ),
    Rule(
        f"!has(self.cudaGraphs) || !(self.cudaGraphs in {cel_list(techniques.PIECEWISE)}) || !has(self.mode) || "
        "self.mode == 'vllmCompile'",
        "pieces are cut by vLLM's own compilation only: set mode to vllmCompile, or cudaGraphs to none, full or "
        "fullDecodeOnly",
        ".cudaGraphs",
    ),
    Rule(
        "!has(self.cudaGraphs) || self.cudaGraphs == 'none' || !has(self.mode) || self.mode != 'stockTorchCompile'",
        "CUDA graphs are not recorded around PyTorch's own compilation: set mode to vllmCompile, or remove cudaGraphs",
        ".cudaGraphs",
    ),
)

CONTEXT_EXTENSION = (
    Rule(
        "self.factor > 1.0",
        "must be more than 1: with 1 nothing is extended; remove spec.contextExtension, or give the factor that you "
        "need",
        ".factor",
    ),
)

_IS_NGRAM = "self.method == 'ngram'"

SPECULATION = (
    Rule(
        f"!(self.method in {cel_list(techniques.NEEDS_DRAFT_MODEL)}) || has(self.model)",
        "this method guesses with other weights than the model's: set spec.speculativeDecoding.model.uri, or choose "
        "ngram",
        ".model",
    ),
    Rule(
        f"!({_IS_NGRAM}) || !has(self.model)",
        "ngram guesses from the prompt and has no model: remove model, or set method to draftModel",
        ".model",
    ),
    *(
        Rule(
            f"{_IS_NGRAM} || !has(self.{field})",
            f"only ngram looks tokens up in the prompt: remove {field}, or set method to ngram",
            f".{field}",
        )
        for field in ("promptLookupMin", "promptLookupMax")
    ),
    Rule(
        "!has(self.promptLookupMin) || !has(self.promptLookupMax) || self.promptLookupMin <= self.promptLookupMax",
        "must be at most promptLookupMax: lower promptLookupMin or raise promptLookupMax",
        ".promptLookupMin",
    ),
    Rule(
        f"!({_IS_NGRAM}) || !has(self.draftTensorParallelSize)",
        "ngram has no draft model to spread: remove draftTensorParallelSize",
        ".draftTensorParallelSize",
    ),
)

LORA = (
    Rule(
        "!has(self.maxCpuLoras) || self.maxCpuLoras >= (has(self.maxLoras) ? self.maxLoras : 1)",
        "must be at least maxLoras, since every adapter of a step is kept in the pod's memory too: raise maxCpuLoras "
        "or lower maxLoras",
        ".maxCpuLoras",
    ),
)

MULTIMODAL = (
    Rule(
        "!has(self.allowedMediaDomains) || self.allowedMediaDomains.size() == 1 || "
        "!self.allowedMediaDomains.exists(domain, domain == '*')",
        '"*" stands for every host: remove the others, or remove it',
        ".allowedMediaDomains",
    ),
)

ENGINE_RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "spec.precision": PRECISION,
        "spec.parallelism": PARALLELISM,
        "spec.batching": BATCHING,
        "spec.compilation": COMPILATION,
        "spec.contextExtension": CONTEXT_EXTENSION,
        "spec.speculativeDecoding": SPECULATION,
        "spec.lora": LORA,
        "spec.multimodal": MULTIMODAL,
        "spec.accelerator": ACCELERATOR,
    }
)
