"""How vLLM computes: spec.precision, spec.parallelism, spec.batching, spec.accelerator, spec.attention,
spec.compilation, spec.contextExtension, spec.speculativeDecoding.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from llmservice_api.base import (
    BY_NAME,
    QUALIFIED_NAME,
    ApiModel,
    Many,
    ObjectName,
    Quantity,
    Uri,
    integer_or_auto_schema,
    knob,
)
from llmservice_api.dtypes import LOAD_METHODS, DType, KVCache, Quantization, Weights, float_dtype
from llmservice_api.model import Source, parse

MAX_TOKENS = 134_217_728
"""Above any model's context; small enough that sums do not overflow."""

MAX_NODES = 64
DEFAULT_REPLAY_PORT = 5558
USUAL_ACCELERATORS = 8
"""Of one node, as machines for large models are sold."""

Nodes = Annotated[Annotated[int, Field(ge=1, le=MAX_NODES)] | Literal["auto"], integer_or_auto_schema(MAX_NODES)]
MaxModelLen = Annotated[
    Annotated[int, Field(ge=1, le=MAX_TOKENS)] | Literal["auto"], integer_or_auto_schema(MAX_TOKENS)
]
ResourceName = Annotated[str, StringConstraints(min_length=3, max_length=317, pattern=QUALIFIED_NAME)]
Product = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]

TopologyKey = Annotated[str, StringConstraints(min_length=1, max_length=317, pattern=QUALIFIED_NAME)]
Interface = Annotated[
    str, StringConstraints(min_length=1, max_length=15, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.@]*[A-Za-z0-9])?$")
]
_DEVICE = r"^[A-Za-z0-9]([-A-Za-z0-9_]*[A-Za-z0-9])?$"
DeviceAttribute = Annotated[
    str,
    StringConstraints(
        min_length=3, max_length=96, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]{0,31}$"
    ),
]
Label = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class Precision(ApiModel):
    """What the weights and the KV cache are held in, and what vLLM computes in."""

    weights: Weights = knob(
        "auto",
        description="What the weights are held in. auto: as the checkpoint has them, quantized or not. fp8 converts a "
        "16-bit checkpoint at load, to half its memory; int8 and int4 need one that is quantized so. Must "
        "agree with dtype and quantization: see docs/serving/precision.md.",
        examples=["fp8"],
    )
    dtype: DType = knob(
        "auto",
        description="The type that vLLM computes in (--dtype). auto: the checkpoint's own 16-bit type. Use float16 on "
        "GPUs older than Ampere, which have no bfloat16, and float32 on CPUs without 16-bit arithmetic. Where weights "
        "names a float type, leave it at auto.",
        examples=["bfloat16"],
        flag="--dtype",
    )
    quantization: Quantization | None = knob(
        description="vLLM's quantization method (--quantization), for a checkpoint without a quantization_config that "
        "names it, or for one particular online method. Where weights is set too, the method must hold that type. "
        "Default: the checkpoint's, or that of weights.",
        examples=["compressed-tensors"],
        flag="--quantization",
    )
    kv_cache: KVCache = knob(
        "auto",
        description="What the KV cache is held in (--kv-cache-dtype). auto is the compute type. fp8 doubles the "
        "tokens that fit, for a small loss of accuracy.",
        examples=["fp8"],
        flag="--kv-cache-dtype",
    )

    @property
    def compute_dtype(self) -> DType:
        return float_dtype(self.dtype, self.weights)

    @property
    def method(self) -> str | None:
        """The named quantization method, else the one that converts to `weights` at load; None without one."""
        return self.quantization or LOAD_METHODS.get(self.weights)


