"""Problems of a spec beyond its schema, each with a remedy, before any pod is created."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llmservice_api.errors import Problem
from llmservice_api.pod_rules import SECONDS_VARIABLES
from llmservice_api.reasons import Reason
from llmservice_api.spec import LLMServiceSpec

from llmservice_planner import compatibility, versions
from llmservice_planner.model.heads import sizes


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
    yield from compatibility.problems(spec)
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
    fitting = sizes(heads or 0, kv_heads)
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
