"""Node labels and people's names for GPUs, and how much memory the driver reports for them."""

from __future__ import annotations

import pytest
from llmservice_api.matrix.dimensions import CAPABILITIES
from llmservice_planner.gpus import CATALOGUE, COMMON_NAMES, GPUS, SLICES, device, from_label_mib, label, labels
from llmservice_planner.plan import Device

from tests.unit.planner_models import gpu

NAMES = {
    # what start-ups that people measured and published were run on
    "NVIDIA A10 24GB": ((8, 6), 22.06),
    "NVIDIA A100 40GB MIG 1g.5gb": ((8, 0), 4.75),
    "NVIDIA A100 80GB": ((8, 0), 79.15),
    "NVIDIA GeForce RTX 3050 Laptop 6GB": ((8, 6), 5.65),
    "NVIDIA GeForce RTX 5090 32GB": ((12, 0), 31.36),
    "NVIDIA H100 NVL (94GB)": ((9, 0), 93.02),
    "NVIDIA H20 96GB": ((9, 0), 95.0),
    "NVIDIA RTX A5000 24GB": ((8, 6), 23.57),
    "Tesla T4": ((7, 5), 14.56),
    # labels
    "NVIDIA-A100-SXM4-80GB-SHARED": ((8, 0), 79.15),
    "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb": ((9, 0), 39.25),
    "NVIDIA-GH200-480GB": ((9, 0), 94.5),
    "AMD_Instinct_MI300X_OAM": (None, 191.45),
    # short and otherwise
    "a100-80": ((8, 0), 79.15),
    "A100 80G PCIe": ((8, 0), 79.15),
    "A100_40GB": ((8, 0), 39.39),
    "h100": ((9, 0), 79.11),
    "H100 SXM": ((9, 0), 79.11),
    "H100 NVL": ((9, 0), 93.02),
    "H100 96GB": ((9, 0), 95.0),
    "H20 141GB": ((9, 0), 139.72),
    "B200 192GB": ((10, 0), 178.35),
    "NVIDIA B300": ((10, 3), 267.69),
    "T4 (15GB)": ((7, 5), 14.56),
    "A10": ((8, 6), 22.06),
    "rtx3090": ((8, 6), 23.57),
    "RTX 3080": ((8, 6), 9.64),
    "RTX 3080 12GB": ((8, 6), 11.63),
    "RTX 3080 Ti": ((8, 6), 11.63),
    "RTX 4060Ti 16GB": ((8, 9), 15.57),
    "GeForce RTX 4070 Ti SUPER": ((8, 9), 15.57),
    "RTX 4090 D": ((8, 9), 23.55),
    "RTX 4090 Laptop GPU": ((8, 9), 15.57),
    "RTX 6000 Ada": ((8, 9), 47.38),
    "RTX 6000": ((7, 5), 22.17),
    "RTX PRO 6000 Blackwell Max-Q": ((12, 0), 94.97),
    "AMD Instinct MI300X (192GB)": (None, 191.45),
    "MI 300X": (None, 191.45),
    "MI250": (None, 63.98),
}
"""What is meant: compute capability, and GiB that the driver reports."""

UNCLEAR = {
    "NVIDIA-A100": (
        *("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-80GB-PCIe"),
    ),
    "a100 pcie": ("NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-80GB-PCIe"),
    "V100 SXM2": ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB"),
    "P100 PCIe": ("Tesla-P100-PCIE-16GB", "Tesla-P100-PCIE-12GB"),
    "GH200": ("NVIDIA-GH200-480GB", "NVIDIA-GH200-144G-HBM3e"),
    "A800": ("NVIDIA-A800-SXM4-80GB", "NVIDIA-A800-80GB-PCIe", "NVIDIA-A800-40GB-Active"),
}
"""Names of cards with different memory, and the labels that each may stand for."""

TAKEN = {
    "H100": "NVIDIA-H100-80GB-HBM3",
    "h100 pcie": "NVIDIA-H100-PCIe",
    "H100 NVL": "NVIDIA-H100-NVL",
    "A100-80": "NVIDIA-A100-SXM4-80GB",
    "A100-SXM4-40GB": "NVIDIA-A100-SXM4-40GB",
    "nvidia-l4": "NVIDIA-L4",
    "T4": "Tesla-T4",
    "H20": "NVIDIA-H20",
    "H200": "NVIDIA-H200",
    "RTX 4090": "NVIDIA-GeForce-RTX-4090",
    "RTX 4060 Ti 16GB": "NVIDIA-GeForce-RTX-4060-Ti",
    "A100 40GB MIG 1g.5gb": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    "MI300X": "AMD_Instinct_MI300X_OAM",
}
"""Names that are no label, and the label that is meant."""

STRANGERS = (
    *("A1000", "A101", "RTX 4095", "H100 40GB", "A100 64GB", "RTX 4090 Ti", "RTX 5000 Blackwell", "RTX 3060 8GB"),
    *("", "GPU", "80GB", "80", "NVIDIA", "TPU v5e", "Gaudi 3", "NVIDIA-Something", "A100 H100"),
)


@pytest.mark.parametrize(("name", "meant"), NAMES.items(), ids=NAMES)
def test_a_name_is_a_gpu(name: str, meant: tuple[tuple[int, int] | None, float]) -> None:
    found = device(name)
    assert found is not None
    assert (found.capability, found.memory_gib) == meant
    assert found.name == name
    assert found.is_amd == (meant[0] is None)


