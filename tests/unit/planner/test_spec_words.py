"""Fields with a fixed set of words: each word reaches vLLM's flags, and the planner means by it what vLLM does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from llmservice_api import engine
from llmservice_api.base import ApiModel
from llmservice_api.service import LLMService, parse_spec
from llmservice_api.spec import LLMServiceSpec
from llmservice_operator.manifests.server import vllm_arguments
from llmservice_planner import memory, plan
from llmservice_planner.kv_blocks import value_bytes
from llmservice_planner.plan import Draft, Request
from llmservice_planner.requests import request_of
from llmservice_vllm.versions import default_version

from tests.unit.decide_world import an_llmservice
from tests.unit.planner_models import architecture, gpu

MODEL = {"uri": "hf://a/b"}


def words(model: type[ApiModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """Paths of the spec's fields that take one of several words, with the words."""
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if get_origin(kind) is Literal:
                yield (*path, name), get_args(kind)
            elif isinstance(kind, type) and issubclass(kind, ApiModel):
                yield from words(kind, (*path, name))


WORDS = {".".join(path): some for path, some in words(LLMServiceSpec)}
NO_FLAG = {
    "model.architecture.dtype": "a fact for the planner",
    "model.architecture.positions": "a fact for checks",
    "model.cache.access_modes": "of the claim",
    "model.cache.retention_policy": "of the claim",
    "model.cache.verify": "of the fetch container",
    "accelerator.type": "decides the image and what the supervisor is told",
    "runtime.image_pull_policy": "of the pod",
    "rollout.strategy": "of the Deployment",
    "parallelism.network.preset": "variables of NCCL",
    "scaling.autoscaling.provider": "of the cluster",
    "scaling.autoscaling.target.concurrency_per_replica": "the scaler's",
    "fit_policy": "of the operator",
    "routing.mode": "where the Service leads",
    "routing.policy": "the router's",
    "context_extension.method": "the supervisor's",
    "precision.weights": "a type of floats is --dtype, fp8 a method; the others are the checkpoint's own",
    "batching.kv_offloading_backend": "reaches vLLM beside a size only",
}
BESIDE: dict[str, Any] = {"speculative_decoding.method": {"numSpeculativeTokens": 2}}


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def with_word(path: str, word: Any) -> dict[str, Any]:
    *sections, name = map(camel, path.split("."))
    made: dict[str, Any] = BESIDE.get(path, {}) | {name: word}
    for section in reversed(sections):
        made = {section: made}
    return {**made, "model": MODEL | made.get("model", {})}


def test_the_fields_are_found() -> None:
    assert {"compilation.cuda_graphs", "precision.kv_cache", "speculative_decoding.method"} <= set(WORDS)
    assert set(NO_FLAG) - set(WORDS) <= {"model.cache.access_modes"}


@pytest.mark.parametrize("path", [path for path in WORDS if path not in NO_FLAG])
def test_each_word_has_flags_of_its_own(path: str) -> None:
    rendered = []
    for word in WORDS[path]:
        service = LLMService.from_object(an_llmservice(with_word(path, word)))
        rendered.append(vllm_arguments(service, default_version()))
    assert len(set(rendered)) == len(rendered), path


# The request's own type says which words there are, so that mypy refuses a comparison with any other.
TYPED: dict[str, tuple[type[Any], str]] = {
    "precision.weights": (Request, "weights"),
    "compilation.cuda_graphs": (Request, "cuda_graphs"),
    "precision.dtype": (Request, "dtype"),
    "precision.kv_cache": (Request, "kv_cache_dtype"),
    "speculative_decoding.method": (Draft, "method"),
}


@pytest.mark.parametrize("path", TYPED)
def test_the_planner_knows_the_words_of_the_field(path: str) -> None:
    owner, name = TYPED[path]
    hint = get_type_hints(owner, vars(plan), vars(engine) | vars(engine))[name]
    assert set(WORDS[path]) <= set(words_of(hint))


def words_of(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from words_of(part)


def asked(**sections: Any) -> Request:
    return request_of(
        parse_spec({"model": MODEL, **sections}),
        architecture=architecture("llama-3.1-8b"),
        tensors=None,
        device=gpu("H100"),
        vllm_version="0.32.0",
        cpu_kv_cache_gib=4,
    )


GRAPHS: dict[str, tuple[dict[str, Any], bool]] = {
    "by default": ({}, True),
    **{word: ({"cudaGraphs": word}, word != "none") for word in get_args(engine.CudaGraphs)},
    "level 0": ({"optimizationLevel": 0}, False),
    "level 0, and some": ({"optimizationLevel": 0, "cudaGraphs": "full"}, True),
    "level 0 has no pieces": ({"optimizationLevel": 0, "cudaGraphs": "piecewise"}, False),
    "level 1": ({"optimizationLevel": 1}, True),
    "level 1 has pieces only, which nobody cuts": ({"optimizationLevel": 1, "mode": "none"}, False),
    "uncompiled": ({"mode": "none"}, True),
    "traced, in pieces": ({"mode": "dynamoTraceOnce", "cudaGraphs": "piecewise"}, False),
    "PyTorch's own pipeline": ({"mode": "stockTorchCompile"}, False),
    "eager": ({"enforceEager": True}, False),
}


@pytest.mark.parametrize(("compilation", "has_graphs"), GRAPHS.values(), ids=GRAPHS)
def test_graphs_are_counted_where_vllm_records_some(compilation: dict[str, Any], has_graphs: bool) -> None:
    assert ((memory.plan(asked(compilation=compilation)).graph_gib or 0) > 0) is has_graphs


@pytest.mark.parametrize("precision", [{"dtype": "float32"}, {"weights": "float32"}], ids=str)
def test_one_type_is_of_weights_arithmetic_and_cache(precision: dict[str, str]) -> None:
    plain, wide = memory.plan(asked()), memory.plan(asked(precision=precision))
    assert plain.weights_gib is not None
    assert plain.kv_bytes_per_token is not None
    assert wide.weights_gib == pytest.approx(2 * plain.weights_gib)
    assert wide.kv_bytes_per_token == 2 * plain.kv_bytes_per_token


def test_the_type_that_is_computed_in_wins_over_the_weights() -> None:
    assert value_bytes(replace(asked(), dtype="bfloat16", weights="float32")) == 2
