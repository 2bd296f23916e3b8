"""Reads headers of safetensors files, and checks by the size that a file is complete.

The format: the header's length in 8 bytes, little-endian; the header as JSON; the tensors' bytes, whose offsets are in
the header (https://github.com/huggingface/safetensors#format). Results are typed and bounded. Raises `Refused`, and
OSError where a file cannot be read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmservice_runtime.bounded_json import Reader, Refused, clean, opened, parse

LENGTH_BYTES = 8
HEADER_BYTES = 100_000_000
"""The format's limit of a header."""
INDEX_BYTES = 64 << 20
_MOST_PARTS = 4_000_000
_MOST_BYTES = 2**50
_LONGEST_NAME = 1024
_LONGEST_TYPE = 32
_MOST_EXTENTS = 16
_SHOWN = 128
_DEPTH = 4


@dataclass(frozen=True)
class Tensor:
    """One tensor: dtype in the format's terms (BF16), shape, and size in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


Header = Mapping[str, Tensor]


def read_header(path: Path, most_bytes: int = HEADER_BYTES) -> Header:
    """The tensors of a file by name. Refused where it is damaged; OSError."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(file.read(LENGTH_BYTES), size, most_bytes)
        return parse_header(file.read(length), size)


def header_length(start: bytes, size: int, most_bytes: int = HEADER_BYTES) -> int:
    """The header's length from a file's first 8 bytes; `size` is the file's. Refused."""
    length = int.from_bytes(start, "little")
    if size < LENGTH_BYTES or len(start) < LENGTH_BYTES or length > size - LENGTH_BYTES:
        raise Refused(f"its first bytes are not the header of a safetensors file of {size} bytes")
    if length > most_bytes:
        raise Refused(f"its header has {length} bytes, more than {most_bytes}")
    return length


def parse_header(text: bytes, size: int) -> Header:
    """The tensors by name. Refused where the header is invalid or does not match the file's size."""
    try:
        document = parse(text, max(len(text), 1), _DEPTH, _MOST_PARTS)
        if not isinstance(document, dict):
            raise Refused("it is not an object")
        document.pop("__metadata__", None)
        ends = {name: _tensor(name, entry) for name, entry in document.items()}
    except Refused as why:
        raise Refused(f"its header is not readable: {why}") from None
    expected = LENGTH_BYTES + len(text) + max((end for _, end in ends.values()), default=0)
    if size != expected:
        raise Refused(f"it has {size} bytes, and its header is of a file with {expected}")
    return {name: tensor for name, (tensor, _) in ends.items()}


def _tensor(name: str, entry: object) -> tuple[Tensor, int]:
    """The tensor and its end offset. Refused for impossible values, which would reach statuses and plans."""
    if len(name) > _LONGEST_NAME:
        raise Refused(f"the name of a tensor is longer than {_LONGEST_NAME} characters")
    name = clean(name[:_SHOWN])
    given = Reader(entry, name)
    begin, end = _integers(given, "data_offsets", 2)
    tensor = Tensor(given.word("dtype", _LONGEST_TYPE), tuple(_integers(given, "shape", _MOST_EXTENTS)), end - begin)
    # The smallest types have four bits.
    if begin > end or tensor.values > 2 * tensor.size:
        raise Refused(f"{name} has more values than bytes for them")
    return tensor, end


def _integers(given: Reader, field: str, most: int) -> list[int]:
    found = given.value(field)
    if not isinstance(found, list) or len(found) > most or (field == "data_offsets" and len(found) != most):
        raise Refused(f"{given.path(field)} is not a list of integers")
    if not all(type(item) is int and 0 <= item <= _MOST_BYTES for item in found):
        raise Refused(f"{given.path(field)} is not a list of integers from 0 to {_MOST_BYTES}")
    return found


def shards(index: bytes) -> frozenset[str]:
    """The files that a model.safetensors.index.json names. Refused where it is invalid."""
    document = Reader(parse(index, INDEX_BYTES, _DEPTH, _MOST_PARTS))
    names = document.value("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise Refused("weight_map does not name a file for each tensor")
    if too_long := [name for name in names.values() if len(name) > _LONGEST_NAME]:
        raise Refused(f"weight_map has {len(too_long)} file names of more than {_LONGEST_NAME} characters")
    return frozenset(names.values())