@pytest.mark.parametrize("name", STRANGERS)
def test_no_other_gpu_is_taken_for_it(name: str) -> None:
    assert device(name) is None


@pytest.mark.parametrize(("name", "meant"), UNCLEAR.items(), ids=UNCLEAR)
def test_a_name_of_cards_with_different_memory_is_no_gpu(name: str, meant: tuple[str, ...]) -> None:
    assert device(name) is None
    assert label(name) is None
    assert labels(name) == meant
    sized = device(name, 79.15)
    assert sized is not None


@pytest.mark.parametrize(("name", "meant"), TAKEN.items(), ids=TAKEN)
def test_a_name_has_its_label(name: str, meant: str) -> None:
    assert label(name) == meant
    assert meant in labels(name)


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA-A100-SXM4-80GB-SHARED", "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", "NVIDIA-B200-MIG-1g.23gb"),
        *("NVIDIA-H100-80GB-HBM3e", "NVIDIA-A100-SXM-64GB", "NVIDIA-X1000", "NVIDIA-RTX-6000-Next-Generation"),
    ],
)
def test_labels_and_what_may_be_the_label_of_a_new_card_are_no_nickname(name: str) -> None:
    assert labels(name) == ()


ALIKE = [
    *(("RTX 4000", "RTX 4090"), ("RTX 3080", "RTX 3080 Ti"), ("A10", "A100-40"), ("A10", "A10G"), ("L4", "L40")),
    *(("H20", "H200"), ("RTX A4000", "RTX 4000 Ada"), ("RTX PRO 6000", "RTX 6000 Ada"), ("B200", "GB200")),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_that_look_alike(one: str, other: str) -> None:
    assert gpu(one).memory_gib != gpu(other).memory_gib


def test_every_label_is_itself() -> None:
    for product, known in CATALOGUE.items():
        found = gpu(product)
        assert labels(product) == ()
        assert (known.product, found.memory_gib, found.capability) == (product, known.memory_gib, known.capability)


def test_memory_that_is_stated_wins() -> None:
    assert device("NVIDIA H100 80GB", 79.33) == Device("NVIDIA H100 80GB", 79.33, (9, 0))
    assert device("My own accelerator", 40.0) == Device("My own accelerator", 40.0)
    assert device("AMD Instinct MI999", 500.0) == Device("AMD Instinct MI999", 500.0, is_amd=True)
    assert device("A100 64GB", 63.4) == Device("A100 64GB", 63.4, (8, 0)), "what it can compute is known"


LABELS = {
    # nvidia-smi's MiB since driver 510, and what CUDA reports
    ("Tesla-T4", 15360): 14.56,
    ("NVIDIA-L4", 23034): 22.03,
    ("NVIDIA-A100-SXM4-40GB", 40960): 39.39,
    ("NVIDIA-A100-SXM4-80GB", 81920): 79.15,
    ("NVIDIA-H100-80GB-HBM3", 81559): 79.11,
    ("NVIDIA-B200", 183359): 178.35,
    ("NVIDIA-GeForce-RTX-4090", 24564): 23.55,
    ("NVIDIA-GeForce-RTX-3080", 10240): 9.64,
    ("NVIDIA-GeForce-RTX-3080", 12288): 11.63,
    # before driver 510 the label is CUDA's own figure
    ("Tesla-T4", 15109): 14.56,
    ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 4864): 4.75,
    ("NVIDIA-H100-80GB-HBM3-SHARED", 81559): 79.11,
}


@pytest.mark.parametrize(("label", "gib"), LABELS.items(), ids=[f"{product} {mib}" for product, mib in LABELS])
def test_the_memory_label_is_more_than_cuda_has(label: tuple[str, int], gib: float) -> None:
    assert from_label_mib(*label).memory_gib == gib


@pytest.mark.parametrize(
    ("product", "mib", "low", "high", "capability"),
    [
        ("NVIDIA-Something", 24576, 23.4, 23.6, None),
        ("NVIDIA-Something", 81920, 79.1, 79.4, None),
        ("NVIDIA-A100-SXM4-64GB", 65536, 63.1, 63.5, (8, 0)),  # a size of a known one
        ("NVIDIA-GeForce-RTX-3060", 8192, 7.4, 7.7, (8, 6)),  # another size under the same label
        ("NVIDIA-Something", 0, 0.0, 0.0, None),
    ],
)
def test_what_the_driver_keeps_is_taken_off(
    product: str, mib: int, low: float, high: float, capability: tuple[int, int] | None
) -> None:
    found = from_label_mib(product, mib)
    assert low <= found.memory_gib <= high
    assert found.capability == capability


def test_the_catalogue_holds_together() -> None:
    for one in GPUS:
        assert one.capability is None or "{}.{}".format(*one.capability) in CAPABILITIES, one
        assert one.is_amd == (one.capability is None), one
        assert any(0.89 * sold < one.memory_gib < sold for sold in one.sold_as), one
    assert set(COMMON_NAMES) <= set(CATALOGUE)


def test_of_two_cards_with_one_label_the_smaller_one_is_found() -> None:
    assert gpu("NVIDIA-GeForce-RTX-3080").memory_gib == 9.64


def test_slices_are_a_little_less_than_they_are_called() -> None:
    for profile, gib in SLICES.items():
        assert 0.88 * int(profile.partition(".")[2].removesuffix("gb")) <= gib < int(profile.partition(".")[2][:-2])
    unknown = gpu("NVIDIA-B200-MIG-1g.23gb")
    assert (unknown.capability, round(unknown.memory_gib, 2)) == ((10, 0), 20.24)
