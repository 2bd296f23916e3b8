"""Wrong techniques: what contradicts itself within a section, and what does not go together between sections."""

from collections.abc import Iterator
from typing import Any

from tests.contract.manifests import Bad, wrong

CPU = {"accelerator.type": "cpu"}
POOLING = {"model.runner": "pooling"}


def within() -> Iterator[Bad]:
    yield from _batching()
    yield from _compilation()
    yield from _speculation()
    yield wrong(
        "extended-by-one",
        "contextExtension",
        {"factor": 1},
        "must be more than 1",
        "remove spec.contextExtension",
        at=".factor",
    )
    yield wrong(
        "few-cpu-loras",
        "lora",
        {"maxLoras": 4, "maxCpuLoras": 2},
        "at least maxLoras",
        "raise maxCpuLoras or lower maxLoras",
        at=".maxCpuLoras",
    )
    yield wrong(
        "adapter-scheme", "adapters", [{"name": "a", "uri": "ftp://a/b"}], "must begin with a scheme", at="[0].uri"
    )


def _batching() -> Iterator[Bad]:
    for name, batching, key, words in (
        ("long-above-len", {"longPrefillTokenThreshold": 9, "maxModelLen": 8}, "longPrefillTokenThreshold", "lower"),
        ("long-whole", {"longPrefillTokenThreshold": 9, "chunkedPrefill": False}, "longPrefillTokenThreshold", "chunk"),
        (
            "hash-of-none",
            {"prefixCachingHashAlgo": "xxhash", "prefixCaching": False},
            "prefixCachingHashAlgo",
            "no pre",
        ),
        ("offload-zero", {"kvOffloadingSize": "0.0Gi"}, "kvOffloadingSize", "must be more than nothing"),
        ("offload-by-whom", {"kvOffloadingBackend": "native"}, "kvOffloadingBackend", "set kvOffloadingSize"),
    ):
        yield Bad(name, {"batching": batching}, f"spec.batching.{key}", (words,))


def _compilation() -> Iterator[Bad]:
    for key, value in (("mode", "vllmCompile"), ("cudaGraphs", "full"), ("optimizationLevel", 1)):
        yield Bad(
            f"eager-{key}",
            {"compilation": {"enforceEager": True, key: value}},
            f"spec.compilation.{key}",
            ("contradicts enforceEager", f"remove {key} or enforceEager"),
        )
    for mode in ("none", "dynamoTraceOnce"):
        yield wrong(
            f"pieces-of-{mode}",
            "compilation",
            {"mode": mode, "cudaGraphs": "fullAndPiecewise"},
            "set mode to vllmCompile",
            at=".cudaGraphs",
        )
    yield wrong(
        "graphs-of-stock",
        "compilation",
        {"mode": "stockTorchCompile", "cudaGraphs": "full"},
        "PyTorch's own compilation",
        "remove cudaGraphs",
        at=".cudaGraphs",
    )


def _speculation() -> Iterator[Bad]:
    at = "spec.speculativeDecoding"
    draft = {"uri": "hf://a/b"}
    for method in ("draftModel", "eagle", "eagle3", "medusa"):
        yield Bad(f"{method}-alone", _speculative(method), f"{at}.model", ("set spec.speculativeDecoding.model.uri",))
    yield Bad("ngram-model", _speculative("ngram", model=draft), f"{at}.model", ("ngram", "remove model"))
    for key in ("promptLookupMin", "promptLookupMax"):
        change = _speculative("mtp", **{key: 2})
        yield Bad(f"mtp-{key}", change, f"{at}.{key}", ("only ngram", f"remove {key}"))
    yield Bad(
        "lookup-min-max",
        _speculative("ngram", promptLookupMin=4, promptLookupMax=3),
        f"{at}.promptLookupMin",
        ("at most promptLookupMax",),
    )
    yield Bad(
        "ngram-parallel",
        _speculative("ngram", draftTensorParallelSize=1),
        f"{at}.draftTensorParallelSize",
        ("no draft model", "remove draftTensorParallelSize"),
    )
    yield Bad(
        "draft-uri", _speculative("eagle", model={"uri": "hf://a"}), f"{at}.model.uri", ("must be hf://ORG/NAME",)
    )


def _speculative(method: str, **more: Any) -> dict[str, Any]:
    return {"speculativeDecoding": {"method": method, "numSpeculativeTokens": 2, **more}}


def between() -> Iterator[Bad]:
    yield from _on_cpus()
    yield from _of_pooling()
    yield Bad(
        "draft-parallel",
        {
            "parallelism.tensorParallelSize": 4,
            **_speculative("draftModel", model={"uri": "hf://a/b"}, draftTensorParallelSize=2),
        },
        "spec.speculativeDecoding.draftTensorParallelSize",
        ("set it to 1 or to spec.parallelism.tensorParallelSize",),
    )
    yield Bad(
        "extended-alibi",
        {"contextExtension": {"factor": 2}, "model.architecture.positions": "alibi"},
        "spec.contextExtension",
        ("the model has ALiBi", "remove it"),
    )
    adapter = {"name": "good", "uri": "hf://a/b"}
    yield wrong("adapter-of-the-name", "adapters", [adapter], "give the adapter another one")
    yield Bad(
        "adapter-of-a-served-name",
        {"adapters": [{**adapter, "name": "b"}], "model.servedModelNames": ["a", "b"]},
        "spec.adapters",
        ("the model itself has this name", "spec.model.servedModelNames"),
    )
    for args in (["--hf-overrides", "{}"], ["--hf_overrides.a=1"], ["--hf-ov={}"]):
        yield Bad(
            f"extended-{args[0]}",
            {"contextExtension": {"factor": 2}, "runtime.extraArgs": args},
            "spec.runtime.extraArgs",
            ("what spec.contextExtension is done with", "remove one of the two"),
        )
    for args, field in (
        (["--compilation-config", '{"custom_ops": []}'], "mode"),
        (["-cc.backend=eager"], "cudaGraphs"),
    ):
        yield Bad(
            f"compiled-{args[0]}",
            {f"compilation.{field}": "none", "runtime.extraArgs": args},
            "spec.runtime.extraArgs",
            ("what mode and cudaGraphs of spec.compilation become", "remove one of the two"),
        )
    yield Bad(
        "two-connectors",
        {"batching.kvOffloadingSize": "1Gi", "runtime.extraArgs": ["--kv-transfer-config.kv_role=kv_both"]},
        "spec.runtime.extraArgs",
        ("vLLM would replace the one of --kv-transfer-config", "remove one of the two"),
    )


def _on_cpus() -> Iterator[Bad]:
    for path, value, words in (
        ("attention.backend", "FLASH_ATTN", "one attention backend of their own"),
        ("compilation.cudaGraphs", "full", "no CUDA graphs"),
        ("batching.kvOffloadingSize", "1Gi", "VLLM_CPU_KVCACHE_SPACE"),
        ("runtime.sleepMode", True, "no GPU memory to free"),
    ):
        yield Bad(f"cpu-{path}", {**CPU, path: value}, f"spec.{path}", (words, "remove it"))


def _of_pooling() -> Iterator[Bad]:
    for path, value in (
        ("generation.toolCallParser", "hermes"),
        ("generation.reasoningParser", "qwen3"),
        ("generation.defaults", {"topK": 1}),
        ("speculativeDecoding", {"method": "ngram", "numSpeculativeTokens": 2}),
    ):
        change = {**POOLING, path: value}
        yield Bad(f"pooling-{path}", change, f"spec.{path}", ("a pooling model", "set spec.model.runner to generate"))
