"""The rules across fields, by the part of the spec that they are attached to. `[]` is each item of a list.

The API server evaluates them; they are skipped while a structural error stands. Each one's cost is tested.
"""

from collections.abc import Mapping
from types import MappingProxyType

from llmservice_operator.api.flag_rules import ARGUMENTS, argument_rules
from llmservice_operator.api.matrix import methods
from llmservice_operator.api.pod_rules import POD_RULES
from llmservice_operator.api.rule import Rule, cel_list
from llmservice_operator.api.uri_rules import uri_rules

_FLOATS = cel_list(methods.FLOATS)
_IS_CPU = "has(self.type) && self.type == 'cpu'"

_NAME = "metadata.name must be a DNS label of at most 50 characters, because the Service has this name"

# Kubernetes itself allows lowercase letters, digits, dashes and dots. Three cheap rules, since a name has no bound that
# the cost estimate knows of.
ROOT = (
    Rule(
        "!self.metadata.name.contains('.')",
        f"{_NAME}: write dashes for dots",
        field=".metadata.name",
        message_expression=f"'{_NAME}: use ' + self.metadata.name.replace('.', '-')",
    ),
    Rule(
        "self.metadata.name >= 'a'",
        f"{_NAME}: begin with a letter",
        field=".metadata.name",
        message_expression=f"'{_NAME}: use m-' + self.metadata.name",
    ),
    Rule(
        "self.metadata.name.size() <= 50",
        f"{_NAME}: shorten it",
        field=".metadata.name",
        message_expression=f"'{_NAME}: use ' + (self.metadata.name.substring(49, 50) == '-' ? "
        "self.metadata.name.substring(0, 49) : self.metadata.name.substring(0, 50))",
    ),
)

MODEL = (
    *uri_rules(),
    Rule(
        "!has(self.cache) || self.uri.matches('^(hf|s3)://')",
        "only for models that are fetched: remove it, or set spec.model.uri to hf://ORG/NAME or s3://BUCKET/PREFIX",
        ".cache",
    ),
)

CACHE = (
    Rule(
        "has(self.claimName) != has(self.size)",
        "give either claimName (a claim that exists) or size (of a claim that the operator makes), and not both",
    ),
    Rule(
        "has(self.size) || !has(self.storageClassName)",
        "an existing claim has its storage class already: remove storageClassName, or give size instead of claimName",
        ".storageClassName",
    ),
    Rule(
        "has(self.size) || !has(self.accessModes)",
        "an existing claim has its access modes already: remove accessModes, or give size instead of claimName",
        ".accessModes",
    ),
    Rule(
        "has(self.size) || !has(self.retentionPolicy)",
        "a claim that you made is never deleted: remove retentionPolicy, or give size instead of claimName",
        ".retentionPolicy",
    ),
    Rule(
        "!has(self.size) || !has(oldSelf.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
        "a claim cannot shrink: give at least the size that it has; for a smaller one remove spec.model.cache first, "
        "delete the claim, and set it again",
        ".size",
    ),
    Rule(
        "!has(self.size) || !has(oldSelf.size) || (has(self.storageClassName) == has(oldSelf.storageClassName) && "
        "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName))",
        "a claim cannot change its storage class: put the old value back; for another one remove spec.model.cache "
        "first, delete the claim, and set it again",
        ".storageClassName",
    ),
    Rule(
        "!has(self.size) || !has(oldSelf.size) || (has(self.accessModes) == has(oldSelf.accessModes) && "
        "(!has(self.accessModes) || (self.accessModes.all(mode, mode in oldSelf.accessModes) && "
        "oldSelf.accessModes.all(mode, mode in self.accessModes))))",
        "a claim cannot change its access modes: put the old ones back; for others remove spec.model.cache first, "
        "delete the claim, and set it again",
        ".accessModes",
    ),
)

ARCHITECTURE = (
    Rule(
        "!has(self.numKeyValueHeads) || !has(self.numAttentionHeads) || "
        "self.numAttentionHeads % self.numKeyValueHeads == 0",
        "must divide numAttentionHeads: copy both numbers from the model's config.json",
        ".numKeyValueHeads",
    ),
)

_QUANTIZED = "has(self.weights) && self.weights == '{}' && has(self.quantization)"

PRECISION = (
    Rule(
        f"!has(self.weights) || !(self.weights in {_FLOATS}) || !has(self.quantization)",
        "contradicts weights, which asks for a float type: remove quantization, or set weights to auto",
        ".quantization",
    ),
    Rule(
        f"!({_QUANTIZED.format('fp8')}) || self.quantization in {cel_list(methods.WEIGHTS_OF['fp8'])}",
        "this method does not hold weights in fp8: choose fp8_per_tensor, fp8_per_block or the checkpoint's own fp8 "
        "method, or set weights to auto",
        ".quantization",
    ),
    Rule(
        f"!({_QUANTIZED.format('int8')}) || self.quantization in {cel_list(methods.WEIGHTS_OF['int8'])}",
        "this method does not hold weights in int8: choose compressed-tensors, gptq or the checkpoint's own int8 "
        "method, or set weights to auto",
        ".quantization",
    ),
    Rule(
        f"!({_QUANTIZED.format('int4')}) || self.quantization in {cel_list(methods.WEIGHTS_OF['int4'])}",
        "this method does not hold weights in int4: choose awq, gptq or compressed-tensors, as the checkpoint was "
        "made, or set weights to auto",
        ".quantization",
    ),
    Rule(
        f"!has(self.weights) || !(self.weights in {_FLOATS}) || !has(self.dtype) || "
        "self.dtype in ['auto', self.weights]",
        "contradicts weights: vLLM holds float weights in the type that it computes in; set one of the two and leave "
        "the other at auto",
        ".dtype",
    ),
    Rule(
        "!has(self.dtype) || self.dtype != 'float32' || ((!has(self.weights) || self.weights != 'fp8') && "
        f"(!has(self.quantization) || self.quantization in {cel_list(methods.FLOAT32_METHODS)}))",
        "quantized weights are not computed with in float32: set dtype to auto, bfloat16 or float16",
        ".dtype",
    ),
    Rule(
        f"!has(self.quantization) || !(self.quantization in {cel_list(methods.BFLOAT16_METHODS)}) || "
        "!has(self.dtype) || self.dtype in ['auto', 'bfloat16']",
        "this method computes in bfloat16 only: set dtype to auto or bfloat16",
        ".dtype",
    ),
)

