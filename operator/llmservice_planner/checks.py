"""Problems of a spec beyond its schema, such as fields that the compatibility matrix does not combine, each with a
remedy, before any pod is created.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from llmservice_api.errors import Problem
from llmservice_api.matrix import DIMENSIONS, ROWS, Incompatibility
from llmservice_api.matrix.dimensions import ABSENT, GIVEN, MANY, OFF, ON, ONE
from llmservice_api.reasons import Reason
from llmservice_api.runtime import SECONDS_VARIABLES
from llmservice_api.spec import LLMServiceSpec

from llmservice_planner import versions
from llmservice_planner.gpus import GPU, find
from llmservice_planner.splits import head_sizes


@dataclass(frozen=True, slots=True)
class Combination:
    """The combined values, for each known dimension. Unknown ones refuse nothing."""

    values: Mapping[str, str]
    product: str | None = None
    """The GPU product of the capability."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The field that a value comes from, if not the dimension's own."""

    @classmethod
    def from_spec(cls, spec: LLMServiceSpec, product: str | None = None) -> Combination:
        values: dict[str, str | None] = {
            **_accelerator(spec, None if product is None else find(product)),
            **_precision(spec),
            **_model(spec),
            **_parallel(spec),
            **_speculation(spec),
            **_batching(spec),
            **_techniques(spec),
        }
        known = {name: value for name, value in values.items() if value is not None}
        return cls(MappingProxyType(known), product, MappingProxyType(_fields(spec)))

    def field_of(self, dimension: str) -> str:
        """The field to name in a message."""
        return self.fields.get(dimension, DIMENSIONS[dimension].field)


def matrix_problems(spec: LLMServiceSpec) -> tuple[Problem, ...]:
    """A problem for every entry of the matrix that matches a spec, on any acceptable product, without duplicates."""
    products: Iterable[str | None] = spec.accelerator.products or (None,)
    found = (problem for product in products for problem in verdicts(Combination.from_spec(spec, product)))
    return tuple(dict.fromkeys(found))


def verdicts(combination: Combination) -> tuple[Problem, ...]:
    """A problem for each matching entry, in the matrix's order."""
    rows, values = _rows_by_rare_value(), combination.values
    numbers = sorted(number for named in values.items() for number in rows.get(named, ()))
    return tuple(_problem(ROWS[number], combination) for number in numbers if matches(ROWS[number], values))


@functools.cache
def _rows_by_rare_value() -> Mapping[tuple[str, str], Sequence[int]]:
    """Indices of entries by a dimension and value that no plain service has.

    Every entry has such a dimension, or it would refuse the plainest service. So a check reads only few of hundreds of
    entries.
    """
    plain = Combination.from_spec(LLMServiceSpec.model_validate({"model": {"uri": "hf://plain/service"}})).values
    rows: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(ROWS):
        rare = next(dimension for dimension, refused in row.when.items() if plain.get(dimension) not in refused)
        for value in row.when[rare]:
            rows.setdefault((rare, value), []).append(number)
    return rows


def matches(row: Incompatibility, values: Mapping[str, str]) -> bool:
    """Whether all dimensions of an entry are known and have one of its values."""
    return all(values.get(dimension) in refused for dimension, refused in row.when.items())


def _problem(row: Incompatibility, combination: Combination) -> Problem:
    message, remedy = _sentence(row, combination), row.remedy
    if "capability" in row.when and combination.product is not None:
        message += f"; {combination.product} has {combination.values['capability']}"
        remedy += f", or take {combination.product} out of spec.accelerator.products"
    return Problem(combination.field_of(row.blame), f"{message}.", f"{remedy}.", row.reason)


def _sentence(row: Incompatibility, combination: Combination) -> str:
    """The combined fields and values, and why they are incompatible."""
    named = [
        f"{combination.field_of(name).removeprefix('spec.')} {combination.values[name]}"
        for name in row.when
        if name != "capability" and not (name == "accelerator" and "capability" in row.when)
    ]
    return f"{' with '.join(named)}: {row.why}"


def _accelerator(spec: LLMServiceSpec, gpu: GPU | None) -> Mapping[str, str | None]:
    capability = None if gpu is None or gpu.capability is None else f"{gpu.capability[0]}.{gpu.capability[1]}"
    return {"accelerator": spec.accelerator.type, "capability": capability}


