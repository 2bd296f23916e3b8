"""The matrix is whole in itself, and one function judges a spec by it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from llmservice_api.matrix import DIMENSIONS, ROWS, Incompatibility
from llmservice_api.matrix.backends import BACKENDS
from llmservice_api.matrix.dimensions import when
from llmservice_api.service import parse_spec
from llmservice_api.spec import LLMServiceSpec
from llmservice_planner.checks import (
    Combination,
    matches,
    matrix_problems,
    verdicts,
)

from tests.contract.manifests import BAD, GOOD, Case, manifest

Json = dict[str, Any]
CPU: Json = {"accelerator.type": "cpu"}
AMD: Json = {"accelerator.type": "amd"}
POOLING: Json = {"model.runner": "pooling"}
H100, A100, L4, T4, B200 = (
    {"accelerator.products": [name]}
    for name in ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "NVIDIA-L4", "Tesla-T4", "NVIDIA-B200")
)
DRAFT = {"method": "draftModel", "model": {"uri": "hf://a/b"}, "numSpeculativeTokens": 3}
NGRAM: Json = {"speculativeDecoding": {"method": "ngram", "numSpeculativeTokens": 3}}
ALIBI: Json = {"model.architecture": {"positions": "alibi"}}
SHORT: Json = {"model.architecture": {"positions": "rope", "maxPositionEmbeddings": 1024}}


def parsed(change: Json) -> LLMServiceSpec:
    return parse_spec(manifest("x", change)["spec"])


def backend(name: str) -> Json:
    return {"attention.backend": name}


FINE: dict[str, Json] = {
    "FlashInfer with fp8 on Ada": L4 | backend("FLASHINFER") | {"precision.kvCache": "fp8"},
    "FlashAttention with fp8 on Hopper": H100 | backend("FLASH_ATTN") | {"precision.kvCache": "fp8"},
    "a backend on a GPU that nobody knows": {"accelerator.products": ["Some-GPU"]} | backend("FLASHMLA"),
    "a backend on any GPU": backend("FLASHMLA"),
    "ALiBi with Triton": backend("TRITON_ATTN") | ALIBI,
    "YaRN on a model that nobody knows": {"contextExtension.factor": 4, "batching.maxModelLen": 99999},
    "YaRN as far as it reaches": {"contextExtension.factor": 4, "batching.maxModelLen": 4096} | SHORT,
    "guesses over stages": NGRAM | {"parallelism.pipelineParallelSize": 2},
    "adapters with guesses": NGRAM | {"lora": {}},
    "sleep on a GPU": {"runtime.sleepMode": True},
    "NVFP4 cache on Blackwell": B200 | {"precision.kvCache": "nvfp4"},
    **{good.id: dict(good.change) for good in GOOD},
}


@pytest.mark.parametrize("change", FINE.values(), ids=FINE.keys())
def test_what_goes_together(change: Json) -> None:
    assert matrix_problems(parsed(change)) == ()


PAIR, INVALID, PRECISION = "UnsupportedCombination", "InvalidSpec", "PrecisionUnsupported"
CONTEXT = "ContextExtensionInvalid"
FEW_TOKENS = {"lora": {}, "batching": {"maxNumSeqs": 32, "maxNumBatchedTokens": 64}}
REFUSED: list[tuple[Json, str, str]] = [
    (T4 | {"precision.dtype": "bfloat16"}, "precision.dtype", PRECISION),
    (T4 | {"precision.weights": "bfloat16"}, "precision.weights", PRECISION),
    (T4 | backend("FLASH_ATTN"), "attention.backend", PAIR),
    (T4 | {"precision.kvCache": "nvfp4"}, "precision.kvCache", PAIR),
    (A100 | backend("FLASH_ATTN") | {"precision.kvCache": "fp8"}, "precision.kvCache", PAIR),
    (backend("FLEX_ATTENTION") | {"precision.kvCache": "fp8"}, "attention.backend", PAIR),
    (backend("FLEX_ATTENTION") | ALIBI, "attention.backend", PAIR),
    (backend("FLASHMLA") | {"batching.blockSize": 16}, "attention.backend", PAIR),
    (AMD | {"precision.kvCache": "nvfp4"}, "precision.kvCache", PAIR),
    (AMD | backend("FLASHINFER"), "attention.backend", PAIR),
    (AMD | backend("ROCM_ATTN") | {"batching.kvOffloadingSize": "4Gi"}, "attention.backend", PAIR),
    (backend("ROCM_ATTN"), "attention.backend", PAIR),
    (CPU | {"precision.quantization": "modelopt_fp4"}, "precision.quantization", PAIR),
    (POOLING | NGRAM, "speculativeDecoding.method", PAIR),
    (NGRAM | FEW_TOKENS, "batching.maxNumBatchedTokens", PAIR),
    (SHORT | {"contextExtension.factor": 2, "batching.maxModelLen": 4096}, "batching.maxModelLen", CONTEXT),
    (SHORT | {"batching.maxModelLen": 4096}, "batching.maxModelLen", "MaxModelLenTooLarge"),
    ({"model.runner": "generate", "model.convert": "embed"}, "model.convert", INVALID),
]
ALL_REFUSED = [Case(change, f"spec.{field}", reason=reason) for change, field, reason in REFUSED]
ALL_REFUSED += [bad for bad in BAD if bad.reason]


@pytest.mark.parametrize("case", ALL_REFUSED, ids=[case.id for case in ALL_REFUSED])
def test_what_does_not_go_together(case: Case) -> None:
    (problem,) = matrix_problems(parsed(dict(case.change)))
    assert (problem.field, str(problem.reason)) == (case.field, case.reason)
    assert problem.message.endswith(".")
    assert problem.remedy.endswith(".")


def test_only_the_product_that_cannot_is_named() -> None:
    products = ["NVIDIA-H100-80GB-HBM3", "Tesla-T4"]
    (problem,) = matrix_problems(parsed({"accelerator.products": products, "precision.dtype": "bfloat16"}))
    assert problem.message == "precision.dtype bfloat16: bfloat16 needs compute capability 8.0; Tesla-T4 has 7.5."
    assert problem.remedy == "Set it to float16, or take Tesla-T4 out of spec.accelerator.products."


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_row_refuses_each_of_its_values_and_neither_its_remedy_nor_what_is_unknown(row: Incompatibility) -> None:
    for values in product(*map(sorted, row.when.values())):
        combined = dict(zip(row.when, values, strict=True))
        found = verdicts(Combination(combined))
        assert any(row.why in problem.message and problem.reason is row.reason for problem in found)
        left_out = {name: value for name, value in combined.items() if name != row.blame}
        assert not matches(row, {**combined, **row.fix} if row.fix else left_out)
    for unknown in row.when:
        assert not matches(row, {name: value for name, value in combined.items() if name != unknown})
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
    batching = {"maxNumSeqs": 1, "maxNumBatchedTokens": 64, "maxModelLen": 8, "longPrefillTokenThreshold": 4}
    everything: Json = {
        **H100,
        "precision": {"quantization": "fp8", "dtype": "float16"},
        "model.architecture": {"positions": "rope", "maxPositionEmbeddings": 8},
        "model.runner": "generate",
        "speculativeDecoding": DRAFT,
        "lora": {"maxLoras": 1, "maxCpuLoras": 1},
        "batching": {**batching, "blockSize": 16, "prefixCaching": True, "chunkedPrefill": True},
        "compilation": {"mode": "none", "cudaGraphs": "none", "optimizationLevel": 0},
    }
    values = Combination.from_spec(parsed(everything), "NVIDIA-H100-80GB-HBM3").values
    assert set(DIMENSIONS) - set(values) == {"mla", "experts"}
    assert {name: value for name, value in values.items() if value not in DIMENSIONS[name].values} == {}


def test_backends_are_vllm_names_and_named_once() -> None:
    names = [backend.name for backend in BACKENDS]
    assert len(set(names)) == len(names)
    assert set(DIMENSIONS["backend"].values) - set(names) == {
        *("auto", "CUTLASS_MSA", "TRITON_MSA", "STEP5_DSA", "ROCM_FLASHMLA_SPARSE_DSV41"),
    }
