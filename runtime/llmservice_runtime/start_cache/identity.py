"""What the files of a start depend on: the revision, the image's packages and the device. Compared as one hash."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from llmservice_vllm.modules import DISTRIBUTIONS

_PACKAGES = (*DISTRIBUTIONS, "torch", "triton", "flashinfer-python")
# Device files of the drivers, and what names the processor; absent ones are left out.
_NVIDIA = ("driver/nvidia/version", "driver/nvidia/gpus/*/information")
_AMD = "class/kfd/kfd/topology/nodes/*/properties"
_PROCESSOR = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")
# Of a GPU: two of the same product are the same device.
_GPU_LINES = ("Model:", "NVRM version:", "gfx_target_version", "device_id", "Video BIOS:")
_MAX_BYTES = 1 << 20


def key(revision: str, proc: Path = Path("/proc"), sys_folder: Path = Path("/sys")) -> str:
    """16 hexadecimal digits: the name of a folder."""
    parts = [f"revision {revision}", f"python {sys.version}", *_packages(), *device(proc, sys_folder)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _packages() -> Iterator[str]:
    """Each package by the hashes of its files, which pip records: the same tag of an image may get other contents."""
    for name in _PACKAGES:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        recorded = distribution.read_text("RECORD") or ""
        yield f"package {name} {distribution.version} {hashlib.sha256(recorded.encode()).hexdigest()}"


def device(proc: Path, sys_folder: Path) -> list[str]:
    """Lines that name the processor and the GPUs, each once."""
    lines = {f"machine {platform.machine()}"}
    for file in (path for pattern in _NVIDIA for path in proc.glob(pattern)):
        lines |= {line for line in _lines(file) if line.startswith(_GPU_LINES)}
    for file in sys_folder.glob(_AMD):
        lines |= {line for line in _lines(file) if line.startswith(_GPU_LINES)}
    lines |= {line for line in _lines(proc / "cpuinfo") if line.startswith(_PROCESSOR)}
    return sorted(lines)


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            # Of /proc/cpuinfo the first processor: the others are alike, and may be a thousand.
            return [line.strip() for line in opened.read(_MAX_BYTES).split("\n\n")[0].splitlines()]
    except OSError:
        return []
