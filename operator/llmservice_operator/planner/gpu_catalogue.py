"""GPU products by the node label that names them: what they can compute, and how much the driver says they hold.

Memory is what CUDA or HIP reports as total (torch's `total_memory`; "GPU 0 has a total capacity of" in an error), in
GiB. It is neither what a card is sold with nor what nvidia-smi prints: nvidia-smi and the label `nvidia.com/gpu.memory`
count what the driver keeps for itself since driver 510 (T4 15,360 MiB there, 14.56 GiB to CUDA: 0.44 GiB less; L4 0.46,
A100 0.6 to 0.8, H100 0.35 to 0.55, RTX 4090 0.35 to 0.47, B200 0.7). ECC memory is already off in both.

"measured": printed by torch or vLLM in a public report, the newest drivers' figure where they differ. "derived": the
card's nvidia-smi figure less what the driver keeps on its measured neighbours of the same generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GPU:
    """One product."""

    product: str
    memory_gib: float
    """What the driver reports as total."""
    capability: Capability | None
    """NVIDIA's compute capability; None for other vendors."""
    sold_as: tuple[int, ...] = ()
    """The GB in its name and in its data sheet."""
    is_amd: bool = False


Row = tuple[str, int | tuple[int, ...], float]
"""Label, GB it is sold as, GiB that the driver reports."""


def _nvidia(capability: Capability, *rows: Row) -> Iterator[GPU]:
    for product, sold, gib in rows:
        yield GPU(product, gib, capability, sold if isinstance(sold, tuple) else (sold,))


def _amd(*rows: Row) -> Iterator[GPU]:
    for product, sold, gib in rows:
        yield GPU(product, gib, None, sold if isinstance(sold, tuple) else (sold,), is_amd=True)


