"""Classification rules for vLLM's log: the first rule that matches any line wins.

Most specific first: the API server reports a failed engine again in general terms ("Engine core initialization
failed"), so rules are ordered by meaning and not by position in the log. tests/unit/fixtures/vllm_logs holds recorded
logs of vLLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmservice_runtime.contract import FailureReason as R


@dataclass(frozen=True)
class Rule:
    """A pattern of one log line, its reason and remedy; with `exit_codes`, only for those."""

    reason: R
    pattern: re.Pattern[str]
    remedy: str
    exit_codes: frozenset[int] = frozenset()


def _rule(reason: R, pattern: str, remedy: str, *exit_codes: int) -> Rule:
    return Rule(reason, re.compile(pattern), remedy, frozenset(exit_codes))


_LESS_MEMORY = (
    "Lower spec.batching.maxModelLen, maxNumSeqs or maxNumBatchedTokens, hold the weights or the cache in fewer bits "
    "(spec.precision), or give the model more or larger GPUs (spec.accelerator, "
    "spec.parallelism.tensorParallelSize)."
)
_MODEL_URI = (
    "Check spec.model.uri. A private or gated model also needs spec.model.hfTokenSecretRef, a token that may read it."
)

RULES: tuple[Rule, ...] = (
    # The command line. argparse ends with 2.
    _rule(
        R.INVALID_FLAG,
        r"^\S+: error: (.+)",
        "Correct the value in spec.runtime.extraArgs (or in the field that it comes from); "
        "spec.runtime.version must name the vLLM of spec.runtime.image.",
        2,
    ),
    # Finding and reading the model.
    _rule(
        R.MODEL_ACCESS_DENIED,
        r"(GatedRepoError|Cannot access gated repo|You are trying to access a gated repo|"
        r"Access to model \S+ is restricted|Invalid credentials|(?:401|403) Client Error(?!.*Repository Not Found))",
        "Accept the model's licence on the hub and set spec.model.hfTokenSecretRef to a token that may read it.",
    ),
    _rule(
        R.MODEL_NOT_FOUND,
        r"(RepositoryNotFoundError|RevisionNotFoundError|Repository Not Found for url|404 Client Error|"
        r"Invalid repository ID or local directory specified|is not a local folder and is not a valid model identifier|"
        r"Repo id must be in the form|Can't load the configuration of|does not appear to have a file named config.json|"
        r"Invalid rev id|EntryNotFoundError: 404)",
        _MODEL_URI,
    ),
    _rule(
        R.STORAGE_FULL,
        r"No space left on device|Disk quota exceeded|not enough free disk space",
        "Enlarge the model cache (spec.model.cache.size) or the node's ephemeral storage; "
        "where /dev/shm is named, raise the memory limit in spec.runtime.resources.",
    ),
    _rule(
        R.MODEL_DOWNLOAD_FAILED,
        r"(LocalEntryNotFoundError|outgoing traffic has been disabled|We couldn't connect to|MaxRetryError|"
        r"Temporary failure in name resolution|Name or service not known|ConnectTimeout|ProxyError|"
        r"CERTIFICATE_VERIFY_FAILED|(?:429|50\d) (?:Client|Server) Error|Network is unreachable|ConnectError)",
        "The model hub could not be reached from the pod: check DNS, proxy and CA settings of the operator's chart and "
        "HF_ENDPOINT, or serve from storage with spec.model.uri: pvc://CLAIM/PATH.",
    ),
    _rule(
        R.WEIGHTS_UNREADABLE,
        r"(PermissionError: \[Errno 13\].*|FileNotFoundError: .*\.(?:safetensors|bin|pt|gguf)\b.*|"
        r"Permission denied: .*\.(?:safetensors|bin|pt|json)\b.*)",
        'The server\'s user may not read this file (vLLM also calls that "No such file"): make it readable for the '
        "pod's user or group, for example with chmod -R a+rX on the model's folder, or set "
        "spec.podTemplate.spec.securityContext.fsGroup to the owning group.",
    ),
    _rule(
        R.WEIGHTS_UNREADABLE,
        r"(SafetensorError.*|Error while deserializing header.*|PytorchStreamReader failed.*|"
        r"Cannot find any model weights with .*|invalid load key, 'v'.*)",
        "The weights are missing, damaged or incomplete (an interrupted copy, or git-lfs pointers instead of files): "
        "copy the model again and check spec.model.uri.",
    ),
    # The model and this vLLM.
    _rule(
        R.REMOTE_CODE_REFUSED,
        r"(trust_remote_code=True|requires you to execute the (?:configuration|modeling) file)",
        "If you trust the model's own code, set spec.model.trustRemoteCode: true.",
    ),
    _rule(
        R.UNSUPPORTED_ARCHITECTURE,
        r"(Model architectures .* are not supported for now|does not recognize this architecture|"
        r"has no vLLM implementation|failed to be inspected)",
        "This vLLM does not know the model's architecture: choose another model, or a newer vLLM in "
        "spec.runtime.image (and spec.runtime.version).",
    ),
    # Shapes and precision.
    _rule(
        R.PARALLELISM_MISMATCH,
        r"(must be divisible by tensor parallel size|is not divisible by.*(?:tensor|tp_size|world size)|"
        r"World size \(\d+\) is larger than the number of available GPUs|"
        r"Total number of (?:attention )?heads .* must be divisible)",
        "Choose a spec.parallelism.tensorParallelSize that divides the model's attention heads "
        "and fits the GPUs of one node.",
    ),
    _rule(
        R.MAX_MODEL_LEN_TOO_LARGE,
        r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len",
        "Lower spec.batching.maxModelLen to what the model was made for, or set it to auto.",
    ),
    _rule(
        R.QUANTIZATION_MISMATCH,
        r"(Quantization method specified in the model config|Cannot find the config file for|"
        r"no longer supports online|is deprecated and will be removed in future versions of vLLM. To bypass|"
        r"Unknown quantization method)",
        "Leave spec.precision.quantization (and weights) unset where the checkpoint is quantized already: vLLM reads "
        "its method there. To quantize at load use spec.precision.weights: fp8.",
    ),
    _rule(
        R.PRECISION_UNSUPPORTED,
        r"(Bfloat16 is only supported on GPUs|is not supported for the current GPU|"
        r"is not supported for quantization method|quantization is currently not supported in|"
        r"requires compute capability|Quantization scheme is not supported)",
        "Choose a precision that this GPU can do: spec.precision.dtype: float16 before compute capability 8.0, another "
        "quantization, or another GPU in spec.accelerator.products.",
    ),
    # Memory.
    _rule(
        R.KV_CACHE_TOO_SMALL,
        r"(To serve at least one request with the model's max seq len .*|No available memory for the cache blocks.*|"
        r"Cannot auto-fit max_model_len.*)",
        "Lower spec.batching.maxModelLen (auto takes the largest that fits), raise "
        "spec.accelerator.gpuMemoryUtilization, hold the cache in fewer bits (spec.precision.kvCache), or give the "
        "model more or larger GPUs; on CPUs raise VLLM_CPU_KVCACHE_SPACE and the memory limit.",
    ),
    _rule(
        R.GPU_MEMORY_BUSY,
        r"Free memory on device .* is less than",
        "Something else holds memory of this GPU: end it, give the service a GPU of its own, or lower "
        "spec.accelerator.gpuMemoryUtilization.",
    ),
    _rule(
        R.GPU_OUT_OF_MEMORY,
        r"(CUDA out of memory|HIP out of memory|OutOfMemoryError|CUDA error: out of memory|"
        r"CUBLAS_STATUS_ALLOC_FAILED)",
        _LESS_MEMORY,
    ),
    _rule(
        R.SHARED_MEMORY_TOO_SMALL,
        r"(Fatal Python error: Bus error|/dev/shm.*(?:No space|too small)|unable to (?:allocate|open) shared memory)",
        "/dev/shm is full: raise the memory limit in spec.runtime.resources, which it counts against.",
    ),
    _rule(
        R.MEMORY_LIMIT_EXCEEDED,
        r"(DefaultCPUAllocator: (?:can't|not enough) allocate memory.*|^MemoryError\b|Cannot allocate memory)",
        "Raise the memory limit in spec.runtime.resources, or use a smaller model or cache.",
    ),
    # Hardware and toolchain.
    _rule(
        R.ACCELERATOR_MISSING,
        r"(No CUDA GPUs are available|Failed to infer device type|no NVIDIA driver|CUDA driver version is insufficient|"
        r"CUDA-capable device\(s\) is/are busy|Found no NVIDIA driver|No HIP GPUs are available)",
        "The container sees no usable GPU: check spec.accelerator.type and resourceName, the node's driver and device "
        "plugin, and that spec.runtime.image is built for this hardware and driver.",
    ),
    _rule(
        R.CPU_FEATURE_MISSING,
        r"(FP8 KV cache on CPU requires x86 with AVX-512 or AMX)",
        "Set spec.precision.kvCache: auto, or place the pods on nodes with AVX-512 or AMX with "
        "spec.podTemplate.spec.nodeSelector.",
    ),
    _rule(
        R.CPU_FEATURE_MISSING,
        r"('_OpNamespace' '_C' object has no attribute '(?:\w+_cpu|cpu_\w+|\w*weight_packed\w*|\w+_with_quant)'|"
        r"requires AMX tile support)",
        "vLLM's library for this CPU lacks what the model or its quantization needs: place the pods on nodes with "
        "AVX-512 and AMX (Sapphire Rapids or newer) with spec.podTemplate.spec.nodeSelector, or choose a checkpoint "
        "that is not quantized.",
    ),
    _rule(
        R.ILLEGAL_INSTRUCTION,
        r"(Fatal Python error: Illegal instruction|died unexpectedly \(exit code: -4\)|SIGILL)",
        "The image uses instructions that this CPU does not have. Set spec.precision.dtype: float32 (16-bit types need "
        "spec.compilation.enforceEager: false on some CPUs), place the pods on nodes with AVX-512 with "
        "spec.podTemplate.spec.nodeSelector, or use an image that was built for this CPU.",
    ),
    _rule(
        R.ACCELERATOR_FAULT,
        r"(CUDA error: (?!out of memory).*|an illegal memory access was encountered|uncorrectable ECC error|"
        r"NCCL error.*|ncclInternalError|ncclSystemError|HIP error: .*|Fatal Python error: Segmentation fault)",
        "Look at the node (dmesg, Xid messages) and drain it if the GPU is at fault; with tensor parallelism check the "
        "interconnect. If it repeats elsewhere, try another vLLM in spec.runtime.image.",
    ),
    _rule(
        R.COMPILATION_FAILED,
        r"(InductorError.*|BackendCompilerFailed.*|CppCompileError.*|InvalidCxxCompiler.*|"
        r"Failed to find C compiler.*|triton\.compiler\.errors\.\w+.*)",
        "torch.compile needs a working compiler in the image. Set spec.compilation.enforceEager: true, on CPUs with "
        "tensor parallelism also TORCHDYNAMO_DISABLE=1 in spec.runtime.env.",
    ),
    _rule(
        R.INVALID_CONFIGURATION,
        r"Not enough allowed NUMA nodes to bind threads",
        "Set VLLM_CPU_OMP_THREADS_BIND=nobind in spec.runtime.env.",
    ),
    _rule(
        R.INVALID_CONFIGURATION,
        r"(address already in use|error while attempting to bind on address)",
        "Another process of the pod listens on vLLM's port: remove it from spec.podTemplate.",
    ),
    _rule(
        R.MEMORY_LIMIT_EXCEEDED,
        r"died unexpectedly \(exit code: -9\)",
        "A worker was killed, most likely for memory: raise the memory limit in spec.runtime.resources.",
    ),
    _rule(
        R.ENGINE_MISSING,
        r"No module named '?vllm(?:\.entrypoints\S*)?'?$",
        "spec.runtime.image must be a vLLM image.",
    ),
    # What vLLM's own validation of its configuration refuses, whatever it is.
    _rule(
        R.INVALID_CONFIGURATION,
        r"^\s*Value error, (.+)",
        "Change the value that vLLM names: in spec.runtime.extraArgs, or in the field that it comes from.",
    ),
)