class Network(ApiModel):
    """How the pods of a replica over several nodes exchange data. See docs/serving/several-nodes.md."""

    preset: Literal["tcp", "infiniband", "roce", "efa", "gke"] | None = knob(
        description="The network that NCCL has to use; where it is missing a start fails: tcp (no RDMA), infiniband, "
        "roce, efa (AWS), gke (Google's gIB). Default: NCCL chooses.",
        examples=["infiniband"],
    )
    interface: Interface | None = knob(
        description="Network interface in the pod for data and for NCCL's and gloo's own connections. Default: the one "
        "with the pod's address.",
        examples=["eth1"],
    )
    rdma_resource: ResourceName | None = knob(
        description="Resource by which a pod gets RDMA devices, as a device plugin advertises it. Needed with "
        "infiniband and roce. Default with efa: vpc.amazonaws.com/efa.",
        examples=["rdma/ib"],
    )
    rdma_count: int | None = knob(
        description="How many of rdmaResource each pod gets. Default: 1.", examples=[4], bounds=(1, 64)
    )
    rdma_devices: Many[Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=_DEVICE)]] | None = knob(
        description="With infiniband and roce: the devices for data (NCCL_IB_HCA, UCX_NET_DEVICES). Default: all that "
        "the pod has.",
        examples=[["mlx5_0", "mlx5_1"]],
        min_length=1,
        max_length=16,
    )
    host_network: bool = knob(
        False,
        description="The pods use their nodes' network and ports, as RDMA needs where no plugin gives pods devices of "
        "their own. Only one such pod fits on a node. Namespaces and the operator's policy must allow it.",
        examples=[True],
    )
    shared_memory: Quantity | None = knob(
        description="Size of /dev/shm, which counts as memory of the pod. Default: the operator's, 2Gi with several "
        "GPUs a pod.",
        examples=["16Gi"],
    )


