"""Manifests with one wrong thing each: what is changed in a good one, the field that is named, and what is said."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

HUB = "hf://Qwen/Qwen2.5-7B-Instruct"


@dataclasses.dataclass(frozen=True)
class Bad:
    """`change` maps paths below spec to values; `before` is what the object was like until this update."""

    id: str
    change: Mapping[str, Any]
    field: str
    says: tuple[str, ...]
    name: str = "good"
    before: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def manifest(name: str, change: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest good manifest, with some paths of its spec set. A None takes a path away."""
    spec: dict[str, Any] = {"model": {"uri": HUB}}
    for path, value in change.items():
        place, *rest = spec, *path.split(".")
        for part in rest[:-1]:
            place = place.setdefault(part, {})
        if value is None:
            place.pop(rest[-1], None)
        else:
            place[rest[-1]] = value
    return {"metadata": {"name": name}, "spec": spec}


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
    yield Bad("out-of-scope", {"adapters": []}, "", ('unknown field "spec.adapters"',))
    yield Bad("unknown-pod-field", {"podTemplate.spec.hostNetwork": True}, "", ('"spec.podTemplate.spec.hostNetwork"',))
    yield Bad("paused-string", {"paused": "yes"}, "spec.paused", ("must be of type boolean",))
    yield Bad("no-served-name", {"model.servedNames": []}, "spec.model.servedNames", ("at least 1 items",))
    yield Bad("served-twice", {"model.servedNames": ["a", "a"]}, "spec.model.servedNames[1]", ("Duplicate value",))
    yield Bad("served-space", {"model.servedNames": ["a b"]}, "spec.model.servedNames[0]", ("should match",))
    yield Bad(
        "token-without-key", {"model.tokenSecretRef": {"name": "a"}}, "spec.model.tokenSecretRef.key", ("Required",)
    )
    yield Bad(
        "token-name",
        {"model.tokenSecretRef": {"name": "A_b", "key": "k"}},
        "spec.model.tokenSecretRef.name",
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
        "heads-zero",
        {"model.architecture.numAttentionHeads": 0},
        "spec.model.architecture.numAttentionHeads",
        ("greater than or equal to 1",),
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
    yield Bad("product-space", {"accelerator.product": ["A 100"]}, "spec.accelerator.product[0]", ("should match",))
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
    yield Bad("strategy", {"rollout.strategy": "Auto"}, "spec.rollout.strategy", ('"Surge", "Replace", "Recreate"',))
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
    yield Bad("args-many", {"runtime.extraArgs": ["--seed=1"] * 65}, "spec.runtime.extraArgs", ("at most 64 items",))
    yield Bad(
        "arg-long",
        {"runtime.extraArgs": ["--seed=" + "1" * 1024]},
        "spec.runtime.extraArgs[0]",
        ("may not be more than 1024",),
    )
    yield Bad("args-string", {"runtime.extraArgs": "--seed 1"}, "spec.runtime.extraArgs", ("must be of type array",))
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


def names() -> Iterator[Bad]:
    """metadata.name, with the name to take instead."""
    at = "metadata.name"
    yield Bad("name-dot", {}, at, ("DNS label of at most 50", "use qwen2-5-7b"), name="qwen2.5-7b")
    yield Bad("name-digit", {}, at, ("DNS label", "use m-7b-qwen"), name="7b-qwen")
    yield Bad("name-long", {}, at, ("at most 50", f"use {'a' * 50}"), name="a" * 51)
    yield Bad("name-long-dash", {}, at, (f"use {'a' * 49}",), name="a" * 49 + "-" + "b" * 5)


def model() -> Iterator[Bad]:
    at = "spec.model.uri"
    supported = "hf://ORG/NAME[@REVISION], pvc://CLAIM/PATH or file:///PATH"
    yield Bad("uri-s3", {"model.uri": "s3://bucket/x"}, at, ("not served by this version", supported))
    yield Bad("uri-image", {"model.uri": "image://a/b:1"}, at, ("not served by this version", supported))
    yield Bad("uri-plain", {"model.uri": "Qwen/Qwen2.5-7B"}, at, ("must begin with a scheme", supported))
    yield Bad("uri-https", {"model.uri": "https://huggingface.co/a/b"}, at, ("must begin with a scheme",))
    yield Bad("hf-without-org", {"model.uri": "hf://gpt2"}, at, ("must be hf://ORG/NAME",))
    yield Bad("hf-deep", {"model.uri": "hf://a/b/c"}, at, ("must be hf://ORG/NAME",))
    yield Bad("hf-empty-revision", {"model.uri": "hf://a/b@"}, at, ("leave the @ out",))
    yield Bad("hf-bad-revision", {"model.uri": "hf://a/b@v1 2"}, at, ("branch, tag or commit",))
    yield Bad("hf-two-revisions", {"model.uri": "hf://a/b@v1@v2"}, at, ("branch, tag or commit",))
    yield Bad("pvc-claim", {"model.uri": "pvc://My_Claim/x"}, at, ("must be pvc://CLAIM/PATH",))
    yield Bad("pvc-empty", {"model.uri": "pvc:///x"}, at, ("must be pvc://CLAIM/PATH",))
    yield Bad("file-relative", {"model.uri": "file://models/x"}, at, ("three slashes",))
    yield Bad("file-up", {"model.uri": "file:///models/../etc"}, at, ("no '..'",))
    yield Bad("file-double", {"model.uri": "file:///models//x"}, at, ("no '//'",))
    yield Bad(
        "token-for-file",
        {"model.uri": "file:///x", "model.tokenSecretRef": {"name": "a", "key": "b"}},
        "spec.model.tokenSecretRef",
        ("only for models from the Hugging Face hub", "remove it"),
    )
    yield Bad(
        "cache-for-pvc",
        {"model.uri": "pvc://a/b", "model.cache.size": "1Gi"},
        "spec.model.cache",
        ("only for models that are downloaded", "remove it"),
    )
    yield Bad(
        "heads-division",
        {"model.architecture": {"numAttentionHeads": 32, "numKeyValueHeads": 5}},
        "spec.model.architecture.numKeyValueHeads",
        ("must divide numAttentionHeads", "config.json"),
    )


def cache() -> Iterator[Bad]:
    at = "spec.model.cache"
    yield Bad("cache-empty", {"model.cache": {}}, at, ("give either claimName", "or size"))
    yield Bad("cache-both", {"model.cache": {"claimName": "a", "size": "1Gi"}}, at, ("not both",))
    for key, value in (("storageClassName", "a"), ("accessModes", ["ReadWriteMany"]), ("retentionPolicy", "Retain")):
        yield Bad(
            f"claim-with-{key}",
            {"model.cache": {"claimName": "a", key: value}},
            f"{at}.{key}",
            (f"remove {key}", "size instead"),
        )
    was = {"model.cache": {"size": "10Gi", "storageClassName": "a", "accessModes": ["ReadWriteOnce"]}}
    for key, value, words in (
        ("size", "9Gi", "cannot shrink"),
        ("storageClassName", "b", "cannot change its storage class"),
        ("accessModes", ["ReadWriteMany"], "cannot change its access modes"),
    ):
        changed = {"model.cache": {**was["model.cache"], key: value}}
        yield Bad(f"cache-changes-{key}", changed, f"{at}.{key}", (words, "remove spec.model.cache first"), before=was)


def engine() -> Iterator[Bad]:
    quantization, dtype = "spec.precision.quantization", "spec.precision.dtype"
    yield Bad(
        "float-weights-quantized",
        {"precision": {"weights": "bfloat16", "quantization": "awq"}},
        quantization,
        ("remove quantization", "auto"),
    )
    yield Bad("fp8-by-awq", {"precision": {"weights": "fp8", "quantization": "awq"}}, quantization, ("in fp8",))
    yield Bad("int8-by-fp8", {"precision": {"weights": "int8", "quantization": "fp8"}}, quantization, ("in int8",))
    yield Bad("int4-by-mxfp8", {"precision": {"weights": "int4", "quantization": "mxfp8"}}, quantization, ("in int4",))
    yield Bad(
        "weights-against-dtype",
        {"precision": {"weights": "float32", "dtype": "bfloat16"}},
        dtype,
        ("contradicts weights", "leave the other at auto"),
    )
    yield Bad(
        "fp8-in-float32",
        {"precision": {"weights": "fp8", "dtype": "float32"}},
        dtype,
        ("not computed with in float32",),
    )
    yield Bad(
        "awq-in-float32", {"precision": {"quantization": "awq", "dtype": "float32"}}, dtype, ("bfloat16 or float16",)
    )
    yield Bad(
        "mxfp4-in-float16",
        {"precision": {"quantization": "mxfp4", "dtype": "float16"}},
        dtype,
        ("bfloat16 only",),
    )
    yield Bad(
        "experts-on-one",
        {"parallelism.enableExpertParallel": True},
        "spec.parallelism.enableExpertParallel",
        ("set tensorParallelSize or dataParallelSize above 1",),
    )
    tokens = "spec.batching.maxNumBatchedTokens"
    yield Bad(
        "tokens-below-seqs",
        {"batching": {"maxNumSeqs": 256, "maxNumBatchedTokens": 128}},
        tokens,
        ("at least maxNumSeqs", "raise maxNumBatchedTokens or lower maxNumSeqs"),
    )
    yield Bad(
        "whole-prefill",
        {"batching": {"chunkedPrefill": False, "maxNumBatchedTokens": 2048, "maxModelLen": 4096}},
        tokens,
        ("without chunked prefill", "raise maxNumBatchedTokens to maxModelLen"),
    )
    for key, value in (
        ("product", ["NVIDIA-L4"]),
        ("resourceName", "nvidia.com/gpu"),
        ("memory", "80Gi"),
        ("gpuMemoryUtilization", 0.5),
    ):
        changed = {"accelerator": {"type": "cpu", key: value}}
        yield Bad(f"cpu-with-{key}", changed, f"spec.accelerator.{key}", ("remove",))
    for resource in ("gpu", "kubernetes.io/gpu", "requests.nvidia.com/gpu"):
        yield Bad(
            f"resource-{resource}",
            {"accelerator.resourceName": resource},
            "spec.accelerator.resourceName",
            ("device plugin's resource", "nvidia.com/gpu"),
        )
    yield Bad(
        "amd-quantization",
        {"accelerator.type": "amd", "precision.quantization": "gptq_marlin"},
        quantization,
        ("not serve this method on AMD GPUs", "choose fp8_per_tensor"),
    )
    yield Bad(
        "cpu-kv-cache",
        {"accelerator.type": "cpu", "precision.kvCache": "nvfp4"},
        "spec.precision.kvCache",
        ("CPUs hold the KV cache in",),
    )


# Each spelling is one that vLLM's own parser takes (tests/unit/test_api_flag_rules.py holds them against it).
SPELLINGS = (
    (["--max-num-seqs", "4"], "spec.batching.maxNumSeqs"),
    (["--max-num-seqs=4"], "spec.batching.maxNumSeqs"),
    (["--max_num_seqs", "4"], "spec.batching.maxNumSeqs"),
    (["--max-num-se", "4"], "spec.batching.maxNumSeqs"),
    (["--max_num_se=4"], "spec.batching.maxNumSeqs"),
    (["--max-m=auto"], "spec.batching.maxModelLen"),
    (["-tp", "2"], "spec.parallelism.tensorParallelSize"),
    (["-tp=2"], "spec.parallelism.tensorParallelSize"),
    (["-t", "2"], "spec.parallelism.tensorParallelSize"),
    (["-pp", "2"], "spec.parallelism.pipelineParallelSize"),
    (["-dp", "2"], "spec.parallelism.dataParallelSize"),
    (["-ep"], "spec.parallelism.enableExpertParallel"),
    (["--no-enable-expert-par"], "spec.parallelism.enableExpertParallel"),
    (["-q", "awq"], "spec.precision.quantization"),
    (["-qawq"], "spec.precision.quantization"),
    (["--dt=half"], "spec.precision.dtype"),
    (["--kv-cache-dtype", "fp8"], "spec.precision.kvCache"),
    (["--no-enable-prefix-caching"], "spec.batching.prefixCaching"),
    (["--enable-ch"], "spec.batching.chunkedPrefill"),
    (["--device-memory-utilization=0.5"], "spec.accelerator.gpuMemoryUtilization"),
    (["--trust-remote-code"], "spec.model.trustRemoteCode"),
    (["--served-model-name", "a"], "spec.model.servedNames"),
    (["--model", "a/b"], "spec.model.uri"),
    (["--rev=main"], "spec.model.uri"),
    (["--api-key", "secret"], "spec.endpoint.apiKeySecretRef"),
    (["--hf_token=secret"], "spec.model.tokenSecretRef"),
    (["--block-size.x=16"], "spec.batching.blockSize"),
    (["--host", "::"], "belongs to the operator"),
    (["--por=9000"], "belongs to the operator"),
    (["--config", "a.yaml"], "belongs to the operator"),
    (["--middleware=a.b"], "belongs to the operator"),
    (["--shutdown_timeout", "1"], "spec.drain.timeoutSeconds"),
    (["--ssl-keyf", "a"], "belongs to the operator"),
    (["-n2"], "belongs to the operator"),
    (["-r", "1"], "belongs to the operator"),
    (["--headless"], "belongs to the operator"),
    (["--data-parallel-external-lb"], "belongs to the operator"),
    (["-dpl", "1"], "belongs to the operator"),
    (["--help"], "belongs to the operator"),
    (["-h"], "belongs to the operator"),
)


def arguments() -> Iterator[Bad]:
    at = "spec.runtime.extraArgs"
    for args, words in SPELLINGS:
        yield Bad(f"args {' '.join(args)}", {"runtime.extraArgs": args}, f"{at}[0]", (words,))
    yield Bad("args-second", {"runtime.extraArgs": ["--seed=1", "--port=1"]}, f"{at}[1]", ("belongs to the operator",))
    yield Bad(
        "args-positional", {"runtime.extraArgs": ["a/b"]}, at, ("the first item must be a flag", "spec.model.uri")
    )
    yield Bad("args-end", {"runtime.extraArgs": ["--seed=1", "--"]}, f"{at}[1]", ("remove it",))
    yield Bad("args-joined", {"runtime.extraArgs": ["--seed 1"]}, f"{at}[0]", ("are two items", "--flag=value"))


def pods() -> Iterator[Bad]:
    env = "spec.runtime.env[0]"
    for name, words in (
        ("VLLM_API_KEY", "set spec.endpoint.apiKeySecretRef"),
        ("HF_TOKEN", "set spec.model.tokenSecretRef"),
        ("HOME", "remove it"),
        ("PYTHONPATH", "remove it"),
        ("LLMSERVICE_DRAIN_FILE", "remove it"),
        ("1A", "begin with a letter"),
    ):
        yield Bad(f"env-{name}", {"runtime.env": [{"name": name, "value": "x"}]}, f"{env}.name", (words,))
    yield Bad(
        "env-both",
        {"runtime.env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
        f"{env}.valueFrom",
        ("remove one of the two",),
    )
    yield Bad(
        "resources-gpu",
        {"runtime.resources.limits": {"nvidia.com/gpu": "1"}},
        "spec.runtime.resources.limits",
        ("GPUs follow from spec.parallelism",),
    )
    yield Bad(
        "request-over-limit",
        {"runtime.resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}},
        "spec.runtime.resources.requests",
        ("lower the request or raise the limit",),
    )
    meta, spec = "podTemplate.metadata", "podTemplate.spec"
    yield Bad(
        "label-domain", {f"{meta}.labels": {"app.kubernetes.io/name": "x"}}, f"spec.{meta}.labels", ("belong to",)
    )
    yield Bad(
        "annotation-domain", {f"{meta}.annotations": {"llmservice.dev/x": "x"}}, f"spec.{meta}.annotations", ("of",)
    )
    yield Bad("label-key", {f"{meta}.labels": {"-a": "x"}}, f"spec.{meta}.labels", ("NAME or DOMAIN/NAME",))
    for words, toleration, at in (
        ("remove it", {"key": "a", "operator": "Exists", "value": "b"}, "value"),
        ("add a key", {"value": "b"}, "operator"),
        ("NoExecute", {"key": "a", "value": "b", "tolerationSeconds": 5}, "tolerationSeconds"),
    ):
        yield Bad(
            f"toleration-{at}", {f"{spec}.tolerations": [toleration]}, f"spec.{spec}.tolerations[0].{at}", (words,)
        )
    spread = {"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    at = f"spec.{spec}.topologySpreadConstraints[0].maxSkew"
    yield Bad("spread-skew", {f"{spec}.topologySpreadConstraints": [spread]}, at, ("at least 1",))
    yield Bad(
        "volume-name",
        {f"{spec}.volumes": [{"name": "models", "emptyDir": {}}]},
        f"spec.{spec}.volumes[0].name",
        ("choose another name",),
    )
    at = f"spec.{spec}.volumes[0]"
    yield Bad("volume-empty", {f"{spec}.volumes": [{"name": "a"}]}, at, ("exactly one source",))
    two = {"name": "a", "emptyDir": {}, "configMap": {"name": "b"}}
    yield Bad("volume-two-sources", {f"{spec}.volumes": [two]}, at, ("exactly one source",))
    for path, words in (
        ("/tmp", "would hide"),
        ("/llmservice/run", "would hide"),
        ("/home/llmservice/", "would hide"),
        ("relative", "absolute path"),
        ("/mnt/../etc", "absolute path"),
    ):
        yield Bad(
            f"mount-{path}",
            {
                f"{spec}.volumes": [{"name": "a", "emptyDir": {}}],
                f"{spec}.volumeMounts": [{"name": "a", "mountPath": path}],
            },
            f"spec.{spec}.volumeMounts[0].mountPath",
            (words,),
        )
    yield Bad(
        "mount-undeclared",
        {f"{spec}.volumeMounts": [{"name": "a", "mountPath": "/mnt/a"}]},
        f"spec.{spec}.volumeMounts",
        ("declared in volumes",),
    )
    at = f"spec.{spec}.initContainers[0]"
    yield Bad(
        "init-name", {f"{spec}.initContainers": [{"name": "server", "image": "a"}]}, f"{at}.name", ("another name",)
    )
    yield Bad("init-image", {f"{spec}.initContainers": [{"name": "a"}]}, at, ("set image",))


BAD: tuple[Bad, ...] = (
    *structural(),
    *names(),
    *model(),
    *cache(),
    *engine(),
    *arguments(),
    *pods(),
)
