"""What is proposed where a model does not fit: which changes, in which order, and whether they really do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from llmservice_api.spec import LLMServiceSpec
from llmservice_planner import memory
from llmservice_planner.changes import LESS_BATCHING, rounded_length
from llmservice_planner.checks import check
from llmservice_planner.plan import Device, Draft, Fit, Plan, Remedy, Request
from llmservice_planner.remedies import MOST, with_remedies
from llmservice_planner.requests import request_of

from tests.unit.planner_models import PLAIN, architecture, gpu

PRODUCTS = (
    *("Tesla-T4", "NVIDIA-L4", "NVIDIA-L40S", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"),
    "NVIDIA-B200",
)


OTHERS = tuple(map(gpu, PRODUCTS))


def asked(model: str, product: str, **settings: Any) -> Request:
    return replace(Request(architecture(model), gpu(product)), **settings)


LLAMA = asked("llama-3.1-8b", "NVIDIA-L4")
ON_CPUS = replace(LLAMA, device=Device("cpu", 1.0, is_cpu=True))


def remedied(request: Request, others: tuple[Device, ...] = (), **how: Any) -> Plan:
    return with_remedies(request, memory.plan(request), others, **how)


def paths(remedy: Remedy) -> tuple[str, ...]:
    return tuple(path.rpartition(".")[2] for path, _ in remedy.patch)


PROPOSED = {
    "a long default length": (
        *(asked("llama-3.1-8b", "NVIDIA-L4"), ()),
        (("maxModelLen",), ("tensorParallelSize",), ("kvCache", "maxModelLen")),
    ),
    "a length that was asked for": (
        *(asked("llama-3.1-8b", "NVIDIA-L4", max_model_len=40960), ()),
        (("kvCache",), ("maxModelLen",), ("weights",)),
    ),
    "weights that are too large": (asked("qwen2.5-7b", "Tesla-T4"), (), (("weights",), (), ("tensorParallelSize",))),
    "a large model": (
        *(asked("llama-3.1-70b", "NVIDIA-H100-80GB-HBM3", max_model_len=32768), OTHERS),
        ((), ("tensorParallelSize",), ("weights", "tensorParallelSize")),
    ),
    "a large model, as long as it can be": (
        *(asked("llama-3.1-70b", "NVIDIA-H100-80GB-HBM3"), OTHERS),
        (("tensorParallelSize",), ("weights", "tensorParallelSize"), ("tensorParallelSize", "maxModelLen")),
    ),
    "a checkpoint that is quantized already": (
        *(asked("qwen2.5-7b-awq", "NVIDIA-GeForce-RTX-3060-Laptop-GPU", gpu_memory_utilization=0.9), ()),
        (("tensorParallelSize",), ("tensorParallelSize", "maxModelLen")),
    ),
    "a step that is smaller than a video": (
        asked("gemma-4-26b-a4b", "NVIDIA-A100-SXM4-80GB", max_model_len=32768, max_num_batched_tokens=2048),
        *((), (("maxNumBatchedTokens",),)),
    ),
}
"""A request, other GPUs, and the fields of what is proposed; no field: another checkpoint."""


@pytest.mark.parametrize(("request_", "others", "proposed"), PROPOSED.values(), ids=PROPOSED)
def test_the_cheapest_first(
    request_: Request, others: tuple[Device, ...], proposed: tuple[tuple[str, ...], ...]
) -> None:
    plan = remedied(request_, others)
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert tuple(map(paths, plan.remedies)) == proposed


CASES = [
    *product(PLAIN, ("NVIDIA-L4",), (None, 8192, 32768)),
    *product(("qwen2.5-7b", "deepseek-r1"), ("Tesla-T4", "NVIDIA-H100-80GB-HBM3"), (None, 8192)),
]


@pytest.mark.parametrize(("model", "product", "length"), CASES, ids=str)
def test_a_patched_spec_fits(model: str, product: str, length: int | None) -> None:
    """Through the manifest, as somebody applies it: the operator asks the same question, and nothing is refused."""
    body: dict[str, Any] = {"accelerator": {"products": [product]}}
    if length is not None:
        body["batching"] = {"maxModelLen": length}
    plan = remedied(_request(body, model), OTHERS)
    assert plan.verdict is Fit.FITS or plan.remedies or "needs" in plan.reason
    for remedy in plan.remedies:
        assert remedy.verdict is Fit.FITS
        if "checkpoint" in remedy.change:
            assert dict(remedy.patch).keys() <= {"parallelism.tensorParallelSize"}
            continue
        assert remedy.patch
        again = memory.plan(_request(_patched(body, remedy), model))
        assert again.verdict is Fit.FITS
        assert (again.max_model_len, again.kv_cache_tokens) == (remedy.max_model_len, remedy.kv_cache_tokens), remedy
        assert (again.gpu == product) == (remedy.gpu is None)


def _request(body: dict[str, Any], model: str) -> Request:
    spec = LLMServiceSpec.model_validate({"model": {"uri": "hf://a/b"}, "scaling": {"replicas": 1}} | body)
    assert check(spec, image="i", vllm_version="0.32.0") == ()
    assert spec.accelerator.products
    return request_of(
        spec,
        architecture=architecture(model),
        tensors=None,
        device=gpu(spec.accelerator.products[0]),
        vllm_version="0.32.0",
        cpu_kv_cache_gib=1,
    )


def _patched(body: dict[str, Any], remedy: Remedy) -> dict[str, Any]:
    new = {name: dict(section) for name, section in body.items()}
    for path, value in remedy.patch:
        section, name = path.split(".")
        new.setdefault(section, {})[name] = list(value) if isinstance(value, tuple) else value
    return new


def test_a_length_is_rounded_and_no_shorter_than_it_must_be() -> None:
    plan = memory.plan(LLAMA)
    assert plan.max_model_len is not None
    ((_, length),) = with_remedies(LLAMA, plan).remedies[0].patch
    assert isinstance(length, int)
    assert length == rounded_length(length)
    assert 15 / 16 * plan.max_model_len <= length <= plan.max_model_len


@pytest.mark.parametrize(("tokens", "rounded"), [(1, 1), (31, 31), (33, 32), (2047, 1984), (131072, 131072)])
def test_rounded_lengths(tokens: int, rounded: int) -> None:
    assert rounded_length(tokens) == rounded


def test_a_length_that_is_of_no_use_is_not_proposed() -> None:
    """A few hundred tokens of 128k serve nobody; a few hundred of 1,024 may."""
    for longest, wanted, is_proposed in ((600, 131072, False), (2048, 131072, True), (600, 4096, True)):
        short = _planned(Fit.DOES_NOT_FIT, longest=longest, wanted=wanted)
        plan = with_remedies(LLAMA, short, plan_for=_fits_when(_is_shorter, short))
        assert (("maxModelLen",) in map(paths, plan.remedies)) == is_proposed


def test_a_spec_that_would_be_refused_is_not_proposed() -> None:
    plan = remedied(
        asked("llama-3.1-8b", "NVIDIA-L4"), accepts=lambda fields: "batching.maxModelLen" not in dict(fields)
    )
    assert plan.remedies
    assert "maxModelLen" not in _fields(plan)


def test_tight_is_proposed_only_where_nothing_surely_fits() -> None:
    bad = _planned(Fit.DOES_NOT_FIT, longest=4096, wanted=131072)
    tight = with_remedies(LLAMA, bad, plan_for=lambda _: _planned(Fit.TIGHT, longest=4096, wanted=131072))
    assert [remedy.verdict for remedy in tight.remedies] == [Fit.TIGHT] * MOST
    mixed = with_remedies(
        LLAMA,
        bad,
        plan_for=lambda new: _planned(Fit.FITS if _is_shorter(new) else Fit.TIGHT, longest=4096, wanted=131072),
    )
    assert {remedy.verdict for remedy in mixed.remedies} == {Fit.FITS}
    nearly = _planned(Fit.TIGHT, longest=4096, wanted=131072)
    assert with_remedies(LLAMA, nearly, plan_for=lambda _: nearly).remedies == ()


def test_nothing_is_proposed_that_does_not_fit() -> None:
    bad = _planned(Fit.DOES_NOT_FIT, longest=4096, wanted=131072)
    plan = with_remedies(LLAMA, bad, OTHERS, plan_for=lambda _: bad)
    assert plan.remedies == ()
    assert "up to 8 GPUs" in plan.reason


_LONG = {"max_model_len": 131072, "kv_cache_dtype": "fp8"}
_ALL = asked("deepseek-r1", "NVIDIA-L4", max_model_len=163840)
LEAST_GPUS: dict[str, tuple[Request, tuple[Device, ...], int, str]] = {
    # a request, other GPUs, the most that one replica may have, the end of the reason
    "of another product": (_ALL, OTHERS, 8, "it needs 8 x NVIDIA-H200."),
    "of the same maker": (_ALL, (gpu("MI300X"), gpu("NVIDIA-B200")), 8, "it needs 8 x NVIDIA-B200."),
    "more of the same": (
        *(asked("llama-3.1-70b", "NVIDIA-A100-SXM4-40GB", **_LONG), (), 1),
        "it needs 8 x NVIDIA-A100-SXM4-40GB.",
    ),
    # All GPUs of a replica are in one pod.
    "none": (asked("llama-3.1-70b", "NVIDIA-L4", **_LONG), (), 1, "up to 8 GPUs of each kind on one node."),
}


@pytest.mark.parametrize(("request_", "others", "most", "words"), LEAST_GPUS.values(), ids=LEAST_GPUS)
def test_without_a_sufficient_change_the_reason_names_the_gpus(
    request_: Request, others: tuple[Device, ...], most: int, words: str
) -> None:
    plan = remedied(request_, others, most_gpus=most)
    assert plan.remedies == ()
    assert plan.reason.endswith(words)


def test_weights_in_8_bit_go_over_fewer_gpus() -> None:
    plan = remedied(asked("llama-3.1-70b", "NVIDIA-H100-80GB-HBM3"))
    patches = [dict(remedy.patch) for remedy in plan.remedies]
    assert {"precision.weights": "fp8", "parallelism.tensorParallelSize": 2} in patches


UNCHANGED = {
    "fits": asked("qwen2.5-0.5b", "NVIDIA-H100-80GB-HBM3"),
    "no GPU is known": replace(LLAMA, device=None),
    "no model is known": replace(LLAMA, architecture=None),
    "only too much is known": replace(LLAMA, architecture=None, weights_gib=900.0),
}


@pytest.mark.parametrize("request_", UNCHANGED.values(), ids=UNCHANGED)
def test_a_plan_that_needs_or_allows_no_change_stays(request_: Request) -> None:
    plan = memory.plan(request_)
    assert with_remedies(request_, plan, OTHERS) == plan


def test_on_cpus_no_gpu_is_proposed() -> None:
    plan = remedied(ON_CPUS, OTHERS)
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert paths(plan.remedies[0]) == ("maxModelLen",)
    assert _fields(plan) <= {"maxModelLen", "kvCache", "tensorParallelSize", "pipelineParallelSize"}


def test_batches_get_smaller_and_stay_large_enough_for_guesses() -> None:
    request = asked(
        *("llama-3.1-8b", "NVIDIA-L4"),
        max_model_len=4096,
        max_num_batched_tokens=65536,
        draft=Draft("ngram", 5),
    )
    plan = with_remedies(request, memory.plan(request))
    sizes = [dict(remedy.patch) for remedy in plan.remedies if "maxNumBatchedTokens" in paths(remedy)]
    assert sizes
    assert (sizes[0].get("batching.maxNumSeqs", 256), sizes[0]["batching.maxNumBatchedTokens"]) in LESS_BATCHING


def test_another_product_is_the_smallest_that_does() -> None:
    plan = remedied(asked("llama-3.1-70b", "NVIDIA-L4", max_model_len=8192), OTHERS, most_gpus=1)
    assert [remedy.gpu for remedy in plan.remedies if paths(remedy) == ("products",)] == ["NVIDIA-B200"]


def _gib(request: Request) -> float:
    assert request.device is not None
    return request.device.memory_gib


def test_a_smaller_product_with_a_second_change_and_one_without() -> None:
    """An L40S is worth a shorter length beside an H200; an H100 beside an A100 with as much memory is not."""
    request = asked("llama-3.1-70b", "NVIDIA-L4")
    bad = _planned(Fit.DOES_NOT_FIT, longest=9000, wanted=32768)

    def proposed(alone: float, shorter: float) -> list[tuple[str | None, int]]:
        plan_for = _fits_when(lambda new: _gib(new) >= (shorter if _is_shorter(new) else alone), bad)
        return [
            (remedy.gpu, len(remedy.patch))
            for remedy in with_remedies(request, bad, OTHERS, plan_for=plan_for).remedies
        ]

    assert proposed(139, 44) == [("NVIDIA-H200", 1), ("NVIDIA-L40S", 2)]
    assert proposed(79.15, 79.11) == [("NVIDIA-A100-SXM4-80GB", 1)]


def test_another_checkpoint_is_half_of_no_pair_but_with_more_gpus() -> None:
    """What no patch brings stays out of pairs, but for models that need both; the words say it."""
    bad = _planned(Fit.DOES_NOT_FIT, longest=9000, wanted=32768)
    shorter = _fits_when(lambda new: new.weights == "int4" and _is_shorter(new), bad)
    assert with_remedies(LLAMA, bad, plan_for=shorter).remedies == ()
    over = _fits_when(lambda new: new.weights == "int4" and new.tensor_parallel_size > 2, bad)
    (remedy,) = with_remedies(LLAMA, bad, plan_for=over).remedies
    assert remedy.change.startswith("name an int4 checkpoint")
    assert remedy.change.endswith("and set spec.parallelism.tensorParallelSize to 4")
    assert remedy.patch == (("parallelism.tensorParallelSize", 4),)
    alone = _fits_when(lambda new: new.tensor_parallel_size > 4 or over(new).verdict is Fit.FITS, bad)
    assert [remedy.change for remedy in with_remedies(LLAMA, bad, plan_for=alone).remedies] == [
        "set spec.parallelism.tensorParallelSize to 8"
    ]


def test_a_70b_on_cards_of_24_gb_needs_another_checkpoint_and_more_of_them() -> None:
    """Over 8 of them the weights alone are too much beside 128k; on 4 in int4 it serves what most ask for."""
    for length, words in ((16384, "tensorParallelSize to 4"), (None, "tensorParallelSize to 8")):
        plan = remedied(asked("llama-3.1-70b", "NVIDIA-GeForce-RTX-4090", max_model_len=length), most_gpus=8)
        assert any("int4 checkpoint" in remedy.change and words in remedy.change for remedy in plan.remedies), length


def test_a_pair_has_no_change_that_is_enough_by_itself() -> None:
    """What is beside it would be for nothing; a length beside something else must be longer than alone."""
    bad = _planned(Fit.DOES_NOT_FIT, longest=9000, wanted=32768)
    eight_bits = _fits_when(lambda new: new.kv_cache_dtype == "fp8", bad)
    assert [paths(one) for one in with_remedies(LLAMA, bad, plan_for=eight_bits).remedies] == [("kvCache",)]
    same = with_remedies(LLAMA, bad, plan_for=_fits_when(_is_shorter, bad))
    assert [paths(one) for one in same.remedies] == [("maxModelLen",)]


def test_the_least_number_of_gpus_has_ranks_that_share_the_heads() -> None:
    """28 heads and 4 key/value heads go to 4 ranks; 8 GPUs are two stages of these."""
    seen: list[tuple[int, int]] = []

    def plan_for(request: Request) -> Plan:
        sizes = request.tensor_parallel_size, request.pipeline_parallel_size
        seen.append(sizes)
        return replace(bad, verdict=Fit.FITS if sizes == (4, 2) else Fit.DOES_NOT_FIT)

    bad = _planned(Fit.DOES_NOT_FIT, longest=0, wanted=32768)
    plan = with_remedies(asked("qwen2.5-7b", "NVIDIA-L4"), bad, plan_for=plan_for, most_gpus=1)
    assert plan.reason.endswith("it needs 8 x NVIDIA-L4.")
    assert seen[-4:] == [(1, 1), (2, 1), (4, 1), (4, 2)]


def test_less_of_the_gpu_where_the_engine_asks_for_more_than_is_free() -> None:
    plan = remedied(asked("qwen2.5-0.5b", "NVIDIA-L4", gpu_memory_utilization=1.0))
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert paths(plan.remedies[0]) == ("gpuMemoryUtilization",)
    assert plan.remedies[0].verdict is Fit.FITS


def test_amd_is_no_replacement_for_nvidia() -> None:
    plan = remedied(asked("llama-3.1-70b", "NVIDIA-L4", max_model_len=8192), (gpu("MI300X"),), most_gpus=1)
    assert plan.remedies == ()


def _planned(verdict: Fit, *, longest: int, wanted: int) -> Plan:
    return Plan(verdict, "", max_model_len=longest, requested_max_model_len=wanted, kv_cache_gib=1.0, margin_gib=-1.0)


def _fits_when(is_enough: Callable[[Request], bool], plan: Plan) -> Callable[[Request], Plan]:
    return lambda request: replace(plan, verdict=Fit.FITS if is_enough(request) else Fit.DOES_NOT_FIT)


def _is_shorter(request: Request) -> bool:
    return request.max_model_len is not None


def _fields(plan: Plan) -> set[str]:
    return {field for remedy in plan.remedies for field in paths(remedy)}
