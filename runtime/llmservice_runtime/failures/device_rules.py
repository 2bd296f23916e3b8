"""Rules for drivers, memory, hardware and compilers.

Mismatches of driver, image and GPU are no faults of hardware: only what ACCELERATOR_FAULT names is a reason to drain a
node.
"""

from __future__ import annotations

from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.rule import Rule, rule

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
    # As a warning it is harmless: it is true of every server on CPUs.
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
