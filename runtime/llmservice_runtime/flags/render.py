"""The knobs of an LLMService as vLLM flags: pure, in a fixed order, nothing said that vLLM would do anyway."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from llmservice_runtime.contract import DRAIN_MIDDLEWARE
from llmservice_runtime.flags.engine_options import (
    EngineOptions,
    GenerationDefaults,
    LoRA,
    compute_dtype,
    quantization_method,
)

# The fields' words for what vLLM calls otherwise.
COMPILATION_MODES: Mapping[str, str] = MappingProxyType(
    {
        "none": "NONE",
        "stockTorchCompile": "STOCK_TORCH_COMPILE",
        "dynamoTraceOnce": "DYNAMO_TRACE_ONCE",
        "vllmCompile": "VLLM_COMPILE",
    }
)
CUDA_GRAPHS: Mapping[str, str] = MappingProxyType(
    {
        "none": "NONE",
        "piecewise": "PIECEWISE",
        "full": "FULL",
        "fullDecodeOnly": "FULL_DECODE_ONLY",
        "fullAndPiecewise": "FULL_AND_PIECEWISE",
    }
)
SPECULATIVE_METHODS: Mapping[str, str] = MappingProxyType({"draftModel": "draft_model"})


@dataclass(frozen=True)
class _Row:
    """One typed flag: where its value comes from, and the field that users set instead."""

    flag: str
    field: str
    tokens: Callable[[EngineOptions], tuple[str, ...]]


def _value(flag: str, field: str, read: Callable[[EngineOptions], object]) -> _Row:
    """A flag with one value; absent while the value is None."""

    def tokens(options: EngineOptions) -> tuple[str, ...]:
        value = read(options)
        return () if value is None else (flag, str(value))

    return _Row(flag, field, tokens)


def _unless(flag: str, field: str, default: object, read: Callable[[EngineOptions], object]) -> _Row:
    """A flag with one value; absent while the value is vLLM's own default."""
    return _value(flag, field, lambda options: None if read(options) == default else read(options))


def _switch(flag: str, field: str, read: Callable[[EngineOptions], bool | None]) -> _Row:
    """A boolean flag: itself, its --no- form, or nothing."""

    def tokens(options: EngineOptions) -> tuple[str, ...]:
        value = read(options)
        if value is None:
            return ()
        return (flag,) if value else (f"--no-{flag[2:]}",)

    return _Row(flag, field, tokens)


def _json(flag: str, field: str, read: Callable[[EngineOptions], Mapping[str, object]]) -> _Row:
    """A flag with a JSON object of what is said; absent when nothing is. Sorted: the same options, the same pod."""

    def text(options: EngineOptions) -> str | None:
        said = {key: value for key, value in read(options).items() if value is not None}
        return json.dumps(said, sort_keys=True, separators=(",", ":")) if said else None

    return _value(flag, field, text)


def _served_model_names(options: EngineOptions) -> tuple[str, ...]:
    return ("--served-model-name", *options.served_model_names) if options.served_model_names else ()


# No host: vLLM compares names in lower case. An empty list would allow all of them, and this says what to do.
NO_MEDIA_DOMAIN = "spec.multimodal.allowedMediaDomains"


def _media_domains(options: EngineOptions) -> tuple[str, ...]:
    """vLLM's own default is to fetch whatever a client names."""
    if options.allowed_media_domains is None:
        return ()
    return ("--allowed-media-domains", *(options.allowed_media_domains or (NO_MEDIA_DOMAIN,)))


def _offloading_size(options: EngineOptions) -> str | None:
    """GiB, as short as it can be written."""
    gib = options.kv_offloading_gib
    return None if gib is None else repr(gib).removesuffix(".0")


def _compilation(options: EngineOptions) -> Mapping[str, object]:
    return {
        "mode": COMPILATION_MODES.get(options.compilation_mode or ""),
        "cudagraph_mode": CUDA_GRAPHS.get(options.cuda_graphs or ""),
    }


def _speculation(options: EngineOptions) -> Mapping[str, object]:
    speculation = options.speculation
    if speculation is None:
        return {}
    said = {field.name: getattr(speculation, field.name) for field in fields(speculation)}
    return said | {"method": SPECULATIVE_METHODS.get(speculation.method, speculation.method)}


def _lora(read: Callable[[LoRA], object]) -> Callable[[EngineOptions], object]:
    return lambda options: None if options.lora is None else read(options.lora)


def _generation_defaults(options: EngineOptions) -> Mapping[str, object]:
    """Under the names of generation_config.json."""
    said = {field.name: getattr(options.generation_defaults, field.name) for field in fields(GenerationDefaults)}
    said["max_new_tokens"] = said.pop("max_tokens")
    return said


