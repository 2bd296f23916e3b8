"""The matrix is whole in itself, and one function judges a spec by it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from llmservice_operator.api.matrix import DIMENSIONS, ROWS, Row
from llmservice_operator.api.matrix.backends import BACKENDS
from llmservice_operator.api.matrix.dimensions import when
from llmservice_operator.api.service import LLMService
from llmservice_operator.planner.compatibility import Combination, matches, problems, verdicts

from tests.unit.decide_world import an_llmservice, spec

Json = dict[str, Any]
ALL_ROWS = [pytest.param(row, id=row.name) for row in ROWS]


def refused(**sections: object) -> list[tuple[str, str]]:
    found = problems(LLMService.from_object(an_llmservice(spec(**sections))).spec)
    assert all(problem.message.endswith(".") and problem.remedy.endswith(".") for problem in found)
    return [(problem.field.removeprefix("spec."), str(problem.reason)) for problem in found]


def on(product: str, **sections: Json) -> Json:
    return {"accelerator": {"products": [product]}, **sections}


CPU, AMD = {"accelerator": {"type": "cpu"}}, {"accelerator": {"type": "amd"}}
H100, A100, L4, T4, B200 = (
    *("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L4", "Tesla-T4", "NVIDIA-B200"),
)
DRAFT = {"method": "draftModel", "model": {"uri": "hf://a/b"}, "numSpeculativeTokens": 3}
NGRAM = {"method": "ngram", "numSpeculativeTokens": 3}
METHOD = "precision.quantization"
PAIR, INVALID, PRECISION = "UnsupportedCombination", "InvalidSpec", "PrecisionUnsupported"


def model(**architecture: object) -> Json:
    return {"uri": "hf://a/b", "architecture": architecture}


FINE: dict[str, Json] = {
    "nothing said": {},
    "FlashInfer with fp8 on Ada": on(L4, attention={"backend": "FLASHINFER"}, precision={"kvCache": "fp8"}),
    "FlashAttention with fp8 on Hopper": on(H100, attention={"backend": "FLASH_ATTN"}, precision={"kvCache": "fp8"}),
    "a backend on a GPU that nobody knows": on("Some-GPU", attention={"backend": "FLASHMLA"}),
    "a backend on any GPU": {"attention": {"backend": "FLASHMLA"}},
    "ALiBi with Triton": {"attention": {"backend": "TRITON_ATTN"}, "model": model(positions="alibi")},
    "YaRN on a model that nobody knows": {"contextExtension": {"factor": 4}, "batching": {"maxModelLen": 99999}},
    "YaRN as far as it reaches": {
        "contextExtension": {"factor": 4},
        "model": model(positions="rope", maxPositionEmbeddings=1024),
        "batching": {"maxModelLen": 4096},
    },
    "a draft on one GPU of two": {
        "speculativeDecoding": {**DRAFT, "draftTensorParallelSize": 1},
        "parallelism": {"tensorParallelSize": 2},
    },
    "guesses over stages": {"speculativeDecoding": NGRAM, "parallelism": {"pipelineParallelSize": 2}},
    "adapters with guesses": {"lora": {}, "speculativeDecoding": NGRAM},
    "fp8 cache on a CPU": {**CPU, "precision": {"kvCache": "fp8"}},
    "sleep on a GPU": {"runtime": {"sleepMode": True}},
    "an eager one": {"compilation": {"enforceEager": True}},
    "NVFP4 cache on Blackwell": on(B200, precision={"kvCache": "nvfp4"}),
}


@pytest.mark.parametrize("sections", FINE.values(), ids=FINE.keys())
def test_what_goes_together(sections: Json) -> None:
    assert refused(**sections) == []


REFUSED: dict[str, tuple[Json, tuple[str, str]]] = {
    "bfloat16 on Turing": (on(T4, precision={"dtype": "bfloat16"}), ("precision.dtype", PRECISION)),
    "bfloat16 weights on Turing": (on(T4, precision={"weights": "bfloat16"}), ("precision.weights", PRECISION)),
    "FlashAttention on Turing": (on(T4, attention={"backend": "FLASH_ATTN"}), ("attention.backend", PAIR)),
    "FlashAttention with fp8 on Ampere": (
        on(A100, attention={"backend": "FLASH_ATTN"}, precision={"kvCache": "fp8"}),
        ("precision.kvCache", PAIR),
    ),
    "FLEX_ATTENTION with fp8": (
        {"attention": {"backend": "FLEX_ATTENTION"}, "precision": {"kvCache": "fp8"}},
        ("attention.backend", PAIR),
    ),
    "FLEX_ATTENTION with ALiBi": (
        {"attention": {"backend": "FLEX_ATTENTION"}, "model": model(positions="alibi")},
        ("attention.backend", PAIR),
    ),
    "blocks of 16 with FLASHMLA": (
        {"attention": {"backend": "FLASHMLA"}, "batching": {"blockSize": 16}},
        ("attention.backend", PAIR),
    ),
    "NVFP4 cache on Turing": (on(T4, precision={"kvCache": "nvfp4"}), ("precision.kvCache", PAIR)),
    "NVFP4 cache on AMD": ({**AMD, "precision": {"kvCache": "nvfp4"}}, ("precision.kvCache", PAIR)),
    "FlashInfer on AMD": ({**AMD, "attention": {"backend": "FLASHINFER"}}, ("attention.backend", PAIR)),
    "ROCm's attention on NVIDIA": ({"attention": {"backend": "ROCM_ATTN"}}, ("attention.backend", PAIR)),
    "ROCm's attention and offloading": (
        {**AMD, "attention": {"backend": "ROCM_ATTN"}, "batching": {"kvOffloadingSize": "4Gi"}},
        ("attention.backend", PAIR),
    ),
    "humming on AMD": ({**AMD, "precision": {"quantization": "humming"}}, ("precision.quantization", PAIR)),
    "a backend on a CPU": ({**CPU, "attention": {"backend": "FLASHINFER"}}, ("attention.backend", PAIR)),
    "graphs on a CPU": ({**CPU, "compilation": {"cudaGraphs": "full"}}, ("compilation.cudaGraphs", PAIR)),
    "sleep on a CPU": ({**CPU, "runtime": {"sleepMode": True}}, ("runtime.sleepMode", PAIR)),
    "offloading on a CPU": ({**CPU, "batching": {"kvOffloadingSize": "4Gi"}}, ("batching.kvOffloadingSize", PAIR)),
    "NVFP4 weights on a CPU": ({**CPU, "precision": {"quantization": "modelopt_fp4"}}, (METHOD, PAIR)),
    "a draft on two GPUs of four": (
        {
            "speculativeDecoding": {**DRAFT, "draftTensorParallelSize": 2},
            "parallelism": {"tensorParallelSize": 4},
        },
        ("speculativeDecoding.draftTensorParallelSize", PAIR),
    ),
    "a draft without a model": (
        {"speculativeDecoding": {"method": "eagle", "numSpeculativeTokens": 3}},
        ("speculativeDecoding.model", INVALID),
    ),
    "guesses of an embedding model": (
        {"speculativeDecoding": NGRAM, "model": {"uri": "hf://a/b", "runner": "pooling"}},
        ("speculativeDecoding.method", PAIR),
    ),
    "too few tokens for adapters with guesses": (
        {"speculativeDecoding": NGRAM, "lora": {}, "batching": {"maxNumSeqs": 32, "maxNumBatchedTokens": 64}},
        ("batching.maxNumBatchedTokens", PAIR),
    ),
    "too few adapters in memory": ({"lora": {"maxLoras": 4, "maxCpuLoras": 2}}, ("lora.maxCpuLoras", INVALID)),
    "YaRN and ALiBi": (
        {"contextExtension": {"factor": 4}, "model": model(positions="alibi")},
        ("contextExtension", "ContextExtensionInvalid"),
    ),
    "longer than YaRN reaches": (
        {
            "contextExtension": {"factor": 2},
            "model": model(positions="rope", maxPositionEmbeddings=1024),
            "batching": {"maxModelLen": 4096},
        },
        ("batching.maxModelLen", "ContextExtensionInvalid"),
    ),
    "longer than the model": (
        {"model": model(positions="rope", maxPositionEmbeddings=1024), "batching": {"maxModelLen": 4096}},
        ("batching.maxModelLen", "MaxModelLenTooLarge"),
    ),
    "eager and graphs": (
        {"compilation": {"enforceEager": True, "cudaGraphs": "full"}},
        ("compilation.cudaGraphs", INVALID),
    ),
    "piecewise without compilation": (
        {"compilation": {"mode": "none", "cudaGraphs": "piecewise"}},
        ("compilation.cudaGraphs", PAIR),
    ),
    "no chunks for a long prompt": (
        {"batching": {"chunkedPrefill": False, "maxNumBatchedTokens": 512, "maxModelLen": 1024}},
        ("batching.maxNumBatchedTokens", INVALID),
    ),
    "tools of an embedding model": (
        {"generation": {"toolCallParser": "hermes"}, "model": {"uri": "hf://a/b", "runner": "pooling"}},
        ("generation.toolCallParser", PAIR),
    ),
    "embeddings of a model that generates": (
        {"model": {"uri": "hf://a/b", "runner": "generate", "convert": "embed"}},
        ("model.convert", INVALID),
    ),
    "a threshold without chunks": (
        {"batching": {"longPrefillTokenThreshold": 64, "chunkedPrefill": False}},
        ("batching.longPrefillTokenThreshold", INVALID),
    ),
    "a hash of prefixes that are not cached": (
        {"batching": {"prefixCaching": False, "prefixCachingHashAlgo": "sha256"}},
        ("batching.prefixCachingHashAlgo", INVALID),
    ),
    "a threshold that no prompt reaches": (
        {"batching": {"longPrefillTokenThreshold": 2048, "maxModelLen": 1024}},
        ("batching.longPrefillTokenThreshold", INVALID),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sections", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_go_together(sections: Json, expected: tuple[str, str]) -> None:
    assert refused(**sections) == [expected]


def test_only_the_product_that_cannot_is_named() -> None:
    sections = {"accelerator": {"products": [H100, T4]}, "precision": {"dtype": "bfloat16"}}
    (problem,) = problems(LLMService.from_object(an_llmservice(spec(**sections))).spec)
    assert problem.message == f"precision.dtype bfloat16: bfloat16 needs compute capability 8.0; {T4} has 7.5."
    assert problem.remedy == f"Set it to float16, or take {T4} out of spec.accelerator.products."


@pytest.mark.parametrize("row", ALL_ROWS)
def test_a_row_refuses_each_of_its_values_and_not_its_remedy(row: Row) -> None:
    for values in product(*map(sorted, row.when.values())):
        combined = dict(zip(row.when, values, strict=True))
        found = verdicts(Combination(combined))
        assert any(row.why in problem.message and problem.reason is row.reason for problem in found)
        left_out = {name: value for name, value in combined.items() if name != row.blame}
        assert not matches(row, {**combined, **row.fix} if row.fix else left_out)


@pytest.mark.parametrize("row", ALL_ROWS)
def test_what_is_unknown_refuses_nothing(row: Row) -> None:
    values = {name: sorted(some)[0] for name, some in row.when.items()}
    for unknown in row.when:
        assert not matches(row, {name: value for name, value in values.items() if name != unknown})


@pytest.mark.parametrize("row", ALL_ROWS)
def test_a_row_blames_what_it_names_and_says_what_to_do(row: Row) -> None:
    assert row.blame in row.when
    assert row.source
    assert not row.why.endswith(".")
    assert not row.remedy.endswith(".")
    assert row.remedy[0].isupper()


def test_no_row_twice() -> None:
    assert len({(frozenset(row.when.items()), row.why) for row in ROWS}) == len(ROWS)


def test_what_is_no_dimension_or_no_value_of_it_is_no_condition() -> None:
    with pytest.raises(ValueError):
        when(accelerator="tpu")
    with pytest.raises(KeyError):
        when(colour="red")


def test_a_spec_says_something_about_every_dimension_but_the_models_own() -> None:
    everything = {
        "accelerator": {"products": [H100]},
        "precision": {"quantization": "fp8", "dtype": "float16"},
        "model": {**model(positions="rope", maxPositionEmbeddings=8), "runner": "generate"},
        "speculativeDecoding": DRAFT,
        "lora": {"maxLoras": 1, "maxCpuLoras": 1},
        "batching": {
            "maxNumSeqs": 1, "maxNumBatchedTokens": 64, "maxModelLen": 8, "longPrefillTokenThreshold": 4,
            "blockSize": 16, "prefixCaching": True, "chunkedPrefill": True,
        },
        "compilation": {"mode": "none", "cudaGraphs": "none", "optimizationLevel": 0},
    }  # fmt: skip
    parsed = LLMService.from_object(an_llmservice(spec(**everything))).spec
    said = Combination.from_spec(parsed, H100).values
    assert set(DIMENSIONS) - set(said) == {"mla", "experts"}
    assert {name: value for name, value in said.items() if value not in DIMENSIONS[name].values} == {}


def test_backends_are_vllm_names_and_named_once() -> None:
    names = [backend.name for backend in BACKENDS]
    assert len(set(names)) == len(names)
    assert set(DIMENSIONS["backend"].values) - set(names) == {"auto", "CUTLASS_MSA", "TRITON_MSA"}
