"""What people, scripts and log files write for a value, and the value that is meant.

One reader for each kind, for texts of the command line and for JSON of a batch alike; Refused says what is wrong. A
Reading collects the values of one line, and all that is wrong with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, get_args

from llmservice_api.dtypes import DType, KVCache, Quantization
from llmservice_api.errors import Problem
from llmservice_planner import gpus
from llmservice_planner.model.architecture import Architecture, Incomplete, InvalidModel, UnsupportedModel
from llmservice_planner.plan import Device, Draft
from llmservice_vllm.versions import default_version, known_versions, series

from llmservice_cli.errors import Refused, quoted, syntax

if TYPE_CHECKING:
    from llmservice_api.engine import SpeculativeMethod


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


class NotGiven(ValueError):
    """A word for what nobody knows, such as `unknown`: read as not given, with a note."""


def is_not_given(raw: object) -> bool:
    """Whether a text stands for no value, such as `n/a`."""
    return isinstance(raw, str) and _NOT_GIVEN.fullmatch(raw.strip().lower()) is not None


def count(low: int, high: int, example: str) -> Callable[[object], int]:
    """A reader of whole numbers, with vLLM's suffixes: 32k is 32,000 and 32K is 32,768."""

    def read(raw: object) -> int:
        value = _whole(raw, f"Write a whole number from {low:,} to {high:,}, such as {example}.")
        if not low <= value <= high:
            raise Refused(f"{quoted(raw)} is not from {low:,} to {high:,}.", f"Write one such as {example}.")
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
        raise Refused(f"{quoted(raw)} is no length of a request.", remedy)
    return value


def share(raw: object) -> float:
    """--gpu-memory-utilization."""
    remedy = "Write a share above 0 and up to 1, such as 0.92."
    value = _real(raw, remedy)
    if not 0 < value <= 1:
        raise Refused(f"{quoted(raw)} is no share of the memory.", remedy)
    return value


def gibibytes(raw: object) -> float:
    """GiB; `22.03`, `80GiB` and `80Gi` alike."""
    remedy = "Write GiB (2**30 bytes), such as 22.03."
    text = re.sub(r"\s*(GiB|Gi)$", "", raw.strip()) if isinstance(raw, str) else raw
    value = _real(text, remedy)
    if not 0 < value <= MOST_GIB:
        raise Refused(f"{quoted(raw)} is no amount of memory.", remedy)
    return value


def parameters(raw: object) -> int:
    """--parameters: 8B, 671B, 0.5B, 125M or 8030261248."""
    remedy = "Write a number of parameters, such as 8B, 125M or 8030261248."
    if isinstance(raw, str):
        match = _PARAMETERS.fullmatch(_THOUSANDS.sub("", raw.strip()))
        if match is None:
            raise Refused(f"{quoted(raw)} is no number of parameters.", remedy)
        value = float(match[1]) * _PARAMETER_UNITS[match[2].lower()]
        exact = int(match[1]) if match[1].isdecimal() and not match[2] else round(value) if isfinite(value) else 0
    else:
        exact = round(_real(raw, remedy))
    if not 1 <= exact <= MOST_PARAMETERS:
        raise Refused(f"{quoted(raw)} is no number of parameters that a model has.", remedy)
    return exact


def switch(raw: object) -> bool:
    """--enforce-eager and its like."""
    if isinstance(raw, bool):
        return raw
    meant = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    value = meant.get(str(raw).strip().lower())
    if value is None:
        raise Refused(f"{quoted(raw)} is neither true nor false.", "Write true or false.")
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
        raise Refused(f"{quoted(raw)} is no name.", "Write a text that is not empty.")
    return raw.strip()


def version(raw: object) -> str | None:
    """--vllm-version: one that the operator knows, such as 0.32.0; None (latest, nightly, main): the newest."""
    if is_not_given(raw):
        raise NotGiven
    word = str(raw).strip()
    if word.lower() in ("latest", "nightly", "main"):
        return None
    if series(word) not in known_versions():
        message = f"{quoted(raw)} is no version of vLLM that can be planned for."
        raise Refused(message, f"Write one of {', '.join(known_versions())}, or leave it out for {default_version()}.")
    return word


