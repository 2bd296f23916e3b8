"""CEL rules between sections of the spec."""

from llmservice_vllm import quantization

from llmservice_api.flag_rules import none_of
from llmservice_api.holding import MOST_HELD_BYTES
from llmservice_api.pod_rules import START_CACHE_VOLUME
from llmservice_api.rule import Rule, cel_list, cel_string

_ON_CPU = "has(self.accelerator) && has(self.accelerator.type) && self.accelerator.type == 'cpu'"
_POOLS = "has(self.model.runner) && self.model.runner == 'pooling'"
_A_GPU = "or choose a GPU in spec.accelerator.type"
_KV_SPACE = "and size the cache with the variable VLLM_CPU_KVCACHE_SPACE in spec.runtime.env"
_ACCOUNT_ENV = "AZURE_STORAGE_ACCOUNT_NAME"


def _any_uri(scheme: str) -> str:
    """CEL: a model, draft model or adapter has this scheme; with `lora`, an adapter may later."""
    matches = f"matches({cel_string(f'^{scheme}://')})"
    draft = "self.speculativeDecoding.model"
    return (
        f"self.model.uri.{matches} || has(self.lora) || "
        f"(has(self.speculativeDecoding) && has({draft}) && {draft}.uri.{matches}) || "
        f"(has(self.adapters) && self.adapters.exists(adapter, adapter.uri.{matches}))"
    )


def _none_given(flag: str) -> str:
    """CEL: extraArgs lack this flag, in any spelling."""
    arguments = "self.runtime.extraArgs"
    return f"!has(self.runtime) || !has({arguments}) || {arguments}.all(arg, {none_of([flag], 'arg')})"


_FEWEST = "has(self.minReplicas) ? self.minReplicas : 1"

AUTOSCALING = (
    Rule(
        "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
        "must not be more than maxReplicas: lower it, or raise spec.scaling.autoscaling.maxReplicas",
        ".minReplicas",
    ),
    Rule(
        "!has(self.schedule) || self.schedule.all(entry, "
        f"(has(entry.minReplicas) ? entry.minReplicas : ({_FEWEST})) <= "
        "(has(entry.maxReplicas) ? entry.maxReplicas : self.maxReplicas))",
        "an entry has more minReplicas than maxReplicas, where those of spec.scaling.autoscaling stand in for what it "
        "leaves out: lower its minReplicas, or raise its maxReplicas",
        ".schedule",
    ),
)

_MOST_HELD = f"{MOST_HELD_BYTES >> 20}Mi"

HOLDING = (
    Rule(
        f"!has(self.maxBytes) || quantity(self.maxBytes).compareTo(quantity('{_MOST_HELD}')) <= 0",
        f"an activator holds no more than {_MOST_HELD} for one namespace: lower it to {_MOST_HELD} or less",
        ".maxBytes",
    ),
)

