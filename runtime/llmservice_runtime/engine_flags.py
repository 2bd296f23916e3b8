"""The knobs of an LLMService as vLLM flags: pure, in a fixed order, nothing said that vLLM would do anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmservice_runtime.contract import DRAIN_MIDDLEWARE, HTTP_PORT

# What `weights` adds where no quantization method is named. `fp8` reads a checkpoint that is fp8 already, and converts
# one that is not quantized (vLLM 0.32 then takes it for fp8_per_tensor, and says so in a warning). There is no method
# that makes int4 weights at load, and the one for int8 leaves all but MoE layers as they are: with `int8` and `int4`
# the checkpoint must be quantized already, and vLLM finds its method by itself.
LOAD_METHODS: Mapping[str, str] = MappingProxyType({"fp8": "fp8"})
FLOAT_WEIGHTS = frozenset({"float32", "bfloat16", "float16"})


@dataclass(frozen=True)
class EngineOptions:
    """Everything that decides vLLM's command line. None means: not said, vLLM decides."""

    model: str
    served_names: tuple[str, ...] = ()
    revision: str | None = None
    trust_remote_code: bool = False
    weights: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | str | None = None
    max_num_queued_requests: int | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    scheduling_policy: str | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    host: str = "0.0.0.0"
    port: int = HTTP_PORT
    extra_args: tuple[str, ...] = ()


def compute_dtype(options: EngineOptions) -> str:
    """vLLM has one float type for weights and arithmetic: `dtype`, else the float type of the weights."""
    if options.dtype == "auto" and options.weights in FLOAT_WEIGHTS:
        return options.weights
    return options.dtype


def quantization_method(options: EngineOptions) -> str | None:
    """The method that was named, else the one that converts to the asked weights at load."""
    return options.quantization or LOAD_METHODS.get(options.weights)


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


def _served_names(options: EngineOptions) -> tuple[str, ...]:
    return ("--served-model-name", *options.served_names) if options.served_names else ()


_ROWS: tuple[_Row, ...] = (
    _value("--model", "spec.model.uri", lambda o: o.model),
    _Row("--served-model-name", "spec.model.servedNames", _served_names),
    _value("--revision", "spec.model.uri", lambda o: o.revision),
    _switch("--trust-remote-code", "spec.model.trustRemoteCode", lambda o: o.trust_remote_code or None),
    _unless("--dtype", "spec.precision.dtype", "auto", compute_dtype),
    _value("--quantization", "spec.precision.quantization", quantization_method),
    _unless("--kv-cache-dtype", "spec.precision.kvCache", "auto", lambda o: o.kv_cache),
    _unless("--tensor-parallel-size", "spec.parallelism.tensorParallelSize", 1, lambda o: o.tensor_parallel_size),
    _unless("--pipeline-parallel-size", "spec.parallelism.pipelineParallelSize", 1, lambda o: o.pipeline_parallel_size),
    _unless("--data-parallel-size", "spec.parallelism.dataParallelSize", 1, lambda o: o.data_parallel_size),
    _switch(
        "--enable-expert-parallel", "spec.parallelism.enableExpertParallel", lambda o: o.enable_expert_parallel or None
    ),
    _value("--max-num-seqs", "spec.batching.maxNumSeqs", lambda o: o.max_num_seqs),
    _value("--max-num-batched-tokens", "spec.batching.maxNumBatchedTokens", lambda o: o.max_num_batched_tokens),
    _value("--max-model-len", "spec.batching.maxModelLen", lambda o: o.max_model_len),
    _value("--max-num-queued-reqs", "spec.batching.maxNumQueuedRequests", lambda o: o.max_num_queued_requests),
    _switch("--enable-chunked-prefill", "spec.batching.chunkedPrefill", lambda o: o.chunked_prefill),
    _switch("--enable-prefix-caching", "spec.batching.prefixCaching", lambda o: o.prefix_caching),
    _value("--scheduling-policy", "spec.batching.schedulingPolicy", lambda o: o.scheduling_policy),
    _value("--block-size", "spec.batching.blockSize", lambda o: o.block_size),
    _value("--gpu-memory-utilization", "spec.accelerator.gpuMemoryUtilization", lambda o: o.gpu_memory_utilization),
)

# Flags with a field of their own, and the field. Those without a row never appear on the command line: secrets.
TYPED: Mapping[str, str] = MappingProxyType(
    {row.flag: row.field for row in _ROWS}
    | {"--api-key": "spec.endpoint.apiKeySecretRef", "--hf-token": "spec.model.tokenSecretRef"}
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
