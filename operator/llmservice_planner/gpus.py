"""The GPU catalogue: finds a GPU by node label or common name, with compute capability and memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from llmservice_planner.plan import Device

# Most GPUs per node: a replica is one pod, so that one node must have all of its GPUs.

USUAL_PER_NODE = 8
"""Maximum in usual machines."""
_MORE_PER_NODE = {"NVIDIA-A100-SXM4-40GB": 16, "Tesla-V100-SXM3-32GB": 16}
"""Products that exist in larger machines (a2-megagpu-16g, DGX-2)."""


def most_per_node(product: str | None) -> int:
    """Maximum of GPUs in any machine with this product."""
    return _MORE_PER_NODE.get(product or "", USUAL_PER_NODE)


def note(needed: int, product: str | None) -> str:
    """For unknown nodes: that no machine has enough GPUs; empty if one may."""
    if needed <= (most := most_per_node(product)):
        return ""
    return f"One pod needs a node with {needed} GPUs; such nodes usually have {most} at most (spec.parallelism.nodes)."


# GPU products of gpus.tsv by node label: capability and memory.

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GPU:
    product: str
    memory_gib: float
    """Total memory by the driver."""
    capability: Capability | None
    """NVIDIA's compute capability; None for other vendors."""
    sold_as: tuple[int, ...] = ()
    """GB in its name and in its data sheet."""
    is_amd: bool = False


def _rows() -> Iterator[tuple[str, list[str]]]:
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
COMMON_NAMES = {row[0]: tuple(row[3].split(", ")) for _, row in _ROWS if len(row) > 3}
"""Common names of a label."""
SLICES = {row[0]: float(row[1]) for section, row in _ROWS if section == "slices"}
"""GiB of MIG profiles."""


__all__ = [
    "CATALOGUE",
    "GPU",
    "Capability",
    "any_slice",
    "device",
    "find",
    "from_label_mib",
    "is_slice",
    "label",
    "labels",
    "sizes",
    "slice_gib",
    "slice_of",
]

CATALOGUE: Mapping[str, GPU] = MappingProxyType({gpu.product: gpu for gpu in reversed(GPUS)})
"""By label; of two sizes with one label the smaller."""

_SHARED = re.compile(r"[\s-]+shared$", re.IGNORECASE)
_SLICE = re.compile(r"[\s-]+mig[\s-]+(?:\d+c\.)?(?P<profile>\d+g\.(?P<gb>\d+)gb)\S*$", re.IGNORECASE)
_LEAST_OF_SLICE = 0.88
"""Lowest ratio of GiB to the GB in a profile's name, over all known profiles (1g.12gb, 1g.18gb)."""

_KEPT_GIB = 0.4
_KEPT_SHARE = 0.005
"""Memory that the driver reserves of nvidia-smi's total: 0.4 GiB and half a percent match the measured GPUs to 0.3
GiB."""
_LABEL_ABOVE = 1.06
"""nvidia-smi's total exceeds CUDA's by up to 5.2% (8 GB GPUs)."""


def find(product: str) -> GPU | None:
    """The GPU for a label value, including shared and sliced ones; None if unknown."""
    whole, profile = _unsliced(product)
    gpu = CATALOGUE.get(whole)
    return gpu if gpu is None or profile is None else replace(gpu, product=product, memory_gib=profile, sold_as=())


def device(name: str, memory_gib: float | None = None) -> Device | None:
    """The GPU for a label or common name ("Tesla T4", "A100-80", "NVIDIA H100 NVL (94GB)").

    Of several GPUs with one label, the smallest. memory_gib, the driver's value, overrides the catalogue. Without it
    None for an unknown name, and for a name of GPUs with different memory ("A100").
    """
    gpu = find(name) or (None if memory_gib is None and _is_ambiguous(name) else _by_words(name, memory_gib))
    if gpu is not None:
        total = gpu.memory_gib if memory_gib is None else memory_gib
        return Device(name, total, gpu.capability, is_amd=gpu.is_amd)
    return None if memory_gib is None else Device(name, memory_gib, is_amd=_is_amd_name(name))


def labels(name: str) -> tuple[str, ...]:
    """Label values that a common name may stand for: `A100-80`, `H100`, `nvidia-l4`.

    Empty for a label of the catalogue, and for a possible label of an unknown GPU: a name with a word or size that no
    known GPU has.
    """
    whole, _ = _unsliced(name)
    if find(name) is not None:
        return ()
    parsed, rest = _parsed_name(whole), name.strip()[len(whole) :].replace(" ", "-")
    whole_words = (gpu for entry, gpu in _named(parsed) if _has_words(entry, parsed))
    return tuple(dict.fromkeys(f"{gpu.product}{rest}" for gpu in whole_words))


