"""What the schema cannot know is refused with a reason and a remedy, before any pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_planner.checks import check
from llmservice_planner.versions import given, image_version

from tests.unit.decide_world import an_llmservice, spec

Json = dict[str, Any]
HF = "hf://Qwen/Qwen2.5-7B-Instruct"


def problems(image: str | None = "vllm:v0.32.0", version: str = "0.32.0", **sections: object) -> list[tuple[str, str]]:
    parsed = LLMService.from_object(an_llmservice(spec(**sections))).spec
    found = check(parsed, image=image, vllm_version=version)
    assert all(problem.remedy for problem in found)
    return [(problem.field, str(problem.reason)) for problem in found]


def _on(*products: str, **precision: str) -> Json:
    return {"precision": precision, "accelerator": {"products": list(products)}}


def _heads(size: int, **architecture: int) -> Json:
    return {"model": {"uri": HF, "architecture": architecture}, "parallelism": {"tensorParallelSize": size}}


def _env(name: str, value: str) -> Json:
    return {"runtime": {"env": [{"name": "A", "value": "x"}, {"name": f"LLMSERVICE_{name}", "value": value}]}}


def _args(*arguments: str) -> Json:
    return {"runtime": {"extraArgs": list(arguments)}}


FINE: list[Json] = [
    {},
    {"precision": {"dtype": "bfloat16"}},
    _on("NVIDIA-A10G", "NVIDIA-H200", dtype="bfloat16"),
    _on("Some-Unknown-GPU", dtype="bfloat16"),
    _on("Tesla-T4", weights="fp8"),
    _on("Tesla-V100-SXM2-16GB", dtype="float16"),
    _heads(4, numAttentionHeads=28, numKeyValueHeads=4),
    _heads(16, numAttentionHeads=32, numKeyValueHeads=8),
    _args("--enable-log-requests", "--stream-interval", "7"),
    _env("START_SECONDS", "1800"),
    _env("HANG_UNREADY_SECONDS", "60"),
]


@pytest.mark.parametrize("sections", FINE, ids=str)
def test_nothing_speaks_against(sections: Json) -> None:
    assert problems(**sections) == []


PRECISION, FLAG, INVALID, SIZE = "PrecisionUnsupported", "UnknownFlag", "InvalidSpec", "TensorParallelSizeInvalid"
V100 = "Tesla-V100-SXM2-16GB"
STAGES = {"model": {"uri": HF, "architecture": {"numHiddenLayers": 2}}, "parallelism": {"pipelineParallelSize": 3}}
REFUSED: list[tuple[str, str, Json]] = [
    ("runtime.env[1].value", INVALID, _env("STALL_SECONDS", "soon")),
    ("runtime.env[1].value", INVALID, _env("STALL_SECONDS", "1.5")),
    ("runtime.env[1].value", INVALID, _env("STALL_SECONDS", "")),
    ("runtime.env[1].value", INVALID, _env("START_SECONDS", "-1")),
    ("runtime.env[1].value", INVALID, _env("HANG_UNREADY_SECONDS", "0")),
    ("runtime.env[1].value", INVALID, _env("HANG_RESTART_SECONDS", "never")),
    ("precision.dtype", PRECISION, _on("Tesla-T4", dtype="bfloat16")),
    ("precision.weights", PRECISION, _on("Tesla-T4", weights="bfloat16")),
    ("precision.dtype", PRECISION, _on("Tesla-T4-SHARED", dtype="bfloat16")),
    ("precision.dtype", PRECISION, _on("NVIDIA-L4", "Tesla-T4", dtype="bfloat16")),
    ("precision.weights", PRECISION, _on(V100, weights="fp8")),
    ("precision.quantization", PRECISION, _on("Tesla-T4", quantization="mxfp4")),
    ("precision.quantization", PRECISION, _on(V100, quantization="awq")),
    ("precision.dtype", PRECISION, {"precision": {"quantization": "fp8", "dtype": "float32"}}),
    ("parallelism.tensorParallelSize", SIZE, _heads(3, numAttentionHeads=32)),
    ("parallelism.tensorParallelSize", SIZE, _heads(4, numAttentionHeads=12, numKeyValueHeads=6)),
    ("parallelism.pipelineParallelSize", INVALID, STAGES),
    ("model.servedModelNames", INVALID, {"model": {"uri": HF, "servedModelNames": ["a", "None"]}}),
    ("runtime.extraArgs", FLAG, _args("--no-such")),
    ("runtime.extraArgs", FLAG, _args("--swap-space=4")),
    ("runtime.extraArgs", FLAG, _args("--max-num")),
    ("runtime.extraArgs", "InvalidFlag", _args("--stream-interval=x")),
    ("runtime.extraArgs", INVALID, _args("--port=1")),
]


@pytest.mark.parametrize(("field", "reason", "sections"), REFUSED, ids=str)
def test_refused(field: str, reason: str, sections: Json) -> None:
    assert problems(**sections) == [(f"spec.{field}", reason)]


NGRAM: Json = {"speculativeDecoding": {"method": "ngram", "numSpeculativeTokens": 2}}
MTP: Json = {"speculativeDecoding": {"method": "mtp", "numSpeculativeTokens": 2}}
TWO: Json = {"parallelism": {"pipelineParallelSize": 2}}
FIRST_RUNNER: Json = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}
LORA: Json = {"lora": {}}


def _connector(name: str, **options: object) -> Json:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": options}


def _asleep(transfer: object, **runtime: object) -> Json:
    text = transfer if isinstance(transfer, str) else json.dumps(transfer)
    return {"runtime": {"sleepMode": True, "extraArgs": ["--kv-transfer-config", text]} | runtime}


BESIDE: dict[str, tuple[str, Json, str]] = {
    # version, spec, and what is refused
    "ngram, scheduled asynchronously": ("0.32.0", NGRAM | _args("--async-scheduling"), "method ngram."),
    "the second runner takes it": ("0.33.0", NGRAM | _args("--async-scheduling"), ""),
    "before anybody looked": ("0.31.0", NGRAM | _args("--async-scheduling"), ""),
    "switched off": ("0.32.0", NGRAM | _args("--async-scheduling", "--no-async-scheduling"), ""),
    "mtp": ("0.32.0", MTP | _args("--async-scheduling"), ""),
    "ngram on the first runner": (
        "0.33.0", NGRAM | {"runtime": FIRST_RUNNER | _args("--async-scheduling")["runtime"]},
        "method ngram and VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    "stages on the first runner": (
        "0.33.0", TWO | {"runtime": FIRST_RUNNER | _args("--async_scheduling")["runtime"]}, "pipelineParallelSize",
    ),
    "stages": ("0.33.0", TWO | _args("--async-scheduling"), ""),
    "stages on the first runner, as vLLM decides": ("0.33.0", TWO | {"runtime": FIRST_RUNNER}, ""),
    "LoRA with a MegaMoE": ("0.33.0", LORA | _args("--moe-backend=deep-gemm-mega-moe"), "deep_gemm_mega_moe"),
    "LoRA with a MegaMoE, earlier": ("0.32.0", LORA | _args("--moe-backend", "deep_gemm_mega_moe"), ""),
    "LoRA with Triton": ("0.33.0", LORA | _args("--moe-backend", "triton"), ""),
    "a MegaMoE": ("0.33.0", _args("--moe-backend", "deep_gemm_mega_moe"), ""),
    "asleep over UCX": ("0.33.0", _asleep(_connector("NixlConnector")), ""),
    "asleep over UCX, named": ("0.33.0", _asleep(_connector("NixlConnector", backends=["UCX"])), ""),
    "asleep over another": (
        "0.33.0", _asleep(_connector("NixlConnector", backends=["GDS"])), 'NixlConnector without backends ["UCX"]',
    ),
    "asleep, earlier": ("0.32.0", _asleep(_connector("NixlConnector", backends=["GDS"])), ""),
    "awake": ("0.33.0", _asleep(_connector("MoRIIOConnector"), sleepMode=False), ""),
    "never asleep": ("0.33.0", _asleep(_connector("MoRIIOConnector")), "MoRIIOConnector"),
    "asleep by RDMA": ("0.33.0", _asleep(_connector("MooncakeConnector", mooncake_protocol="rdma")), ""),
    "asleep by TCP": ("0.33.0", _asleep(_connector("MooncakeConnector", mooncake_protocol="tcp")), "MooncakeConnector"),
    "one of several": (
        "0.33.0",
        _asleep(_connector("MultiConnector", connectors=[_connector("NixlConnector"), _connector("MoRIIOConnector")])),
        "MoRIIOConnector",
    ),
    "several": ("0.33.0", _asleep(_connector("MultiConnector", connectors=[_connector("NixlConnector")])), ""),
    "one of another module": (
        "0.33.0", _asleep(_connector("MoRIIOConnector") | {"kv_connector_module_path": "mine"}), "",
    ),
    "no connector": ("0.33.0", _asleep({"kv_connector": ["MoRIIOConnector"], "kv_connector_extra_config": 1}), ""),
    "connectors that are none": ("0.33.0", _asleep(_connector("MultiConnector", connectors={"a": 1})), ""),
    "no JSON": ("0.33.0", _asleep("[" * 300), ""),
}  # fmt: skip


@pytest.mark.parametrize(("version", "sections", "words"), BESIDE.values(), ids=BESIDE)
def test_flags_beside_fields(version: str, sections: Json, words: str) -> None:
    found = check(
        LLMService.from_object(an_llmservice(spec(**sections))).spec, image=f"vllm:v{version}", vllm_version=version
    )
    said = [(problem.field, str(problem.reason)) for problem in found]
    assert said == ([("spec.runtime.extraArgs", "UnsupportedCombination")] if words else [])
    assert all(f"vLLM {version}" in problem.message and words in problem.message for problem in found)


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


@pytest.mark.parametrize(("version", "has"), [("0.32.0", False), ("0.33.0", True)])
def test_a_further_flag_is_looked_for_as_the_vllm_that_runs_reads_it(version: str, has: bool) -> None:
    assert (given("--watchdog-config", ("--watchdog-config={}",), version) is not None) == has
