"""What a rule might refuse by mistake, and must not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Good:
    id: str
    change: Mapping[str, Any]
    name: str = "good"


def _draft(uri: str, **more: Any) -> Mapping[str, Any]:
    draft = {"method": "draftModel", "model": {"uri": uri}, "numSpeculativeTokens": 3, **more}
    return {"speculativeDecoding": draft}


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
    Good("uri-bucket", {"model.uri": "s3://models"}),
    Good("uri-bucket-prefix", {"model.uri": "s3://team.models/qwen/7b/", "model.cache.size": "10Gi"}),
    Good("uri-image", {"model.uri": "image://registry.example:5000/models/qwen:v1"}),
    Good("uri-image-path", {"model.uri": "image://qwen@sha256:" + "0" * 64 + "#/models/qwen"}),
    Good(
        "s3-all",
        {
            "model.uri": "s3://models/a",
            "model.s3": {
                "endpoint": "http://minio.storage.svc:9000",
                "region": "eu-central-1",
                "credentialsSecretRef": {"name": "keys"},
            },
        },
    ),
    Good("uri-gs", {"model.uri": "gs://team_models/qwen", "model.cache.size": "10Gi"}),
    Good(
        "gcs-all",
        {
            "model.uri": "gs://models/a",
            "model.gcs": {
                "endpoint": "http://gcs.storage.svc:4443",
                "credentialsSecretRef": {"name": "google", "key": "reader.json"},
            },
        },
    ),
    Good(
        "azure-all",
        {
            "model.uri": "az://models/a/b/",
            "model.azure": {
                "account": "weights",
                "endpoint": "https://weights.blob.core.chinacloudapi.cn",
                "credentialsSecretRef": {"name": "azure"},
            },
            "model.cache.size": "10Gi",
        },
    ),
    Good(
        "azure-by-variable",
        {
            "model.uri": "az://models/a",
            "runtime.env": [{"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": "weights"}],
        },
    ),
    Good("gcs-of-an-adapter", {"model.gcs.endpoint": "http://gcs", "adapters": [{"name": "a", "uri": "gs://abc"}]}),
    Good("azure-of-the-draft", {"model.azure.account": "weights", **_draft("az://models/a")}),
    Good("s3-of-the-draft", {"model.s3": {"region": "a"}, **_draft("s3://models/a")}),
    Good("s3-of-an-adapter", {"model.s3": {"region": "a"}, "adapters": [{"name": "a", "uri": "s3://abc"}]}),
    Good("s3-of-adapters-to-come", {"model.uri": "pvc://a", "model.s3": {"region": "a"}, "lora": {}}),
    Good(
        "token-of-the-draft",
        {"model.uri": "pvc://a", "model.hfTokenSecretRef": {"name": "a", "key": "b"}, **_draft("hf://a/b")},
    ),
    Good("cache-of-the-draft", {"model.uri": "pvc://a", "model.cache.size": "1Gi", **_draft("hf://a/b")}),
    Good("pooling", {"model.runner": "pooling", "model.convert": "embed", "generation.seed": 7}),
    Good("convert-none", {"model.convert": "none"}),
    Good("chat-template", {"model.chatTemplate.configMapKeyRef": {"name": "a.b", "key": "chat.jinja"}}),
    Good(
        "queues",
        {"batching": {"maxNumQueuedTokens": 9, "longPrefillTokenThreshold": 0, "chunkedPrefill": False}},
    ),
    Good("long-prefill", {"batching": {"longPrefillTokenThreshold": 64, "maxModelLen": 64}}),
    Good("long-prefill-auto", {"batching": {"longPrefillTokenThreshold": 64, "maxModelLen": "auto"}}),
    Good("hash", {"batching": {"prefixCachingHashAlgo": "sha256_cbor", "prefixCaching": True}}),
    Good("offload", {"batching": {"kvOffloadingSize": "0.5Gi", "kvOffloadingBackend": "lmcache"}}),
    Good("cpu-auto-attention", {"accelerator.type": "cpu", "attention.backend": "auto"}),
    Good("attention", {"attention.backend": "FLASHINFER"}),
    Good(
        "eager", {"compilation": {"enforceEager": True, "mode": "none", "cudaGraphs": "none", "optimizationLevel": 0}}
    ),
    Good(
        "compiled", {"compilation": {"mode": "vllmCompile", "cudaGraphs": "fullAndPiecewise", "optimizationLevel": 3}}
    ),
    Good("graphs-alone", {"compilation": {"cudaGraphs": "piecewise"}, "accelerator.type": "nvidia"}),
    Good("extended", {"contextExtension": {"factor": 1.5, "originalMaxPositionEmbeddings": 32768}}),
    Good(
        "extended-rope",
        {"contextExtension": {"method": "yarn", "factor": 4}, "model.architecture.positions": "rope"},
    ),
    Good(
        "ngram",
        {
            "speculativeDecoding": {
                "method": "ngram",
                "numSpeculativeTokens": 64,
                "promptLookupMin": 2,
                "promptLookupMax": 2,
            }
        },
    ),
    Good("mtp-alone", {"speculativeDecoding": {"method": "mtp", "numSpeculativeTokens": 1}}),
    Good("draft-by-one", {"parallelism.tensorParallelSize": 4, **_draft("hf://a/b", draftTensorParallelSize=1)}),
    Good("draft-by-all", {"parallelism.tensorParallelSize": 4, **_draft("hf://a/b", draftTensorParallelSize=4)}),
    Good(
        "adapters",
        {
            "adapters": [{"name": "a", "uri": "hf://a/b"}, {"name": "b.C_d-1", "uri": "file:///b"}],
            "lora": {"maxLoras": 2, "maxLoraRank": 320, "maxCpuLoras": 2},
            "model.servedModelNames": ["good"],
        },
    ),
    Good(
        "adapters-beside-served", {"adapters": [{"name": "good", "uri": "hf://a/b"}], "model.servedModelNames": ["a"]}
    ),
    Good("lora-empty", {"lora": {}}),
    Good(
        "generation",
        {
            "generation": {
                "toolCallParser": "granite-20b-fc",
                "reasoningParser": "openai_gptoss",
                "seed": 4_294_967_295,
                "defaults": {
                    "temperature": 0,
                    "topP": 1,
                    "topK": 0,
                    "minP": 0,
                    "repetitionPenalty": 1.05,
                    "maxTokens": 1,
                },
            }
        },
    ),
    Good("media-of-nobody", {"multimodal.allowedMediaDomains": []}),
    Good("media-of-some", {"multimodal.allowedMediaDomains": ["a.example", "10.0.0.7", "xn--bcher-kva.example"]}),
    Good("media-of-anybody", {"multimodal.allowedMediaDomains": ["*"]}),
    Good("sleep", {"runtime.sleepMode": True}),
    Good("cpu-awake", {"accelerator.type": "cpu", "runtime.sleepMode": False}),
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
    Good("fp8-torchao-in-float32", {"precision": {"weights": "fp8", "quantization": "torchao", "dtype": "float32"}}),
    Good("mxfp4-in-bfloat16", {"precision": {"quantization": "mxfp4", "dtype": "bfloat16"}}),
    Good("experts-by-data", {"parallelism": {"expertParallel": True, "dataParallelSize": 2}}),
    Good("no-experts-on-one", {"parallelism.expertParallel": False}),
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
    Good("env-long", {"runtime.env": [{"name": f"A{n}", "value": "x" * 1024} for n in range(32)]}),
    Good("env-empty", {"runtime.env": [{"name": "A"}]}),
    Good("args-negative", {"runtime.extraArgs": ["--max-logprobs", "-1"]}),
    Good("args-json", {"runtime.extraArgs": ["--hf-overrides", '{"a": 1}', '--compilation-config={"custom_ops": []}']}),
    Good("args-dotted", {"runtime.extraArgs": ["--compilation-config.backend", "eager", "-ac.flash_attn_version=2"]}),
    Good("args-beside-eager", {"compilation.enforceEager": True, "runtime.extraArgs": ["-cc.backend=eager"]}),
    Good("args-beside-graphs", {"compilation.cudaGraphs": "none", "runtime.extraArgs": ["-ac.flash_attn_version=2"]}),
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