def label(name: str, memory_gib: float | None = None) -> str | None:
    """The label value for a name; None if there is none, or several.

    memory_gib, the driver's value, distinguishes GPUs; another size means an unknown label.
    """
    whole, profile = _unsliced(name)
    parsed = _parsed_name(whole)
    if memory_gib is None and _is_ambiguous(name):
        return None
    gpu = _choose(parsed, _named(parsed), None if profile is not None else memory_gib)
    if gpu is None or (profile is None and memory_gib is not None and not _is_near(gpu.memory_gib, memory_gib)):
        return None
    return next((one for one in labels(name) if one.startswith(gpu.product)), None)


def sizes(product: str) -> tuple[float, ...]:
    return tuple(gpu.memory_gib for gpu in GPUS if gpu.product == product)


def from_label_mib(product: str, mib: float) -> Device:
    """The GPU of a node, by the labels nvidia.com/gpu.product and nvidia.com/gpu.memory.

    The memory label is nvidia-smi's total, which includes memory that the driver reserves. A known GPU has its measured
    value, with the label deciding between two sizes of one name; another has the label's minus the reserved memory.
    """
    labelled = mib / 1024
    known = [gpu for gpu in _same_label(product) if gpu.memory_gib * 0.98 <= labelled <= gpu.memory_gib * _LABEL_ABOVE]
    if known:
        gpu = known[0]
        return Device(product, min(gpu.memory_gib, labelled), gpu.capability, is_amd=gpu.is_amd)
    total = max(0.0, labelled - _KEPT_GIB - _KEPT_SHARE * labelled)
    other = find(product) or _by_words(product, total)
    return Device(product, total, None if other is None else other.capability, is_amd=_is_amd_name(product))


def slice_gib(profile: str) -> float | None:
    """GiB of a MIG profile as in resource names ("3g.40gb", "1g.10gb.me"); None if it has no size."""
    return _unsliced(f"-MIG-{profile}")[1]


def slice_of(product: str, profile: str) -> str:
    """The label of a GPU's slices, as GPU feature discovery writes it; unchanged for a label of slices."""
    return product if "-MIG-" in product else f"{product}-MIG-{profile}"


def any_slice(memory_gib: float) -> str:
    """The name of a slice of an unknown GPU."""
    return f"a MIG slice of {memory_gib:g} GiB"


def is_slice(name: str) -> bool:
    """Whether a device is a MIG slice, by its label or `any_slice`."""
    return "-MIG-" in name or name.startswith("a MIG slice")


def _unsliced(name: str) -> tuple[str, float | None]:
    """The name of the whole GPU, and GiB of the MIG slice."""
    name = _SHARED.sub("", name.strip())
    found = _SLICE.search(name)
    if found is None:
        return name, None
    profile = found["profile"].lower()
    return name[: found.start()], SLICES.get(profile, int(found["gb"]) * _LEAST_OF_SLICE)


def _same_label(product: str) -> list[GPU]:
    whole, profile = _unsliced(product)
    if profile is None:
        return [gpu for gpu in GPUS if gpu.product == whole]
    gpu = find(product)
    return [] if gpu is None else [gpu]


# Common names. A name is split into words that identify the product, words that identify a variant, and a number of GB.
# The first must be equal sets, so that "RTX 4000" does not match "RTX 4090", nor "A10" "A100".

_MEMORY = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)\s*(?:gib|gb|g)\b")
_BARE_NUMBER = re.compile(r"\d{1,3}")
_VENDOR = re.compile(
    r"nvidia|amd|geforce|quadro|tesla|instinct|radeon|rtx|gtx|gpu|graphics|card|accelerator|corporation|tensor|core"
    r"|generation|edition|shared"
)
_GENERATIONS = frozenset({"ada", "blackwell"})
_VARIANT = re.compile(r"sxm\d*|pcie|hbm\w*|nvl|oam|ac|active|sff|server|workstation|ada|blackwell")
_SPELLINGS = (
    (re.compile(r"\bmax[\s-]?q\b"), "maxq"),
    (re.compile(r"\bmobile\b"), "laptop"),
    (re.compile(r"\b(rtx|gtx)(?=[a\d])"), r"\1 "),
    (re.compile(r"\bmi[\s-](?=\d{3})"), "mi"),
    (re.compile(r"\b(\d{4})(ti|super|d)\b"), r"\1 \2"),
)


