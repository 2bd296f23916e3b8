"""What the schema cannot know: each problem with what to do about it, before any pod is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from llmservice_runtime.flags import Ambiguous, FlagProblem, Unknown, UnknownVersion, check_extra_args, flag_table
from llmservice_runtime.flags import known_versions as flag_versions

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.planner.gpus import Capability, find

# vLLM refuses a method below these (its get_min_capability); methods that are not listed are left to vLLM.
MINIMUM_CAPABILITY: Mapping[str, Capability] = MappingProxyType(
    {
        "gptq": (6, 0),
        "auto_gptq": (6, 0),
        "gptq_marlin": (6, 0),
        "inc": (6, 0),
        "compressed-tensors": (7, 0),
        "quark": (7, 0),
        "moe_wna16": (7, 0),
        "awq": (7, 5),
        "auto_awq": (7, 5),
        "awq_marlin": (7, 5),
        "fp8": (7, 5),
        "fp8_per_tensor": (7, 5),
        "modelopt_fp4": (7, 5),
        "modelopt_mixed": (7, 5),
        "humming": (7, 5),
        "torchao": (7, 5),
        "modelopt": (8, 0),
        "modelopt_mxfp8": (8, 0),
        "mxfp8": (8, 0),
        "mxfp4": (8, 0),
        "gpt_oss_mxfp4": (8, 0),
        "experts_int8": (8, 0),
    }
)
_BFLOAT16: Capability = (8, 0)
_COMPUTE_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"mxfp4": ("bfloat16",), "gpt_oss_mxfp4": ("bfloat16",), "fp8": ("bfloat16", "float16")}
)


def check(spec: LLMServiceSpec, *, image: str | None, vllm_version: str) -> tuple[Problem, ...]:
    """Every problem, in the order of the spec; empty when nothing speaks against starting."""
    return tuple(_problems(spec, image, vllm_version))


def _problems(spec: LLMServiceSpec, image: str | None, vllm_version: str) -> Iterator[Problem]:
    if image is None:
        yield Problem(
            "spec.runtime.image",
            f"this installation has no default image for accelerator.type {spec.accelerator.type}.",
            "Name an image with vLLM for it, or have a default set in the operator's chart.",
        )
    yield from _precision(spec)
    yield from _parallelism(spec)
    yield from _flags(spec, vllm_version)


def _precision(spec: LLMServiceSpec) -> Iterator[Problem]:
    yield from _compute_type(spec)
    if spec.accelerator.type != "nvidia":
        return
    for field, needed, what in _needs(spec):
        for product in spec.accelerator.product or ():
            gpu = find(product)
            if gpu is not None and gpu.capability is not None and gpu.capability < needed:
                yield Problem(
                    field,
                    f"{what} needs compute capability {_dotted(needed)}, and {product} has {_dotted(gpu.capability)}.",
                    _remedy(what, product),
                    Reason.PRECISION_UNSUPPORTED,
                )


def _needs(spec: LLMServiceSpec) -> Iterator[tuple[str, Capability, str]]:
    """(field, compute capability, in words) of everything that the spec asks for by name."""
    precision = spec.precision
    if precision.dtype == "bfloat16":
        yield "spec.precision.dtype", _BFLOAT16, "bfloat16"
    elif precision.weights == "bfloat16" and precision.dtype == "auto":
        yield "spec.precision.weights", _BFLOAT16, "bfloat16"
    method = precision.quantization
    if method is not None and method in MINIMUM_CAPABILITY:
        yield "spec.precision.quantization", MINIMUM_CAPABILITY[method], f"quantization method {method}"
    elif precision.weights == "fp8" and precision.quantization is None:
        yield "spec.precision.weights", MINIMUM_CAPABILITY["fp8_per_tensor"], "weights in fp8"


def _compute_type(spec: LLMServiceSpec) -> Iterator[Problem]:
    method, dtype = spec.precision.quantization, spec.precision.dtype
    accepted = _COMPUTE_TYPES.get(method or "", ())
    if accepted and dtype not in ("auto", *accepted):
        yield Problem(
            "spec.precision.dtype",
            f"quantization method {method} computes in {' or '.join(accepted)}, not in {dtype}.",
            f"Set it to auto or {accepted[0]}.",
            Reason.PRECISION_UNSUPPORTED,
        )


def _remedy(what: str, product: str) -> str:
    other = "Set it to float16" if what == "bfloat16" else "Choose another precision"
    return f"{other}, or take {product} out of spec.accelerator.product."


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _parallelism(spec: LLMServiceSpec) -> Iterator[Problem]:
    facts, size = spec.model.architecture, spec.parallelism.tensor_parallel_size
    heads, kv_heads = facts.num_attention_heads, facts.num_key_value_heads
    fitting = [n for n in range(1, (heads or 0) + 1) if _divides(n, heads or 0, kv_heads)]
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


def _divides(ranks: int, heads: int, kv_heads: int | None) -> bool:
    """Key/value heads are dealt out too or, when there are fewer than ranks, copied."""
    if heads % ranks:
        return False
    if kv_heads is None:
        return True
    return kv_heads % ranks == 0 if kv_heads >= ranks else ranks % kv_heads == 0


def _flags(spec: LLMServiceSpec, vllm_version: str) -> Iterator[Problem]:
    series = ".".join(vllm_version.split(".")[:2])
    if series not in flag_versions():
        yield Problem(
            "spec.runtime.version",
            f"the operator knows the flags of vLLM {', '.join(flag_versions())}, and not those of {vllm_version}.",
            "Use an image with such a version; where the image holds another version than its tag says, set "
            "spec.runtime.version to that.",
            Reason.UNKNOWN_VERSION,
        )
        return
    # Making the table costs more than all else here; most services add no flag.
    if spec.runtime.extra_args:
        for problem in check_extra_args(spec.runtime.extra_args, vllm_version):
            yield Problem(
                "spec.runtime.extraArgs", problem.message, problem.remedy, _flag_reason(problem, vllm_version)
            )


def _flag_reason(problem: FlagProblem, vllm_version: str) -> Reason:
    if problem.certain:
        return Reason.INVALID_SPEC
    try:
        resolution = flag_table(vllm_version).resolve(problem.argument)
    except UnknownVersion:
        return Reason.UNKNOWN_VERSION
    return Reason.UNKNOWN_FLAG if isinstance(resolution, Unknown | Ambiguous) else Reason.INVALID_FLAG