def _precision(spec: LLMServiceSpec) -> Mapping[str, str | None]:
    precision = spec.precision
    return {
        "weights": precision.weights,
        "method": precision.method,
        "dtype": None if precision.compute_dtype == "auto" else precision.compute_dtype,
        "kvCache": precision.kv_cache,
    }


def _fields(spec: LLMServiceSpec) -> dict[str, str]:
    """weights may determine the compute type and the method."""
    weights = DIMENSIONS["weights"].field
    fields = {"dtype": weights} if spec.precision.dtype == "auto" else {}
    return fields | ({"method": weights} if spec.precision.quantization is None else {})


def _model(spec: LLMServiceSpec) -> Mapping[str, str | None]:
    runner, generation = spec.model.runner, spec.generation
    return {
        "runner": None if runner == "auto" else runner,
        "convert": spec.model.convert,
        "toolCallParser": _given(generation.tool_call_parser is not None),
        "reasoningParser": _given(generation.reasoning_parser is not None),
        "generationDefaults": _given(bool(generation.defaults.model_dump(exclude_none=True))),
        "positions": spec.model.architecture.positions,
    }


def _parallel(spec: LLMServiceSpec) -> Mapping[str, str | None]:
    parallelism = spec.parallelism
    return {
        "tensorParallel": _many(parallelism.tensor_parallel_size),
        "pipelineParallel": _many(parallelism.pipeline_parallel_size),
        "dataParallel": _many(parallelism.data_parallel_size),
        "expertParallel": _switch(parallelism.expert_parallel),
    }


def _speculation(spec: LLMServiceSpec) -> Mapping[str, str | None]:
    speculation, batching = spec.speculative_decoding, spec.batching
    if speculation is None:
        return {"speculation": "none"}
    low, high = speculation.prompt_lookup_min, speculation.prompt_lookup_max
    lookup = "absent" if low is None and high is None else "min to max"
    if low is not None and high is not None and low > high:
        lookup = "min above max"
    tokens, seqs = batching.max_num_batched_tokens, batching.max_num_seqs
    few = None
    if tokens is not None and seqs is not None:
        few = tokens < seqs * (speculation.num_speculative_tokens + 1)
    return {
        "speculation": speculation.method,
        "draftModel": _given(speculation.model is not None),
        "draftParallel": _draft_parallel(speculation.draft_tensor_parallel_size, spec.parallelism.tensor_parallel_size),
        "promptLookup": lookup,
        "draftTokens": _either(few, "too few for all guesses", "enough"),
    }


def _draft_parallel(draft: int | None, target: int) -> str:
    if draft is None:
        return ABSENT
    if draft == target:
        return "tensorParallelSize"
    return "1" if draft == 1 else "another"


def _batching(spec: LLMServiceSpec) -> Mapping[str, str | None]:
    batching = spec.batching
    tokens, seqs = batching.max_num_batched_tokens, batching.max_num_seqs
    length = batching.max_model_len if isinstance(batching.max_model_len, int) else None
    threshold = batching.long_prefill_token_threshold
    return {
        "blockSize": None if batching.block_size is None else str(batching.block_size),
        "prefixCaching": _switch(batching.prefix_caching),
        "hashAlgorithm": _given(batching.prefix_caching_hash_algo is not None),
        "chunkedPrefill": _switch(batching.chunked_prefill),
        "sequenceTokens": _either(_less(tokens, seqs), "fewer than maxNumSeqs", "enough"),
        "promptTokens": _either(_less(tokens, length), "fewer than maxModelLen", "enough"),
        "longPrefill": _either(_less(length, threshold), "above maxModelLen", "within") or _given(bool(threshold)),
        "kvOffloading": _switch(batching.kv_offloading_size is not None),
        "offloadingBackend": _given(batching.kv_offloading_backend is not None),
    }


