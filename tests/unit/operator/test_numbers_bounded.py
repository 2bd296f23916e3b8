"""Texts of users and repositories become bounded numbers at a bounded cost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from string import ascii_letters, digits
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some
from llmservice_api.service import LLMService, parse_spec
from llmservice_operator.behaviours.fit import planning
from llmservice_operator.manifests.server import server_resources
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.readers.nodes import node_room, placed_of
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.quantity import LARGEST, LEAST, add_memory, amount, count, gibibytes, same_amount
from llmservice_planner.requests import request_of

from tests.unit.hostile import seeds

SETTINGS = Settings(operator_image="llmservice-operator:1")
HUGE = ("1e120000", "1e9999999", "1E+999999999999999999999", "9" * 60, "1e63", "9" * 19 + "k")
TINY = ("1e-120000", "1e-9999999", "1e-99999999999999999999", "1e-63")


def short(value: object) -> str:
    return ascii(value)[:20] if isinstance(value, str) else "a number of 5,001 digits"


def service(**spec: Any) -> LLMService:
    return LLMService("x", "ns", "u", 1, "1", False, parse_spec({"model": {"uri": "hf://a/b"}} | spec), {}, {})


BOUNDS = dict.fromkeys(HUGE, LARGEST) | {f"-{text}": -LARGEST for text in HUGE} | dict.fromkeys(TINY, LEAST)


@pytest.mark.parametrize("text", BOUNDS)
def test_a_quantity_is_bounded_and_rounded_as_kubernetes_does(text: str) -> None:
    assert amount(text) == BOUNDS[text]


@pytest.mark.parametrize("text", [".", "-.", "e5", "1e", "1" * 65, "1Gi\n", "\u0661", 10**5000], ids=short)
def test_a_text_that_is_no_quantity_is_a_value_error(text: Any) -> None:
    with pytest.raises(ValueError):
        amount(text)


COUNTS = {"0": 0, "40": 40, "1048577": 1048576, "9" * 5000: 1048576, "0" * 5000: 1048576}


@pytest.mark.parametrize("text", [*COUNTS, "-1", "1.5", "", "\u0661", "\u00b2", " 4"], ids=short)
def test_a_count_is_bounded(text: str) -> None:
    assert count(text, 1048576) == COUNTS.get(text)


@pytest.mark.parametrize("text", HUGE)
def test_a_flag(text: str) -> None:
    spec = service(runtime={"extraArgs": [f"--kv-cache-memory-bytes={text}"]}).spec
    facts: Any = {"architecture": None, "tensors": None, "device": None, "vllm_version": "0.32.0"}
    assert request_of(spec, cpu_kv_cache_gib=4, **facts).kv_cache_memory_bytes == LARGEST


def cpu_service(limit: str, **runtime: Any) -> LLMService:
    resources = {"limits": {"memory": limit}, "requests": {"memory": "1Gi"}}
    return service(accelerator={"type": "cpu"}, runtime={"resources": resources, **runtime})


@pytest.mark.parametrize("text", [*TINY, "1e99"])
def test_resources_of_a_service(text: str) -> None:
    found = cpu_service(text[:32])
    assert planning.planner_input(found, SETTINGS, None, None).memory_limit_gib is not None
    assert server_resources(found, SETTINGS)["limits"]["memory"]


@pytest.mark.parametrize("text", ["9" * 5000, "1" * 400, "\u00b2"], ids=short)
def test_an_environment_variable(text: str) -> None:
    found = cpu_service("8Gi", env=[{"name": "VLLM_CPU_KVCACHE_SPACE", "value": text}])
    assert planning.planner_input(found, SETTINGS, None, None).request.device is not None


@pytest.mark.parametrize("text", [*HUGE, *TINY, "."])
def test_nodes_and_pods_of_others(text: str) -> None:
    metadata = {"name": "n", "namespace": "ns", "labels": {"amd.com/gpu.vram": text}}
    node = {"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": text, "memory": text}}}
    found = node_room(node)
    assert found is not None
    ClusterGPUs.of([found], "nvidia.com/gpu")
    containers = [{"resources": {"requests": {"memory": text}}}]
    assert placed_of({"metadata": metadata, "spec": {"nodeName": "n", "containers": containers}}) is not None


READERS: list[Callable[[str], object]] = [
    amount,
    gibibytes,
    lambda text: add_memory(text, 2),
    lambda text: same_amount(text, "1Gi"),
    lambda text: count(text, 1000),
]


def nearly_a_number(seed: int) -> str:
    random = Random(seed)
    mantissa = "".join(random.choices("0123456789.", k=random.randint(1, 9)))
    exponent = (
        random.choice("eE") + random.choice(["", "+", "-"]) + "".join(random.choices(digits, k=random.randint(1, 20)))
    )
    suffix = "".join(random.choices(ascii_letters, k=random.randrange(3)))
    return random.choice(["", "+", "-"]) + mantissa + random.choice([exponent, suffix])


@given(text=some.one_of(some.text(max_size=80), seeds.map(nearly_a_number)))
@example(text="1e9999999")
@example(text="0e999999999999")
@example(text="1e-0")
def test_any_text_is_a_number_or_a_value_error(text: str) -> None:
    for read in READERS:
        try:
            read(text)
        except ValueError:
            continue


def test_every_quantity_is_within_bounds() -> None:
    for mantissa in ("1", "9" * 18, "0.000000001", "123.456"):
        for suffix in ("", "m", "n", "E", "Ei", "e0", "e18", "e-9"):
            assert LEAST <= amount(mantissa + suffix) <= LARGEST