class Parallelism(ApiModel):
    """How one replica is spread over accelerators. GPUs of one replica: the product of the three sizes."""

    nodes: Nodes = knob(
        1,
        description="Nodes of one replica, with one pod and an equal share of its GPUs on each. `auto`: as few as have "
        "GPUs where it fits. For models that no node holds; needs LeaderWorkerSet (docs/serving/several-nodes.md).",
        examples=[2, "auto"],
    )
    topology_key: TopologyKey | None = knob(
        description="With several nodes: they all have the same value of this node label, such as a rack, an NVLink "
        "domain or a zone. Default: any nodes.",
        examples=["topology.kubernetes.io/zone"],
    )
    step_timeout_seconds: int | None = knob(
        description="With several nodes: how long one step of the model may take until vLLM gives up, as when a node "
        "is cut off (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS). Default: 60.",
        examples=[120],
        bounds=(5, 3600),
    )
    network: Network | None = knob(
        description="With several nodes: the network between them. See docs/serving/several-nodes.md.",
        examples=[{"preset": "infiniband", "rdmaResource": "rdma/ib"}],
    )
    tensor_parallel_size: int = knob(
        1,
        description="Split every layer over this many GPUs of one node (--tensor-parallel-size). Raise it when the "
        "model does not fit into one GPU, or to answer faster; it must divide the model's attention heads.",
        examples=[2],
        bounds=(1, 64),
        flag="--tensor-parallel-size",
    )
    pipeline_parallel_size: int = knob(
        1,
        description="Split the layers into this many stages, a GPU or group of GPUs each (--pipeline-parallel-size). "
        "Raise it when tensor parallelism alone cannot hold the model, or the GPUs have no fast link.",
        examples=[2],
        bounds=(1, 64),
        flag="--pipeline-parallel-size",
    )
    data_parallel_size: int = knob(
        1,
        description="Copies of the engine behind one endpoint (--data-parallel-size), with nodes an equal share on "
        "each. Meant for mixture-of-experts models with expertParallel; for other models use scaling.replicas.",
        examples=[2],
        bounds=(1, 64),
        flag="--data-parallel-size",
    )
    data_parallel_mode: Literal["hybrid"] | None = knob(
        description="With several nodes: `hybrid` lets each node answer requests by its own engines "
        "(--data-parallel-hybrid-lb), all of them behind the Service. Default: one of them answers for all.",
        examples=["hybrid"],
    )
    expert_parallel: bool = knob(
        False,
        description="Place whole experts of a mixture-of-experts model on different GPUs instead of slicing each "
        "(--enable-expert-parallel). Needs more than one GPU by tensor or data parallelism.",
        examples=[True],
        flag="--enable-expert-parallel",
    )

    @property
    def accelerators(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def node_count(self) -> int:
        """Nodes of one replica. Until `auto` is resolved, which takes the cluster's nodes, those of usual machines."""
        if self.nodes != "auto":
            return self.nodes
        possible = self.possible_nodes
        return next((n for n in possible if self.accelerators <= n * USUAL_ACCELERATORS), possible[-1])

    @property
    def possible_nodes(self) -> tuple[int, ...]:
        """Over how many nodes the sizes can be spread evenly, ascending. Data-parallel ranks of a model without experts
        stay on one: vLLM refuses others."""
        if self.data_parallel_size > 1 and not self.expert_parallel:
            return (1,)
        ranks = self.accelerators if self.data_parallel_size == 1 else self.data_parallel_size
        return tuple(n for n in range(1, min(ranks, MAX_NODES) + 1) if ranks % n == 0)

    @property
    def accelerators_of_node(self) -> int:
        """GPUs of one of its pods."""
        return self.accelerators // self.node_count


class KVEvents(ApiModel):
    """Which blocks of the KV cache vLLM stores and removes, for `llmservice advise routing` and for routers. They hold
    the tokens of prompts, and vLLM asks nobody who reads them."""

    enabled: bool = knob(
        False,
        description="Keep the latest events (--kv-events-config), and hash blocks alike on all replicas "
        "(PYTHONHASHSEED, sha256_cbor). Default: false.",
        examples=[True],
        flag="--kv-events-config.enable_kv_cache_events",
        vllm_default=False,
    )
    replay_port: int = knob(
        DEFAULT_REPLAY_PORT,
        description="Port at which the latest events are asked for; open to the pod itself (kubectl port-forward), and "
        "with port to everybody who reaches the pod. Default: 5558. With dataParallelSize also the ports after it.",
        examples=[5558],
        bounds=(1024, 65_000),
        flag="--kv-events-config.replay_endpoint",
    )
    port: int | None = knob(
        description="Port at which events are published as they happen, for a router. Only pods that may read prompts "
        "should reach it and replayPort: see docs/serving/kv-events.md. Default: nothing is published.",
        examples=[5557],
        bounds=(1024, 65_000),
        flag=("--kv-events-config.topic", "--kv-events-config.endpoint"),
    )


class Batching(ApiModel):
    """Continuous batching and PagedAttention: how many requests share a step, and how long they may be."""

    max_num_seqs: int | None = knob(
        description="Most sequences that are worked on in one step (--max-num-seqs). More raise throughput and, under "
        "load, the time per token of each. Default: vLLM's, by the accelerator's memory (256 to 1024; 128 on CPUs).",
        examples=[256],
        bounds=(1, 65_536),
        flag="--max-num-seqs",
    )
    max_num_batched_tokens: int | None = knob(
        description="Most tokens, of all sequences together, in one step (--max-num-batched-tokens). Lower it for a "
        "steadier time per token, raise it for throughput on long prompts. At least maxNumSeqs. Default: vLLM's, by "
        "the accelerator's memory (2048 to 16384).",
        examples=[8192],
        bounds=(1, MAX_TOKENS),
        flag="--max-num-batched-tokens",
    )
    max_model_len: MaxModelLen | None = knob(
        description="Most tokens of one request, prompt and answer together (--max-model-len). An integer, or `auto` "
        "for the longest that surely fits, by the plan; where nothing could be planned, by vLLM. Lower it when the KV "
        "cache is too small for the model's own length. Default: the model's own.",
        examples=[32768, "auto"],
        flag="--max-model-len",
    )
    max_num_queued_requests: int | None = knob(
        description="Most requests in a replica at once, running and waiting together (--max-num-queued-reqs); one "
        "more is answered 503. Take maxNumSeqs (times dataParallelSize) and add the queue that you want: below it the "
        "batch never fills. Default: no limit.",
        examples=[64],
        bounds=(1, 1_000_000),
        flag="--max-num-queued-reqs",
    )
    max_num_queued_tokens: int | None = knob(
        description="Most prompt tokens, all together, of requests whose prompt is not computed yet "
        "(--max-num-queued-tokens); a request beyond that is answered 503. A good limit: the prompt tokens that a "
        "replica computes in a second, times the seconds that a first token may take. Default: no limit.",
        examples=[131072],
        bounds=(1, 1_000_000_000),
        flag="--max-num-queued-tokens",
    )
    chunked_prefill: bool | None = knob(
        description="Work long prompts off in pieces between the steps of other requests (--enable-chunked-prefill). "
        "Default: on where the model supports it. Turning it off asks for maxNumBatchedTokens of at least maxModelLen.",
        examples=[True],
        flag="--enable-chunked-prefill",
    )
    long_prefill_token_threshold: int | None = knob(
        description="Prompts longer than this count as long, and one step takes at most so many of their tokens "
        "(--long-prefill-token-threshold): short requests then wait less behind long ones. 0 is off. Default: 0.",
        examples=[2048],
        bounds=(0, MAX_TOKENS),
        flag="--long-prefill-token-threshold",
        vllm_default=0,
        effective=0,
    )
    prefix_caching: bool | None = knob(
        description="Keep the KV cache of finished requests and reuse it for prompts that begin alike "
        "(--enable-prefix-caching). Default: on for most models. Turn it off when prompts never repeat and timing "
        "between tenants must not show what others asked.",
        examples=[True],
        flag="--enable-prefix-caching",
    )
    prefix_caching_hash_algo: Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] | None = knob(
        description="Hash that cached blocks are found by (--prefix-caching-hash-algo). The _cbor ones are the same in "
        "every process, for shared caches; xxhash is faster, but an attacker could make prompts collide: only where "
        "all clients trust each other. Default: sha256.",
        examples=["sha256_cbor"],
        flag="--prefix-caching-hash-algo",
        effective="sha256",
    )
    scheduling_policy: Literal["fcfs", "priority"] | None = knob(
        description="Which waiting request comes next (--scheduling-policy): fcfs, first come first served (vLLM's "
        "default), or priority, by the `priority` in each request.",
        examples=["priority"],
        flag="--scheduling-policy",
        effective="fcfs",
    )
    block_size: Literal[1, 8, 16, 32, 64, 128, 256] | None = knob(
        description="Tokens in one block of the paged KV cache (--block-size). Leave it out unless an attention "
        "backend asks for one. Default: vLLM's, by the backend (16; 128 on CPUs).",
        examples=[16],
        flag="--block-size",
    )
    kv_offloading_size: Quantity | None = knob(
        description="Memory of the node to keep KV cache in that the GPU has no room for (--kv-offloading-size): "
        "prefixes come back from there instead of being computed again. All ranks of a replica share it, and the "
        "container's memory must have room for it. Default: none.",
        examples=["64Gi"],
        flag="--kv-offloading-size",
    )
    kv_offloading_backend: Literal["native", "lmcache"] | None = knob(
        description="What moves KV cache to the node's memory (--kv-offloading-backend): vLLM itself (native), or "
        "lmcache, which the image must have and whose server must run beside vLLM (a sidecar in podTemplate) with a "
        "size of its own. Only with kvOffloadingSize. Default: native.",
        examples=["lmcache"],
        flag="--kv-offloading-backend",
        effective=lambda batching: batching.kv_offloading_size and "native",
    )
    kv_events: KVEvents | None = knob(
        description="Events of which blocks the KV cache holds. Default: none.",
        examples=[{"enabled": True}],
    )


