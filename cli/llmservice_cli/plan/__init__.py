"""The options of `llmservice plan` and what its help says: those of the command, and one table of vLLM's options, which
are also the keys of a line of a batch, and patches of an LLMService.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from llmservice_vllm.facts import GPU_MEMORY_UTILIZATION
from llmservice_vllm.versions import DEFAULT

from llmservice_cli.options import ANSWER, CLUSTER, OUTPUT, Scope
from llmservice_cli.parameters import Option
from llmservice_cli.plan import values

from .values import MOST_GPUS, MOST_TOKENS, Reader

DESCRIPTION = """\
Does it fit, and what does it come to: weights, activations, CUDA graphs, KV cache, longest request, concurrency. The
same arithmetic as the operator's, before anything runs; what does not fit comes with changes that would.
"""
EPILOG = """\
examples:
  llmservice plan -f llmservice.yaml                         as the operator would plan it
  llmservice plan -f llmservice.yaml --gpu NVIDIA-L4 --config config.json -o markdown
  llmservice plan --config config.json --gpu NVIDIA-L4 --max-model-len 32K --kv-cache-dtype fp8 --explain
  llmservice plan --model Qwen/Qwen2.5-7B-Instruct --gpu A100-80 -tp 2
  llmservice plan -f manifests/ --cluster                    on which nodes it fits now, and how many replicas of it
  llmservice plan --parameters 70B --gpu H100 -tp 4          without a config.json: what the weights alone say
  llmservice plan --compare --config config.json --gpu L4,L40S --picture grid.svg
  llmservice plan --batch cases.jsonl > plans.jsonl

Options beside -f stand for the manifest's values. A config.json (--config) needs no network; of hubs' and buckets'
models config.json and the headers of the safetensors are read, never the weights (HF_TOKEN, HF_ENDPOINT, AWS_...,
GOOGLE_... and AZURE_... as usual).
-f does so for spec.model.uri too, unless the spec or --config says enough, or --offline is given.

--cluster asks the cluster of the kubeconfig for its GPUs and what is free of them (rights: list on nodes, and on pods
of all namespaces; resourcequotas of the namespace where there are some).

