"""The cheap proof that a weights file is whole: its header says how long it has to be.

A safetensors file is the header's length in 8 bytes, little-endian, the header as JSON, and the tensors' bytes, whose
offsets the header holds: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The format's own limit.
_LIMIT = 100_000_000


def read_header(path: Path) -> Mapping[str, Any]:
    """The tensors of a file by name. ValueError, which says what is wrong, where it is damaged; OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_LIMIT, size - 8):
            raise ValueError(f"its first bytes are no header of a safetensors file of {size} bytes")
        text = file.read(length)
    try:
        header = json.loads(text)
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise ValueError("its header is not readable") from None
    if size != 8 + length + end:
        raise ValueError(f"it has {size} bytes, and its header is of a file with {8 + length + end}")
    return tensors