@dataclass(frozen=True, slots=True)
class _Name:
    """A name split into its parts."""

    core: frozenset[str]
    variant: frozenset[str]
    gb: float | None


def _parsed_name(name: str) -> _Name:
    text = name.lower().replace("_", " ")
    memory = _MEMORY.search(text)
    text = _MEMORY.sub(" ", text)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    words = [word for word in re.split(r"[^a-z0-9]+", text) if word and not _VENDOR.fullmatch(word)]
    variant = frozenset(word for word in words if _VARIANT.fullmatch(word))
    core = frozenset(words) - variant
    bare = frozenset(word for word in core if _BARE_NUMBER.fullmatch(word))
    if memory is not None or len(bare) != 1 or bare == core:
        return _Name(core, variant, None if memory is None else float(memory[1]))
    return _Name(core - bare, variant, float(*bare))


def _entries() -> Iterable[tuple[_Name, GPU]]:
    for gpu in GPUS:
        for name in (gpu.product, *COMMON_NAMES.get(gpu.product, ())):
            yield _parsed_name(name), gpu


_ENTRIES = tuple(_entries())


def _is_ambiguous(name: str) -> bool:
    """Whether several GPUs with different memory share the name, and none has it alone."""
    whole, profile = _unsliced(name)
    parsed = _parsed_name(whole)
    if find(name) is not None or profile is not None or _exactly_named(parsed):
        return False
    known = [gpu.memory_gib for gpu in _best(parsed, _named(parsed))]
    return bool(known) and not _is_near(max(known), min(known))


def _is_near(one: float, other: float) -> bool:
    return max(one, other) <= _SAME_SIZE * min(one, other)


_SAME_SIZE = 1.02


def _exactly_named(parsed: _Name) -> list[tuple[_Name, GPU]]:
    """GPUs with exactly this name: by label, else by common name."""
    exact = [(entry, gpu) for entry, gpu in _named(parsed) if (entry.variant, entry.gb) == (parsed.variant, parsed.gb)]
    return [(entry, gpu) for entry, gpu in exact if entry == _parsed_name(gpu.product)] or exact


def _named(parsed: _Name) -> list[tuple[_Name, GPU]]:
    found = _of_generation(parsed)
    return found if parsed.gb is None else _of_size(found, parsed.gb)


def _of_generation(parsed: _Name) -> list[tuple[_Name, GPU]]:
    """GPUs with this core name, of its generation if the name has one."""
    return [
        (entry, gpu)
        for entry, gpu in _ENTRIES
        if entry.core == parsed.core and parsed.variant & _GENERATIONS <= entry.variant
    ]


def _has_words(entry: _Name, parsed: _Name) -> bool:
    return all(any(own.startswith(word) for own in entry.variant) for word in parsed.variant)


def _by_words(name: str, memory_gib: float | None) -> GPU | None:
    whole, profile = _unsliced(name)
    parsed = _parsed_name(whole)
    sized = _named(parsed)
    if not sized and memory_gib is None:
        return None
    gpu = _choose(parsed, sized or _of_generation(parsed), None if profile is not None else memory_gib)
    return gpu if gpu is None or profile is None else replace(gpu, product=name, memory_gib=profile, sold_as=())


def _choose(parsed: _Name, found: list[tuple[_Name, GPU]], memory_gib: float | None) -> GPU | None:
    best = _best(parsed, found)
    if not best:
        return None
    if memory_gib is None:
        return min([gpu for _, gpu in _exactly_named(parsed)] or best, key=lambda gpu: gpu.memory_gib)
    return min(best, key=lambda gpu: abs(gpu.memory_gib - memory_gib))


def _best(parsed: _Name, found: list[tuple[_Name, GPU]]) -> list[GPU]:
    """Those with the most matching variant words."""
    alike = [sum(any(own.startswith(word) for own in entry.variant) for word in parsed.variant) for entry, _ in found]
    return [gpu for (_, gpu), score in zip(found, alike, strict=True) if score == max(alike)]


def _of_size(found: list[tuple[_Name, GPU]], gb: float) -> list[tuple[_Name, GPU]]:
    """GPUs of so many GB: by their name when sold, or as tools print it."""
    off = [min(abs(gb / known - 1) for known in (*gpu.sold_as, gpu.memory_gib)) for _, gpu in found]
    return [one for one, away in zip(found, off, strict=True) if away <= 0.03 and away <= min(off) + 0.005]


def _is_amd_name(name: str) -> bool:
    return re.search(r"\b(amd|instinct|radeon|mi\d{3})", name.lower().replace("_", " ")) is not None
