"""Classification rules for vLLM's log: the first rule that matches any line wins.

Most specific first: the API server reports a failed engine again in general terms ("Engine core initialization
failed"), so rules are ordered by meaning and not by position in the log. Without a match, the vLLM module that raised
the error decides (PLACES), and then rules for consequences of other errors (FOLLOWING). tests/unit/fixtures/vllm_logs
contains logs; llmservice_vllm/messages.json lists what vLLM itself raises at a start.

Mismatches of driver, image and GPU are not hardware faults: only ACCELERATOR_FAULT is a reason to drain a node.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from llmservice_runtime.contract import FailureReason as R

ANY_TEXT = "…"
"""Matches any text in a phrase."""


@dataclass(frozen=True)
class Rule:
    """Phrases of which a log line contains one, with reason and remedy; with `exit_codes`, only for those."""

    reason: R
    remedy: str
    phrases: tuple[str, ...]
    exit_codes: frozenset[int] = frozenset()
    warns: bool = False
    """Whether warnings match too."""

    def matches(self, text: str) -> bool:
        return any(holds(text, phrase) for phrase in self.phrases)


@dataclass(frozen=True)
class Place:
    """Files and folders of vLLM, with the meaning of exceptions raised there; without `exceptions` of any."""

    reason: R
    remedy: str
    files: tuple[str, ...]
    exceptions: Collection[str]


def holds(text: str, phrase: str) -> bool:
    """Whether the parts of a phrase follow each other in a text."""
    position = 0
    for part in phrase.split(ANY_TEXT):
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return True


def rule(reason: R, remedy: str, *phrases: str, exit_codes: Collection[int] = (), warns: bool = False) -> Rule:
    return Rule(reason, remedy, phrases, frozenset(exit_codes), warns)


_MODEL_URI = (
    "Check spec.model.uri. A private or gated model also needs spec.model.hfTokenSecretRef, a token that may read it."
)
_UNREADABLE = (
    "The server's user may not read this file (vLLM also calls that \"No such file\"): make it readable for the pod's "
    "user or group, for example with chmod -R a+rX on the model's folder, or set "
    "spec.podTemplate.spec.securityContext.fsGroup to the owning group."
)
_CACHES = (
    "The server may not write there: its root file system is read-only. The operator sets HOME, XDG_CACHE_HOME, "
    "HF_HOME, VLLM_CACHE_ROOT and TRITON_CACHE_DIR to folders that it may write: take them out of spec.runtime.env. "
    "For what does not heed them, name a folder below /tmp in its own variable there, or mount an emptyDir at the path "
    "with spec.podTemplate."
)
_SHM = "/dev/shm is full: raise the memory limit in spec.runtime.resources, which it counts against."

FILE_RULES: tuple[Rule, ...] = (
    # The command line. argparse ends with 2.
    rule(
        R.INVALID_FLAG,
        "Correct the value in spec.runtime.extraArgs (or in the field that it comes from); "
        "spec.runtime.version must name the vLLM of spec.runtime.image.",
        ": error: ",
        exit_codes={2},
    ),
    # Finding and reading the model. A missing repository also answers 401.
    rule(R.MODEL_NOT_FOUND, _MODEL_URI, "Repository Not Found for url", "RepositoryNotFoundError: "),
    rule(
        R.MODEL_ACCESS_DENIED,
        "Accept the model's licence on the hub and set spec.model.hfTokenSecretRef to a token that may read it.",
        "Cannot access gated repo",
        "You are trying to access a gated repo",
        "GatedRepoError: ",
        "Access to model …is restricted",
        "401 Client Error",
        "403 Client Error",
        "Make sure your token has the correct permissions",
    ),
    rule(
        R.MODEL_NOT_FOUND,
        _MODEL_URI,
        "Invalid repository ID or local directory specified",
        "is not a local folder and is not a valid model identifier",
        "Repo id must be in the form",
        "RevisionNotFoundError: ",
        "404 Client Error",
        "Can't load the configuration of",
        "does not appear to have a file named config.json",
        "is not a valid git identifier",
        "Could not detect config format for no config file found",
    ),
    rule(
        R.SHARED_MEMORY_TOO_SMALL,
        _SHM,
        "shared memory…No space left on device",
        "/dev/shm…No space left on device",
        "/torch_…No space left on device",
        "unable to allocate shared memory(shm)",
        "unable to open shared memory object",
        "MiB required…(e.g. --shm-size or --ipc=host)",
        "Fatal Python error: Bus error",
        "died unexpectedly (exit code: -7)",
    ),
    rule(
        R.STORAGE_FULL,
        "Enlarge the model cache (spec.model.cache.size) or the node's ephemeral storage.",
        "No space left on device",
        "Disk quota exceeded",
    ),
    rule(
        R.MODEL_DOWNLOAD_FAILED,
        "The model hub could not be reached from the pod: check DNS, proxy and CA settings of the operator's chart and "
        "HF_ENDPOINT, or serve from storage with spec.model.uri: pvc://CLAIM/PATH.",
        "LocalEntryNotFoundError: ",
        "outgoing traffic has been disabled",
        "We couldn't connect to",
        "Max retries exceeded with url",
        "Temporary failure in name resolution",
        "Name or service not known",
        "ConnectTimeout: ",
        "ProxyError: ",
        "CERTIFICATE_VERIFY_FAILED",
        "429 Too Many Requests",
        " Server Error: ",
        "Server error '5",
        "Network is unreachable",
        "ConnectError: ",
    ),
    # By path: volumes of models and of caches, folders outside volumes, and all others.
    rule(
        R.WEIGHTS_UNREADABLE,
        _UNREADABLE,
        "Permission denied: '/llmservice/source",
        "Permission denied: '/llmservice/models",
        "Permission denied: '/llmservice/draft",
        "Permission denied: '/llmservice/adapter",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "The pod's user may not write to the cache's volume: set spec.podTemplate.spec.securityContext.fsGroup to the "
        "group that owns it, make its folders writable for that group, or have it mounted for writing.",
        "Permission denied: '/llmservice/cache",
        "Permission denied: '/llmservice/start-cache",
        "[Errno 30] Read-only file system: '/llmservice/cache",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        _CACHES,
        "Permission denied: '/.",
        "Permission denied: '/root/.",
        "Permission denied: …/.cache/",
        "[Errno 30] Read-only file system",
    ),
    rule(
        R.WEIGHTS_UNREADABLE,
        _UNREADABLE,
        "FileNotFoundError: ….safetensors",
        "FileNotFoundError: ….bin",
        "FileNotFoundError: ….pt",
        "Permission denied: ….safetensors",
        "Permission denied: ….bin",
        "Permission denied: ….json",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "The pod's user may not use this path: name another one in what sets it (spec.runtime.env, "
        "spec.runtime.extraArgs), make it accessible to the pod's user or group "
        "(spec.podTemplate.spec.securityContext.fsGroup), or mount an emptyDir there with spec.podTemplate.",
        "PermissionError: [Errno 13]",
    ),
    rule(
        R.WEIGHTS_UNREADABLE,
        "The weights are missing, damaged or incomplete (an interrupted copy, or git-lfs pointers instead of files): "
        "copy the model again and check spec.model.uri.",
        "SafetensorError: ",
        "Error while deserializing header",
        "PytorchStreamReader failed",
        "Cannot find any model weights with",
        "Cannot find any safetensors model weights with",
        "Weight files referenced in index but missing",
        "Could not find checkpoint files",
        "invalid load key, 'v'",
    ),
    rule(
        R.WEIGHTS_UNREADABLE,
        "The files of weights and config.json do not belong together, or some are missing: copy the model again from "
        "one revision, and check spec.model.uri and spec.model.architecture. Where the model is new, try a newer vLLM "
        "in spec.runtime.image.",
        "Following weights were not initialized from checkpoint",
        "Attempted to load weight (",
        "Tried to load weights of size",
        "Missing keys …in loaded state",
    ),
)


_LESS_MEMORY = (
    "Lower spec.batching.maxModelLen, maxNumSeqs or maxNumBatchedTokens, hold the weights or the cache in fewer bits "
    "(spec.precision), or give the model more or larger GPUs (spec.accelerator, "
    "spec.parallelism.tensorParallelSize)."
)
_NEWER_DRIVER = (
    "Put a newer NVIDIA driver on the node, or set spec.runtime.image to a vLLM image that is built for a CUDA version "
    "that the node's driver supports (`nvidia-smi` on the node shows it). Where some nodes have a newer driver, "
    "spec.podTemplate.spec.nodeSelector keeps the pods to them."
)
_DRIVER_LIBRARIES = (
    "The driver's libraries and its kernel module are of different versions, or the image brings libraries of a driver "
    "that this GPU cannot use. Restart the node after an update of its driver; set VLLM_ENABLE_CUDA_COMPATIBILITY to 0 "
    "in spec.runtime.env; otherwise put a newer driver on the node, or use an image for the driver's CUDA version in "
    "spec.runtime.image."
)
_NO_LIBRARIES = (
    "The container has no library of the NVIDIA driver: the node's container toolkit adds it. Set "
    "spec.podTemplate.spec.runtimeClassName to the class that the toolkit made (nvidia), check the toolkit on the "
    "node, or use an image without a GPU where spec.accelerator.type is cpu."
)
_OTHER_IMAGE = (
    "The image has no code for this GPU: set spec.runtime.image to a vLLM image that is built for its compute "
    "capability (a newer vLLM for a new GPU, an older one for an old GPU), or choose another GPU in "
    "spec.accelerator.products."
)

DRIVER_RULES: tuple[Rule, ...] = (
    # Driver, image and GPU.
    rule(
        R.DRIVER_MISMATCH,
        _NEWER_DRIVER,
        "The NVIDIA driver on your system is too old",
        "CUDA driver version is insufficient for CUDA runtime version",
        "the provided PTX was compiled with an unsupported toolchain",
        "API call is not supported in the installed CUDA driver",
    ),
    rule(
        R.DRIVER_MISMATCH,
        _OTHER_IMAGE,
        "no kernel image is available for execution on the device",
        "invalid device function",
        "device kernel image is invalid",
        "is not defined for option 'gpu-name'",
        "Unsupported gpu architecture 'compute_",
        "No supported CUDA architectures found for major versions",
    ),
    rule(
        R.DRIVER_MISMATCH,
        _DRIVER_LIBRARIES,
        "system has unsupported display driver / cuda driver combination",
        "forward compatibility was attempted on non supported HW",
        "Driver/library version mismatch",
        "RM has detected an NVML/RM version mismatch",
        "CUDA driver is a stub library",
    ),
    rule(
        R.DRIVER_MISMATCH,
        "GPUs behind NVSwitch need the fabric manager, in the version of the driver: start nvidia-fabricmanager on the "
        "node, or keep the pods from it with spec.podTemplate.spec.nodeSelector.",
        "system not yet initialized",
    ),
    rule(
        R.DRIVER_MISMATCH,
        _NO_LIBRARIES,
        "libcuda.so.1: cannot open shared object file",
        "Failed to open libcuda.so.1",
        warns=True,
    ),
    # As a warning it is harmless: every server on CPUs logs it.
    rule(R.DRIVER_MISMATCH, _NO_LIBRARIES, "NVML Shared Library Not Found"),
)

DEVICE_RULES: tuple[Rule, ...] = (
    # Memory.
    rule(
        R.KV_CACHE_TOO_SMALL,
        "Lower spec.batching.maxModelLen (auto takes the largest that fits), raise "
        "spec.accelerator.gpuMemoryUtilization, hold the cache in fewer bits (spec.precision.kvCache), or give the "
        "model more or larger GPUs; on CPUs raise VLLM_CPU_KVCACHE_SPACE and the memory limit.",
        "To serve at least one request with the model's max seq len",
        "No available memory for the cache blocks",
        "Cannot auto-fit max_model_len",
    ),
    rule(
        R.KV_CACHE_TOO_SMALL,
        "Lower spec.batching.maxNumSeqs to the number of blocks that the message names, or raise "
        "spec.accelerator.gpuMemoryUtilization.",
        "exceeds available Mamba cache blocks",
    ),
    rule(
        R.GPU_MEMORY_BUSY,
        "Something else holds memory of this GPU, or held it until now: end it, give the service a GPU of its own, or "
        "lower spec.accelerator.gpuMemoryUtilization.",
        "Free memory on device …is less than",
        "Externally held weights on device",
        "Error in memory profiling",
    ),
    rule(
        R.GPU_OUT_OF_MEMORY,
        _LESS_MEMORY,
        "CUDA out of memory",
        "HIP out of memory",
        "CUDA error: out of memory",
        "OutOfMemoryError: ",
        "CUBLAS_STATUS_ALLOC_FAILED",
    ),
    rule(
        R.MEMORY_LIMIT_EXCEEDED,
        "Raise the memory limit in spec.runtime.resources, or use a smaller model or cache.",
        "DefaultCPUAllocator: can't allocate memory",
        "MemoryError: ",
        "Cannot allocate memory",
    ),
    rule(
        R.MEMORY_LIMIT_EXCEEDED,
        "Raise the memory limit in spec.runtime.resources, or lower VLLM_CPU_KVCACHE_SPACE in spec.runtime.env.",
        "Available memory on node …is less than",
        "The worker already uses …of CPU memory reserved for it",
    ),
    # Hardware and toolchain.
    rule(
        R.ACCELERATOR_FAULT,
        "Look at the node's kernel log (dmesg, Xid messages), and drain the node if its GPU is at fault; "
        "spec.podTemplate.spec.nodeSelector keeps the pods from it until then.",
        "uncorrectable ECC error encountered",
        "uncorrectable NVLink error",
        "peer GPU memory over nvlink or a hardware error",
        "GPU is lost",
    ),
    rule(
        R.ACCELERATOR_MISSING,
        "The node's NVIDIA driver is not loaded: wait where the node has just started or its driver is being updated; "
        "otherwise look at `nvidia-smi` and at the GPU operator's pods on the node, or keep the pods from it with "
        "spec.podTemplate.spec.nodeSelector.",
        "Driver Not Loaded",
    ),
    rule(
        R.ACCELERATOR_MISSING,
        "The container sees no usable GPU: check spec.accelerator.type and resourceName, the node's driver and device "
        "plugin, and that spec.runtime.image is built for this hardware.",
        "No CUDA GPUs are available",
        "No HIP GPUs are available",
        "Found no NVIDIA driver on your system",
        "no CUDA-capable device is detected",
        "CUDA-capable device(s) is/are busy or unavailable",
        "invalid device ordinal",
        "Failed to infer device type",
    ),
    rule(
        R.CPU_FEATURE_MISSING,
        "Set spec.precision.kvCache: auto, or place the pods on nodes with AVX-512 or AMX with "
        "spec.podTemplate.spec.nodeSelector.",
        "FP8 KV cache on CPU requires x86 with AVX-512 or AMX",
    ),
    rule(
        R.CPU_FEATURE_MISSING,
        "vLLM's library for this CPU lacks what the model or its quantization needs: place the pods on nodes with "
        "AVX-512 and AMX (Sapphire Rapids or newer) with spec.podTemplate.spec.nodeSelector, or choose a checkpoint "
        "that is not quantized.",
        "'_OpNamespace' '_C' object has no attribute 'cpu_",
        "'_OpNamespace' '_C' object has no attribute '…_cpu'",
        "'_OpNamespace' '_C' object has no attribute '…weight_packed",
        "'_OpNamespace' '_C' object has no attribute '…_with_quant'",
        "requires AMX tile support",
    ),
    rule(
        R.ILLEGAL_INSTRUCTION,
        "The image uses instructions that this CPU does not have. Set spec.precision.dtype: float32 (16-bit types need "
        "spec.compilation.enforceEager: false on some CPUs), place the pods on nodes with AVX-512 with "
        "spec.podTemplate.spec.nodeSelector, or use an image that was built for this CPU.",
        "Fatal Python error: Illegal instruction",
        "died unexpectedly (exit code: -4)",
    ),
    rule(
        R.COMPILATION_FAILED,
        "torch.compile needs a working compiler in the image. Set spec.compilation.enforceEager: true, on CPUs with "
        "tensor parallelism also TORCHDYNAMO_DISABLE=1 in spec.runtime.env.",
        "InductorError: ",
        "BackendCompilerFailed: ",
        "CppCompileError: ",
        "InvalidCxxCompiler: ",
        "Failed to find C compiler",
        "triton.compiler.errors.",
    ),
    rule(
        R.KERNEL_FAILED,
        "A kernel was given values that it does not take, for example a token outside of the vocabulary: a fault of "
        "software, not of the GPU. Check that tokenizer, draft model and adapters belong to the model, and try another "
        "vLLM in spec.runtime.image; CUDA_LAUNCH_BLOCKING=1 in spec.runtime.env shows which call fails.",
        "device-side assert triggered",
    ),
    rule(
        R.KERNEL_FAILED,
        "Mostly a defect of a kernel, at times failing memory of the GPU. Try another spec.attention.backend or "
        "another vLLM in spec.runtime.image. If it happens on one node only, look there for Xid messages (dmesg): 48, "
        "63, 64, 79, 94 and 95 are the hardware's.",
        "an illegal memory access was encountered",
        "unspecified launch failure",
    ),
    rule(
        R.KERNEL_FAILED,
        "Try another spec.attention.backend or another vLLM in spec.runtime.image; CUDA_LAUNCH_BLOCKING=1 in "
        "spec.runtime.env shows which call fails.",
        "CUDA error: ",
        "HIP error: ",
        "CUBLAS_STATUS_",
    ),
    rule(
        R.ENGINE_DIED,
        "A library of vLLM crashed. If it repeats, try another vLLM version in spec.runtime.image.",
        "Fatal Python error: Segmentation fault",
        "died unexpectedly (exit code: -11)",
    ),
)


_PARTS = (
    "Choose a smaller spec.parallelism.tensorParallelSize, so that each GPU's part is a multiple of the number that "
    "the message names; for a mixture of experts set spec.parallelism.expertParallel: true, which splits no expert; or "
    "use a checkpoint that is quantized in smaller groups, or not at all."
)
_CAPABILITY = (
    "Choose a precision that this GPU can do: spec.precision.dtype: float16 before compute capability 8.0, another "
    "quantization, or another GPU in spec.accelerator.products."
)
_NO_LORA = "Remove spec.lora and spec.adapters: this vLLM serves no adapters with this model."

REFUSAL_RULES: tuple[Rule, ...] = (
    # The model and this vLLM.
    rule(
        R.REMOTE_CODE_REFUSED,
        "If you trust the model's own code, set spec.model.trustRemoteCode: true.",
        "trust_remote_code=True",
        "requires you to execute the ",
    ),
    rule(
        R.UNSUPPORTED_ARCHITECTURE,
        "This vLLM does not know the model's architecture: choose another model, or a newer vLLM in "
        "spec.runtime.image (and spec.runtime.version).",
        "Model architectures …are not supported for now",
        "does not recognize this architecture",
        "is not supported in-tree anymore",
        "and is not supported anymore. Please use an older version",
        "Cannot find model module.",
        "is not compatible with vLLM",
        "is not supported by ROCm for now",
        "failed to be inspected",
    ),
    # Shapes and precision.
    rule(
        R.PARALLELISM_MISMATCH,
        "Choose a spec.parallelism.tensorParallelSize that divides the model's attention heads "
        "and fits the GPUs of one node.",
        "must be divisible by tensor parallel size",
        "is larger than the number of available GPUs",
        "DP adjusted local rank",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        _PARTS,
        "is not divisible by weight quantization block_",
        "is not divisible by group_size",
        "is not divisible by min_thread_",
        "is not aligned with the quantized weight shape",
        "requires the MoE intermediate size per tensor-parallel partition",
        "requires input_size_per_partition (…to be divisible by",
        "requires intermediate_size_per_partition divisible by",
        "intermediate_size_per_partition=…must be divisible by",
        "must evenly divide both hidden size (",
        "which must be divisible by the OCP MX group size",
        "Input size per partition (…must be divisible by group size",
        "hidden and per-rank intermediate sizes must align to",
        "which is not divisible by the OCP MX group size",
        "Shared-expert intermediate size …must be divisible by tensor-parallel size",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Choose a spec.parallelism.tensorParallelSize of at most the number of experts that the message names; for "
        "more GPUs add replicas.",
        "Tensor parallel size …is greater than the number of experts",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Choose a spec.parallelism.tensorParallelSize that divides the numbers in the message: the model's attention "
        "heads, KV heads and groups.",
        "must be divisible by tp_size",
        "must be divisible by TP size",
        "must be divisible by tensor-parallel world size",
        "is not divisible by tp_size",
        "Tensor parallel world size must divide",
        "If tensor parallel world size does not divide",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Set spec.parallelism.expertParallel: true, or remove --moe-backend from spec.runtime.extraArgs.",
        "requires expert parallel. Enable it with",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Set spec.parallelism.pipelineParallelSize to 1: this model has no pipeline stages in vLLM.",
        "Pipeline parallelism is not supported for this model",
        "requires pipeline_parallel_size=1",
        "does not support pipeline parallelism",
        "pipeline parallel is not supported",
        "Pipeline parallel of models with multiple",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Set spec.parallelism.expertParallel to false: the model has no experts.",
        "Number of experts in the model must be greater than 0 when expert parallelism is enabled",
    ),
    rule(
        R.MAX_MODEL_LEN_TOO_LARGE,
        "Lower spec.batching.maxModelLen to what the model was made for, or set it to auto.",
        "User-specified max_model_len (…is greater than the derived max_model_len",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Raise spec.batching.maxNumBatchedTokens to at least the number that the message names, or lower "
        "spec.batching.maxModelLen or maxNumSeqs.",
        "max_num_batched_tokens (…is smaller than max_model_len (",
        "max_num_batched_tokens (…must be greater than or equal to max_num_seqs",
        "is larger than max_num_batched_tokens (",
        "does not have enough slots to schedule a token",
    ),
    rule(
        R.PACKAGE_MISSING,
        "bitsandbytes is a plugin of its own: set spec.runtime.image to an image that has it, or use a checkpoint of "
        "another quantization.",
        "Unknown quantization method: bitsandbytes",
        "Please install bitsandbytes",
    ),
    rule(
        R.QUANTIZATION_MISMATCH,
        "Leave spec.precision.quantization (and weights) unset where the checkpoint is quantized already: vLLM reads "
        "its method there. To quantize at load use spec.precision.weights: fp8.",
        "Quantization method specified in the model config",
        "Cannot find the config file for",
        "no longer supports online quantization",
        "is deprecated and will be removed in future versions of vLLM. To bypass",
    ),
    rule(
        R.QUANTIZATION_MISMATCH,
        "This vLLM does not have this quantization: use another checkpoint of the model, or an image whose vLLM has it "
        "in spec.runtime.image.",
        "Unknown quantization method",
        "(desc_act=True) is no longer supported",
        "activation ordering (actorder=…is no longer supported",
        "No compressed-tensors compatible scheme was found",
        "No quark compatible scheme was found",
        "No INC scheme found for layer config",
    ),
    rule(
        R.PRECISION_UNSUPPORTED,
        _CAPABILITY,
        "Bfloat16 is only supported on GPUs",
        "is not supported for the current GPU",
        "is not supported for quantization method",
        "quantization is currently not supported in",
        "does not support float16. Reason: ",
        "requires GPU compute capability",
        "requires a Blackwell (SM100) GPU",
        "requires SM100 GPUs",
        "requires an SM100-class GPU",
    ),
    rule(
        R.PRECISION_UNSUPPORTED,
        "No kernel of this vLLM computes these layers with this GPU, precision and parallelism. Remove --moe-backend "
        "and --linear-backend from spec.runtime.extraArgs and spec.adapters, if they are there; otherwise choose "
        "another GPU in spec.accelerator.products, a checkpoint of another quantization, or a newer vLLM in "
        "spec.runtime.image. VLLM_LOGGING_LEVEL=DEBUG in spec.runtime.env shows why each kernel was left out.",
        "MoE backend supports the deployment configuration",
        "No MXFP8 MoE backends available",
        "Failed to find a kernel that can implement the",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Remove --moe-backend and --linear-backend from spec.runtime.extraArgs: vLLM then takes one that can do it.",
        "moe_backend=…is not supported for",
        "moe_backend=…does not support activation=",
        "the explicitly requested moe_backend=",
        "--linear-backend=…was requested but no",
    ),
    rule(
        R.PRECISION_UNSUPPORTED,
        "Set spec.precision.kvCache to auto, or to a type that the message names.",
        "fp8_e5m2 kv-cache is not supported with fp8 checkpoints",
        "nvfp4 KV cache is not supported with MLA",
        "is incompatible with dtype=…Please set `--kv-cache-dtype`",
        "is not supported by MLA attention on CPU",
        "is not supported by the CPU attention backend on this host",
        "FP8 KV cache is not yet supported with KV transfer on CPU",
    ),
    rule(
        R.ATTENTION_UNSUPPORTED,
        "Remove spec.attention.backend: vLLM then takes one that can do it.",
        "Selected backend …is not valid for this configuration",
        "is not supported for vit attention",
        "Invalid attention backend for",
    ),
    rule(
        R.ATTENTION_UNSUPPORTED,
        "Choose a GPU with the compute capability that the message asks for in spec.accelerator.products, set "
        "spec.precision.kvCache to auto, or try a newer vLLM in spec.runtime.image.",
        "No valid attention backend found for",
        "No valid MLA prefill backend found",
        "No valid CPU MLA prefill backend found",
        "Sparse Attention is not supported on CPU",
    ),
    # Features that a model does not support.
    rule(
        R.INVALID_CONFIGURATION,
        "Set spec.model.runner to pooling, or leave it out: the model generates no text.",
        "This model does not support `--runner generate`",
        "Embedding models do not support `--runner",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Set spec.model.convert to what the message names, or spec.model.runner to generate.",
        "This model does not support `--runner pooling`",
        "does not support any pooling tasks",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        _NO_LORA,
        "LoRA is not supported for",
        "LoRA is not supported with moe_backend",
        "does not support LoRA yet",
        "is not supported for LoRA",
        "No supported LoRA modules found in",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Remove spec.batching.kvOffloadingSize: this model's KV cache cannot be moved out of the GPU.",
        "Encoder-decoder models are not currently supported with KV connectors",
        "does not support HMA but HMA is enabled",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Remove spec.speculativeDecoding, or choose a method that this model has.",
        "does not support EAGLE3 interface",
        "Unsupported speculative method",
        "MTP speculative decoding layer …weights missing from checkpoint",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Set spec.runtime.sleepMode to false.",
        "Sleep mode is not supported on current platform",
        "does not support sleep mode",
    ),
    rule(
        R.DRAFT_MODEL_MISMATCH,
        "Choose a draft model of the same family in spec.speculativeDecoding.model.uri, or remove "
        "spec.speculativeDecoding.",
        "Target and draft model should have the same vocabulary size",
        "requires `draft_vocab_size` to match the target vocabulary",
        "DFlash drafter expects",
        "model is configured for parallel drafting",
    ),
)

_REFUSALS = ("ValueError", "NotImplementedError", "TypeError", "ImportError", "FileNotFoundError")

# The first that matches; more specific folders first.
PLACES: tuple[Place, ...] = (
    Place(
        R.INVALID_CONFIGURATION,
        "Leave out what the message names: flags of Ray in spec.runtime.extraArgs, and VLLM_GPU_NIC_PCIE_MAPPING in "
        "spec.runtime.env. A replica is one pod, which needs neither.",
        ("v1/executor/ray", "v1/executor/vllm_net_devices.py"),
        (),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Leave the load format to vLLM: remove it from spec.runtime.extraArgs.",
        ("model_executor/model_loader/weight_cache/", "model_executor/model_loader/tensorizer"),
        (),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.speculativeDecoding as the message says, or remove it.",
        ("config/speculative.py",),
        (*_REFUSALS, "AssertionError"),
    ),
    Place(
        R.PARALLELISM_MISMATCH,
        "Choose sizes in spec.parallelism that divide the numbers in the message.",
        ("distributed/utils.py",),
        ("ValueError", "AssertionError"),
    ),
    Place(
        R.COMMUNICATION_FAILED,
        "Set NCCL_DEBUG=INFO in spec.runtime.env and read the lines before the error.",
        ("distributed/utils.py", "distributed/device_communicators/pynccl"),
        ("RuntimeError",),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change the value that the message names: in spec.runtime.extraArgs or spec.runtime.env, or in the field that "
        "it comes from.",
        ("config/", "engine/arg_utils.py", "platforms/", "v1/executor/", "v1/engine/", "distributed/kv_transfer/"),
        (*_REFUSALS, "AttributeError"),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change the value that the message names: in spec.runtime.extraArgs, or in the field that it comes from.",
        ("config/",),
        ("AssertionError",),
    ),
    Place(
        R.QUANTIZATION_MISMATCH,
        "This vLLM cannot load this form of the quantization: use another checkpoint of the model, or another vLLM in "
        "spec.runtime.image; where spec.precision asks for it, leave it out there.",
        ("model_executor/layers/quantization/",),
        (),
    ),
    Place(
        R.ATTENTION_UNSUPPORTED,
        "Remove spec.attention.backend and set spec.precision.kvCache to auto; if it stays, try a newer vLLM in "
        "spec.runtime.image.",
        ("model_executor/layers/attention/", "v1/attention/"),
        (*_REFUSALS, "AssertionError", "RuntimeError"),
    ),
    Place(
        R.UNSUPPORTED_ARCHITECTURE,
        "This vLLM does not understand the model's config.json: choose another model, or a newer vLLM in "
        "spec.runtime.image (and spec.runtime.version).",
        ("model_executor/models/registry.py", "transformers_utils/"),
        (*_REFUSALS, "RuntimeError", "AssertionError"),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change how the weights are loaded (load format and its extra config in spec.runtime.extraArgs) as the message "
        "says, or leave it to vLLM.",
        ("model_executor/model_loader/",),
        (*_REFUSALS, "RuntimeError"),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.batching.blockSize, spec.precision.kvCache or spec.attention.backend as the message says, or "
        "leave them to vLLM.",
        ("v1/core/", "v1/worker/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.generation.toolCallParser, spec.generation.reasoningParser or the parser in "
        "spec.runtime.extraArgs to the one for the model's format, or remove it.",
        ("reasoning/", "tool_parsers/", "parser/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.speculativeDecoding as the message says, or remove it.",
        ("v1/spec_decode/",),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Remove spec.batching.kvOffloadingSize, or change the connector's settings in spec.runtime.extraArgs as the "
        "message says.",
        ("v1/kv_offload/", "v1/simple_kv_offload/", "distributed/ec_transfer/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change the value that the message names: in spec.runtime.extraArgs or spec.runtime.env, or in the field that "
        "it comes from.",
        ("entrypoints/", "envs.py", "compilation/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "vLLM does not run this model in this way. Leave out what the message names of spec.parallelism, "
        "spec.precision, spec.attention, spec.speculativeDecoding and spec.runtime.extraArgs; where it names nothing "
        "of them, use another checkpoint of the model, or another vLLM in spec.runtime.image.",
        ("model_executor/models/", "models/", "model_executor/layers/", "model_executor/kernels/"),
        (*_REFUSALS, "AssertionError"),
    ),
    Place(R.INVALID_CONFIGURATION, f"{_NO_LORA} Or change them as the message says.", ("lora/",), _REFUSALS),
)


_PACKAGE = (
    "Set spec.runtime.image to an image that has the package (vLLM's image with `pip install` of it on top), or do "
    "without what needs it: another checkpoint, or another value of the field that asks for it."
)

RULES: tuple[Rule, ...] = (
    *FILE_RULES,
    *DRIVER_RULES,
    *REFUSAL_RULES,
    *DEVICE_RULES,
    rule(
        R.INVALID_CONFIGURATION,
        "Set VLLM_CPU_OMP_THREADS_BIND=nobind in spec.runtime.env.",
        "Not enough allowed NUMA nodes to bind threads",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Another process of the pod listens on vLLM's port: remove it from spec.podTemplate.",
        "ddress already in use",
    ),
    rule(
        R.MEMORY_LIMIT_EXCEEDED,
        "A worker was killed, most likely for memory: raise the memory limit in spec.runtime.resources.",
        "died unexpectedly (exit code: -9)",
    ),
    rule(
        R.ENGINE_MISSING,
        "spec.runtime.image must be a vLLM image.",
        "No module named vllm",
        "No module named 'vllm'",
    ),
    rule(R.PACKAGE_MISSING, _PACKAGE, "Please install ", "pip install ", "requires installation of "),
    # Other refusals of vLLM's own validation.
    rule(
        R.INVALID_CONFIGURATION,
        "Change the value that vLLM names: in spec.runtime.extraArgs, or in the field that it comes from.",
        "Value error, ",
    ),
)

FOLLOWING: tuple[Rule, ...] = (
    rule(
        R.COMMUNICATION_FAILED,
        "Set NCCL_DEBUG=INFO in spec.runtime.env and read the lines before the error; NCCL_P2P_DISABLE=1 there shows "
        "whether it is the direct way between the GPUs.",
        "NCCL error",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclRemoteError",
        "Fault detected in EP all2all communication",
    ),
    rule(
        R.ENGINE_MISSING,
        "vLLM and the libraries of the image do not belong together, as where another torch was installed over vLLM's: "
        "use vLLM's own image, or build one anew on it, in spec.runtime.image.",
        "undefined symbol: ",
        "ImportError: lib…cannot open shared object file",
    ),
    rule(R.PACKAGE_MISSING, _PACKAGE, "ModuleNotFoundError: No module named "),
)