class ResourceClaim(ApiModel):
    """A claim of each pod, made from a ResourceClaimTemplate of the namespace."""

    name: Label = Field(description="Name of the claim within the pod.", examples=["gpus"])
    resource_claim_template_name: ObjectName = Field(
        description="Name of a ResourceClaimTemplate in the same namespace.", examples=["two-gpus"]
    )
    request: Label | None = knob(
        description="The server gets the devices of this request of the claim only. Default: of all.",
        examples=["gpu"],
    )


class DeviceClaim(ApiModel):
    """A claim that the operator writes for each pod, of devices on which the model fits."""

    device_class: ObjectName = Field(description="Name of the DeviceClass of the devices.", examples=["gpu.nvidia.com"])
    driver: ObjectName | None = knob(
        description="Driver of the devices, by whose name their memory is asked for. Default: gpu.nvidia.com, or "
        "gpu.amd.com.",
        examples=["gpu.nvidia.com"],
    )
    count: int | None = knob(
        description="How many devices a pod claims. Default: its GPUs by spec.parallelism.",
        examples=[2],
        bounds=(1, 64),
    )
    match_attribute: DeviceAttribute | None = knob(
        description="All devices of a pod have the same value of this attribute.",
        examples=["resource.kubernetes.io/pcieRoot"],
    )


