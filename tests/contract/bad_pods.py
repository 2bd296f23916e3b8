"""Wrong flags, containers and pods, refused by CEL."""

from collections.abc import Iterator

from tests.contract.manifests import Bad, wrong

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
    (["-ep"], "spec.parallelism.expertParallel"),
    (["--no-enable-expert-par"], "spec.parallelism.expertParallel"),
    (["-q", "awq"], "spec.precision.quantization"),
    (["-qawq"], "spec.precision.quantization"),
    (["--dt=half"], "spec.precision.dtype"),
    (["--kv-cache-dtype", "fp8"], "spec.precision.kvCache"),
    (["--no-enable-prefix-caching"], "spec.batching.prefixCaching"),
    (["--enable-ch"], "spec.batching.chunkedPrefill"),
    (["--device-memory-utilization=0.5"], "spec.accelerator.gpuMemoryUtilization"),
    (["--trust-remote-code"], "spec.model.trustRemoteCode"),
    (["--served-model-name", "a"], "spec.model.servedModelNames"),
    (["--model", "a/b"], "spec.model.uri"),
    (["--rev=main"], "spec.model.uri"),
    (["--api-key", "secret"], "spec.endpoint.apiKeySecretRef"),
    (["--hf_token=secret"], "spec.model.hfTokenSecretRef"),
    (["--block-size.x=16"], "spec.batching.blockSize"),
    (["--enforce-eager"], "spec.compilation.enforceEager"),
    (["-O3"], "spec.compilation.optimizationLevel"),
    (["-O=2"], "spec.compilation.optimizationLevel"),
    (["-O", "2"], "spec.compilation.optimizationLevel"),
    (["--compilation-config.mode", "3"], "spec.compilation.mode"),
    (["--compilation_config.mode=3"], "spec.compilation.mode"),
    (["-cc.cudagraph_mode", "NONE"], "spec.compilation.cudaGraphs"),
    (["--attention-backend", "FLASHINFER"], "spec.attention.backend"),
    (["--attention-config.backend=FLASHINFER"], "spec.attention.backend"),
    (["-ac.backend", "FLASHINFER"], "spec.attention.backend"),
    (["--speculative-config", "{}"], "spec.speculativeDecoding"),
    (["--speculative-config.model", "a/b"], "spec.speculativeDecoding"),
    (["-sc.method=ngram"], "spec.speculativeDecoding"),
    (["--spec-tokens", "4"], "spec.speculativeDecoding"),
    (["--lora-modules", "a=b"], "spec.adapters"),
    (["--enable-lora"], "spec.lora"),
    (["--seed", "7"], "spec.generation.seed"),
    (["--runner=pooling"], "spec.model.runner"),
    (["--override-generation-config.top_k=1"], "spec.generation.defaults"),
    (["--allowed-media-domains", "a.example"], "spec.multimodal.allowedMediaDomains"),
    (["--allowed-local-media-path=/mnt"], "belongs to the operator"),
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
    yield wrong("media-any-and-some", "multimodal.allowedMediaDomains", ["*", "a.example"], "every host", "remove")
    at = "spec.runtime.extraArgs"
    for args, words in SPELLINGS:
        yield Bad(f"args {' '.join(args)}", {"runtime.extraArgs": args}, f"{at}[0]", (words,))
    yield Bad(
        "args-second",
        {"runtime.extraArgs": ["--max-logprobs=1", "--port=1"]},
        f"{at}[1]",
        ("belongs to the operator",),
    )
    yield Bad(
        "args-positional", {"runtime.extraArgs": ["a/b"]}, at, ("the first item must be a flag", "spec.model.uri")
    )
    yield Bad("args-end", {"runtime.extraArgs": ["--max-logprobs=1", "--"]}, f"{at}[1]", ("remove it",))
    yield Bad("args-joined", {"runtime.extraArgs": ["--max-logprobs 1"]}, f"{at}[0]", ("are two items", "--flag=value"))


def pods() -> Iterator[Bad]:
    env = "spec.runtime.env[0]"
    for name, words in (
        ("VLLM_API_KEY", "set spec.endpoint.apiKeySecretRef"),
        ("HF_TOKEN", "set spec.model.hfTokenSecretRef"),
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
    yield wrong(
        "resources-gpu", "runtime.resources.limits", {"nvidia.com/gpu": "1"}, "GPUs follow from spec.parallelism"
    )
    yield wrong(
        "request-over-limit",
        "runtime.resources",
        {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
        "lower the request or raise the limit",
        at=".requests",
    )
    meta, spec = "podTemplate.metadata", "podTemplate.spec"
    yield Bad(
        "label-domain", {f"{meta}.labels": {"app.kubernetes.io/name": "x"}}, f"spec.{meta}.labels", ("belong to",)
    )
    yield Bad(
        "annotation-domain", {f"{meta}.annotations": {"llmservice.dev/x": "x"}}, f"spec.{meta}.annotations", ("of",)
    )
    yield wrong(
        "env-long",
        "runtime.env",
        [{"name": f"A{n}", "value": "x" * 1024} for n in range(33)],
        "32,768 characters",
        "ConfigMap",
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
    for name in ("server", "runtime", "fetch"):
        yield Bad(
            f"init-name-{name}",
            {f"{spec}.initContainers": [{"name": name, "image": "a"}]},
            f"{at}.name",
            ("another name",),
        )
    yield Bad("init-image", {f"{spec}.initContainers": [{"name": "a"}]}, at, ("set image",))
