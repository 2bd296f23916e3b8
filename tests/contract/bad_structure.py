"""What the structural schema refuses: types, enums, bounds, unknown fields."""

from collections.abc import Iterator, Mapping
from math import ceil, floor
from typing import Any

from llmservice_operator.api.crd import schema

from tests.contract.manifests import Bad, wrong


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
    yield wrong("no-spec-model", "model", None, "Required")
    yield wrong("no-uri", "model.uri", None, "Required")
    yield wrong("empty-uri", "model.uri", "", "at least 1 chars")
    yield wrong("long-uri", "model.uri", "hf://a/" + "b" * 1024, "may not be more than 1024")
    yield wrong("uri-number", "model.uri", 7, "must be of type string")
    yield Bad("unknown-field", {"modle": {}}, "", ('unknown field "spec.modle"',))
    yield Bad("unknown-deep-field", {"batching.maxSeqs": 4}, "", ('unknown field "spec.batching.maxSeqs"',))
    yield Bad("snake-case", {"batching.max_num_seqs": 4}, "", ('unknown field "spec.batching.max_num_seqs"',))
    yield Bad("out-of-scope", {"routing": {}}, "", ('unknown field "spec.routing"',))
    yield Bad("unknown-pod-field", {"podTemplate.spec.hostNetwork": True}, "", ('"spec.podTemplate.spec.hostNetwork"',))
    yield wrong("backend", "attention.backend", "XFORMERS", "Unsupported value")
    yield Bad(
        "endpoint", {"model.uri": "s3://abc", "model.s3.endpoint": "s3.example"}, "spec.model.s3.endpoint", ("http",)
    )
    yield Bad(
        "azure-account",
        {"model.uri": "az://abc", "model.azure.account": "My-Account"},
        "spec.model.azure.account",
        ("should match",),
    )
    yield wrong("rank", "lora.maxLoraRank", 24, "Unsupported value")
    yield wrong("level", "compilation.optimizationLevel", 4, "Unsupported value")
    for domain in ("https://a.example", "A.example", "a.example:443", "*.example", "a_b", ""):
        at = "spec.multimodal.allowedMediaDomains[0]"
        yield Bad(f"media-domain {domain}", {"multimodal.allowedMediaDomains": [domain]}, at, ("should",))
    yield wrong("parser", "generation.toolCallParser", "a b", "should match")
    yield wrong("method", "contextExtension", {"method": "ntk", "factor": 2}, "yarn", at=".method")
    yield wrong("factor", "contextExtension", {"factor": 100}, "less than or equal to 64", at=".factor")
    yield wrong("no-factor", "contextExtension", {}, "Required", at=".factor")
    yield wrong("no-guesses", "speculativeDecoding", {"method": "ngram"}, "Required", at=".numSpeculativeTokens")
    yield wrong(
        "adapter-twice",
        "adapters",
        [{"name": "a", "uri": "hf://a/b"}, {"name": "a", "uri": "hf://a/c"}],
        "Duplicate value",
        at="[1]",
    )
    yield wrong("adapter-folder", "adapters", [{"name": "a/b", "uri": "hf://a/b"}], "should match", at="[0].name")
    yield wrong("paused-string", "paused", "yes", "must be of type boolean")
    yield wrong("no-served-name", "model.servedModelNames", [], "at least 1 items")
    yield wrong("served-twice", "model.servedModelNames", ["a", "a"], "Duplicate value", at="[1]")
    yield wrong("served-space", "model.servedModelNames", ["a b"], "should match", at="[0]")
    yield wrong("token-without-key", "model.hfTokenSecretRef", {"name": "a"}, "Required", at=".key")
    yield wrong("token-name", "model.hfTokenSecretRef", {"name": "A_b", "key": "k"}, "should match", at=".name")
    yield wrong("cache-size", "model.cache.size", "100GB", "should match", "Gi")
    yield wrong(
        "cache-mode",
        "model.cache",
        {"size": "1Gi", "accessModes": ["ReadOnlyMany"]},
        'supported values: "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"',
        at=".accessModes[0]",
    )
    yield wrong(
        "retention",
        "model.cache",
        {"size": "1Gi", "retentionPolicy": "Keep"},
        '"Delete", "Retain"',
        at=".retentionPolicy",
    )
    yield wrong("verify", "model.cache", {"size": "1Gi", "verify": "Sha256"}, '"Size", "Hash"', at=".verify")
    yield wrong(
        "prune-at-once",
        "model.cache",
        {"size": "1Gi", "pruneAfterHours": 0},
        "greater than or equal to 1",
        at=".pruneAfterHours",
    )
    yield wrong("heads-zero", "model.architecture.numAttentionHeads", 0, "greater than or equal to 1")
    yield wrong("parameters-in-billions", "model.architecture.totalParameters", 7.6, "must be of type int")
    yield wrong("quantization-bits", "model.architecture.quantizationBits", 32, "less than or equal to 16")
    yield wrong("model-type", "model.architecture.modelType", "a model", "should match")
    yield wrong("checkpoint-type", "model.architecture.dtype", "fp8", '"float32", "bfloat16", "float16"')
    yield wrong("weights", "precision.weights", "fp16", '"auto", "float32", "bfloat16", "float16"')
    yield wrong("dtype", "precision.dtype", "half", '"auto", "float32", "bfloat16"')
    yield wrong("quantization", "precision.quantization", "gguf", '"awq"', '"mxfp8"')
    yield wrong("bitsandbytes", "precision.quantization", "bitsandbytes", "supported values")
    yield wrong("kv-cache", "precision.kvCache", "int4", '"auto", "float16", "bfloat16"')
    yield wrong("tp-zero", "parallelism.tensorParallelSize", 0, "greater than or equal to 1")
    yield wrong("pp-many", "parallelism.pipelineParallelSize", 65, "less than or equal to 64")
    yield wrong("dp-fraction", "parallelism.dataParallelSize", 1.5, "must be of type int64")
    yield wrong("seqs-zero", "batching.maxNumSeqs", 0, "greater than or equal to 1")
    yield wrong("seqs-string", "batching.maxNumSeqs", "8", "must be of type integer")
    yield wrong("tokens-negative", "batching.maxNumBatchedTokens", -1, "greater than or equal to 1")
    yield wrong("len-word", "batching.maxModelLen", "32k", "should match '^auto$'")
    yield wrong("len-zero", "batching.maxModelLen", 0, "greater than or equal to 1")
    yield wrong("len-fraction", "batching.maxModelLen", 1.5, "integer")
    yield wrong("queue-zero", "batching.maxNumQueuedRequests", 0, "greater than or equal to 1")
    yield wrong("policy", "batching.schedulingPolicy", "lifo", '"fcfs", "priority"')
    yield wrong("block-size", "batching.blockSize", 48, '"16", "32"')
    yield wrong("accelerator", "accelerator.type", "tpu", '"nvidia", "amd", "cpu"')
    yield wrong("product-space", "accelerator.products", ["A 100"], "should match", at="[0]")
    yield wrong("memory-unit", "accelerator.memory", "80", "should match")
    yield wrong("utilization-high", "accelerator.gpuMemoryUtilization", 1.1, "less than or equal to 1")
    yield wrong("utilization-percent", "accelerator.gpuMemoryUtilization", "90%", "must be of type number")
    yield wrong("replicas-negative", "scaling.replicas", -1, "greater than or equal to 0")
    yield wrong("replicas-many", "scaling.replicas", 1001, "less than or equal to 1000")
    yield wrong("strategy", "rollout.strategy", "BlueGreen", '"Auto", "Surge", "Replace", "Recreate"')
    yield wrong("pinned-revision", "rollout.pinnedRevision", "x-0123456789", "should match")
    yield wrong("deadline", "rollout.progressDeadlineSeconds", 5, "greater than or equal to 60")
    yield wrong("drain", "drain.timeoutSeconds", 3601, "less than or equal to 3600")
    yield wrong("port", "endpoint.port", 65536, "less than or equal to 65535")
    yield wrong("image", "runtime.image", "vllm openai", "should match")
    yield wrong("image-case", "runtime.image", "docker.io/VLLM/openai", "should match")
    yield wrong("pull-policy", "runtime.imagePullPolicy", "Sometimes", '"Always"', '"Never"')
    yield wrong("version", "runtime.version", "latest", "should match")
    yield wrong("args-many", "runtime.extraArgs", ["--max-logprobs=1"] * 65, "at most 64 items")
    yield wrong(
        "arg-long", "runtime.extraArgs", ["--max-logprobs=" + "1" * 1024], "may not be more than 1024", at="[0]"
    )
    yield wrong("args-string", "runtime.extraArgs", "--max-logprobs 1", "must be of type array")
    yield wrong(
        "env-twice",
        "runtime.env",
        [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        "Duplicate value",
        at="[1]",
    )
    yield wrong("env-number", "runtime.env", [{"name": "A", "value": 1}], "of type string", at="[0].value")
    yield wrong("quantity", "runtime.resources.requests", {"memory": "lots"}, "should match", at=".memory")
    yield wrong("label-value", "podTemplate.metadata.labels", {"team": "a b"}, "should match", at=".team")
    yield wrong(
        "toleration-effect",
        "podTemplate.spec.tolerations",
        [{"key": "a", "effect": "Never"}],
        '"NoExecute"',
        at="[0].effect",
    )
    yield wrong(
        "volume-twice",
        "podTemplate.spec.volumes",
        [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}],
        "Duplicate value",
        at="[1]",
    )
    yield Bad(
        "affinity-typo",
        {"podTemplate.spec.affinity": {"nodeAfinity": {}}},
        "",
        ('unknown field "spec.podTemplate.spec.affinity.nodeAfinity"',),
    )
    yield wrong(
        "spread-incomplete",
        "podTemplate.spec.topologySpreadConstraints",
        [{"maxSkew": 1, "topologyKey": "zone"}],
        "Required",
        at="[0].whenUnsatisfiable",
    )