A line of a batch holds options under their names with underscores, config (config.json's content), gpu and an id.

exit codes:
  0  it fits; also for Tight (inside the planner's error), with a warning; --compare: one cell does
  1  it does not fit; with --strict also for Tight, and where the cluster has no room now; --compare: no cell does
  2  bad input, or the cluster cannot be asked: a line on standard error for everything that is wrong
  3  not known: something is missing, and named; 0 with --allow-unknown
Of several LLMServices, and of the lines of a batch, the worst counts: 2, then 1, then 3.
"""
USAGE = "(-f FILE | --config PATH | --model URI | --batch FILE) [--gpu NAME] [option ...]"
WHAT = "what to plan"


Values = Mapping[str, Any]
"""What was given, by the options' names with underscores; what was not given is not there."""


def label(name: str) -> str:
    """What an option is called on the command line."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One input of a plan, under vLLM's name where it has one."""

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
    PlanOption(
        "dtype", values.dtype, "type that vLLM computes in: auto, half, bfloat16, float32", "TYPE", "precision.dtype"
    ),
    PlanOption(
        "quantization",
        values.quantized,
        "how the weights are quantized: fp8, awq, gptq, 'int8 w8a16', ... (default: as config.json says)",
        "METHOD",
        "precision.quantization",
    ),
    PlanOption(
        "kv_cache_dtype", values.kv_cache_dtype, "type of the KV cache: auto, fp8, ...", "TYPE", "precision.kvCache"
    ),
    PlanOption(
        "parameters", values.parameters, "parameters of the model, where config.json is not at hand: 8B", "COUNT"
    ),
    PlanOption("weights_gib", values.gibibytes, "GiB of the whole model's weights; wins over what is computed", "GIB"),
)
_ENGINE = (
    *(
        PlanOption(
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
    PlanOption(
        "enable_expert_parallel",
        values.switch,
        "spread experts, not parts of them, over the GPUs",
        spec="parallelism.expertParallel",
        short=("-ep",),
        aliases=("expert_parallel", "ep"),
        is_switch=True,
    ),
    PlanOption(
        "gpu_memory_utilization",
        values.share,
        f"share of the memory that vLLM takes (default: its own, {GPU_MEMORY_UTILIZATION})",
        "SHARE",
        "accelerator.gpuMemoryUtilization",
    ),
    PlanOption(
        "max_model_len",
        values.length,
        "longest request in tokens: 32000, 32k (32,000), 32K (32,768), auto (default: the model's own)",
        "TOKENS",
        "batching.maxModelLen",
    ),
    PlanOption(
        "max_num_seqs",
        values.count(1, 65_536, "256"),
        "sequences of one step (default: vLLM's, by the GPU)",
        spec="batching.maxNumSeqs",
    ),
    PlanOption(
        "max_num_batched_tokens",
        values.count(1, MOST_TOKENS, "8192"),
        "tokens of one step (default: vLLM's, by the GPU)",
        "TOKENS",
        "batching.maxNumBatchedTokens",
    ),
    PlanOption("block_size", values.count(1, 65_536, "16"), "tokens of one block", "TOKENS", "batching.blockSize"),
    PlanOption(
        "enforce_eager",
        values.switch,
        "no CUDA graphs",
        spec="compilation.enforceEager",
        aliases=("eager",),
        is_switch=True,
    ),
    PlanOption(
        "kv_cache_memory_bytes", values.count(1, 2**50, "8G"), "bytes of the KV cache, instead of what is left", "BYTES"
    ),
    PlanOption("enable_lora", values.switch, "make room for LoRA adapters", is_switch=True),
    PlanOption("max_loras", values.count(1, 4096, "4"), "adapters in one step", spec="lora.maxLoras"),
    PlanOption("max_lora_rank", values.count(1, 4096, "16"), "largest rank of an adapter", spec="lora.maxLoraRank"),
    PlanOption(
        "speculative_config",
        values.speculation,
        'who guesses, as vLLM takes it: {"method": "ngram", "num_speculative_tokens": 4}; config: that of the draft',
        "JSON",
    ),
    PlanOption("vllm_version", values.version, f"plan for another vLLM than {DEFAULT}", "VERSION"),
)
_DEVICE = (
    PlanOption(
        "gpu_memory_gib",
        values.gibibytes,
        "memory of one GPU as its driver reports it; also for GPUs that are not in the catalogue",
        "GIB",
        aliases=("gpu_memory_gib_reported",),
    ),
)
GROUPS: Mapping[str, tuple[PlanOption, ...]] = MappingProxyType(
    {"the model": _MODEL, "the engine, under vLLM's names": _ENGINE, "the GPU": _DEVICE}
)
OPTIONS: Mapping[str, PlanOption] = MappingProxyType({one.name: one for group in GROUPS.values() for one in group})
BY_ALIAS: Mapping[str, str] = MappingProxyType({alias: one.name for one in OPTIONS.values() for alias in one.aliases})


OPTION_OF = {option.spec: option.name for option in OPTIONS.values() if option.spec is not None}
"""Names of options by the field that says the same."""
_FLAGS_BY_FIELD = {
    **{field: label(name) for field, name in OPTION_OF.items()},
    "accelerator.products": "--gpu",
    "accelerator.memory": "--gpu-memory-gib",
    "precision.weights": "--quantization",
    "model.uri": "--model",
}
_SPEC_FIELD = re.compile(r"\bspec\.(?P<path>[A-Za-z]+(?:\.[A-Za-z]+)*)(?: to (?P<value>[^\s,;]*[^\s,;.]))?")


def in_options(text: str) -> str:
    """`set spec.batching.maxModelLen to 26624` is `set --max-model-len 26624`. Fields without an option stay."""
    return _SPEC_FIELD.sub(_flag, text)


def _flag(match: re.Match[str]) -> str:
    flag, value = _FLAGS_BY_FIELD.get(match["path"]), match["value"]
    if flag is None:
        return match[0]
    return flag if value in (None, "true") else f"{flag} {value}"


def flags_of(options: Mapping[str, Any]) -> str:
    """Options as they are typed."""
    words = []
    for name, value in options.items():
        flag = label(name)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words.append(f"{flag} '{value}'" if " " in str(value) else f"{flag} {value}")
    return " ".join(words)


def _typed(title: str, one: PlanOption) -> tuple[str, Any, Any]:
    """The option as text: its own reader says what is wrong with it, and all problems are reported together."""
    names = (*one.short, one.flag)
    if one.is_switch:
        names = (f"{one.flag}/--no-{one.flag[2:]}", *one.short)
    metavar = None if one.is_switch else one.metavar
    shown = Option(*names, metavar=metavar, help=one.help, group=title)
    return one.name, Annotated[bool | None if one.is_switch else str | None, shown], None


TypedValues = make_dataclass(
    "TypedValues",
    [_typed(title, one) for title, options in GROUPS.items() for one in options],
    frozen=True,
    kw_only=True,
)
"""Every option as it was typed; None: not given."""


_what = partial(Option, group=WHAT)
_answer = partial(Option, group=ANSWER)


@dataclass(frozen=True, kw_only=True)
class Options(TypedValues, Scope):  # type: ignore[misc, valid-type]
    """What was typed."""

    file: Annotated[
        str | None, _what("--file", "-f", metavar="FILE", help="manifests, a folder of them, or - for stdin")
    ] = None
    config: Annotated[
        str | None, _what("--config", metavar="PATH", help="the model's config.json, a folder with it, or - for stdin")
    ] = None
    model: Annotated[
        str | None,
        _what(
            "--model",
            metavar="URI",
            help="hf://ORG/NAME[@REVISION], ORG/NAME, s3://, gs:// or az://BUCKET/PREFIX, or a folder",
        ),
    ] = None
    gpu: Annotated[
        list[str] | None,
        _what(
            "--gpu",
            metavar="NAME[,NAME]",
            help="a node's nvidia.com/gpu.product, or as people write it; of several the first that fits",
        ),
    ] = None
    batch: Annotated[str | None, _what("--batch", metavar="FILE", help="JSON lines of cases; - for stdin")] = None
    compare: Annotated[bool, _what("--compare", help="a grid of GPUs and precisions")] = False
    offline: Annotated[bool, _what("--offline", help="read no model over the network")] = False
    cluster: Annotated[
        bool,
        Option(
            "--cluster",
            help="plan for the nodes of the cluster, as the operator would; --context and --kubeconfig imply it",
            group=CLUSTER,
        ),
    ] = False
    output: Annotated[Literal["table", "json", "yaml", "markdown", "csv"], OUTPUT] = "table"
    picture: Annotated[
        Path | None, _answer("--picture", metavar="FILE.svg", help="draw the memory, or the grid (also .png)")
    ] = None
    explain: Annotated[bool, _answer("--explain", help="the arithmetic line by line")] = False
    strict: Annotated[bool, _answer("--strict", help="end with 1 for Tight too")] = False
    allow_unknown: Annotated[
        bool, _answer("--allow-unknown", help="end with 0, not 3, where something is not known")
    ] = False