class Accelerator(ApiModel):
    """What the model runs on."""

    type: Literal["nvidia", "amd", "cpu"] = knob(
        "nvidia",
        description="Kind of accelerator. nvidia asks for nvidia.com/gpu, amd for amd.com/gpu; cpu asks for no GPU and "
        "is for small models and tests.",
        examples=["nvidia"],
    )
    products: Many[Product] | None = knob(
        description="Acceptable GPUs, by preference: values of the node label nvidia.com/gpu.product or "
        "amd.com/gpu.product-name. Pods go only to nodes with the first on which the model fits; without it, to any "
        "GPU that is large enough. See docs/serving/accelerator.md.",
        examples=[["NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"]],
        min_length=1,
        max_length=16,
    )
    resource_name: ResourceName | None = knob(
        description="Resource that a GPU is asked for by, when it is not the type's own: a MIG slice, or what a "
        "vendor's device plugin or time-slicing advertises. Default: nvidia.com/gpu or amd.com/gpu.",
        examples=["nvidia.com/mig-3g.40gb"],
    )
    resource_claims: Many[ResourceClaim] | None = knob(
        description="Devices by dynamic resource allocation (Kubernetes 1.34), in place of resourceName, by "
        "ResourceClaimTemplates of yours. See docs/serving/dynamic-resources.md.",
        examples=[[{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}]],
        min_length=1,
        max_length=8,
        json_schema_extra=BY_NAME,
    )
    claim: DeviceClaim | None = knob(
        description="The same by a claim that the operator writes from the plan: of devices with the memory that the "
        "model needs, whatever their name.",
        examples=[{"deviceClass": "gpu.nvidia.com"}],
    )
    memory: Quantity | None = knob(
        description="Memory of one GPU, for the plan when neither a node nor the operator's catalogue can say.",
        examples=["80Gi"],
    )
    gpu_memory_utilization: Annotated[float, Field(ge=0.05, le=1.0)] | None = knob(
        description="Share of each GPU's memory that vLLM may take for weights, activations and KV cache together "
        "(--gpu-memory-utilization). Lower it when something else uses the GPU or it runs out of memory under load. "
        "Default: 0.92.",
        examples=[0.9],
        flag="--gpu-memory-utilization",
    )

    @property
    def has_claims(self) -> bool:
        """Whether its devices are allocated by claims, and are no extended resource of the container."""
        return bool(self.resource_claims) or self.claim is not None


