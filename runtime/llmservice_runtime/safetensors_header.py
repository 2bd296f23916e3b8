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
        found = {
            str(name): Tensor(
                str(entry["dtype"]),
                math.prod(int(extent) for extent in entry["shape"]),
                int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in header.items()
        }
    except (IndexError, KeyError, TypeError, ValueError):
        raise ValueError("its header is not readable") from None
    if any(tensor.size < 0 or tensor.values < 0 for tensor in found.values()):
        raise ValueError("its header has tensors of less than nothing")
    return found