def one_of(names: Sequence[str], near: object = None) -> str:
    """What to write instead: the names that are like it, or all."""
    close = get_close_matches(str(near).lower(), names, n=3, cutoff=0.6)
    return f"Write {', '.join(close)}." if close else f"Write one of {', '.join(names)}."


def _word(raw: object, names: dict[str, str], what: str, offered: Sequence[str]) -> str:
    word = raw.strip().lower().removeprefix("torch.") if isinstance(raw, str) else ""
    if word not in names:
        raise Refused(f"{quoted(raw)} is no {what}.", one_of(offered, raw))
    return names[word]


def _whole(raw: object, remedy: str) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    match = _NUMBER.fullmatch(_THOUSANDS.sub("", raw.strip())) if isinstance(raw, str) else None
    if match is None:
        raise Refused(f"{quoted(raw)} is no whole number.", remedy)
    number, suffix = match.groups()
    if suffix in _BINARY:
        if "." in number:
            raise Refused(
                f"{quoted(raw)}: vLLM takes no decimals with {suffix}, which is {_BINARY[suffix]:,}.",
                f"Write {number}{suffix.lower()} for {_DECIMAL[suffix.lower()]:,}s.",
            )
        return int(number) * _BINARY[suffix]
    if "." in number and not suffix:
        raise Refused(f"{quoted(raw)} is no whole number.", remedy)
    return int(number) * _DECIMAL[suffix] if "." not in number else int(float(number) * _DECIMAL[suffix])


def _real(raw: object, remedy: str) -> float:
    try:
        value = float(raw) if isinstance(raw, int | float | str) and not isinstance(raw, bool) else float("nan")
    except (ValueError, OverflowError):
        value = float("nan")
    if not isfinite(value):
        raise Refused(f"{quoted(raw)} is no number.", remedy)
    return value


METHODS = (*get_args(Quantization), "bitsandbytes", "fbgemm_fp8", "fp_quant", "gguf", "ptpc_fp8")
"""The newest vLLM's methods, and those that older versions or plugins have."""
OFFERED = (
    "awq",
    "gptq",
    "gptq int8",
    "fp8",
    "compressed-tensors",
    "bitsandbytes",
    "nvfp4",
    "modelopt_fp4",
    "mxfp4",
    "int8 w8a16",
    "int4 w4a16",
)
ALL_NVFP4 = "nvfp4"
"""NVFP4 of all linears, as llm-compressor makes it; vLLM serves it as compressed-tensors. ModelOpt's recipes
(modelopt_fp4) leave attention in 16 bit."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A method by vLLM's name (or ALL_NVFP4), and what it holds the weights in where the name leaves that open."""

    method: str | None
    weights: str = "auto"

    @property
    def field(self) -> str | None:
        """The method as spec.precision.quantization has it."""
        return "compressed-tensors" if self.method == ALL_NVFP4 else self.method


_EIGHT = re.compile(r"(?<![a-z0-9])(int.?8|8.?bits?|w8a\d+|q8)(?![a-z0-9])")
"""A name that says 8 bits of integers; in what method comes after."""
_OF_EIGHT: tuple[tuple[str, Quantized], ...] = (
    (r"fp8", Quantized("fp8")),
    (r"bitsandbytes|\bbnb\b", Quantized("bitsandbytes", "int8")),
    (r"gptq", Quantized("gptq", "int8")),
    (r"auto.?round|\binc\b", Quantized("inc", "int8")),
    (r"torchao", Quantized("torchao", "int8")),
    (r"quark", Quantized("quark", "int8")),
    (r"", Quantized("compressed-tensors", "int8")),  # of AWQ, HQQ and GGUF no method is known that stores 8 bits
)
_RULES: tuple[tuple[str, Quantized], ...] = (
    (r"bitsandbytes|\bbnb\b|\bnf4\b", Quantized("bitsandbytes")),
    (r"gguf|\bq\d(_[a-z0-9]+)+\b", Quantized("gguf")),
    (r"awq.?marlin", Quantized("awq_marlin")),
    (r"gptq.?marlin", Quantized("gptq_marlin")),
    (r"awq", Quantized("awq")),
    (r"gptq", Quantized("gptq")),
    (r"auto.?round", Quantized("inc")),
    (r"\bfp4\b", Quantized(ALL_NVFP4)),
    (r"\bw4a\d+|\bint.?4\b|(?<![a-z0-9])4.?bits?\b|\bhqq", Quantized(None, "int4")),
    (r"\bfp8", Quantized("fp8")),
    (r"compressed.?tensors", Quantized("compressed-tensors")),
    (r"torchao", Quantized("torchao")),
    (r"quark", Quantized("quark")),
)
_FORMATS: tuple[tuple[str, Quantized], ...] = (
    (r"fbgemm", Quantized("fbgemm_fp8")),
    (r"mixed", Quantized("modelopt_mixed")),
    (r"modelopt.*mxfp8", Quantized("modelopt_mxfp8")),
    (r"modelopt.*fp4|fp4.*modelopt", Quantized("modelopt_fp4")),
    (r"nvfp4", Quantized(ALL_NVFP4)),
    (r"mxfp4", Quantized("mxfp4")),
    (r"mxfp8", Quantized("mxfp8")),
    (r"modelopt", Quantized("modelopt")),
)
"""The first that is found in a name; narrow ones come first."""


