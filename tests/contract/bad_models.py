"""Wrong names, models, caches and engines, refused by CEL."""

from collections.abc import Iterator

from tests.contract.manifests import Bad, wrong


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
    yield wrong("s3-bucket", "model.uri", "s3://My_Bucket/x", "must be s3://BUCKET/PREFIX")
    yield wrong("s3-short", "model.uri", "s3://ab", "must be s3://BUCKET/PREFIX")
    yield wrong("s3-key", "model.uri", "s3://bucket/a?b", "must be s3://BUCKET/PREFIX")
    yield wrong("gs-bucket", "model.uri", "gs://My_Bucket/x", "must be gs://BUCKET/PREFIX")
    yield wrong("gs-up", "model.uri", "gs://bucket/a/../b", "no '..'")
    yield wrong("gs-generation", "model.uri", "gs://bucket/a#1", "must be gs://BUCKET/PREFIX")
    yield Bad("az-container", {"model.uri": "az://my_models/x", **_AZURE}, at, ("must be az://CONTAINER/PREFIX",))
    yield Bad("az-account", {"model.uri": "az://models@weights/x", **_AZURE}, at, ("must be az://CONTAINER/PREFIX",))
    yield Bad("az-sas", {"model.uri": "az://models/x?sig=a", **_AZURE}, at, ("must be az://CONTAINER/PREFIX",))
    yield wrong("image-capital", "model.uri", "image://a/B:1", "must be image://REFERENCE")
    yield wrong("image-empty", "model.uri", "image://#a", "must be image://REFERENCE")
    yield wrong("image-two-paths", "model.uri", "image://a/b:1#c#d", "image://REFERENCE#PATH")
    yield wrong("uri-plain", "model.uri", "Qwen/Qwen2.5-7B", "must begin with a scheme", supported)
    yield wrong("uri-https", "model.uri", "https://huggingface.co/a/b", "must begin with a scheme")
    yield wrong("hf-without-org", "model.uri", "hf://gpt2", "must be hf://ORG/NAME")
    yield wrong("hf-deep", "model.uri", "hf://a/b/c", "must be hf://ORG/NAME")
    yield wrong("hf-empty-revision", "model.uri", "hf://a/b@", "leave the @ out")
    yield wrong("hf-bad-revision", "model.uri", "hf://a/b@v1 2", "branch, tag or commit")
    yield wrong("hf-two-revisions", "model.uri", "hf://a/b@v1@v2", "branch, tag or commit")
    yield wrong("pvc-claim", "model.uri", "pvc://My_Claim/x", "must be pvc://CLAIM/PATH")
    yield wrong("pvc-empty", "model.uri", "pvc:///x", "must be pvc://CLAIM/PATH")
    yield wrong("file-relative", "model.uri", "file://models/x", "three slashes")
    yield wrong("file-up", "model.uri", "file:///models/../etc", "no '..'")
    yield wrong("file-double", "model.uri", "file:///models//x", "no '//'")
    yield Bad(
        "token-for-file",
        {"model.uri": "file:///x", "model.hfTokenSecretRef": {"name": "a", "key": "b"}},
        "spec.model.hfTokenSecretRef",
        ("only for models from the Hugging Face hub", "remove it"),
    )
    yield wrong("s3-for-hub", "model.s3", {"region": "eu-1"}, "only for models from S3", "remove it")
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
    yield wrong("convert-by-auto", "model.convert", "embed", "set spec.model.runner to pooling")
    yield Bad(
        "cache-for-pvc",
        {"model.uri": "pvc://a/b", "model.cache.size": "1Gi"},
        "spec.model.cache",
        ("only for models that are fetched", "remove it"),
    )
    yield wrong(
        "heads-division",
        "model.architecture",
        {"numAttentionHeads": 32, "numKeyValueHeads": 5},
        "must divide numAttentionHeads",
        "config.json",
        at=".numKeyValueHeads",
    )


def cache() -> Iterator[Bad]:
    at = "spec.model.cache"
    yield wrong("cache-empty", "model.cache", {}, "give either claimName", "or size")
    yield wrong("cache-both", "model.cache", {"claimName": "a", "size": "1Gi"}, "not both")
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
    for name, precision, key, *says in (
        ("float-weights-quantized", {"weights": "bfloat16", "quantization": "awq"}, "quantization", "remove", "auto"),
        ("fp8-by-awq", {"weights": "fp8", "quantization": "awq"}, "quantization", "in fp8"),
        ("int8-by-fp8", {"weights": "int8", "quantization": "fp8"}, "quantization", "in int8"),
        ("int4-by-fp8", {"weights": "int4", "quantization": "fp8"}, "quantization", "in int4"),
        ("int4-by-mxfp8", {"weights": "int4", "quantization": "mxfp8"}, "quantization", "in int4"),
        ("weights-against-dtype", {"weights": "float32", "dtype": "bfloat16"}, "dtype", "contradicts", "other at auto"),
        ("weights-against-half", {"weights": "bfloat16", "dtype": "float16"}, "dtype", "contradicts", "other at auto"),
        ("fp8-in-float32", {"weights": "fp8", "dtype": "float32"}, "dtype", "not computed with in float32"),
        ("awq-in-float32", {"quantization": "awq", "dtype": "float32"}, "dtype", "bfloat16 or float16"),
        ("mxfp4-in-float16", {"quantization": "mxfp4", "dtype": "float16"}, "dtype", "bfloat16 only"),
    ):
        yield wrong(name, "precision", precision, *says, at=f".{key}")
    yield wrong(
        "experts-on-one", "parallelism.expertParallel", True, "set tensorParallelSize or dataParallelSize above 1"
    )
    yield wrong(
        "tokens-below-seqs",
        "batching",
        {"maxNumSeqs": 256, "maxNumBatchedTokens": 128},
        "at least maxNumSeqs",
        "raise maxNumBatchedTokens or lower maxNumSeqs",
        at=".maxNumBatchedTokens",
    )
    yield wrong(
        "whole-prefill",
        "batching",
        {"chunkedPrefill": False, "maxNumBatchedTokens": 2048, "maxModelLen": 4096},
        "without chunked prefill",
        "raise maxNumBatchedTokens to maxModelLen",
        at=".maxNumBatchedTokens",
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
        yield wrong(
            f"resource-{resource}", "accelerator.resourceName", resource, "device plugin's resource", "nvidia.com/gpu"
        )
    yield Bad(
        "amd-quantization",
        {"accelerator.type": "amd", "precision.quantization": "gptq_marlin"},
        "spec.precision.quantization",
        ("not serve this method on AMD GPUs", "choose fp8_per_tensor"),
    )
    yield Bad(
        "cpu-kv-cache",
        {"accelerator.type": "cpu", "precision.kvCache": "nvfp4"},
        "spec.precision.kvCache",
        ("CPUs hold the KV cache in",),
    )
