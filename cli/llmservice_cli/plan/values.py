"""What people, scripts and log files write for a value, and the value that is meant.

One reader for each kind, for texts of the command line and for JSON of a batch alike; Refused says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Literal, get_args

from llmservice_operator.api.dtypes import DType, KVCache
from llmservice_vllm.versions import default_version, known_versions, series

Reader = Callable[[object], object]

MOST_TOKENS = 134_217_728
"""The bound of spec.batching.maxModelLen."""
MOST_GPUS = 1024
MOST_PARAMETERS = 10**14
MOST_GIB = 1024**2

_DTYPES = {
    **{name: name for name in get_args(DType)},
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
}
_KV_CACHE_ALIASES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp8_inc": "fp8"}

_NOT_GIVEN = re.compile(
    r"\(?(un(known|said|stated|specified)|not (known|said|stated|given|published|specified)|n/?a|none|null|\?+|-|)\)?"
)
_NUMBER = re.compile(r"(\d{1,4000}(?:\.\d{1,4000})?)\s*([kKmMgGtT]?)")
_PARAMETERS = re.compile(r"(\d{1,4000}(?:\.\d{1,4000})?(?:[eE]\d{1,9})?)\s*([kKmMbBtT]?)")
_THOUSANDS = re.compile(r"(?<=\d)[,_](?=\d{3}(\D|$))")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_PARAMETER_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


class Refused(ValueError):
    """A value that stands for nothing: why, and what to write."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message} {remedy}")
        self.message = message
        self.remedy = remedy


class NotGiven(ValueError):
    """A word for what nobody knows, such as `unknown`: read as not given, with a note."""


def is_not_given(raw: object) -> bool:
    """Whether a text stands for no value, such as `n/a`."""
    return isinstance(raw, str) and _NOT_GIVEN.fullmatch(raw.strip().lower()) is not None


def count(low: int, high: int, example: str) -> Reader:
    """A reader of whole numbers, with vLLM's suffixes: 32k is 32,000 and 32K is 32,768."""

    def read(raw: object) -> int:
        value = _whole(raw, f"Write a whole number from {low:,} to {high:,}, such as {example}.")
        if not low <= value <= high:
            raise Refused(f"{shown(raw)} is not from {low:,} to {high:,}.", f"Write one such as {example}.")
        return value

    return read


def length(raw: object) -> int | Literal["auto"]:
    """--max-model-len: tokens, or `auto` (-1) for the longest that fits."""
    if isinstance(raw, str) and raw.strip().lower() == "auto":
        return "auto"
    remedy = f"Write a number of tokens up to {MOST_TOKENS:,} (32k is 32,000, 32K is 32,768), or auto."
    value = -1 if str(raw).strip() == "-1" else _whole(raw, remedy)
    if value == -1:
        return "auto"
    if not 1 <= value <= MOST_TOKENS:
        raise Refused(f"{shown(raw)} is no length of a request.", remedy)
    return value


def share(raw: object) -> float:
    """--gpu-memory-utilization."""
    remedy = "Write a share above 0 and up to 1, such as 0.92."
    value = _real(raw, remedy)
    if not 0 < value <= 1:
        raise Refused(f"{shown(raw)} is no share of the memory.", remedy)
    return value


def gibibytes(raw: object) -> float:
    """GiB; `22.03`, `80GiB` and `80Gi` alike."""
    remedy = "Write GiB (2**30 bytes), such as 22.03."
    text = re.sub(r"\s*(GiB|Gi)$", "", raw.strip()) if isinstance(raw, str) else raw
    value = _real(text, remedy)
    if not 0 < value <= MOST_GIB:
        raise Refused(f"{shown(raw)} is no amount of memory.", remedy)
    return value


