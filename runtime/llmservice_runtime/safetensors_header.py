"""The header of a safetensors file: what is in it, and the cheap proof that it is whole.

A safetensors file is the header's length in 8 bytes, little-endian, the header as JSON, and the tensors' bytes, whose
offsets the header holds: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LENGTH_BYTES = 8
# The format's own limit.
_LIMIT = 100_000_000
_MOST_BYTES = 2**50
_LONGEST_TYPE = 32
_MOST_EXTENTS = 16


@dataclass(frozen=True)
class Tensor:
    """One tensor: its type as the format calls it (BF16), how many values it has, and how many bytes."""

    dtype: str
    values: int
    size: int


def read_header(path: Path) -> Mapping[str, Any]:
    """The tensors of a file by name. ValueError, which says what is wrong, where it is damaged; OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(file.read(LENGTH_BYTES), size)
        text = file.read(length)
    return parse_header(text, size)


def header_length(start: bytes, size: int) -> int:
    """Of the header of a file of so many bytes, by its first 8. ValueError."""
    length = int.from_bytes(start, "little")
    if size < LENGTH_BYTES or len(start) < LENGTH_BYTES or length > min(_LIMIT, size - LENGTH_BYTES):
        raise ValueError(f"its first bytes are no header of a safetensors file of {size} bytes")
    return length


def parse_header(text: bytes, size: int) -> Mapping[str, Any]:
    """The tensors by name, where the file has the size that its header tells. ValueError."""
    try:
        header = json.loads(text)
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        raise ValueError("its header is not readable") from None
    if size != LENGTH_BYTES + len(text) + end:
        raise ValueError(f"it has {size} bytes, and its header is of a file with {LENGTH_BYTES + len(text) + end}")
    return tensors


def tensors_of(header: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a header says of its tensors. ValueError where it says something impossible."""
    try:
        return {str(name): _tensor(entry) for name, entry in header.items()}
    except (IndexError, KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("its header is not readable") from None


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    """ValueError for what no file holds: these figures go far, into statuses and plans."""
    start, end = (int(place) for place in entry["data_offsets"])
    extents = [int(extent) for extent in entry["shape"]]
    dtype = str(entry["dtype"])
    if (
        not 0 <= start <= end <= _MOST_BYTES
        or min(extents, default=0) < 0
        or len(dtype) > _LONGEST_TYPE
        or len(extents) > _MOST_EXTENTS
    ):
        raise ValueError("no such tensor")
    values = math.prod(extents)
    # The smallest types have four bits.
    if values > 2 * (end - start):
        raise ValueError("no such tensor")
    return Tensor(dtype, values, end - start)