def quantized(raw: object) -> Quantized:
    """What a name means; Refused for one that means nothing here."""
    word = raw.strip().lower() if isinstance(raw, str) else ""
    if word in ("none", "auto"):
        return Quantized(None)
    if word in METHODS:
        return Quantized(word)
    of_eight = _OF_EIGHT if _EIGHT.search(word.replace("_", " ")) else ()
    for pattern, meant in (*_FORMATS, *of_eight, *_RULES):
        if re.search(pattern, word):
            return meant
    raise Refused(f"{quoted(raw)} is no quantization that vLLM knows.", one_of(OFFERED, raw))


_SPECULATIVE: Mapping[str, SpeculativeMethod] = {
    "ngram": "ngram",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "mtp": "mtp",
    "draft_model": "draftModel",
    "draftModel": "draftModel",
}
_SPECULATIVE_REMEDY = """Write JSON such as {"method": "eagle3", "num_speculative_tokens": 3, "config": {...}}."""


def speculation(raw: object) -> Draft:
    """The JSON that vLLM takes; `config` is the content of the draft's config.json."""
    try:
        written = json.loads(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError) as error:
        raise Refused(f"{quoted(raw)} is no JSON: {syntax(error)}.", _SPECULATIVE_REMEDY) from None
    if not isinstance(written, Mapping):
        raise Refused(f"{quoted(raw)} is no object.", _SPECULATIVE_REMEDY)
    tokens, ranks = written.get("num_speculative_tokens"), written.get("draft_tensor_parallel_size")
    return Draft(
        method=_speculative(written),
        num_speculative_tokens=0 if tokens is None else count(1, 1024, "3")(tokens),
        architecture=_of_draft(written.get("config")),
        tensor_parallel_size=None if ranks is None else count(1, MOST_GPUS, "3")(ranks),
    )


def _speculative(written: Mapping[str, Any]) -> SpeculativeMethod:
    """By vLLM's name; the layers for multi-token prediction have one for each family of models there."""
    name = str(written.get("method") or "draft_model")
    found = "mtp" if name.endswith("_mtp") else _SPECULATIVE.get(name)
    if found is None:
        raise Refused(f"method {quoted(name)} is none that is planned for.", one_of([*_SPECULATIVE], name))
    return found


def _of_draft(document: object) -> Architecture | None:
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise Refused(f"config {quoted(document)} is no object.", "Give the content of the draft's config.json.")
    from llmservice_cli.models import read

    try:
        return read(document)
    except UnsupportedModel:
        return None
    except (Incomplete, InvalidModel) as error:
        raise Refused(f"config: {error}.", "Give the whole of the draft's config.json.") from None


CPU = "cpu"
_COUNT_FIRST = re.compile(r"(?P<count>\d{1,6})\s*[xX×*]\s*(?P<name>\S.*)")
_COUNT_LAST = re.compile(r"(?P<name>\S.*?)\s+[xX×*]\s*(?P<count>\d{1,6})")


def gpu_names(given: Sequence[str]) -> list[str]:
    """`L4,L40S` is two of them: no label's value has a comma."""
    return [name.strip() for one in given for name in one.split(",")]


