"""What a rule might refuse by mistake, and must not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Good:
    id: str
    change: Mapping[str, Any]
    name: str = "good"


_POD = "podTemplate.spec"
_VOLUME = {"name": "a", "emptyDir": {}}

GOOD: tuple[Good, ...] = (
    Good("name-of-fifty", {}, name="a" * 50),
    Good("name-of-one", {}, name="a"),
    Good("uri-revision", {"model.uri": "hf://a/b@refs/pr/12"}),
    Good("uri-dots", {"model.uri": "hf://01-ai/Yi-1.5_9B@v1.0"}),
    Good("uri-claim-root", {"model.uri": "pvc://models"}),
    Good("uri-claim-slash", {"model.uri": "pvc://team.models/"}),
    Good("uri-claim-path", {"model.uri": "pvc://models/a/b_c/"}),
    Good("uri-file", {"model.uri": "file:///models/tiny-chat/"}),
    Good("len-auto", {"batching.maxModelLen": "auto"}),
    Good("len-number", {"batching.maxModelLen": 10_485_760}),
    Good(
        "auto-without-chunks",
        {"batching": {"chunkedPrefill": False, "maxModelLen": "auto", "maxNumBatchedTokens": 64}},
    ),
    Good(
        "equal-without-chunks",
        {"batching": {"chunkedPrefill": False, "maxModelLen": 4096, "maxNumBatchedTokens": 4096}},
    ),
    Good("tokens-equal-seqs", {"batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 64}}),
    Good("fp8-per-block", {"precision": {"weights": "fp8", "quantization": "fp8_per_block"}}),
    Good("float32-both", {"precision": {"weights": "float32", "dtype": "float32"}}),
    Good("torchao-in-float32", {"precision": {"quantization": "torchao", "dtype": "float32"}}),
    Good("mxfp4-in-bfloat16", {"precision": {"quantization": "mxfp4", "dtype": "bfloat16"}}),
    Good("experts-by-data", {"parallelism": {"enableExpertParallel": True, "dataParallelSize": 2}}),
    Good("no-experts-on-one", {"parallelism.enableExpertParallel": False}),
    Good("amd-fp8", {"accelerator.type": "amd", "precision.quantization": "fp8_per_tensor"}),
    Good("nvidia-marlin", {"precision.quantization": "gptq_marlin"}),
    Good("cpu-fp8-cache", {"accelerator.type": "cpu", "precision.kvCache": "fp8"}),
    Good("utilization-whole", {"accelerator.gpuMemoryUtilization": 1}),
    Good("replicas-none", {"scaling.replicas": 0}),
    Good("replicas-most", {"scaling.replicas": 1000}),
    Good("drain-none", {"drain.timeoutSeconds": 0}),
    Good("existing-claim", {"model.cache.claimName": "models"}),
    Good("image-digest", {"runtime.image": "registry.example:5000/a/b-c/d_e:v1@sha256:" + "0" * 64}),
    Good("image-plain", {"runtime.image": "vllm:v0.32.0"}),
    Good("image-local", {"runtime.image": "localhost:5000/vllm"}),
    Good("env-kv-space", {"runtime.env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "2"}]}),
    Good("env-empty", {"runtime.env": [{"name": "A"}]}),
    Good("args-negative", {"runtime.extraArgs": ["--seed", "-1"]}),
    Good("args-json", {"runtime.extraArgs": ["--hf-overrides", '{"a": 1}', '--compilation-config={"level": 3}']}),
    Good("args-dotted", {"runtime.extraArgs": ["--compilation-config.cudagraph_mode", "NONE", "-O3"]}),
    Good("hugepages", {"runtime.resources.limits": {"hugepages-2Mi": "2Mi", "cpu": 4, "memory": "1.5Gi"}}),
    Good("equal-limit", {"runtime.resources": {"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}}}),
    Good("request-alone", {"runtime.resources": {"requests": {"cpu": 2}, "limits": {"memory": "1Gi"}}}),
    Good("label-domain", {"podTemplate.metadata.labels": {"example.com/a.b": "", "x": "y"}}),
    Good("tolerate-all", {f"{_POD}.tolerations": [{"operator": "Exists"}]}),
    Good("tolerate-same-key", {f"{_POD}.tolerations": [{"key": "a", "value": "b"}, {"key": "a", "value": "c"}]}),
    Good(
        "mount-below-tmp",
        {f"{_POD}.volumes": [_VOLUME], f"{_POD}.volumeMounts": [{"name": "a", "mountPath": "/tmp/a"}]},
    ),
    Good(
        "volume-mounted-twice",
        {
            f"{_POD}.volumes": [_VOLUME],
            f"{_POD}.volumeMounts": [{"name": "a", "mountPath": "/mnt/a"}, {"name": "a", "mountPath": "/mnt/b"}],
        },
    ),
    Good("sidecar", {f"{_POD}.initContainers": [{"name": "proxy", "image": "a", "restartPolicy": "Always"}]}),
)
