"""status.effective.scaling: what one replica is to have in progress, and what the number depends on."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.autoscaling import MOST_CONCURRENCY, Autoscaling
from llmservice_operator.observe.status.effective_scaling import concurrency_of, effective_scaling

from tests.unit.decide_world import H100, serving

Json = dict[str, Any]
SEQUENCES: Json = {"batching": {"maxNumSeqs": 256}}
CASES: dict[str, tuple[Json, Json, Json, int | None]] = {
    "nothing is known": ({}, {}, {}, None),
    "only the sequences": (SEQUENCES, {}, {}, 256),
    "only the measured cache": ({}, {"kvCacheTokens": 20_480}, {}, 10),
    "only the planned cache": ({}, {}, {"kvCacheTokens": 40_960}, 20),
    "the sequences are fewer": ({"batching": {"maxNumSeqs": 8}}, {"kvCacheTokens": 204_800}, {}, 8),
    "the cache holds fewer": (SEQUENCES, {"kvCacheTokens": 204_800}, {}, 100),
    "measured comes before planned": (SEQUENCES, {"kvCacheTokens": 20_480}, {"kvCacheTokens": 40_960}, 10),
    "rounded down": ({}, {"kvCacheTokens": 4095}, {}, 1),
    "never below one": (SEQUENCES, {"kvCacheTokens": 100}, {}, 1),
    "never above what the spec may say": ({}, {"kvCacheTokens": 10**12}, {}, MOST_CONCURRENCY),
    "short requests, as measured": (SEQUENCES, {"kvCacheTokens": 20_480, "maxModelLen": 512}, {}, 40),
    "short requests, as in force": ({"batching": {"maxModelLen": 1024}}, {"kvCacheTokens": 20_480}, {}, 20),
    "short requests, as planned": ({}, {}, {"kvCacheTokens": 20_480, "requestedMaxModelLen": 1024}, 20),
    "a length that vLLM chooses": ({"batching": {"maxModelLen": "auto"}}, {"kvCacheTokens": 20_480}, {}, 10),
    "no tokens at all": (SEQUENCES, {"kvCacheTokens": 0}, {}, 256),
    "not measured yet, and why": (SEQUENCES, {"reason": "no answer"}, {}, 256),
}


@pytest.mark.parametrize("case", CASES)
def test_the_concurrency_of_a_replica(case: str) -> None:
    effective, measured, plan, wanted = CASES[case]
    assert concurrency_of(effective, measured, plan) == wanted


def test_a_stated_number_is_in_force_as_it_is() -> None:
    stated = Autoscaling.model_validate({"maxReplicas": 3, "target": {"concurrencyPerReplica": 7}})
    found = effective_scaling(stated, SEQUENCES, {"kvCacheTokens": 1}, {})
    assert found == {"minReplicas": 1, "maxReplicas": 3, "concurrencyPerReplica": 7}


def test_bounds_without_a_known_load() -> None:
    auto = Autoscaling.model_validate({"minReplicas": 2, "maxReplicas": 3})
    assert effective_scaling(auto, {}, {}, {}) == {"minReplicas": 2, "maxReplicas": 3}


def test_the_status_has_it_only_with_autoscaling_and_no_load_changes_it() -> None:
    world = serving(H100, scaling={"replicas": 1, "autoscaling": {"maxReplicas": 4}})
    planned = world.status["effective"]["scaling"]["concurrencyPerReplica"]
    assert planned == min(world.status["effective"]["batching"]["maxNumSeqs"], world.plan["kvCacheTokens"] // 2048)
    world.edit(scaling={"replicas": 3, "autoscaling": {"maxReplicas": 4}})
    world.serve()
    assert world.status["effective"]["scaling"]["concurrencyPerReplica"] == planned
    world.edit(scaling={"replicas": 3})
    world.settle()
    assert "scaling" not in world.status["effective"]
