"""GPU products by the node label that names them: what they can compute, and how much they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GPU:
    """One product."""

    product: str
    memory_gib: int
    capability: Capability | None
    """NVIDIA's compute capability; None for other vendors."""


def _nvidia(capability: Capability, **memory_of: int) -> list[GPU]:
    return [GPU(name.replace("__", ".").replace("_", "-"), gib, capability) for name, gib in memory_of.items()]


_GPUS: tuple[GPU, ...] = (
    *_nvidia((6, 0), Tesla_P100_PCIE_12GB=12, Tesla_P100_PCIE_16GB=16, Tesla_P100_SXM2_16GB=16),
    *_nvidia((6, 1), Tesla_P4=8, Tesla_P40=24),
    *_nvidia(
        (7, 0),
        Tesla_V100_PCIE_16GB=16,
        Tesla_V100_PCIE_32GB=32,
        Tesla_V100_SXM2_16GB=16,
        Tesla_V100_SXM2_32GB=32,
        Tesla_V100_SXM3_32GB=32,
        Tesla_V100S_PCIE_32GB=32,
    ),
    *_nvidia(
        (7, 5),
        Tesla_T4=16,
        NVIDIA_T4=16,
        NVIDIA_T4G=16,
        NVIDIA_GeForce_RTX_2080_Ti=11,
        NVIDIA_TITAN_RTX=24,
        Quadro_RTX_6000=24,
        Quadro_RTX_8000=48,
    ),
    *_nvidia(
        (8, 0),
        NVIDIA_A100_SXM4_40GB=40,
        NVIDIA_A100_SXM4_80GB=80,
        NVIDIA_A100_PCIE_40GB=40,
        NVIDIA_A100_80GB_PCIe=80,
        NVIDIA_A100X=80,
        NVIDIA_A800_SXM4_80GB=80,
        NVIDIA_A800_80GB_PCIe=80,
        NVIDIA_A30=24,
    ),
    *_nvidia(
        (8, 6),
        NVIDIA_A2=16,
        NVIDIA_A10=24,
        NVIDIA_A10G=24,
        NVIDIA_A16=16,
        NVIDIA_A40=48,
        NVIDIA_RTX_A4000=16,
        NVIDIA_RTX_A4500=20,
        NVIDIA_RTX_A5000=24,
        NVIDIA_RTX_A5500=24,
        NVIDIA_RTX_A6000=48,
        NVIDIA_GeForce_RTX_3080=10,
        NVIDIA_GeForce_RTX_3090=24,
        NVIDIA_GeForce_RTX_3090_Ti=24,
    ),
    *_nvidia(
        (8, 9),
        NVIDIA_L4=24,
        NVIDIA_L20=48,
        NVIDIA_L40=48,
        NVIDIA_L40S=48,
        NVIDIA_RTX_4000_Ada_Generation=20,
        NVIDIA_RTX_5000_Ada_Generation=32,
        NVIDIA_RTX_6000_Ada_Generation=48,
        NVIDIA_GeForce_RTX_4080=16,
        NVIDIA_GeForce_RTX_4090=24,
    ),
    *_nvidia(
        (9, 0),
        NVIDIA_H100_PCIe=80,
        NVIDIA_H100_80GB_HBM3=80,
        NVIDIA_H100_NVL=94,
        NVIDIA_H800=80,
        NVIDIA_H20=96,
        NVIDIA_H200=141,
        NVIDIA_H200_NVL=141,
        NVIDIA_GH200_480GB=96,
        NVIDIA_GH200_144G_HBM3e=141,
    ),
    *_nvidia((10, 0), NVIDIA_B200=180, NVIDIA_GB200=186),
    *_nvidia((10, 3), NVIDIA_B300_SXM6_AC=270, NVIDIA_GB300=279),
    *_nvidia(
        (12, 0),
        NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition=96,
        NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition=96,
        NVIDIA_GeForce_RTX_5080=16,
        NVIDIA_GeForce_RTX_5090=32,
    ),
    GPU("AMD_Instinct_MI210", 64, None),
    GPU("AMD_Instinct_MI250X_MI250", 64, None),
    GPU("AMD_Instinct_MI300X_OAM", 192, None),
    GPU("AMD_Instinct_MI325_OAM", 256, None),
    GPU("AMD_Instinct_MI350_OAM", 288, None),
    GPU("AMD_Instinct_MI355_OAM", 288, None),
)

CATALOGUE: Mapping[str, GPU] = MappingProxyType({gpu.product: gpu for gpu in _GPUS})

_SHARING = re.compile(r"-(SHARED|MIG-.*)$")
_MIG_MEMORY = re.compile(r"-MIG-\d+g\.(\d+)gb")


def find(product: str) -> GPU | None:
    """The GPU behind a label value, shared and sliced ones included; None for one that nobody entered here."""
    gpu = CATALOGUE.get(_SHARING.sub("", product))
    slice_memory = _MIG_MEMORY.search(product)
    if gpu is None or slice_memory is None:
        return gpu
    return GPU(product, int(slice_memory[1]), gpu.capability)
