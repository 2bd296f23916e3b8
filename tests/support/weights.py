"""Weights files that are whole, and of no use but for that."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping

SIZES = {"U8": 1, "F8_E4M3": 1, "I32": 4, "BF16": 2, "F16": 2, "F32": 4}


def safetensors(size: int, seed: int = 0) -> bytes:
    """A file with one tensor of `size` bytes."""
    return _file(
        {"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, random.Random(seed).randbytes(size)
    )


def named_tensors(tensors: Mapping[str, tuple[str, tuple[int, ...]]], seed: int = 0) -> bytes:
    """A file with these tensors, each a type and a shape."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return _file(header, random.Random(seed).randbytes(end))


def header_bytes(file: bytes) -> int:
    """The length of a file's header, with the eight bytes that say it."""
    return 8 + int.from_bytes(file[:8], "little")


def _file(header: Mapping[str, object], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
