"""What the structural schema refuses: types, enums, bounds, unknown fields."""

from collections.abc import Iterator, Mapping
from math import ceil, floor
from typing import Any

from llmservice_operator.api.crd import schema

from tests.contract.manifests import Bad


def fractions() -> Iterator[Bad]:
    """A whole number beyond each bound with a fraction, which the API server itself cuts off."""
    for path, part in _numbers(schema()["properties"]["spec"], ""):
        for bound, beyond, words in (("minimum", floor, "at least"), ("maximum", ceil, "at most")):
            value = part.get(bound)
            if value is not None and not float(value).is_integer():
                yield Bad(f"{path}-{bound}", {path: beyond(value)}, f"spec.{path}", (f"must be {words} {value}",))


def _numbers(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if part.get("type") == "number":
        yield path, part
    for name, child in part.get("properties", {}).items():
        yield from _numbers(child, f"{path}.{name}".lstrip("."))


def structural() -> Iterator[Bad]:
    """Types, enums and bounds: the API server's own words, with the path and what is allowed."""
    yield Bad("no-spec-model", {"model": None}, "spec.model", ("Required",))
    yield Bad("no-uri", {"model.uri": None}, "spec.model.uri", ("Required",))
    yield Bad("empty-uri", {"model.uri": ""}, "spec.model.uri", ("at least 1 chars",))
    yield Bad("long-uri", {"model.uri": "hf://a/" + "b" * 1024}, "spec.model.uri", ("may not be more than 1024",))
    yield Bad("uri-number", {"model.uri": 7}, "spec.model.uri", ("must be of type string",))
    yield Bad("unknown-field", {"modle": {}}, "", ('unknown field "spec.modle"',))
    yield Bad("unknown-deep-field", {"batching.maxSeqs": 4}, "", ('unknown field "spec.batching.maxSeqs"',))
    yield Bad("snake-case", {"batching.max_num_seqs": 4}, "", ('unknown field "spec.batching.max_num_seqs"',))
    yield Bad("out-of-scope", {"routing": {}}, "", ('unknown field "spec.routing"',))
    yield Bad("unknown-pod-field", {"podTemplate.spec.hostNetwork": True}, "", ('"spec.podTemplate.spec.hostNetwork"',))
    yield Bad("backend", {"attention.backend": "XFORMERS"}, "spec.attention.backend", ("Unsupported value",))
    yield Bad(
        "endpoint", {"model.uri": "s3://abc", "model.s3.endpoint": "s3.example"}, "spec.model.s3.endpoint", ("http",)
    )
    yield Bad(
        "azure-account",
        {"model.uri": "az://abc", "model.azure.account": "My-Account"},
        "spec.model.azure.account",
        ("should match",),
    )
    yield Bad("rank", {"lora.maxLoraRank": 24}, "spec.lora.maxLoraRank", ("Unsupported value",))
    yield Bad(
        "level", {"compilation.optimizationLevel": 4}, "spec.compilation.optimizationLevel", ("Unsupported value",)
    )
    for domain in ("https://a.example", "A.example", "a.example:443", "*.example", "a_b", ""):
        at = "spec.multimodal.allowedMediaDomains[0]"
        yield Bad(f"media-domain {domain}", {"multimodal.allowedMediaDomains": [domain]}, at, ("should",))
    yield Bad("parser", {"generation.toolCallParser": "a b"}, "spec.generation.toolCallParser", ("should match",))
    yield Bad("method", {"contextExtension": {"method": "ntk", "factor": 2}}, "spec.contextExtension.method", ("yarn",))
    yield Bad(
        "factor", {"contextExtension": {"factor": 100}}, "spec.contextExtension.factor", ("less than or equal to 64",)
    )
    yield Bad("no-factor", {"contextExtension": {}}, "spec.contextExtension.factor", ("Required",))
    yield Bad(
        "no-guesses",
        {"speculativeDecoding": {"method": "ngram"}},
        "spec.speculativeDecoding.numSpeculativeTokens",
        ("Required",),
    )
    yield Bad(
        "adapter-twice",
        {"adapters": [{"name": "a", "uri": "hf://a/b"}, {"name": "a", "uri": "hf://a/c"}]},
        "spec.adapters[1]",
        ("Duplicate value",),
    )
    yield Bad(
        "adapter-folder", {"adapters": [{"name": "a/b", "uri": "hf://a/b"}]}, "spec.adapters[0].name", ("should match",)
    )
    yield Bad("paused-string", {"paused": "yes"}, "spec.paused", ("must be of type boolean",))
    yield Bad("no-served-name", {"model.servedModelNames": []}, "spec.model.servedModelNames", ("at least 1 items",))
    yield Bad(
        "served-twice", {"model.servedModelNames": ["a", "a"]}, "spec.model.servedModelNames[1]", ("Duplicate value",)
    )
    yield Bad("served-space", {"model.servedModelNames": ["a b"]}, "spec.model.servedModelNames[0]", ("should match",))
    yield Bad(
        "token-without-key", {"model.hfTokenSecretRef": {"name": "a"}}, "spec.model.hfTokenSecretRef.key", ("Required",)
    )
    yield Bad(
        "token-name",
        {"model.hfTokenSecretRef": {"name": "A_b", "key": "k"}},
        "spec.model.hfTokenSecretRef.name",
        ("should match",),
    )
    yield Bad("cache-size", {"model.cache.size": "100GB"}, "spec.model.cache.size", ("should match", "Gi"))
    yield Bad(
        "cache-mode",
        {"model.cache": {"size": "1Gi", "accessModes": ["ReadOnlyMany"]}},
        "spec.model.cache.accessModes[0]",
        ('supported values: "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"',),
    )
    yield Bad(
        "retention",
        {"model.cache": {"size": "1Gi", "retentionPolicy": "Keep"}},
        "spec.model.cache.retentionPolicy",
        ('"Delete", "Retain"',),
    )
    yield Bad(
        "verify",
        {"model.cache": {"size": "1Gi", "verify": "Sha256"}},
        "spec.model.cache.verify",
        ('"Size", "Hash"',),
    )
    yield Bad(
        "prune-at-once",
        {"model.cache": {"size": "1Gi", "pruneAfterHours": 0}},
        "spec.model.cache.pruneAfterHours",
        ("greater than or equal to 1",),
    )
    yield Bad(
        "heads-zero",
        {"model.architecture.numAttentionHeads": 0},
        "spec.model.architecture.numAttentionHeads",
        ("greater than or equal to 1",),
    )
    yield Bad(
        "parameters-in-billions",
        {"model.architecture.totalParameters": 7.6},
        "spec.model.architecture.totalParameters",
        ("must be of type int",),
    )
    yield Bad(
        "quantization-bits",
        {"model.architecture.quantizationBits": 32},
        "spec.model.architecture.quantizationBits",
        ("less than or equal to 16",),
    )
    yield Bad(
        "model-type",
        {"model.architecture.modelType": "a model"},
        "spec.model.architecture.modelType",
        ("should match",),
    )
    yield Bad(
        "checkpoint-type",
        {"model.architecture.dtype": "fp8"},
        "spec.model.architecture.dtype",
        ('"float32", "bfloat16", "float16"',),
    )
    yield Bad(
        "weights",
        {"precision.weights": "fp16"},
        "spec.precision.weights",
        ('"auto", "float32", "bfloat16", "float16"',),
    )
    yield Bad("dtype", {"precision.dtype": "half"}, "spec.precision.dtype", ('"auto", "float32", "bfloat16"',))
    yield Bad("quantization", {"precision.quantization": "gguf"}, "spec.precision.quantization", ('"awq"', '"mxfp8"'))
    yield Bad(
        "bitsandbytes", {"precision.quantization": "bitsandbytes"}, "spec.precision.quantization", ("supported values",)
    )
    yield Bad("kv-cache", {"precision.kvCache": "int4"}, "spec.precision.kvCache", ('"auto", "float16", "bfloat16"',))
    yield Bad(
        "tp-zero",
        {"parallelism.tensorParallelSize": 0},
        "spec.parallelism.tensorParallelSize",
        ("greater than or equal to 1",),
    )
    yield Bad(
        "pp-many",
        {"parallelism.pipelineParallelSize": 65},
        "spec.parallelism.pipelineParallelSize",
        ("less than or equal to 64",),
    )
    yield Bad(
        "dp-fraction",
        {"parallelism.dataParallelSize": 1.5},
        "spec.parallelism.dataParallelSize",
        ("must be of type int64",),
    )
    yield Bad("seqs-zero", {"batching.maxNumSeqs": 0}, "spec.batching.maxNumSeqs", ("greater than or equal to 1",))
    yield Bad("seqs-string", {"batching.maxNumSeqs": "8"}, "spec.batching.maxNumSeqs", ("must be of type integer",))
    yield Bad(
        "tokens-negative",
        {"batching.maxNumBatchedTokens": -1},
        "spec.batching.maxNumBatchedTokens",
        ("greater than or equal to 1",),
    )
    yield Bad("len-word", {"batching.maxModelLen": "32k"}, "spec.batching.maxModelLen", ("should match '^auto$'",))
    yield Bad("len-zero", {"batching.maxModelLen": 0}, "spec.batching.maxModelLen", ("greater than or equal to 1",))
    yield Bad("len-fraction", {"batching.maxModelLen": 1.5}, "spec.batching.maxModelLen", ("integer",))
    yield Bad(
        "queue-zero",
        {"batching.maxNumQueuedRequests": 0},
        "spec.batching.maxNumQueuedRequests",
        ("greater than or equal to 1",),
    )
    yield Bad(
        "policy", {"batching.schedulingPolicy": "lifo"}, "spec.batching.schedulingPolicy", ('"fcfs", "priority"',)
    )
    yield Bad("block-size", {"batching.blockSize": 48}, "spec.batching.blockSize", ('"16", "32"',))
    yield Bad("accelerator", {"accelerator.type": "tpu"}, "spec.accelerator.type", ('"nvidia", "amd", "cpu"',))
    yield Bad("product-space", {"accelerator.products": ["A 100"]}, "spec.accelerator.products[0]", ("should match",))
    yield Bad("memory-unit", {"accelerator.memory": "80"}, "spec.accelerator.memory", ("should match",))
    yield Bad(
        "utilization-high",
        {"accelerator.gpuMemoryUtilization": 1.1},
        "spec.accelerator.gpuMemoryUtilization",
        ("less than or equal to 1",),
    )
    yield Bad(
        "utilization-percent",
        {"accelerator.gpuMemoryUtilization": "90%"},
        "spec.accelerator.gpuMemoryUtilization",
        ("must be of type number",),
    )
    yield Bad("replicas-negative", {"scaling.replicas": -1}, "spec.scaling.replicas", ("greater than or equal to 0",))
    yield Bad("replicas-many", {"scaling.replicas": 1001}, "spec.scaling.replicas", ("less than or equal to 1000",))
    yield Bad(
        "strategy",
        {"rollout.strategy": "BlueGreen"},
        "spec.rollout.strategy",
        ('"Auto", "Surge", "Replace", "Recreate"',),
    )
    yield Bad(
        "pinned-revision",
        {"rollout.pinnedRevision": "x-0123456789"},
        "spec.rollout.pinnedRevision",
        ("should match",),
    )
    yield Bad(
        "deadline",
        {"rollout.progressDeadlineSeconds": 5},
        "spec.rollout.progressDeadlineSeconds",
        ("greater than or equal to 60",),
    )
    yield Bad("drain", {"drain.timeoutSeconds": 3601}, "spec.drain.timeoutSeconds", ("less than or equal to 3600",))
    yield Bad("port", {"endpoint.port": 65536}, "spec.endpoint.port", ("less than or equal to 65535",))
    yield Bad("image", {"runtime.image": "vllm openai"}, "spec.runtime.image", ("should match",))
    yield Bad("image-case", {"runtime.image": "docker.io/VLLM/openai"}, "spec.runtime.image", ("should match",))
    yield Bad(
        "pull-policy", {"runtime.imagePullPolicy": "Sometimes"}, "spec.runtime.imagePullPolicy", ('"Always"', '"Never"')
    )
    yield Bad("version", {"runtime.version": "latest"}, "spec.runtime.version", ("should match",))
    yield Bad(
        "args-many",
        {"runtime.extraArgs": ["--max-logprobs=1"] * 65},
        "spec.runtime.extraArgs",
        ("at most 64 items",),
    )
    yield Bad(
        "arg-long",
        {"runtime.extraArgs": ["--max-logprobs=" + "1" * 1024]},
        "spec.runtime.extraArgs[0]",
        ("may not be more than 1024",),
    )
    yield Bad(
        "args-string",
        {"runtime.extraArgs": "--max-logprobs 1"},
        "spec.runtime.extraArgs",
        ("must be of type array",),
    )
    yield Bad(
        "env-twice",
        {"runtime.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "spec.runtime.env[1]",
        ("Duplicate value",),
    )
    yield Bad(
        "env-number", {"runtime.env": [{"name": "A", "value": 1}]}, "spec.runtime.env[0].value", ("of type string",)
    )
    yield Bad(
        "quantity",
        {"runtime.resources.requests": {"memory": "lots"}},
        "spec.runtime.resources.requests.memory",
        ("should match",),
    )
    yield Bad(
        "label-value",
        {"podTemplate.metadata.labels": {"team": "a b"}},
        "spec.podTemplate.metadata.labels.team",
        ("should match",),
    )
    yield Bad(
        "toleration-effect",
        {"podTemplate.spec.tolerations": [{"key": "a", "effect": "Never"}]},
        "spec.podTemplate.spec.tolerations[0].effect",
        ('"NoExecute"',),
    )
    yield Bad(
        "volume-twice",
        {"podTemplate.spec.volumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]},
        "spec.podTemplate.spec.volumes[1]",
        ("Duplicate value",),
    )
    yield Bad(
        "affinity-typo",
        {"podTemplate.spec.affinity": {"nodeAfinity": {}}},
        "",
        ('unknown field "spec.podTemplate.spec.affinity.nodeAfinity"',),
    )
    yield Bad(
        "spread-incomplete",
        {"podTemplate.spec.topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]},
        "spec.podTemplate.spec.topologySpreadConstraints[0].whenUnsatisfiable",
        ("Required",),
    )
