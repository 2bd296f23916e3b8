"""How many replicas the ResourceQuotas of a namespace admit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_planner.room import (
    LONGEST,
    MOST_KEYS,
    Admitted,
    Quota,
    least_admitted,
)

GPU = "nvidia.com/gpu"
PER = {"cpu": Decimal(4), "memory": Decimal(2**34), GPU: Decimal(2), "pods": Decimal(1)}
TWO = {resource: 2 * each for resource, each in PER.items()}


def quota(hard: Any, used: Any, name: str = "q", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"hard": hard} | spec, "status": {"used": used}}


ADMITTED: dict[str, tuple[list[dict[str, Any]], tuple[int, str, str] | None]] = {
    "no quota": ([], None),
    "GPUs": ([quota({f"requests.{GPU}": "8"}, {f"requests.{GPU}": "4"})], (4, "q", f"requests.{GPU}")),
    "rounded down": ([quota({f"requests.{GPU}": "9"}, {f"requests.{GPU}": "4"})], (4, "q", f"requests.{GPU}")),
    "others use some": ([quota({f"requests.{GPU}": "8"}, {f"requests.{GPU}": "7"})], (2, "q", f"requests.{GPU}")),
    "counted before our newest pods": ([quota({"pods": "5"}, {"pods": "0"})], (5, "q", "pods")),
    "pods, as a count": ([quota({"count/pods": "3"}, {"count/pods": "2"})], (3, "q", "count/pods")),
    "CPUs by their own name": ([quota({"cpu": "10"}, {"cpu": "8"})], (2, "q", "cpu")),
    "CPUs in thousandths": ([quota({"requests.cpu": "11999m"}, {"requests.cpu": "8"})], (2, "q", "requests.cpu")),
    "memory": ([quota({"requests.memory": "64Gi"}, {"requests.memory": "40Gi"})], (3, "q", "requests.memory")),
    "lowered below what is used": ([quota({"pods": "1"}, {"pods": "9"})], (0, "q", "pods")),
    "the lowest key": ([quota({"pods": "9", "cpu": "20"}, {"pods": "2", "cpu": "8"})], (5, "q", "cpu")),
    "the lowest quota": (
        [quota({"pods": "9"}, {"pods": "2"}), quota({"pods": "6"}, {"pods": "2"}, "b")],
        (6, "b", "pods"),
    ),
    "of what the service does not use": ([quota({"requests.amd.com/gpu": "0"}, {"requests.amd.com/gpu": "0"})], None),
    "limits are not looked at": ([quota({"limits.cpu": "1"}, {"limits.cpu": "0"})], None),
    "not counted yet": ([quota({"pods": "1"}, {})], None),
    "scopes": ([quota({"pods": "1"}, {"pods": "0"}, scopes=["BestEffort"])], None),
    "a scope selector": ([quota({"pods": "1"}, {"pods": "0"}, scopeSelector={"matchExpressions": [{}]})], None),
    "no quantity": ([quota({"pods": "many", "cpu": "12"}, {"pods": "0", "cpu": "8"})], (3, "q", "cpu")),
}


@pytest.mark.parametrize(("quotas", "expected"), ADMITTED.values(), ids=ADMITTED.keys())
def test_replicas_that_are_admitted(quotas: list[dict[str, Any]], expected: tuple[int, str, str] | None) -> None:
    read = [each for each in map(Quota.from_object, quotas) if each is not None]
    assert least_admitted(read, PER, TWO) == (None if expected is None else Admitted(*expected))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["1", "9e999999999", "-1Ei"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["pods", "cpu"]) | st.text(), inner),
    max_leaves=8,
)
OBJECTS = VALUES | st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": st.just("q") | VALUES}) | VALUES,
        "spec": st.fixed_dictionaries({"hard": VALUES}) | VALUES,
        "status": st.fixed_dictionaries({"used": VALUES}) | VALUES,
    }
)


@given(OBJECTS)
def test_whatever_a_quota_says_is_read(obj: Any) -> None:
    read = Quota.from_object(obj)
    if read is not None:
        found = least_admitted([read], PER, TWO)
        assert found is None or (found.replicas >= 0 and len(found.quota) <= LONGEST and len(found.key) <= LONGEST)


def test_it_is_bounded() -> None:
    read = Quota.from_object(quota({f"requests.x{i}": "1" for i in range(MOST_KEYS + 50)}, {"k" * 300: "1"}))
    assert read is not None
    assert len(read.hard) == MOST_KEYS
    assert not read.used
    assert Quota.from_object(quota({}, {}, "n" * (LONGEST + 1))) is None
