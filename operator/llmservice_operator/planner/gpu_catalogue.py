"""GPU products of gpus.tsv by the node label that names them: what they can compute, and how much memory they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def _rows() -> Iterator[tuple[str, list[str]]]:
    """Each line of the table, with the section that it is in."""
    section = ""
    for line in Path(__file__).with_name("gpus.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            yield section, line.split("\t")


def _gpu(section: str, row: list[str]) -> GPU:
    is_amd = section == "amd"
    major, _, minor = section.partition(".")
    sold_as = tuple(map(int, row[1].split(",")))
    return GPU(row[0], float(row[2]), None if is_amd else (int(major), int(minor)), sold_as, is_amd)


_ROWS = tuple(_rows())
GPUS = tuple(_gpu(section, row) for section, row in _ROWS if section != "slices")
ALSO_CALLED = {row[0]: tuple(row[3].split(", ")) for _, row in _ROWS if len(row) > 3}
"""What people write for a label."""
SLICES = {row[0]: float(row[1]) for section, row in _ROWS if section == "slices"}
"""GiB of MIG profiles."""