_ROWS: tuple[_Row, ...] = (
    _value("--model", "spec.model.uri", lambda o: o.model),
    _Row("--served-model-name", "spec.model.servedModelNames", _served_model_names),
    _unless("--runner", "spec.model.runner", "auto", lambda o: o.runner),
    _unless("--convert", "spec.model.convert", "auto", lambda o: o.convert),
    _value("--chat-template", "spec.model.chatTemplate", lambda o: o.chat_template),
    _switch("--trust-remote-code", "spec.model.trustRemoteCode", lambda o: o.trust_remote_code or None),
    _unless("--dtype", "spec.precision.dtype", "auto", compute_dtype),
    _value("--quantization", "spec.precision.quantization", quantization_method),
    _unless("--kv-cache-dtype", "spec.precision.kvCache", "auto", lambda o: o.kv_cache),
    _unless("--tensor-parallel-size", "spec.parallelism.tensorParallelSize", 1, lambda o: o.tensor_parallel_size),
    _unless("--pipeline-parallel-size", "spec.parallelism.pipelineParallelSize", 1, lambda o: o.pipeline_parallel_size),
    _unless("--data-parallel-size", "spec.parallelism.dataParallelSize", 1, lambda o: o.data_parallel_size),
    _switch("--enable-expert-parallel", "spec.parallelism.expertParallel", lambda o: o.expert_parallel or None),
    _value("--max-num-seqs", "spec.batching.maxNumSeqs", lambda o: o.max_num_seqs),
    _value("--max-num-batched-tokens", "spec.batching.maxNumBatchedTokens", lambda o: o.max_num_batched_tokens),
    _value("--max-model-len", "spec.batching.maxModelLen", lambda o: o.max_model_len),
    _value("--max-num-queued-reqs", "spec.batching.maxNumQueuedRequests", lambda o: o.max_num_queued_requests),
    _value("--max-num-queued-tokens", "spec.batching.maxNumQueuedTokens", lambda o: o.max_num_queued_tokens),
    _switch("--enable-chunked-prefill", "spec.batching.chunkedPrefill", lambda o: o.chunked_prefill),
    _value(
        "--long-prefill-token-threshold",
        "spec.batching.longPrefillTokenThreshold",
        lambda o: o.long_prefill_token_threshold or None,
    ),
    _switch("--enable-prefix-caching", "spec.batching.prefixCaching", lambda o: o.prefix_caching),
    _value("--prefix-caching-hash-algo", "spec.batching.prefixCachingHashAlgo", lambda o: o.prefix_caching_hash_algo),
    _value("--scheduling-policy", "spec.batching.schedulingPolicy", lambda o: o.scheduling_policy),
    _value("--block-size", "spec.batching.blockSize", lambda o: o.block_size),
    _value("--kv-offloading-size", "spec.batching.kvOffloadingSize", _offloading_size),
    _value("--kv-offloading-backend", "spec.batching.kvOffloadingBackend", lambda o: o.kv_offloading_backend),
    _unless("--attention-backend", "spec.attention.backend", "auto", lambda o: o.attention_backend),
    _switch("--enforce-eager", "spec.compilation.enforceEager", lambda o: o.enforce_eager or None),
    _json("--compilation-config", "spec.compilation", _compilation),
    _value("--optimization-level", "spec.compilation.optimizationLevel", lambda o: o.optimization_level),
    _json("--speculative-config", "spec.speculativeDecoding", _speculation),
    _switch("--enable-lora", "spec.lora", lambda o: None if o.lora is None else True),
    _value("--max-loras", "spec.lora.maxLoras", _lora(lambda lora: lora.max_loras)),
    _value("--max-lora-rank", "spec.lora.maxLoraRank", _lora(lambda lora: lora.max_lora_rank)),
    _value("--max-cpu-loras", "spec.lora.maxCpuLoras", _lora(lambda lora: lora.max_cpu_loras)),
    _switch(
        "--enable-auto-tool-choice",
        "spec.generation.toolCallParser",
        lambda o: None if o.tool_call_parser is None else True,
    ),
    _value("--tool-call-parser", "spec.generation.toolCallParser", lambda o: o.tool_call_parser),
    _value("--reasoning-parser", "spec.generation.reasoningParser", lambda o: o.reasoning_parser),
    _value("--seed", "spec.generation.seed", lambda o: o.seed or None),
    _json("--override-generation-config", "spec.generation.defaults", _generation_defaults),
    _Row("--allowed-media-domains", "spec.multimodal.allowedMediaDomains", _media_domains),
    _switch("--enable-sleep-mode", "spec.runtime.sleepMode", lambda o: o.sleep_mode or None),
    _value("--gpu-memory-utilization", "spec.accelerator.gpuMemoryUtilization", lambda o: o.gpu_memory_utilization),
)