GPUS: tuple[GPU, ...] = (
    # Pascal. Measured: P100 15.89-15.90 and 11.91, P40 22.38 with ECC (23.87 without); P4 derived from 7,611 MiB.
    *_nvidia(
        (6, 0),
        ("Tesla-P100-PCIE-16GB", 16, 15.89),
        ("Tesla-P100-PCIE-12GB", 12, 11.91),
        ("Tesla-P100-SXM2-16GB", 16, 15.89),
    ),
    *_nvidia((6, 1), ("Tesla-P4", 8, 7.43), ("Tesla-P40", 24, 22.38)),
    # Volta. Measured: 15.77-15.78 and 31.73-31.75.
    *_nvidia(
        (7, 0),
        ("Tesla-V100-PCIE-16GB", 16, 15.77),
        ("Tesla-V100-PCIE-32GB", 32, 31.73),
        ("Tesla-V100-SXM2-16GB", 16, 15.77),
        ("Tesla-V100-SXM2-32GB", 32, 31.73),
        ("Tesla-V100-SXM3-32GB", 32, 31.73),
        ("Tesla-V100S-PCIE-32GB", 32, 31.73),
        ("NVIDIA-TITAN-V", 12, 11.77),
    ),
    # Turing. Measured: T4 14.56-14.58 (14.74 before driver 510), 2080 Ti 10.57-10.76, Quadro RTX 8000 44.5 with ECC and
    # 47.46 without, Quadro RTX 6000 22.17 with and 23.65 without, TITAN RTX 23.5-23.65. The others derived.
    *_nvidia(
        (7, 5),
        ("Tesla-T4", (16, 15), 14.56),
        ("NVIDIA-T4", (16, 15), 14.56),
        ("NVIDIA-T4G", (16, 15), 14.56),
        ("NVIDIA-GeForce-RTX-2060", 6, 5.6),
        ("NVIDIA-GeForce-RTX-2070", 8, 7.6),
        ("NVIDIA-GeForce-RTX-2070-SUPER", 8, 7.6),
        ("NVIDIA-GeForce-RTX-2080", 8, 7.6),
        ("NVIDIA-GeForce-RTX-2080-SUPER", 8, 7.6),
        ("NVIDIA-GeForce-RTX-2080-Ti", 11, 10.57),
        ("NVIDIA-TITAN-RTX", 24, 23.5),
        ("Quadro-RTX-4000", 8, 7.6),
        ("Quadro-RTX-5000", 16, 15.5),
        ("Quadro-RTX-6000", 24, 22.17),
        ("Quadro-RTX-8000", 48, 44.5),
    ),
    # Ampere for data centres. Measured: 39.39-39.59 and 79.14-79.35; A30 derived from 24,576 MiB.
    *_nvidia(
        (8, 0),
        ("NVIDIA-A100-SXM4-40GB", 40, 39.39),
        ("NVIDIA-A100-SXM4-80GB", 80, 79.15),
        ("NVIDIA-A100-PCIE-40GB", 40, 39.39),
        ("NVIDIA-A100-80GB-PCIe", 80, 79.15),
        ("NVIDIA-A100X", 80, 79.15),
        ("NVIDIA-A800-SXM4-80GB", 80, 79.15),
        ("NVIDIA-A800-80GB-PCIe", 80, 79.15),
        ("NVIDIA-A800-40GB-Active", 40, 39.39),
        ("NVIDIA-A30", 24, 23.5),
    ),
    # Ampere. Measured: A10G 21.99-22.20, A10 22.05-22.20, A40 44.34-44.56, A5000 23.57-23.69, A6000 47.40-47.54, 3090
    # 23.56-23.69, 10 GB cards 9.64-9.78, 12 GB 11.63-11.77, 8 GB 7.60-7.79, A2000 12GB 11.53, 3050 Laptop 6.0 under
    # Windows. The others derived.
    *_nvidia(
        (8, 6),
        ("NVIDIA-A2", 16, 14.54),
        ("NVIDIA-A10", 24, 22.06),
        ("NVIDIA-A10G", 24, 21.99),
        ("NVIDIA-A10M", 20, 18.3),
        ("NVIDIA-A16", 16, 14.54),
        ("NVIDIA-A40", 48, 44.34),
        ("NVIDIA-RTX-A2000", 6, 5.65),
        ("NVIDIA-RTX-A2000-12GB", 12, 11.53),
        ("NVIDIA-RTX-A4000", 16, 15.6),
        ("NVIDIA-RTX-A4500", 20, 19.58),
        ("NVIDIA-RTX-A5000", 24, 23.57),
        ("NVIDIA-RTX-A5500", 24, 23.57),
        ("NVIDIA-RTX-A6000", 48, 47.4),
        ("NVIDIA-GeForce-RTX-3050", 8, 7.62),
        ("NVIDIA-GeForce-RTX-3050-6GB-Laptop-GPU", 6, 5.65),
        ("NVIDIA-GeForce-RTX-3050-Laptop-GPU", 4, 3.68),
        ("NVIDIA-GeForce-RTX-3060", 12, 11.63),
        ("NVIDIA-GeForce-RTX-3060-Laptop-GPU", 6, 5.65),
        ("NVIDIA-GeForce-RTX-3060-Ti", 8, 7.62),
        ("NVIDIA-GeForce-RTX-3070", 8, 7.62),
        ("NVIDIA-GeForce-RTX-3070-Laptop-GPU", 8, 7.62),
        ("NVIDIA-GeForce-RTX-3070-Ti", 8, 7.62),
        ("NVIDIA-GeForce-RTX-3080", 10, 9.64),
        ("NVIDIA-GeForce-RTX-3080", 12, 11.63),
        ("NVIDIA-GeForce-RTX-3080-Laptop-GPU", 8, 7.62),
        ("NVIDIA-GeForce-RTX-3080-Laptop-GPU", 16, 15.6),
        ("NVIDIA-GeForce-RTX-3080-Ti", 12, 11.63),
        ("NVIDIA-GeForce-RTX-3080-Ti-Laptop-GPU", 16, 15.6),
        ("NVIDIA-GeForce-RTX-3090", 24, 23.57),
        ("NVIDIA-GeForce-RTX-3090-Ti", 24, 23.57),
    ),
    *_nvidia((8, 7), ("Orin", (64, 61), 61.3)),
    # Ada. Measured: L4 22.03-22.17, L20, L40 and L40S 44.39-44.53, 4090 23.52-23.65, 6000 Ada 47.38-47.53, 16 GB cards
    # 15.57-15.70, 12 GB 11.60-11.72, 4000 Ada 19.54-19.67. The others derived.
    *_nvidia(
        (8, 9),
        ("NVIDIA-L2", 24, 22.03),
        ("NVIDIA-L4", (24, 23), 22.03),
        ("NVIDIA-L20", 48, 44.4),
        ("NVIDIA-L40", 48, 44.39),
        ("NVIDIA-L40G", 24, 22.03),
        ("NVIDIA-L40S", 48, 44.39),
        ("NVIDIA-RTX-2000-Ada-Generation", 16, 15.57),
        ("NVIDIA-RTX-4000-Ada-Generation", 20, 19.54),
        ("NVIDIA-RTX-4000-SFF-Ada-Generation", 20, 19.54),
        ("NVIDIA-RTX-4500-Ada-Generation", 24, 23.5),
        ("NVIDIA-RTX-5000-Ada-Generation", 32, 31.5),
        ("NVIDIA-RTX-5880-Ada-Generation", 48, 47.38),
        ("NVIDIA-RTX-6000-Ada-Generation", 48, 47.38),
        ("NVIDIA-GeForce-RTX-4060", 8, 7.6),
        ("NVIDIA-GeForce-RTX-4060-Laptop-GPU", 8, 7.6),
        ("NVIDIA-GeForce-RTX-4060-Ti", 8, 7.6),
        ("NVIDIA-GeForce-RTX-4060-Ti", 16, 15.57),
        ("NVIDIA-GeForce-RTX-4070", 12, 11.6),
        ("NVIDIA-GeForce-RTX-4070-Laptop-GPU", 8, 7.6),
        ("NVIDIA-GeForce-RTX-4070-SUPER", 12, 11.6),
        ("NVIDIA-GeForce-RTX-4070-Ti", 12, 11.6),
        ("NVIDIA-GeForce-RTX-4070-Ti-SUPER", 16, 15.57),
        ("NVIDIA-GeForce-RTX-4080", 16, 15.57),
        ("NVIDIA-GeForce-RTX-4080-Laptop-GPU", 12, 11.6),
        ("NVIDIA-GeForce-RTX-4080-SUPER", 16, 15.57),
        ("NVIDIA-GeForce-RTX-4090", 24, 23.55),
        ("NVIDIA-GeForce-RTX-4090-D", 24, 23.55),
        ("NVIDIA-GeForce-RTX-4090-Laptop-GPU", 16, 15.57),
    ),
    # Hopper. Measured: H100 79.10-79.33, NVL 93.02-93.10, H200 139.72-139.81, H20 and the H100 with 96 GB 95.00-95.22,
    # GH200 94.50. H800 as H100; the H20 with 141 GB and the GH200 with 144 GB as H200.
    *_nvidia(
        (9, 0),
        ("NVIDIA-H100-80GB-HBM3", 80, 79.11),
        ("NVIDIA-H100-PCIe", 80, 79.11),
        ("NVIDIA-H100-NVL", (94, 95), 93.02),
        ("NVIDIA-H100-96GB-HBM3", 96, 95.0),
        ("NVIDIA-H800", 80, 79.11),
        ("NVIDIA-H800-PCIe", 80, 79.11),
        ("NVIDIA-H800-NVL", 94, 93.02),
        ("NVIDIA-H20", 96, 95.0),
        ("NVIDIA-H20-3e", 141, 139.72),
        ("NVIDIA-H200", (141, 143), 139.72),
        ("NVIDIA-H200-NVL", (141, 143), 139.72),
        ("NVIDIA-GH200-480GB", (480, 96, 97), 94.5),
        ("NVIDIA-GH200-144G-HBM3e", 144, 139.72),
    ),
    # Blackwell for data centres. Measured: B200 178.35-178.36, GB200 184.31, B300 267.69, GB300 276.50.
    *_nvidia((10, 0), ("NVIDIA-B200", (180, 183, 192), 178.35), ("NVIDIA-GB200", (186, 192), 184.31)),
    *_nvidia(
        (10, 3),
        ("NVIDIA-B300-SXM6-AC", (270, 275, 288), 267.69),
        ("NVIDIA-GB300", (279, 284, 288), 276.5),
    ),
    # Blackwell. Measured: 5090 31.35-31.40, 5080 15.47-15.49, 5070 11.49, PRO 6000 94.96-95.01. The others derived.
    *_nvidia(
        (12, 0),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 96, 94.97),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", 96, 94.97),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", 96, 94.97),
        ("NVIDIA-RTX-PRO-5000-Blackwell", 48, 47.2),
        ("NVIDIA-RTX-PRO-5000-Blackwell", 72, 71.0),
        ("NVIDIA-RTX-PRO-4500-Blackwell", 32, 31.36),
        ("NVIDIA-RTX-PRO-4000-Blackwell", 24, 23.4),
        ("NVIDIA-GeForce-RTX-5060", 8, 7.5),
        ("NVIDIA-GeForce-RTX-5060-Ti", 8, 7.5),
        ("NVIDIA-GeForce-RTX-5060-Ti", 16, 15.47),
        ("NVIDIA-GeForce-RTX-5070", 12, 11.49),
        ("NVIDIA-GeForce-RTX-5070-Ti", 16, 15.47),
        ("NVIDIA-GeForce-RTX-5080", 16, 15.47),
        ("NVIDIA-GeForce-RTX-5090", 32, 31.36),
        ("NVIDIA-GeForce-RTX-5090-D", 32, 31.36),
        ("NVIDIA-GeForce-RTX-5090-Laptop-GPU", 24, 23.4),
    ),
    # GB10 shares its memory with the CPU; 119.7 of 128 GB are there at most.
    *_nvidia((12, 1), ("NVIDIA-GB10", (128, 120), 119.6)),
    # AMD, one row for what one process sees (half a MI250X). Measured: MI210 and MI250X 63.98, MI300X 191.45-191.98,
    # MI325X 255.69-255.98, MI355X 287.98, W7900 44.98. The others derived.
    *_amd(
        ("AMD_Instinct_MI210", 64, 63.98),
        ("AMD_Instinct_MI250X_MI250", (64, 128), 63.98),
        ("AMD_Instinct_MI300X_OAM", 192, 191.45),
        ("AMD_Instinct_MI308X_OAM", 192, 191.45),
        ("AMD_Instinct_MI325_OAM", 256, 255.69),
        ("AMD_Instinct_MI350_OAM", 288, 287.7),
        ("AMD_Instinct_MI355_OAM", 288, 287.7),
        ("AMD_Radeon_RX_7900_XTX", 24, 23.98),
        ("AMD_Radeon_PRO_W7900", 48, 44.98),
        ("AMD_Radeon_AI_PRO_R9700", 32, 31.86),
    ),
)

