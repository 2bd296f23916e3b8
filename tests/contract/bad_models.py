"""Wrong names, models, caches and engines, refused by CEL."""

from collections.abc import Iterator

from tests.contract.manifests import Bad


def names() -> Iterator[Bad]:
    """metadata.name, with the name to take instead."""
    at = "metadata.name"
    yield Bad("name-dot", {}, at, ("DNS label of at most 50", "use qwen2-5-7b"), name="qwen2.5-7b")
    yield Bad("name-digit", {}, at, ("DNS label", "use m-7b-qwen"), name="7b-qwen")
    yield Bad("name-long", {}, at, ("at most 50", f"use {'a' * 50}"), name="a" * 51)
    yield Bad("name-long-dash", {}, at, (f"use {'a' * 49}",), name="a" * 49 + "-" + "b" * 5)


_AZURE = {"model.azure": {"account": "weights"}}


def model() -> Iterator[Bad]:
    at = "spec.model.uri"
    supported = "hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, pvc://CLAIM"
    yield Bad("s3-bucket", {"model.uri": "s3://My_Bucket/x"}, at, ("must be s3://BUCKET/PREFIX",))
    yield Bad("s3-short", {"model.uri": "s3://ab"}, at, ("must be s3://BUCKET/PREFIX",))
    yield Bad("s3-key", {"model.uri": "s3://bucket/a?b"}, at, ("must be s3://BUCKET/PREFIX",))
    yield Bad("gs-bucket", {"model.uri": "gs://My_Bucket/x"}, at, ("must be gs://BUCKET/PREFIX",))
    yield Bad("gs-up", {"model.uri": "gs://bucket/a/../b"}, at, ("no '..'",))
    yield Bad("gs-generation", {"model.uri": "gs://bucket/a#1"}, at, ("must be gs://BUCKET/PREFIX",))
    yield Bad("az-container", {"model.uri": "az://my_models/x", **_AZURE}, at, ("must be az://CONTAINER/PREFIX",))
    yield Bad("az-account", {"model.uri": "az://models@weights/x", **_AZURE}, at, ("must be az://CONTAINER/PREFIX",))
    yield Bad("az-sas", {"model.uri": "az://models/x?sig=a", **_AZURE}, at, ("must be az://CONTAINER/PREFIX",))
    yield Bad("image-capital", {"model.uri": "image://a/B:1"}, at, ("must be image://REFERENCE",))
    yield Bad("image-empty", {"model.uri": "image://#a"}, at, ("must be image://REFERENCE",))
    yield Bad("image-two-paths", {"model.uri": "image://a/b:1#c#d"}, at, ("image://REFERENCE#PATH",))
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
        {"model.uri": "file:///x", "model.hfTokenSecretRef": {"name": "a", "key": "b"}},
        "spec.model.hfTokenSecretRef",
        ("only for models from the Hugging Face hub", "remove it"),
    )
    yield Bad(
        "s3-for-hub",
        {"model.s3": {"region": "eu-1"}},
        "spec.model.s3",
        ("only for models from S3", "remove it"),
    )
    yield Bad(
        "gcs-for-s3",
        {"model.uri": "s3://models/a", "model.gcs": {"endpoint": "https://gcs.example"}},
        "spec.model.gcs",
        ("only for models from Google Cloud Storage", "remove it"),
    )
    yield Bad(
        "azure-for-s3",
        {"model.uri": "s3://models/a", "model.azure": {"account": "weights"}},
        "spec.model.azure",
        ("only for models from Azure", "remove it"),
    )
    yield Bad("az-of-no-account", {"model.uri": "az://models/a"}, "spec.model", ("set spec.model.azure.account",))
    yield Bad(
        "convert-by-auto",
        {"model.convert": "embed"},
        "spec.model.convert",
        ("set spec.model.runner to pooling",),
    )
    yield Bad(
        "cache-for-pvc",
        {"model.uri": "pvc://a/b", "model.cache.size": "1Gi"},
        "spec.model.cache",
        ("only for models that are fetched", "remove it"),
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
    yield Bad("int4-by-fp8", {"precision": {"weights": "int4", "quantization": "fp8"}}, quantization, ("in int4",))
    yield Bad("int4-by-mxfp8", {"precision": {"weights": "int4", "quantization": "mxfp8"}}, quantization, ("in int4",))
    yield Bad(
        "weights-against-dtype",
        {"precision": {"weights": "float32", "dtype": "bfloat16"}},
        dtype,
        ("contradicts weights", "leave the other at auto"),
    )
    yield Bad(
        "weights-against-half",
        {"precision": {"weights": "bfloat16", "dtype": "float16"}},
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
        {"parallelism.expertParallel": True},
        "spec.parallelism.expertParallel",
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
        ("products", ["NVIDIA-L4"]),
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