# Of these flags only some keys have a field; the others stay free for extraArgs, in the dotted form.
KEYED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "--compilation-config": MappingProxyType(
            {"mode": "spec.compilation.mode", "cudagraph_mode": "spec.compilation.cudaGraphs"}
        ),
        "--attention-config": MappingProxyType({"backend": "spec.attention.backend"}),
    }
)

# Flags with a field of their own, and the field. Those without a row never appear on the command line: secrets, what
# the supervisor does itself, and shorthands of flags that have a row.
TYPED: Mapping[str, str] = MappingProxyType(
    {row.flag: row.field for row in _ROWS if row.flag not in KEYED}
    | {
        "--revision": "spec.model.uri",
        "--api-key": "spec.endpoint.apiKeySecretRef",
        "--hf-token": "spec.model.hfTokenSecretRef",
        "--lora-modules": "spec.adapters",
        "--spec-method": "spec.speculativeDecoding",
        "--spec-model": "spec.speculativeDecoding",
        "--spec-tokens": "spec.speculativeDecoding",
    }
)

_NO_TLS = "the supervisor speaks plain HTTP to vLLM; end TLS in front of the Service"
_ONE_POD = "every replica is one pod; use spec.parallelism and spec.scaling.replicas"
_BALANCED = "the Service balances over replicas; use spec.scaling.replicas"

# Flags that the operator's own work depends on, and what would break or what to do instead.
OPERATOR_OWNED: Mapping[str, str] = MappingProxyType(
    {
        "--host": "the Service and the supervisor find vLLM at the host that the operator sets",
        "--port": "the Service and the probes rely on the operator's port; spec.endpoint.port is the Service's",
        "--uds": "the Service reaches vLLM over TCP",
        "--allowed-local-media-path": "clients could have files of the pod read; send media within the request",
        "--grpc": "the Service serves the HTTP API",
        "--config": "a file could say anything that fields and checks cover; write its entries as fields or extraArgs",
        "--middleware": "draining is done by the operator's middleware",
        "--shutdown-timeout": "the supervisor waits for streams; set spec.drain.timeoutSeconds",
        "--disable-access-log-for-endpoints": "it keeps probes and scrapes out of the log",
        "--ssl-keyfile": _NO_TLS,
        "--ssl-certfile": _NO_TLS,
        "--ssl-ca-certs": _NO_TLS,
        "--ssl-cert-reqs": _NO_TLS,
        "--ssl-ciphers": _NO_TLS,
        "--enable-ssl-refresh": _NO_TLS,
        "--headless": "every replica is a whole server; use spec.scaling.replicas",
        "--api-server-count": "the server runs one API process; use spec.scaling.replicas",
        "--nnodes": _ONE_POD,
        "--node-rank": _ONE_POD,
        "--master-addr": _ONE_POD,
        "--master-port": _ONE_POD,
        "--data-parallel-rank": _ONE_POD,
        "--data-parallel-start-rank": _ONE_POD,
        "--data-parallel-size-local": _ONE_POD,
        "--data-parallel-address": _ONE_POD,
        "--data-parallel-rpc-port": _ONE_POD,
        "--data-parallel-external-lb": _BALANCED,
        "--data-parallel-hybrid-lb": _BALANCED,
        "--data-parallel-multi-port-external-lb": _BALANCED,
        "--help": "vLLM would print its help and end",
    }
)


def render(options: EngineOptions) -> tuple[str, ...]:
    """vLLM's command line after the program: typed knobs, then the operator's own flags, then extraArgs."""
    typed = tuple(token for row in _ROWS for token in row.tokens(options))
    return typed + _own(options) + options.extra_args


def _own(options: EngineOptions) -> tuple[str, ...]:
    """The order is fixed: a changed order would be a changed pod.

    The supervisor waits for the streams before it stops vLLM. What is left then is to end at once: with a timeout of
    0 vLLM closes a stream properly (finish_reason "abort") and is gone in half a second.
    """
    return (
        "--host",
        options.host,
        "--port",
        str(options.port),
        "--middleware",
        DRAIN_MIDDLEWARE,
        "--shutdown-timeout",
        "0",
        "--disable-access-log-for-endpoints",
        "/health,/metrics",
    )
