"""The inputs of a plan: one table for the command line, a line of a batch and what overrides a manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass
from types import MappingProxyType
from typing import Annotated, Any

from llmservice_api.errors import Problem
from llmservice_vllm.facts import GPU_MEMORY_UTILIZATION
from llmservice_vllm.versions import DEFAULT

from llmservice_cli import parameters

from . import values
from .values import MOST_GPUS, MOST_TOKENS, NotGiven, Quantized, Reader, Refused, quantized, speculation

Values = Mapping[str, Any]
"""What was given, by the options' names with underscores; what was not given is not there."""


def label(name: str) -> str:
    """What an option is called on the command line."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Option:
    """One input, under vLLM's own name."""

    name: str
    """With underscores, as in a line of a batch and in planner.plan.Request."""
    read: Reader
    help: str
    metavar: str = "N"
    spec: str | None = None
    """The field of the spec that says the same, without `spec.`; None where the spec has none."""
    short: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Other names in a line of a batch."""
    is_switch: bool = False

    @property
    def flag(self) -> str:
        return label(self.name)


_MODEL = (
    Option(
        "dtype", values.dtype, "type that vLLM computes in: auto, half, bfloat16, float32", "TYPE", "precision.dtype"
    ),
    Option(
        "quantization",
        quantized,
        "how the weights are quantized: fp8, awq, gptq, 'int8 w8a16', ... (default: as config.json says)",
        "METHOD",
        "precision.quantization",
    ),
    Option(
        "kv_cache_dtype", values.kv_cache_dtype, "type of the KV cache: auto, fp8, ...", "TYPE", "precision.kvCache"
    ),
    Option("parameters", values.parameters, "parameters of the model, where config.json is not at hand: 8B", "COUNT"),
    Option("weights_gib", values.gibibytes, "GiB of the whole model's weights; wins over what is computed", "GIB"),
)
_ENGINE = (
    *(
        Option(
            f"{kind}_parallel_size",
            values.count(1, MOST_GPUS, "2"),
            text,
            spec=f"parallelism.{kind}ParallelSize",
            short=(f"-{kind[0]}p",),
            aliases=(f"{kind[0]}p", f"{kind[0]}p_size"),
        )
        for kind, text in (
            ("tensor", "GPUs that share every layer"),
            ("pipeline", "stages that share the layers"),
            ("data", "copies of the engine in one replica"),
        )
    ),
    Option(
        "enable_expert_parallel",
        values.switch,
        "spread experts, not parts of them, over the GPUs",
        spec="parallelism.expertParallel",
        short=("-ep",),
        aliases=("expert_parallel", "ep"),
        is_switch=True,
    ),
    Option(
        "gpu_memory_utilization",
        values.share,
        f"share of the memory that vLLM takes (default: its own, {GPU_MEMORY_UTILIZATION})",
        "SHARE",
        "accelerator.gpuMemoryUtilization",
    ),
    Option(
        "max_model_len",
        values.length,
        "longest request in tokens: 32000, 32k (32,000), 32K (32,768), auto (default: the model's own)",
        "TOKENS",
        "batching.maxModelLen",
    ),
    Option(
        "max_num_seqs",
        values.count(1, 65_536, "256"),
        "sequences of one step (default: vLLM's, by the GPU)",
        spec="batching.maxNumSeqs",
    ),
    Option(
        "max_num_batched_tokens",
        values.count(1, MOST_TOKENS, "8192"),
        "tokens of one step (default: vLLM's, by the GPU)",
        "TOKENS",
        "batching.maxNumBatchedTokens",
    ),
    Option("block_size", values.count(1, 65_536, "16"), "tokens of one block", "TOKENS", "batching.blockSize"),
    Option(
        "enforce_eager",
        values.switch,
        "no CUDA graphs",
        spec="compilation.enforceEager",
        aliases=("eager",),
        is_switch=True,
    ),
    Option(
        "kv_cache_memory_bytes", values.count(1, 2**50, "8G"), "bytes of the KV cache, instead of what is left", "BYTES"
    ),
    Option("enable_lora", values.switch, "make room for LoRA adapters", is_switch=True),
    Option("max_loras", values.count(1, 4096, "4"), "adapters in one step", spec="lora.maxLoras"),
    Option("max_lora_rank", values.count(1, 4096, "16"), "largest rank of an adapter", spec="lora.maxLoraRank"),
    Option(
        "speculative_config",
        speculation,
        'who guesses, as vLLM takes it: {"method": "ngram", "num_speculative_tokens": 4}; config: that of the draft',
        "JSON",
    ),
    Option("vllm_version", values.version, f"plan for another vLLM than {DEFAULT}", "VERSION"),
)
_DEVICE = (
    Option(
        "gpu_memory_gib",
        values.gibibytes,
        "memory of one GPU as its driver reports it; also for GPUs that are not in the catalogue",
        "GIB",
        aliases=("gpu_memory_gib_reported",),
    ),
)
GROUPS: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {"the model": _MODEL, "the engine, under vLLM's names": _ENGINE, "the GPU": _DEVICE}
)
OPTIONS: Mapping[str, Option] = MappingProxyType({one.name: one for group in GROUPS.values() for one in group})
BY_ALIAS: Mapping[str, str] = MappingProxyType({alias: one.name for one in OPTIONS.values() for alias in one.aliases})

_FLAGS_BY_FIELD = {
    **{one.spec: one.flag for one in OPTIONS.values() if one.spec is not None},
    "accelerator.products": "--gpu",
    "accelerator.memory": "--gpu-memory-gib",
    "precision.weights": "--quantization",
    "model.uri": "--model",
}
_SPEC_FIELD = re.compile(r"\bspec\.(?P<path>[A-Za-z]+(?:\.[A-Za-z]+)*)(?: to (?P<value>[^\s,;]*[^\s,;.]))?")


def _typed(title: str, one: Option) -> tuple[str, Any, Any]:
    """The option as text: its own reader says what is wrong with it, and all problems are reported together."""
    names = (*one.short, one.flag)
    if one.is_switch:
        names = (f"{one.flag}/--no-{one.flag[2:]}", *one.short)
    metavar = None if one.is_switch else one.metavar
    shown = parameters.Option(*names, metavar=metavar, help=one.help, group=title)
    return one.name, Annotated[bool | None if one.is_switch else str | None, shown], None


TypedValues = make_dataclass(
    "TypedValues",
    [_typed(title, one) for title, options in GROUPS.items() for one in options],
    frozen=True,
    kw_only=True,
)
"""Every option as it was typed; None: not given."""


@dataclass(slots=True)
class Reading:
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
            self.notes.append(f"{label} {values.shown(raw)} is taken as not given")


def share_out(gpus: int, label: str, reading: Reading) -> None:
    """So many GPUs in all, where nothing says how they share the model: they split its layers."""
    if "tensor_parallel_size" in reading.found:
        return
    others = reading.found.get("pipeline_parallel_size", 1) * reading.found.get("data_parallel_size", 1)
    if gpus % others:
        message = f"{gpus} GPUs cannot be {others} groups of equal size."
        reading.problems.append(Problem(label, message, "Give tensor_parallel_size."))
    else:
        reading.found["tensor_parallel_size"] = gpus // others


def read_options(options: Any) -> Reading:
    """The values of the command line, but for files and GPUs."""
    reading = Reading()
    for one in OPTIONS.values():
        reading.take(one.name, one.flag, one.read, getattr(options, one.name))
    return reading


def overridden(manifest: Mapping[str, Any], given: Values) -> dict[str, Any]:
    """A manifest with the values that have a field in it written there: its own models then judge them."""
    result: dict[str, Any] = _copy(manifest)
    for name, value in given.items():
        path = OPTIONS[name].spec if name in OPTIONS else None
        if path is not None:
            for where, what in _fields(path, value):
                write(result, where, what)
    return result


def _fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    method = value.field if isinstance(value, Quantized) else value
    if method is not None:
        yield path, method
    weights = getattr(value, "weights", "auto")
    if weights != "auto":
        yield "precision.weights", weights


def write(manifest: dict[str, Any], path: str, value: Any) -> None:
    """Set a field, by its dotted path under spec, in place."""
    node, (*parents, last) = manifest, ("spec", *path.split("."))
    for name in parents:
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            return  # no object: the manifest's models refuse it
    node[last] = list(value) if isinstance(value, tuple) else value


def _copy(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _copy(value) for key, value in node.items()}
    return [_copy(value) for value in node] if isinstance(node, list) else node


def in_options(text: str) -> str:
    """`set spec.batching.maxModelLen to 26624` is `set --max-model-len 26624`. Fields without an option stay."""
    return _SPEC_FIELD.sub(_flag, text)


def _flag(match: re.Match[str]) -> str:
    flag, value = _FLAGS_BY_FIELD.get(match["path"]), match["value"]
    if flag is None:
        return match[0]
    return flag if value in (None, "true") else f"{flag} {value}"