def _techniques(spec: LLMServiceSpec) -> Mapping[str, str | None]:
    lora, compilation = spec.lora, spec.compilation
    return {
        "backend": spec.attention.backend,
        "lora": _switch(lora is not None or bool(spec.adapters)),
        "cpuLoras": None
        if lora is None
        else _either(_less(lora.max_cpu_loras, lora.max_loras), "fewer than maxLoras", "enough"),
        "sleepMode": _switch(spec.runtime.sleep_mode),
        "contextExtension": "none" if spec.context_extension is None else spec.context_extension.method,
        "contextLength": _context_length(spec),
        "enforceEager": _switch(compilation.enforce_eager),
        "compilation": compilation.mode,
        "optimizationLevel": None if compilation.optimization_level is None else str(compilation.optimization_level),
        "cudaGraphs": compilation.cuda_graphs,
    }


def _context_length(spec: LLMServiceSpec) -> str | None:
    """None while the model's own length is unknown, and for a length that vLLM chooses."""
    wanted, facts, extension = spec.batching.max_model_len, spec.model.architecture, spec.context_extension
    if not isinstance(wanted, int):
        return None
    if extension is None:
        return _either(_less(facts.max_position_embeddings, wanted), "above the model's", "within")
    original = extension.original_max_position_embeddings or facts.max_position_embeddings
    if original is None:
        return None
    return _either(original * extension.factor < wanted, "above the extended", "within")


def _less(one: int | None, other: int | None) -> bool | None:
    return None if one is None or other is None else one < other


def _either(question: bool | None, yes: str, no: str) -> str | None:
    return None if question is None else yes if question else no


def _switch(value: bool | None) -> str | None:
    return _either(value, ON, OFF)


def _given(value: bool) -> str:
    return GIVEN if value else ABSENT


def _many(size: int) -> str:
    return ONE if size == 1 else MANY


def check(
    spec: LLMServiceSpec, *, image: str | None, vllm_version: str, arguments: Sequence[str] = ()
) -> tuple[Problem, ...]:
    """Every problem; empty where nothing prevents a start. `arguments` is rendered from the fields."""
    return tuple(_problems(spec, image, vllm_version, arguments))


def _problems(
    spec: LLMServiceSpec, image: str | None, vllm_version: str, arguments: Sequence[str]
) -> Iterator[Problem]:
    if image is None:
        yield Problem(
            "spec.runtime.image",
            f"this installation has no default image for accelerator.type {spec.accelerator.type}.",
            "Name an image with vLLM for it, or have a default set in the operator's chart.",
        )
    if "None" in (spec.model.served_model_names or ()):
        yield Problem("spec.model.servedModelNames", "vLLM reads None as no name at all.", "Choose another name.")
    yield from _start(spec)
    yield from matrix_problems(spec)
    yield from _parallelism(spec)
    yield from versions.problems(spec, vllm_version, arguments)


def _start(spec: LLMServiceSpec) -> Iterator[Problem]:
    """As a rule of the schema its cost would exceed all others': values may be long and many."""
    for index, item in enumerate(spec.runtime.env):
        if item["name"] in SECONDS_VARIABLES and not _SECONDS.fullmatch(str(item.get("value", ""))):
            yield Problem(
                f"spec.runtime.env[{index}].value",
                f"{item['name']} is no whole number of seconds from 1 to 9999.",
                'Write it as text, such as "1800".',
            )


_SECONDS = re.compile(r"[1-9][0-9]{0,3}")


def _parallelism(spec: LLMServiceSpec) -> Iterator[Problem]:
    facts, size = spec.model.architecture, spec.parallelism.tensor_parallel_size
    heads, kv_heads = facts.num_attention_heads, facts.num_key_value_heads
    fitting = head_sizes(heads or 0, kv_heads)
    if heads is not None and size not in fitting:
        shown = f"{heads} attention heads" + ("" if kv_heads is None else f" and {kv_heads} key/value heads")
        yield Problem(
            "spec.parallelism.tensorParallelSize",
            f"{size} ranks cannot share {shown} evenly.",
            f"Use one of {', '.join(map(str, fitting))}.",
            Reason.TENSOR_PARALLEL_SIZE_INVALID,
        )
    layers, stages = facts.num_hidden_layers, spec.parallelism.pipeline_parallel_size
    if layers is not None and stages > layers:
        yield Problem(
            "spec.parallelism.pipelineParallelSize",
            f"{stages} stages cannot share {layers} layers.",
            f"Use at most {layers}.",
        )
