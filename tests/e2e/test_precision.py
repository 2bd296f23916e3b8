"""Each precision that the CPU engine serves, beside float32: what is said, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.agreement import QUESTIONS, Spoken, agreement, greedy, taught
from tests.support.cluster import Cluster
from tests.support.host import need_cpu
from tests.support.measured import Record
from tests.support.models import model_uri
from tests.support.serving import serving

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def reference(cluster: Cluster, shared_namespace: str) -> Mapping[str, Spoken]:
    """What float32 answers."""
    with serving(cluster, shared_namespace, "float32") as server:
        said = greedy(server)
    assert taught(said) == len(QUESTIONS)
    return said


# Compiled, unlike elsewhere in these tests: on some CPUs an eager engine ends in SIGILL with 16-bit types.
COMPILED: dict[str, Any] = {"compilation": {"enforceEager": False}}
NEEDS: Mapping[str, tuple[str, ...]] = {"kv-fp8": ("avx512f", "amx_tile"), "int4": ("avx512f",)}
"""Features of the CPU, one of which vLLM needs."""
PRECISIONS: dict[str, tuple[str | None, dict[str, Any], float]] = {
    # name: (variant of the tiny model, spec, least agreement with float32)
    "bfloat16": (None, {"precision": {"dtype": "bfloat16"}, **COMPILED}, 0.9),
    "float16": (None, {"precision": {"dtype": "float16"}, **COMPILED}, 0.95),
    "kv-fp8": (None, {"precision": {"dtype": "bfloat16", "kvCache": "fp8"}, **COMPILED}, 0.5),
    "int8": ("int8", {"precision": {"weights": "int8", "dtype": "bfloat16"}, **COMPILED}, 0.5),
    "int4": ("int4", {"precision": {"weights": "int4", "dtype": "bfloat16"}, **COMPILED}, 0.2),
}


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_precision_says_nearly_what_float32_says(
    cluster: Cluster, shared_namespace: str, reference: Mapping[str, Spoken], name: str, record: Record
) -> None:
    variant, spec, least = PRECISIONS[name]
    if name in NEEDS:
        need_cpu(*NEEDS[name])
    if variant is not None:
        spec = {**spec, "model": {"uri": model_uri(cluster, shared_namespace, variant)}}
    with serving(cluster, shared_namespace, name, **spec) as server:
        said = greedy(server)
        status = cluster.must_get("llmservices", shared_namespace, name)["status"]
    same = agreement(reference, said)
    assert same >= least
    measured = status.get("measured", {})
    record(
        agreement=round(same, 3),
        taught_answers=f"{taught(said)}/{len(said)}",
        kv_cache_tokens=measured.get("kvCacheTokens"),
        start_seconds=measured.get("startSeconds"),
    )