def parameters(raw: object) -> int:
    """--parameters: 8B, 671B, 0.5B, 125M or 8030261248."""
    remedy = "Write a number of parameters, such as 8B, 125M or 8030261248."
    if isinstance(raw, str):
        match = _PARAMETERS.fullmatch(_THOUSANDS.sub("", raw.strip()))
        if match is None:
            raise Refused(f"{shown(raw)} is no number of parameters.", remedy)
        value = float(match[1]) * _PARAMETER_UNITS[match[2].lower()]
        exact = int(match[1]) if match[1].isdecimal() and not match[2] else round(value) if isfinite(value) else 0
    else:
        exact = round(_real(raw, remedy))
    if not 1 <= exact <= MOST_PARAMETERS:
        raise Refused(f"{shown(raw)} is no number of parameters that a model has.", remedy)
    return exact


def switch(raw: object) -> bool:
    """--enforce-eager and its like."""
    if isinstance(raw, bool):
        return raw
    meant = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    value = meant.get(str(raw).strip().lower())
    if value is None:
        raise Refused(f"{shown(raw)} is neither true nor false.", "Write true or false.")
    return value


def dtype(raw: object) -> str:
    """--dtype, by vLLM's names and those of PyTorch and of log files."""
    return _word(raw, _DTYPES, "type that vLLM computes in", ("auto", "half", "float16", "bfloat16", "float32"))


def kv_cache_dtype(raw: object) -> str:
    """--kv-cache-dtype."""
    known = get_args(KVCache)
    return _word(raw, {name: name for name in known} | _KV_CACHE_ALIASES, "type of a KV cache", known)


def text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise Refused(f"{shown(raw)} is no name.", "Write a text that is not empty.")
    return raw.strip()


def version(raw: object) -> str | None:
    """--vllm-version: one that the operator knows, such as 0.32.0; None (latest, nightly, main): the newest."""
    if is_not_given(raw):
        raise NotGiven
    word = str(raw).strip()
    if word.lower() in ("latest", "nightly", "main"):
        return None
    if series(word) not in known_versions():
        message = f"{shown(raw)} is no version of vLLM that can be planned for."
        raise Refused(message, f"Write one of {', '.join(known_versions())}, or leave it out for {default_version()}.")
    return word


def shown(raw: object) -> str:
    """A value as it was written, cut to what a line bears."""
    whole = repr(raw)
    return whole if len(whole) <= 60 else f"{whole[:57]}..."


def one_of(names: Sequence[str], near: object = None) -> str:
    """What to write instead: the names that are like it, or all."""
    close = get_close_matches(str(near).lower(), names, n=3, cutoff=0.6)
    return f"Write {', '.join(close)}." if close else f"Write one of {', '.join(names)}."


def _word(raw: object, names: dict[str, str], what: str, offered: Sequence[str]) -> str:
    word = raw.strip().lower().removeprefix("torch.") if isinstance(raw, str) else ""
    if word not in names:
        raise Refused(f"{shown(raw)} is no {what}.", one_of(offered, raw))
    return names[word]


def _whole(raw: object, remedy: str) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    match = _NUMBER.fullmatch(_THOUSANDS.sub("", raw.strip())) if isinstance(raw, str) else None
    if match is None:
        raise Refused(f"{shown(raw)} is no whole number.", remedy)
    number, suffix = match.groups()
    if suffix in _BINARY:
        if "." in number:
            raise Refused(
                f"{shown(raw)}: vLLM takes no decimals with {suffix}, which is {_BINARY[suffix]:,}.",
                f"Write {number}{suffix.lower()} for {_DECIMAL[suffix.lower()]:,}s.",
            )
        return int(number) * _BINARY[suffix]
    if "." in number and not suffix:
        raise Refused(f"{shown(raw)} is no whole number.", remedy)
    return int(number) * _DECIMAL[suffix] if "." not in number else int(float(number) * _DECIMAL[suffix])


def _real(raw: object, remedy: str) -> float:
    try:
        value = float(raw) if isinstance(raw, int | float | str) and not isinstance(raw, bool) else float("nan")
    except (ValueError, OverflowError):
        value = float("nan")
    if not isfinite(value):
        raise Refused(f"{shown(raw)} is no number.", remedy)
    return value
