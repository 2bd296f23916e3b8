"""Lists the GPUs with torch, and checks number, precision and memory; the check is a pure function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmservice_vllm.quantization import MINIMUM_CAPABILITY

from llmservice_runtime.contract import GPU, Failure, FailureReason
from llmservice_runtime.supervisor.vllm_process import Flags

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """One GPU; memory in bytes, compute capability None on AMD."""

    name: str
    capability: tuple[int, int] | None
    free: int
    total: int


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of the node's NVIDIA driver, from its kernel module's file; empty without one."""
    try:
        with path.open("rb") as file:
            first = file.read(1024).partition(b"\n")[0].decode(errors="replace")
    except OSError:
        return ""
    words = first.split() if first.startswith("NVRM version:") else []
    return next((word for word in words if re.fullmatch(r"[0-9]{3}\.[0-9]{1,4}(?:\.[0-9]{1,4})?", word)), "")


def list_devices() -> list[Device]:
    """The devices that torch reports. Importing torch takes 600 MB: call only in a short-lived process."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [_device(torch, index) for index in range(torch.cuda.device_count())]


def _device(torch: object, index: int) -> Device:
    cuda = torch.cuda  # type: ignore[attr-defined]
    free, total = cuda.mem_get_info(index)
    # On AMD these numbers have another meaning.
    capability = None if torch.version.hip else cuda.get_device_capability(index)  # type: ignore[attr-defined]
    return Device(cuda.get_device_name(index), capability, free, total)


def smallest(devices: Sequence[Device], count: int) -> GPU | None:
    """The GPU with the least memory of the first `count`, which the server uses; None without any."""
    found = min(devices[:count], key=lambda device: device.total, default=None)
    return None if found is None else GPU(found.name, found.total / GIB)


def check(devices: Sequence[Device], flags: Flags, method: str | None) -> Iterator[Failure]:
    """Failures in the number of devices, their support of the precision (`method`: quantization), their free memory."""
    if len(devices) < flags.gpus:
        yield Failure(
            FailureReason.ACCELERATOR_MISSING,
            f"The container sees {len(devices)} GPUs, and the server needs {flags.gpus}.",
            "Check spec.accelerator (type, resourceName), spec.runtime.image and the node's driver and device plugin.",
        )
        return
    for device in devices[: flags.gpus]:
        yield from _check_precision(device, flags, method)
        yield from _check_memory(device, flags)


def _check_precision(device: Device, flags: Flags, method: str | None) -> Iterator[Failure]:
    if device.capability is None:
        return
    major, minor = device.capability
    capability = major * 10 + minor
    if flags.dtype == "bfloat16" and capability < 80:
        yield Failure(
            FailureReason.PRECISION_UNSUPPORTED,
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
            f"This {device.name} has {major}.{minor}.",
            "Set spec.precision.dtype: float16, or choose another GPU in spec.accelerator.products.",
        )
    if method and capability < MINIMUM_CAPABILITY.get(method, 0):
        yield Failure(
            FailureReason.PRECISION_UNSUPPORTED,
            f"The quantization method {method} is not supported for the current GPU. Minimum capability: "
            f"{MINIMUM_CAPABILITY[method]}. Current capability: {capability} ({device.name}).",
            "Use another checkpoint or spec.precision, or another GPU in spec.accelerator.products.",
        )


def _check_memory(device: Device, flags: Flags) -> Iterator[Failure]:
    required = device.total * flags.gpu_memory_utilization
    if flags.kv_cache_memory_fixed or device.free >= required:
        return
    yield Failure(
        FailureReason.GPU_MEMORY_BUSY,
        f"Free memory on {device.name} ({device.free / GIB:.1f}/{device.total / GIB:.1f} GiB) is less than desired GPU "
        f"memory utilization ({flags.gpu_memory_utilization:g}, {required / GIB:.1f} GiB): another process uses this "
        "GPU.",
        "End it, give the service a GPU of its own, or lower spec.accelerator.gpuMemoryUtilization.",
    )
