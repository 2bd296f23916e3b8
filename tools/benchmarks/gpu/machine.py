"""What torch and the runtime's preflight see of this machine, without vLLM: one measurement for tests/gpu/alone."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterator

from llmservice_runtime.contract import FailureReason
from llmservice_runtime.preflight import accelerators
from llmservice_runtime.preflight.accelerators import Device
from llmservice_runtime.supervisor.vllm_process import Flags, read_flags

from benchmarks.gpu import attention, overheads
from benchmarks.gpu.findings import GIB, Attention, Figure, Findings, Skipped


def measure(device: str, lengths: tuple[int, ...] = attention.LENGTHS, heads: int = attention.HEADS) -> Findings:
    """Everything that this machine can show; on CPUs that is attention only, to try the code out."""
    parts: list[Attention | Figure | Skipped] = []
    devices: list[Device] = []
    if device == "cuda":
        # First, while this process has no context: to look at a GPU makes one.
        parts += overheads.measured(count())
        devices = accelerators.list_devices()
        parts += preflight(devices)
    else:
        parts.append(Skipped("overheads", "a CPU has none"))
    found = described(devices)
    parts += attention.measured(device, lengths, heads)
    for part in parts:
        if isinstance(part, Attention):
            found.attention.append(part)
        elif isinstance(part, Figure):
            found.figures.append(part)
        else:
            found.skipped.append(part)
    return found


def described(devices: list[Device]) -> Findings:
    """Without figures yet: the product, the software, the day."""
    import torch

    kinds = sorted({device.name for device in devices})
    name = f"{len(devices)} x {', '.join(kinds)}" if devices else f"CPU ({platform.machine()})"
    cuda = f", CUDA {torch.version.cuda}" if devices else ""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Findings(name, f"torch {torch.__version__}{cuda}", today)


def count() -> int:
    """GPUs of this machine; this process gets no CUDA context by it."""
    import torch

    return int(torch.cuda.device_count())


def preflight(devices: list[Device]) -> Iterator[Figure]:
    """Free and whole memory of each GPU."""
    for index, device in enumerate(devices):
        yield Figure(f"GPU {index}: memory", device.total / GIB, "GiB")
        yield Figure(f"GPU {index}: free", device.free / GIB, "GiB")


def refusals(devices: list[Device], *arguments: str) -> list[FailureReason]:
    """Why the preflight would not start vLLM with these arguments on this machine; empty: it would."""
    flags: Flags = read_flags(("--model", "m", *arguments))
    return [failure.reason for failure in accelerators.check(devices, flags, flags.quantization)]
