"""Weights files that are whole, and of no use but for that."""

from __future__ import annotations

import json
import random


def safetensors(size: int, seed: int = 0) -> bytes:
    """A file with one tensor of `size` bytes."""
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + random.Random(seed).randbytes(size)