def counted(raw: object) -> tuple[int | None, str]:
    """A GPU's name without how many there are: `2 x NVIDIA L4`, `8xH100`, `L4 x2`. NotGiven for `unknown`."""
    if is_not_given(raw):
        raise NotGiven
    name = text(raw)
    found = _COUNT_FIRST.fullmatch(name) or _COUNT_LAST.fullmatch(name)
    if found is None:
        return None, name
    number = int(found["count"])
    if not 1 <= number <= MOST_GPUS:
        raise Refused(f"{quoted(name)} is no number of GPUs.", "Write one such as 2 x NVIDIA-L4.")
    return number, found["name"]


def device(name: str | None, memory_gib: float | None) -> Device | None:
    """The GPU of a name, of a memory size, or of both; None where neither is given. Refused for a name nobody knows."""
    if name is None:
        return None if memory_gib is None else Device(f"a GPU of {memory_gib:g} GiB", memory_gib)
    if name.lower() == CPU:
        if memory_gib is None:
            raise Refused("cpu needs the GiB of its KV cache (VLLM_CPU_KVCACHE_SPACE).", "Add --gpu-memory-gib 4.")
        return Device(CPU, memory_gib, is_cpu=True)
    found = gpus.device(name, memory_gib)
    if found is None and (meant := gpus.labels(name)):
        raise Refused(
            f"{quoted(name)} may be one of several: {', '.join(map(_with_memory, meant))}.",
            "Write one of them, or add the memory that its driver reports (--gpu-memory-gib).",
        )
    if found is None:
        raise Refused(
            f"{quoted(name)} is no GPU of the catalogue.",
            f"Write a node's nvidia.com/gpu.product{_near(name)}, or add the memory that its driver reports "
            "(--gpu-memory-gib).",
        )
    return replace(found, name=gpus.label(name, memory_gib) or name)


def taken_as(name: str, device: Device) -> Iterator[str]:
    """A note where a name is taken for a label, and where a label is that of several cards."""
    if device.name not in (name, CPU) and device.name in gpus.CATALOGUE:
        yield f"--gpu {quoted(name)} is taken as {device.name}"
    sizes = gpus.sizes(device.name)
    if len(sizes) > 1 and device.memory_gib in sizes:
        others = ", ".join(f"{size:g}" for size in sizes if size != device.memory_gib)
        yield (
            f"{device.name} is planned with {device.memory_gib:g} GiB; cards with {others} GiB have the same label "
            "(--gpu-memory-gib)"
        )


def _with_memory(product: str) -> str:
    gpu = gpus.find(product)
    return product if gpu is None else f"{product} ({gpu.memory_gib:g} GiB)"


def _near(name: str) -> str:
    plain = {_bare(product): product for product in gpus.CATALOGUE}
    near = [plain[one] for one in get_close_matches(_bare(name), plain, n=3, cutoff=0.5)]
    return f" such as {', '.join(near or ['NVIDIA-L4', 'NVIDIA-H100-80GB-HBM3'])}"


def _bare(name: str) -> str:
    """A name without what all of its vendor's begin and end with."""
    word = re.sub(r"[\s_-]+", "-", name.lower())
    return re.sub(r"^((nvidia|amd|geforce|instinct|tesla)-)+|-oam$", "", word)


@dataclass(slots=True)
class ValueReader:
    """Values as they are read, and everything that is wrong with them."""

    found: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was understood, but not as somebody might think."""

    def take(self, name: str, label: str, read: Callable[[Any], Any], raw: object) -> None:
        """Read one value, None is one that was not given; `label` is what its user calls it."""
        if raw is None:
            return
        try:
            self.found[name] = read(raw)
        except Refused as refused:
            self.problems.append(Problem(label, refused.message, refused.remedy))
        except NotGiven:
            self.notes.append(f"{label} {quoted(raw)} is taken as not given")


def share_out(gpus: int, label: str, reading: ValueReader) -> None:
    """So many GPUs in all, where nothing says how they share the model: they split its layers."""
    if "tensor_parallel_size" in reading.found:
        return
    others = reading.found.get("pipeline_parallel_size", 1) * reading.found.get("data_parallel_size", 1)
    if gpus % others:
        message = f"{gpus} GPUs cannot be {others} groups of equal size."
        reading.problems.append(Problem(label, message, "Give tensor_parallel_size."))
    else:
        reading.found["tensor_parallel_size"] = gpus // others
