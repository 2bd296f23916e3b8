"""CEL rules across fields, by the path in the spec to which they are attached. `[]` is each item of a list.

The API server skips them while the object has a structural error. Tests check each rule's estimated cost.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from llmservice_runtime.contract import DATA_PARALLEL_PORT, GROUP_PORT, HTTP_PORT, MASTER_PORT, STATE_PORT
from llmservice_vllm import quantization
from pydantic.alias_generators import to_camel

from llmservice_api.base import Rule, cel_list, cel_string
from llmservice_api.engine import DEFAULT_REPLAY_PORT
from llmservice_api.flags import ARGUMENTS, argument_rules, none_of
from llmservice_api.holding import MOST_HELD_BYTES
from llmservice_api.matrix import methods, techniques
from llmservice_api.model import ACCESSES, FETCHED, SCHEMES, URI_FORMS
from llmservice_api.runtime import POD_RULES, START_CACHE_VOLUME

_ON_CPU = "has(self.accelerator) && has(self.accelerator.type) && self.accelerator.type == 'cpu'"
_POOLS = "has(self.model.runner) && self.model.runner == 'pooling'"
_A_GPU = "or choose a GPU in spec.accelerator.type"
_KV_SPACE = "and size the cache with the variable VLLM_CPU_KVCACHE_SPACE in spec.runtime.env"


def _any_uri(*names: str) -> str:
    """CEL: a model, draft model or adapter has one of these schemes; with `lora`, an adapter may later."""
    scheme = names[0] if len(names) == 1 else f"({'|'.join(names)})"
    matches = f"matches({cel_string(f'^{scheme}://')})"
    draft = "self.speculativeDecoding.model"
    return (
        f"self.model.uri.{matches} || has(self.lora) || "
        f"(has(self.speculativeDecoding) && has({draft}) && {draft}.uri.{matches}) || "
        f"(has(self.adapters) && self.adapters.exists(adapter, adapter.uri.{matches}))"
    )


def _needed() -> Iterator[Rule]:
    """A model's URI has the setting that its scheme needs, or the user's variable."""
    for name, scheme in SCHEMES.items():
        if scheme.access is None or scheme.needed is None:
            continue
        needed, section = scheme.needed, f"model.{to_camel(scheme.access.field)}"
        yield Rule(
            f"!self.model.uri.startsWith('{name}://') || (has(self.{section}) && has(self.{section}.{needed.setting})) "
            "|| (has(self.runtime) && has(self.runtime.env) && "
            f"self.runtime.env.exists(variable, variable.name == {cel_string(needed.variable)}))",
            f"{scheme.form} {needed.problem}: set spec.{section}.{needed.setting}",
            ".model",
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


def _claim_of_a_group(claim: str) -> Rule:
    """The pods of a replica over several nodes mount a claim at the same time. The modes of one that exists are known
    to Kubernetes alone."""
    modes = f"self.{claim}.accessModes"
    *sections, _ = claim.split(".")
    has = " || ".join(f"!has(self.{each})" for each in [*sections[1:], claim])
    exists = f" || has(self.{claim}.claimName)" if claim == "model.cache" else ""
    return Rule(
        "!has(self.parallelism) || !has(self.parallelism.nodes) || self.parallelism.nodes == 1 || "
        f"{has}{exists} || (has({modes}) && {modes}.exists(mode, mode == 'ReadWriteMany'))",
        f"several nodes mount the claim at the same time: set spec.{claim}.accessModes to [ReadWriteMany], or remove "
        f"spec.{claim}",
        f".{claim}",
    )


def _size(kind: str) -> str:
    """CEL: a size in spec.parallelism."""
    field = f"self.parallelism.{kind}ParallelSize"
    return f"(has(self.parallelism) && has({field}) ? {field} : 1)"


_EVENTS = "self.batching.kvEvents"
_OWN_PORTS = (HTTP_PORT, STATE_PORT, GROUP_PORT, MASTER_PORT, DATA_PARALLEL_PORT)
_REPLAY_PORT = f"(has({_EVENTS}.replayPort) ? {_EVENTS}.replayPort : {DEFAULT_REPLAY_PORT})"
_CLAIM = "self.accelerator.claim"
_TOPOLOGY = "self.parallelism.topologyKey"
_AFFINITY = "self.podTemplate.spec.affinity"
_SCALED = "self.scaling.autoscaling"
_POOLED = "has(self.routing) && has(self.routing.mode) && self.routing.mode == 'pool'"
SPEC = (
    _claim_of_a_group("model.cache"),
    Rule(
        f"!({_POOLED}) || !has(self.parallelism) || !has(self.parallelism.nodes) || self.parallelism.nodes == 1",
        "an endpoint picker would choose pods of a replica over several nodes that answer nothing: choose mode none or "
        "router",
        ".routing.mode",
    ),
    Rule(
        f"!({_POOLED}) || !has(self.scaling) || !has({_SCALED}) || (!has({_SCALED}.minReplicas) || "
        f"{_SCALED}.minReplicas > 0) && (!has({_SCALED}.schedule) || "
        f"{_SCALED}.schedule.all(entry, !has(entry.minReplicas) || entry.minReplicas > 0))",
        "an endpoint picker holds no requests while no replica serves: set minReplicas to 1, or choose mode none or "
        "router",
        ".routing.mode",
    ),
    Rule(
        f"!has(self.batching) || !has({_EVENTS}) || !has({_EVENTS}.port) || "
        f"{_EVENTS}.port >= {_REPLAY_PORT} + {_size('data')} || {_REPLAY_PORT} >= {_EVENTS}.port + {_size('data')}",
        "port and replayPort are as many ports in a row as dataParallelSize has engines: choose two further apart",
        ".batching.kvEvents.port",
    ),
    *(
        Rule(
            f"!has(self.batching) || !has({_EVENTS}) || !has({_EVENTS}.{field}) || "
            f"{list(_OWN_PORTS)}.all(own, own < {_EVENTS}.{field} || own >= {_EVENTS}.{field} + {_size('data')})",
            f"the server has {', '.join(map(str, _OWN_PORTS))} for itself, and each engine of dataParallelSize needs a "
            "port, one after the other: choose others",
            f".batching.kvEvents.{field}",
        )
        for field in ("port", "replayPort")
    ),
    Rule(
        f"!has(self.batching) || !has({_EVENTS}) || !has({_EVENTS}.enabled) || !{_EVENTS}.enabled || "
        "!has(self.parallelism) || !has(self.parallelism.network) || !has(self.parallelism.network.hostNetwork) || "
        "!self.parallelism.network.hostNetwork",
        "events hold the tokens of prompts, and with hostNetwork whoever is on the node can read them: remove one of "
        "the two",
        ".batching.kvEvents",
    ),
    Rule(
        f"!has(self.batching) || !has({_EVENTS}) || {_none_given('--kv-events-config')}",
        "spec.batching.kvEvents and --kv-events-config in spec.runtime.extraArgs are the same: remove one of the two",
        ".batching.kvEvents",
    ),
    Rule(
        f"!has(self.parallelism) || !has({_TOPOLOGY}) || !has(self.podTemplate) || !has(self.podTemplate.spec) || "
        f"!has({_AFFINITY}) || !has({_AFFINITY}.podAffinity) || "
        f"!has({_AFFINITY}.podAffinity.requiredDuringSchedulingIgnoredDuringExecution) || "
        f"{_AFFINITY}.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.size() == 0",
        "with parallelism.topologyKey the pods of a replica wait for each other, and a required podAffinity to others "
        "would keep the first of them from every node: prefer it, or remove one of the two",
        ".podTemplate.spec.affinity",
    ),
    _claim_of_a_group("startCache"),
    Rule(
        "!has(self.accelerator) || !(has(self.accelerator.claim) || has(self.accelerator.resourceClaims)) || "
        "!has(self.parallelism) || !has(self.parallelism.nodes) || type(self.parallelism.nodes) == int",
        "devices of claims are not counted by node: set spec.parallelism.nodes to a number",
        ".parallelism.nodes",
    ),
    Rule(
        f"!has(self.accelerator) || !has({_CLAIM}) || !has({_CLAIM}.count) || "
        "(has(self.parallelism) && has(self.parallelism.nodes) && type(self.parallelism.nodes) != int) || "
        f"{_CLAIM}.count * (has(self.parallelism) && has(self.parallelism.nodes) ? int(self.parallelism.nodes) : 1) >= "
        f"{' * '.join(map(_size, ('tensor', 'pipeline', 'data')))}",
        "a pod needs as many devices as GPUs: raise count to the product of the sizes in spec.parallelism over nodes, "
        "or remove it",
        ".accelerator.claim.count",
    ),
    *(
        Rule(
            f"!has(self.model.{to_camel(access.field)}) || {_any_uri(*names)}",
            f"only for models from {access.place}: remove it, or set spec.model.uri to {SCHEMES[names[0]].shortest}",
            f".model.{to_camel(access.field)}",
        )
        for access, names in ACCESSES.items()
    ),
    *_needed(),
    Rule(
        f"!has(self.model.cache) || {_any_uri(*FETCHED)}",
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

_SEVERAL_NODES = "(has(self.nodes) && (type(self.nodes) != int || int(self.nodes) > 1))"
_ONE_NODE_OR_AUTO = "type(self.nodes) != int || self.nodes == 1"
PARALLELISM = (
    Rule(
        "!has(self.expertParallel) || !self.expertParallel || "
        "(has(self.tensorParallelSize) && self.tensorParallelSize > 1) || "
        "(has(self.dataParallelSize) && self.dataParallelSize > 1)",
        "experts are spread over tensor and data parallel ranks, and there is one: set tensorParallelSize or "
        "dataParallelSize above 1, or remove expertParallel",
        ".expertParallel",
    ),
    Rule(
        "!has(self.nodes) || type(self.nodes) != int || "
        "((has(self.tensorParallelSize) ? self.tensorParallelSize : 1) * "
        "(has(self.pipelineParallelSize) ? self.pipelineParallelSize : 1) * "
        "(has(self.dataParallelSize) ? self.dataParallelSize : 1)) % int(self.nodes) == 0",
        "the GPUs of a replica are divided evenly: set nodes to a divisor of tensorParallelSize x pipelineParallelSize "
        "x dataParallelSize",
        ".nodes",
    ),
    Rule(
        f"!has(self.nodes) || {_ONE_NODE_OR_AUTO} || !has(self.dataParallelSize) || self.dataParallelSize == 1 || "
        "self.dataParallelSize % int(self.nodes) == 0",
        "each node runs as many data-parallel ranks: set dataParallelSize to a multiple of nodes",
        ".dataParallelSize",
    ),
    Rule(
        f"!has(self.nodes) || {_ONE_NODE_OR_AUTO} || !has(self.dataParallelSize) || self.dataParallelSize == 1 || "
        "(has(self.expertParallel) && self.expertParallel)",
        "data-parallel ranks on several nodes share the experts of a mixture-of-experts model: set expertParallel to "
        "true, or, for other models, nodes and dataParallelSize to 1 and scaling.replicas to the number of copies",
        ".dataParallelSize",
    ),
    Rule(
        f"!has(self.dataParallelMode) || ({_SEVERAL_NODES} && has(self.dataParallelSize) && "
        "self.dataParallelSize > 1 && has(self.expertParallel) && self.expertParallel)",
        "it balances between data-parallel engines on several nodes: set nodes above 1 or to auto, dataParallelSize to "
        "a multiple of it and expertParallel to true, or remove dataParallelMode",
        ".dataParallelMode",
    ),
    Rule(
        f"!has(self.stepTimeoutSeconds) || {_SEVERAL_NODES}",
        "a step has a limit with several nodes only: set nodes above 1 or to auto, or remove stepTimeoutSeconds",
        ".stepTimeoutSeconds",
    ),
    Rule(
        f"!has(self.topologyKey) || {_SEVERAL_NODES}",
        "only pods of one replica are kept together: set nodes above 1 or to auto, or remove topologyKey",
        ".topologyKey",
    ),
    Rule(
        "!has(self.topologyKey) || self.topologyKey != 'kubernetes.io/hostname'",
        "the pods of a replica are on a node each: set topologyKey to a label that several nodes share, or remove it",
        ".topologyKey",
    ),
    Rule(
        f"!has(self.network) || {_SEVERAL_NODES}",
        "this is the network between several nodes: set nodes above 1 or to auto, or remove network",
        ".network",
    ),
)

_PRESET = "(has(self.preset) ? self.preset : '')"
NETWORK = (
    Rule(
        f"!({_PRESET} in ['infiniband', 'roce']) || has(self.rdmaResource)",
        "a pod gets these devices by a resource: set rdmaResource to what your device plugin advertises, such as "
        "rdma/ib, or preset to tcp",
        ".rdmaResource",
    ),
    Rule(
        f"{_PRESET} != 'tcp' || !(has(self.rdmaResource) || has(self.rdmaCount) || has(self.rdmaDevices))",
        "with tcp no RDMA device is used: set another preset, or remove rdmaResource, rdmaCount and rdmaDevices",
        ".preset",
    ),
    Rule(
        f"!has(self.rdmaDevices) || {_PRESET} in ['infiniband', 'roce']",
        "devices are chosen with infiniband and roce only: set preset to one of them, or remove rdmaDevices",
        ".rdmaDevices",
    ),
    Rule(
        "!has(self.rdmaResource) || (self.rdmaResource.contains('/') && "
        "!self.rdmaResource.matches('^(nvidia.com/(gpu|mig-)|amd.com/gpu)'))",
        "this is no resource of RDMA devices: set rdmaResource to what your device plugin advertises, such as rdma/ib",
        ".rdmaResource",
    ),
    Rule(
        "!has(self.sharedMemory) || quantity(self.sharedMemory).compareTo(quantity('0')) > 0",
        "the ranks of a pod need some: set sharedMemory above 0, or remove it",
        ".sharedMemory",
    ),
    Rule(
        f"!has(self.rdmaCount) || has(self.rdmaResource) || {_PRESET} == 'efa'",
        "so many of which resource: set rdmaResource, or remove rdmaCount",
        ".rdmaCount",
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
    Rule(
        "!has(self.kvEvents) || !has(self.kvEvents.enabled) || !self.kvEvents.enabled || !has(self.prefixCaching) || "
        "self.prefixCaching",
        "no prefix is cached, and events would be of nothing: remove kvEvents, or prefixCaching: false",
        ".kvEvents",
    ),
    Rule(
        "!has(self.kvEvents) || !has(self.kvEvents.enabled) || !self.kvEvents.enabled || "
        "!has(self.prefixCachingHashAlgo) || !self.prefixCachingHashAlgo.startsWith('xxhash')",
        "events need the same hashes on every replica, for which a client could then make prompts collide: use "
        "sha256_cbor, or remove kvEvents",
        ".prefixCachingHashAlgo",
    ),
)
KV_EVENTS = (
    Rule(
        "!has(self.port) || (has(self.enabled) && self.enabled)",
        "nothing is published without events: set enabled, or remove port",
        ".port",
    ),
)

ACCELERATOR = (
    *(
        Rule(f"!({_IS_CPU}) || !has(self.{field})", message, f".{field}")
        for field, message in (
            ("products", "a CPU service asks for no GPU: remove products, or set type to nvidia or amd"),
            ("resourceName", "a CPU service asks for no GPU: remove resourceName, or set type to nvidia or amd"),
            ("claim", "a CPU service asks for no GPU: remove claim, or set type to nvidia or amd"),
            ("resourceClaims", "a CPU service asks for no GPU: remove resourceClaims, or set type to nvidia or amd"),
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
    *(
        Rule(
            f"!(has(self.resourceClaims) || has(self.claim)) || !has(self.{field})",
            f"claims choose the devices: remove {field}, or the claims",
            f".{field}",
        )
        for field in ("products", "resourceName")
    ),
    Rule(
        "!has(self.resourceClaims) || !has(self.claim)",
        "either the operator writes the claim or you do: remove claim or resourceClaims",
        ".claim",
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
        "spec.parallelism.network": NETWORK,
        "spec.batching": BATCHING,
        "spec.batching.kvEvents": KV_EVENTS,
        "spec.compilation": COMPILATION,
        "spec.contextExtension": CONTEXT_EXTENSION,
        "spec.speculativeDecoding": SPECULATION,
        "spec.lora": LORA,
        "spec.multimodal": MULTIMODAL,
        "spec.accelerator": ACCELERATOR,
    }
)


def uri_rules() -> tuple[Rule, ...]:
    """The rules of an object with a field `uri`."""
    return tuple(_rules())


def _rules() -> Iterator[Rule]:
    schemes = "|".join(SCHEMES)
    yield Rule(f"self.uri.matches('^({schemes})://')", f"must begin with a scheme that is served: {URI_FORMS}", ".uri")
    for name, scheme in SCHEMES.items():
        # Group names are for Python; in CEL each character adds cost.
        matches = cel_string(f"^{name}://{re.sub(r'[?]P<[a-z]+>', '', scheme.loose_pattern or scheme.pattern)}$")
        yield Rule(
            f"!self.uri.startsWith('{name}://') || self.uri.matches({matches})", f"must be {scheme.described}", ".uri"
        )
    for scheme in SCHEMES.values():
        yield from scheme.rules
    yield Rule(
        "!self.uri.contains('..') && !self.uri.matches('://.*//') && !self.uri.matches('[[:space:][:cntrl:]]')",
        "must hold no '..', no '//' and no white space; write the plain path",
        ".uri",
    )


_NAME = "metadata.name must be a DNS label of at most 50 characters, because the Service has this name"

# As in Kubernetes: lowercase letters, digits, dashes and dots. Three cheap rules, since the cost estimate has no bound
# for the length of a name.
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
    Rule(
        "!has(self.spec.adapters) || has(self.spec.model.servedModelNames) || "
        "self.spec.adapters.all(adapter, adapter.name != self.metadata.name)",
        "the model itself has the LLMService's name: give the adapter another one, or set spec.model.servedModelNames",
        field=".spec.adapters",
    ),
)

MODEL = (
    *uri_rules(),
    Rule(
        "!has(self.convert) || self.convert in ['auto', 'none'] || (has(self.runner) && self.runner == 'pooling')",
        "only for the pooling runner: set spec.model.runner to pooling, or remove convert",
        ".convert",
    ),
)

CACHE = (
    Rule(
        "has(self.claimName) != has(self.size)",
        "give either claimName (a claim that exists) or size (of a claim that the operator makes), and not both",
    ),
    *(
        Rule(
            f"has(self.size) || !has(self.{field})",
            f"{why}: remove {field}, or give size instead of claimName",
            f".{field}",
        )
        for field, why in (
            ("storageClassName", "an existing claim has its storage class already"),
            ("accessModes", "an existing claim has its access modes already"),
            ("retentionPolicy", "a claim that you made is never deleted"),
        )
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

START_CACHE = (
    Rule(
        "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0 && "
        "(has(self.storageClassName) ? self.storageClassName : '') == "
        "(has(oldSelf.storageClassName) ? oldSelf.storageClassName : '') && "
        "has(self.accessModes) == has(oldSelf.accessModes) && "
        "(!has(self.accessModes) || self.accessModes == oldSelf.accessModes)",
        "a claim can only grow: put the old values back, or remove spec.startCache, wait until the claim is gone, and "
        "set it again",
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

RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "": ROOT,
        "spec": SPEC,
        "spec.scaling.autoscaling": AUTOSCALING,
        "spec.scaling.holding": HOLDING,
        "spec.model": MODEL,
        "spec.model.cache": CACHE,
        "spec.startCache": START_CACHE,
        "spec.model.architecture": ARCHITECTURE,
        "spec.speculativeDecoding.model": uri_rules(),
        "spec.adapters[]": uri_rules(),
        **ENGINE_RULES,
        "spec.runtime.extraArgs": ARGUMENTS,
        "spec.runtime.extraArgs[]": argument_rules(),
        **POD_RULES,
    }
)