SPEC = (
    *(
        Rule(
            f"!has(self.model.{field}) || {_any_uri(scheme)}",
            f"only for models from {place}: remove it, or set spec.model.uri to {form}",
            f".model.{field}",
        )
        for field, scheme, place, form in (
            ("hfTokenSecretRef", "hf", "the Hugging Face hub", "hf://ORG/NAME"),
            ("s3", "s3", "S3", "s3://BUCKET/PREFIX"),
            ("gcs", "gs", "Google Cloud Storage", "gs://BUCKET/PREFIX"),
            ("azure", "az", "Azure", "az://CONTAINER/PREFIX"),
        )
    ),
    Rule(
        "!self.model.uri.startsWith('az://') || (has(self.model.azure) && has(self.model.azure.account)) || "
        "(has(self.runtime) && has(self.runtime.env) && "
        f"self.runtime.env.exists(variable, variable.name == {cel_string(_ACCOUNT_ENV)}))",
        "az://CONTAINER/PREFIX does not say whose container it is: set spec.model.azure.account",
        ".model",
    ),
    Rule(
        f"!has(self.model.cache) || {_any_uri('(hf|s3|gs|az)')}",
        "only for models that are fetched: remove it, or set spec.model.uri to hf://ORG/NAME or s3://BUCKET/PREFIX",
        ".model.cache",
    ),
    Rule(
        "!has(self.startCache) || !has(self.podTemplate) || !has(self.podTemplate.spec) || "
        "!has(self.podTemplate.spec.volumes) || "
        f"self.podTemplate.spec.volumes.all(volume, volume.name != {cel_string(START_CACHE_VOLUME)})",
        f"{START_CACHE_VOLUME} is the volume of spec.startCache: choose another name",
        ".podTemplate.spec.volumes",
    ),
    Rule(
        "!has(self.adapters) || !has(self.model.servedModelNames) || "
        "self.adapters.all(adapter, !(adapter.name in self.model.servedModelNames))",
        "the model itself has this name: give the adapter another one, or change spec.model.servedModelNames",
        ".adapters",
    ),
    Rule(
        "!has(self.accelerator) || !has(self.accelerator.type) || self.accelerator.type != 'amd' || "
        "!has(self.precision) || !has(self.precision.quantization) || "
        f"self.precision.quantization in {cel_list(quantization.AMD_METHODS)}",
        "vLLM does not serve this method on AMD GPUs: choose fp8_per_tensor, awq, gptq or compressed-tensors, or "
        "another kind of GPU in spec.accelerator.type",
        ".precision.quantization",
    ),
    Rule(
        "!has(self.accelerator) || !has(self.accelerator.type) || self.accelerator.type != 'cpu' || "
        "!has(self.precision) || !has(self.precision.kvCache) || "
        f"self.precision.kvCache in {cel_list(quantization.CPU_KV_TYPES)}",
        "CPUs hold the KV cache in auto, float16, bfloat16 or fp8: choose one of these, or a GPU in "
        "spec.accelerator.type",
        ".precision.kvCache",
    ),
    *(
        Rule(
            f"!({_ON_CPU}) || !has(self.{field.partition('.')[0]}) || !has(self.{field})"
            f"{allowed and f' || {allowed.format(field)}'}",
            f"{why}: remove it, {instead}",
            f".{field}",
        )
        for field, allowed, why, instead in (
            ("attention.backend", "self.{} == 'auto'", "CPUs have one attention backend of their own", _A_GPU),
            ("compilation.cudaGraphs", "self.{} == 'none'", "CPUs have no CUDA graphs", _A_GPU),
            ("batching.kvOffloadingSize", "", "the KV cache of CPUs is in the node's memory already", _KV_SPACE),
            ("runtime.sleepMode", "!self.{}", "there is no GPU memory to free on CPUs", _A_GPU),
        )
    ),
    *(
        Rule(
            f"!({_POOLS}) || !has(self.generation) || !has(self.generation.{field})",
            f"a pooling model {why}: remove it, or set spec.model.runner to generate",
            f".generation.{field}",
        )
        for field, why in (
            ("toolCallParser", "calls no tools"),
            ("reasoningParser", "writes no text"),
            ("defaults", "samples no tokens"),
        )
    ),
    Rule(
        f"!({_POOLS}) || !has(self.speculativeDecoding)",
        "a pooling model writes no tokens that could be guessed: remove it, or set spec.model.runner to generate",
        ".speculativeDecoding",
    ),
    Rule(
        "!has(self.speculativeDecoding) || !has(self.speculativeDecoding.draftTensorParallelSize) || "
        "self.speculativeDecoding.draftTensorParallelSize in [1, has(self.parallelism) && "
        "has(self.parallelism.tensorParallelSize) ? self.parallelism.tensorParallelSize : 1]",
        "a draft model runs on one GPU, or on as many as the model: set it to 1 or to "
        "spec.parallelism.tensorParallelSize",
        ".speculativeDecoding.draftTensorParallelSize",
    ),
    Rule(
        "!has(self.contextExtension) || !has(self.model.architecture) || !has(self.model.architecture.positions) || "
        "self.model.architecture.positions == 'rope'",
        "rescales rotary positions, and the model has ALiBi, which takes longer texts as it is: remove it",
        ".contextExtension",
    ),
    Rule(
        f"!has(self.contextExtension) || {_none_given('--hf-overrides')}",
        "--hf-overrides is what spec.contextExtension is done with, and vLLM takes only one: remove one of the two",
        ".runtime.extraArgs",
    ),
    Rule(
        "!has(self.compilation) || (!has(self.compilation.mode) && !has(self.compilation.cudaGraphs)) || "
        f"{_none_given('--compilation-config')}",
        "--compilation-config is what mode and cudaGraphs of spec.compilation become, and vLLM takes only one: remove "
        "one of the two",
        ".runtime.extraArgs",
    ),
    Rule(
        f"!has(self.batching) || !has(self.batching.kvOffloadingSize) || {_none_given('--kv-transfer-config')}",
        "spec.batching.kvOffloadingSize is done with a connector, and vLLM would replace the one of "
        "--kv-transfer-config: remove one of the two",
        ".runtime.extraArgs",
    ),
)