PARALLELISM = (
    Rule(
        "!has(self.enableExpertParallel) || !self.enableExpertParallel || "
        "(has(self.tensorParallelSize) && self.tensorParallelSize > 1) || "
        "(has(self.dataParallelSize) && self.dataParallelSize > 1)",
        "experts are spread over tensor and data parallel ranks, and there is one: set tensorParallelSize or "
        "dataParallelSize above 1, or remove enableExpertParallel",
        ".enableExpertParallel",
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
)

ACCELERATOR = (
    Rule(
        f"!({_IS_CPU}) || !has(self.product)",
        "a CPU service asks for no GPU: remove product, or set type to nvidia or amd",
        ".product",
    ),
    Rule(
        f"!({_IS_CPU}) || !has(self.resourceName)",
        "a CPU service asks for no GPU: remove resourceName, or set type to nvidia or amd",
        ".resourceName",
    ),
    Rule(
        f"!({_IS_CPU}) || !has(self.memory)",
        "is the memory of one GPU: remove it, and size a CPU service with spec.runtime.resources",
        ".memory",
    ),
    Rule(
        f"!({_IS_CPU}) || !has(self.gpuMemoryUtilization)",
        "is a share of a GPU's memory: remove it, and size the KV cache of a CPU service with the variable "
        "VLLM_CPU_KVCACHE_SPACE in spec.runtime.env",
        ".gpuMemoryUtilization",
    ),
    Rule(
        "!has(self.resourceName) || (self.resourceName.contains('/') && "
        "!self.resourceName.matches('^([^/]*[.])?kubernetes[.]io/') && !self.resourceName.startsWith('requests.'))",
        "must be a device plugin's resource with its domain, for example nvidia.com/gpu or nvidia.com/mig-3g.40gb",
        ".resourceName",
    ),
)

_DRAFT_URI = (
    "(has(self.speculativeDecoding) && has(self.speculativeDecoding.model) && "
    "self.speculativeDecoding.model.uri.startsWith('{0}://'))"
)
_ADAPTER_URI = "(has(self.adapters) && self.adapters.exists(adapter, adapter.uri.startsWith('{0}://')))"
_ANY_URI = f"self.model.uri.startsWith('{{0}}://') || {_DRAFT_URI} || {_ADAPTER_URI}"

SPEC = (
    Rule(
        f"!has(self.model.tokenSecretRef) || {_ANY_URI.format('hf')}",
        "only for models from the Hugging Face hub: remove it, or set spec.model.uri to hf://ORG/NAME",
        ".model.tokenSecretRef",
    ),
    Rule(
        f"!has(self.model.s3) || {_ANY_URI.format('s3')}",
        "only for models from S3: remove it, or set spec.model.uri to s3://BUCKET/PREFIX",
        ".model.s3",
    ),
    Rule(
        "!has(self.accelerator) || !has(self.accelerator.type) || self.accelerator.type != 'amd' || "
        "!has(self.precision) || !has(self.precision.quantization) || "
        f"self.precision.quantization in {cel_list(methods.AMD_METHODS)}",
        "vLLM does not serve this method on AMD GPUs: choose fp8_per_tensor, awq, gptq or compressed-tensors, or "
        "another kind of GPU in spec.accelerator.type",
        ".precision.quantization",
    ),
    Rule(
        "!has(self.accelerator) || !has(self.accelerator.type) || self.accelerator.type != 'cpu' || "
        "!has(self.precision) || !has(self.precision.kvCache) || "
        f"self.precision.kvCache in {cel_list(methods.CPU_KV_TYPES)}",
        "CPUs hold the KV cache in auto, float16, bfloat16 or fp8: choose one of these, or a GPU in "
        "spec.accelerator.type",
        ".precision.kvCache",
    ),
)

RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "": ROOT,
        "spec": SPEC,
        "spec.model": MODEL,
        "spec.model.cache": CACHE,
        "spec.model.architecture": ARCHITECTURE,
        "spec.precision": PRECISION,
        "spec.speculativeDecoding.model": uri_rules(),
        "spec.adapters[]": uri_rules(),
        "spec.parallelism": PARALLELISM,
        "spec.batching": BATCHING,
        "spec.accelerator": ACCELERATOR,
        "spec.runtime.extraArgs": ARGUMENTS,
        "spec.runtime.extraArgs[]": argument_rules(),
        **POD_RULES,
    }
)