ALSO_CALLED: dict[str, tuple[str, ...]] = {
    "AMD_Instinct_MI250X_MI250": ("MI250X", "MI250"),
    "AMD_Instinct_MI325_OAM": ("MI325X",),
    "AMD_Instinct_MI350_OAM": ("MI350X",),
    "AMD_Instinct_MI355_OAM": ("MI355X",),
    "NVIDIA-B300-SXM6-AC": ("B300",),
    "NVIDIA-H100-80GB-HBM3": ("H100", "H100 SXM", "H100 SXM5"),
    "NVIDIA-H20-3e": ("H20",),
    "NVIDIA-GB10": ("DGX Spark",),
    "Orin": ("Jetson AGX Orin",),
    "Tesla-T4": ("T4",),
}
"""What people write for a label."""

SLICES: dict[str, float] = {
    # A100 with 40 and 80 GB and H100 with 80 GB: 1g.10gb is 9.50 to 9.75, 3g.40gb 39.25 to 39.50.
    "1g.5gb": 4.75,
    "1g.10gb": 9.5,
    "2g.10gb": 9.75,
    "3g.20gb": 19.62,
    "4g.20gb": 19.62,
    "7g.40gb": 39.25,
    "1g.20gb": 19.5,
    "2g.20gb": 19.5,
    "3g.40gb": 39.25,
    "4g.40gb": 39.25,
    "7g.80gb": 78.75,
    # A30
    "1g.6gb": 5.81,
    "2g.12gb": 11.69,
    "4g.24gb": 23.44,
    # H100 with 94 and 96 GB; the 3g, 4g and 7g profiles derived from the smaller ones.
    "1g.12gb": 10.62,
    "1g.24gb": 21.5,
    "2g.24gb": 21.5,
    "3g.47gb": 46.0,
    "4g.47gb": 46.0,
    "7g.94gb": 92.75,
    # H200; 3g and 4g derived.
    "1g.18gb": 16.0,
    "1g.35gb": 32.5,
    "2g.35gb": 32.5,
    "3g.71gb": 69.0,
    "4g.71gb": 69.0,
    "7g.141gb": 139.5,
}
"""GiB of MIG profiles, as `nvidia-smi mig -lgip` prints them; the least over the products that have the profile."""