_Flash = Literal["FLASH_ATTN", "FLASH_ATTN_DIFFKV", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE"]
_FlashInfer = Literal["FLASHINFER", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90"]
_FlashInferNew = Literal["FLASHINFER_MLA_SPARSE_SM120", "FLASHINFER_MLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV41"]
_FlashMLA = Literal["FLASHMLA", "FLASHMLA_SPARSE"]
_FlashMLANew = Literal["FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41"]
_Triton = Literal["TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "TRITON_FLASHINFER"]
_Latent = Literal["TRITON_MLA", "TRITON_MSA", "CUTLASS_MLA", "CUTLASS_MSA", "TOKENSPEED_MLA", "MINIMAX_M3_SPARSE"]
_Others = Literal["FLEX_ATTENTION", "HPC_ATTN", "B12X", "TURBOQUANT", "ULTRAQUANT"]
_Rocm = Literal["ROCM_ATTN", "ROCM_SEGMENTED_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"]
_RocmMLA = Literal["ROCM_AITER_MLA", "ROCM_AITER_MLA_SPARSE", "ROCM_AITER_TRITON_MLA", "ROCM_FLASHMLA_SPARSE_DSV4"]
_Since33 = Literal["FLASH_ATTN_MLA_SPARSE_FA4", "STEP5_DSA", "ROCM_OCTAVE", "ROCM_FLASHMLA_SPARSE_DSV41"]
AttentionBackend = Literal[
    "auto",
    _Flash,
    _FlashInfer,
    _FlashInferNew,
    _FlashMLA,
    _FlashMLANew,
    _Triton,
    _Latent,
    _Others,
    _Rocm,
    _RocmMLA,
    _Since33,
]
CompilationMode = Literal["none", "stockTorchCompile", "dynamoTraceOnce", "vllmCompile"]
CudaGraphs = Literal["none", "piecewise", "full", "fullDecodeOnly", "fullAndPiecewise"]
SpeculativeMethod = Literal["ngram", "draftModel", "eagle", "eagle3", "medusa", "mtp"]


class Attention(ApiModel):
    """Which kernels compute attention."""

    backend: AttentionBackend = knob(
        "auto",
        description="vLLM's attention backend (--attention-backend). auto takes the fastest one that the GPU, the KV "
        "cache's type and the model allow. Name one to compare, or to get around a fault of another. CPUs have one of "
        "their own.",
        examples=["FLASHINFER"],
        flag="--attention-backend",
    )


class Compilation(ApiModel):
    """How much vLLM compiles and records before it serves: a slower start for faster steps."""

    enforce_eager: bool = knob(
        False,
        description="Compile nothing and record no CUDA graphs (--enforce-eager): the fastest start and the slowest "
        "steps. For trying things out, and where compiling fails.",
        examples=[True],
        flag="--enforce-eager",
    )
    mode: CompilationMode | None = knob(
        description="How the model is compiled (mode of --compilation-config): vllmCompile is vLLM's own pipeline, "
        "stockTorchCompile PyTorch's, dynamoTraceOnce traces the model once, none leaves it as it is. Default: by "
        "optimizationLevel.",
        examples=["vllmCompile"],
        flag="--compilation-config.mode",
    )
    cuda_graphs: CudaGraphs | None = knob(
        description="Which steps are recorded as CUDA graphs (cudagraph_mode of --compilation-config). none saves "
        "their memory and start time and costs time per token; piecewise leaves attention out, for backends that "
        "cannot be recorded. Default: by optimizationLevel and the attention backend.",
        examples=["piecewise"],
        flag="--compilation-config.cudagraph_mode",
    )
    optimization_level: Literal[0, 1, 2, 3] | None = knob(
        description="One knob for mode and cudaGraphs (--optimization-level): 0 starts fastest, higher levels run "
        "faster. Default: 2.",
        examples=[1],
        flag="--optimization-level",
        effective=2,
    )


class ContextExtension(ApiModel):
    """Longer requests than the model was trained for, by rescaling its rotary position embeddings."""

    method: Literal["yarn"] = knob(
        "yarn",
        description="How positions are rescaled: yarn. Only for models with rotary position embeddings.",
        examples=["yarn"],
    )
    factor: Annotated[float, Field(ge=1, le=64)] = Field(
        description="How many times longer: the new length is factor x the original length. Long factors cost "
        "accuracy on short texts; take the smallest one that reaches the length that you need.",
        examples=[4],
    )
    original_max_position_embeddings: int | None = knob(
        description="Length that the model was trained for. Default: read from the model's config.json.",
        examples=[32768],
        bounds=(1, MAX_TOKENS),
    )

    @property
    def argument(self) -> str:
        """METHOD:FACTOR[:ORIGINAL], an option of the supervisor."""
        original = self.original_max_position_embeddings
        return f"{self.method}:{self.factor:g}" + ("" if original is None else f":{original}")


class DraftModel(ApiModel):
    """The small model, or the heads, that guess tokens."""

    uri: Uri = Field(
        description="Where it comes from, in the forms of spec.model.uri.", examples=["hf://Qwen/Qwen2.5-0.5B-Instruct"]
    )

    @property
    def source(self) -> Source:
        """The parsed uri; InvalidSpec."""
        return parse(self.uri, "spec.speculativeDecoding.model.uri")


class SpeculativeDecoding(ApiModel):
    """Several tokens a step: cheap guesses that the model checks all at once."""

    method: SpeculativeMethod = Field(
        description="Who guesses: ngram looks the last tokens up in the prompt, for answers that repeat it; "
        "draftModel is a small model with the same vocabulary; eagle, eagle3 and medusa are heads that were trained "
        "for this model; mtp are the model's own prediction layers.",
        examples=["ngram"],
    )
    model: DraftModel | None = knob(
        description="The draft model or heads. Not with ngram; optional with mtp, whose layers are in the model.",
        examples=[{"uri": "hf://Qwen/Qwen2.5-0.5B-Instruct"}],
    )
    num_speculative_tokens: int = Field(
        description="Tokens that are guessed at a time. More help when most guesses are right (see the acceptance "
        "rate in the metrics), and cost time when they are not.",
        examples=[4],
        ge=1,
        le=64,
    )
    prompt_lookup_min: int | None = knob(
        description="Fewest tokens that must match for a guess. Only with ngram. Default: vLLM's (5, or "
        "promptLookupMax where that is given).",
        examples=[2],
        bounds=(1, 1024),
    )
    prompt_lookup_max: int | None = knob(
        description="Most tokens that are matched. Only with ngram. Default: vLLM's (5, or promptLookupMin where that "
        "is given).",
        examples=[4],
        bounds=(1, 1024),
    )
    draft_tensor_parallel_size: int | None = knob(
        description="Spread the draft model over this many GPUs: 1, or as many as tensorParallelSize. Default: as "
        "many.",
        examples=[1],
        bounds=(1, 64),
    )
