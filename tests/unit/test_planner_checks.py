"""What the schema cannot know is refused with a reason and a remedy, before any pod."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.service import LLMService
from llmservice_operator.planner.checks import check
from llmservice_operator.planner.gpus import CATALOGUE, find
from llmservice_operator.planner.versions import image_version

from tests.unit.decide_world import an_llmservice, spec

Json = dict[str, Any]
HF = "hf://Qwen/Qwen2.5-7B-Instruct"


def problems(image: str | None = "vllm:v0.32.0", version: str = "0.32.0", **sections: object) -> list[tuple[str, str]]:
    parsed = LLMService.from_object(an_llmservice(spec(**sections))).spec
    found = check(parsed, image=image, vllm_version=version)
    assert all(problem.remedy for problem in found)
    return [(problem.field, str(problem.reason)) for problem in found]


FINE: list[Json] = [
    {},
    {"precision": {"dtype": "bfloat16"}},
    {"precision": {"dtype": "bfloat16"}, "accelerator": {"products": ["NVIDIA-A10G", "NVIDIA-H200"]}},
    {"precision": {"dtype": "bfloat16"}, "accelerator": {"products": ["Some-Unknown-GPU"]}},
    {"precision": {"weights": "fp8"}, "accelerator": {"products": ["Tesla-T4"]}},
    {"precision": {"dtype": "float16"}, "accelerator": {"products": ["Tesla-V100-SXM2-16GB"]}},
    {"model": {"uri": HF, "architecture": {"numAttentionHeads": 28, "numKeyValueHeads": 4}}}
    | {"parallelism": {"tensorParallelSize": 4}},
    {"model": {"uri": HF, "architecture": {"numAttentionHeads": 32, "numKeyValueHeads": 8}}}
    | {"parallelism": {"tensorParallelSize": 16}},
    {"runtime": {"extraArgs": ["--enable-log-requests", "--stream-interval", "7"]}},
    {"runtime": {"env": [{"name": "LLMSERVICE_START_SECONDS", "value": "1800"}]}},
    {"runtime": {"env": [{"name": "LLMSERVICE_HANG_UNREADY_SECONDS", "value": "60"}]}},
]


@pytest.mark.parametrize("sections", FINE, ids=str)
def test_nothing_speaks_against(sections: Json) -> None:
    assert problems(**sections) == []


def _on(product: str, **precision: str) -> Json:
    return {"precision": precision, "accelerator": {"products": [product]}}


def _heads(size: int, **architecture: int) -> Json:
    return {"model": {"uri": HF, "architecture": architecture}, "parallelism": {"tensorParallelSize": size}}


SECONDS = {
    "STALL_SECONDS": ("soon", "0", "1.5", "inf", ""),
    "START_SECONDS": ("-1",),
    "HANG_UNREADY_SECONDS": ("0",),
    "HANG_RESTART_SECONDS": ("never",),
}
PRECISION, FLAG = "PrecisionUnsupported", "UnknownFlag"
REFUSED = [
    *(
        pytest.param(
            {"runtime": {"env": [{"name": "A", "value": "x"}, {"name": f"LLMSERVICE_{name}", "value": value}]}},
            "spec.runtime.env[1].value",
            "InvalidSpec",
            id=f"{name}: {value!r}",
        )
        for name, values in SECONDS.items()
        for value in values
    ),
    pytest.param(_on("Tesla-T4", dtype="bfloat16"), "spec.precision.dtype", PRECISION, id="bfloat16 on Turing"),
    pytest.param(_on("Tesla-T4", weights="bfloat16"), "spec.precision.weights", PRECISION, id="bfloat16 weights"),
    pytest.param(_on("Tesla-T4-SHARED", dtype="bfloat16"), "spec.precision.dtype", PRECISION, id="a shared GPU"),
    pytest.param(
        {"precision": {"dtype": "bfloat16"}, "accelerator": {"products": ["NVIDIA-L4", "Tesla-T4"]}},
        "spec.precision.dtype",
        PRECISION,
        id="one product of two",
    ),
    pytest.param(_on("Tesla-V100-SXM2-16GB", weights="fp8"), "spec.precision.weights", PRECISION, id="fp8 on Volta"),
    pytest.param(_on("Tesla-T4", quantization="mxfp4"), "spec.precision.quantization", PRECISION, id="mxfp4"),
    pytest.param(_on("Tesla-V100-SXM2-16GB", quantization="awq"), "spec.precision.quantization", PRECISION, id="awq"),
    pytest.param(
        {"precision": {"quantization": "fp8", "dtype": "float32"}}, "spec.precision.dtype", PRECISION, id="fp8 computes"
    ),
    pytest.param(
        _heads(3, numAttentionHeads=32), "spec.parallelism.tensorParallelSize", "TensorParallelSizeInvalid", id="heads"
    ),
    pytest.param(
        _heads(4, numAttentionHeads=12, numKeyValueHeads=6),
        "spec.parallelism.tensorParallelSize",
        "TensorParallelSizeInvalid",
        id="key/value heads",
    ),
    pytest.param(
        {
            "model": {"uri": HF, "architecture": {"numHiddenLayers": 2}},
            "parallelism": {"pipelineParallelSize": 3},
        },
        "spec.parallelism.pipelineParallelSize",
        "InvalidSpec",
        id="more stages than layers",
    ),
    pytest.param(
        {"model": {"uri": "hf://a/b", "servedModelNames": ["a", "None"]}},
        "spec.model.servedModelNames",
        "InvalidSpec",
        id="None",
    ),
    pytest.param({"runtime": {"extraArgs": ["--no-such"]}}, "spec.runtime.extraArgs", FLAG, id="unknown flag"),
    pytest.param({"runtime": {"extraArgs": ["--swap-space=4"]}}, "spec.runtime.extraArgs", FLAG, id="removed flag"),
    pytest.param({"runtime": {"extraArgs": ["--max-num"]}}, "spec.runtime.extraArgs", FLAG, id="ambiguous"),
    pytest.param(
        {"runtime": {"extraArgs": ["--stream-interval=x"]}}, "spec.runtime.extraArgs", "InvalidFlag", id="value"
    ),
    pytest.param({"runtime": {"extraArgs": ["--port=1"]}}, "spec.runtime.extraArgs", "InvalidSpec", id="owned flag"),
]


@pytest.mark.parametrize(("sections", "field", "reason"), REFUSED)
def test_refused(sections: Json, field: str, reason: str) -> None:
    assert problems(**sections) == [(field, reason)]


def test_a_version_without_flags_is_refused() -> None:
    assert problems(version="0.19.1") == [("spec.runtime.version", "UnknownVersion")]


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("mirror.example/x/vllm-openai:v0.31.0-cu128", "0.31.0"),
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("registry.example:5000/vllm:0.32.1rc1", "0.32.1"),
        ("vllm:v0.32.0@sha256:" + "0" * 64, "0.32.0"),
        ("rocm/vllm:rocm7.0_ubuntu24.04_vllm_0.31.1_20261001", "0.31.1"),
        ("vllm:v0.40.0", "0.40.0"),
        ("vllm@sha256:" + "0" * 64, None),
        ("vllm:latest", None),
        ("vllm:nightly", None),
        ("vllm:rocm7.0", None),
        ("registry.example:5000/vllm", None),
        ("registry.0.32.0.example/vllm:prod", None),
    ],
)
def test_the_version_that_a_tag_names(image: str, version: str | None) -> None:
    assert image_version(image) == version


def test_an_image_without_a_version_needs_the_field() -> None:
    found = problems(runtime={"image": "mirror.example/vllm:prod"})
    assert found == [("spec.runtime.version", "UnknownVersion")]
    assert problems(runtime={"image": "mirror.example/vllm:prod", "version": "0.31.0"}) == []


@pytest.mark.parametrize(("version", "age"), [("0.40.0", "newer"), ("1.0.0", "newer"), ("0.9.1", "older")])
def test_a_version_out_of_range_is_newer_or_older(version: str, age: str) -> None:
    parsed = LLMService.from_object(an_llmservice(spec(runtime={"extraArgs": ["--no-such"]}))).spec
    (problem,) = check(parsed, image="i", vllm_version=version)
    assert f"vLLM {version} is {age}" in problem.message
    assert ("newer operator" in problem.remedy) == (age == "newer")


def test_a_field_that_an_older_vllm_has_no_flag_for() -> None:
    parsed = LLMService.from_object(an_llmservice(spec())).spec
    arguments = ("--model", "m", "--max-num-queued-reqs", "8", "--kv-cache-dtype", "ultraquant_4bit")
    assert check(parsed, image="i", vllm_version="0.32.0", arguments=arguments) == ()
    queue, cache = check(parsed, image="i", vllm_version="0.28.0", arguments=arguments)
    assert (queue.field, cache.field) == ("spec.batching.maxNumQueuedRequests", "spec.precision.kvCache")
    assert "0.32, 0.31, 0.30, 0.29 does" in queue.message
    assert "0.32 does" in cache.message


def test_no_image_is_refused() -> None:
    assert problems(image=None, accelerator={"type": "cpu"}) == [("spec.runtime.image", "InvalidSpec")]


def test_divisors_are_named() -> None:
    parsed = LLMService.from_object(an_llmservice(spec(**_heads(5, numAttentionHeads=28, numKeyValueHeads=4)))).spec
    (problem,) = check(parsed, image="i", vllm_version="0.32.0")
    assert problem.remedy == "Use one of 1, 2, 4, 28."


def test_the_catalogue() -> None:
    assert {product: gpu.product for product, gpu in CATALOGUE.items()} == {p: p for p in CATALOGUE}
    h100, sliced = find("NVIDIA-H100-80GB-HBM3"), find("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb")
    assert h100 is not None
    assert (h100.capability, h100.memory_gib) == ((9, 0), 79.11)
    assert sliced is not None
    assert (sliced.capability, sliced.memory_gib) == ((9, 0), 39.25)
    assert find("AMD_Instinct_MI300X_OAM") is not None
    assert find("NVIDIA-Something") is None
