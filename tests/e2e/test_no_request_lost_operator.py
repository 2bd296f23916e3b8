"""Whatever happens to the operator: every request is answered whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.disturbances import OPERATOR_STORIES, STAND_IN, VLLM, Story, World, nothing_is_lost, words, world
from tests.support.cluster import Cluster
from tests.support.measured import Record


@pytest.fixture(scope="module", params=[STAND_IN, pytest.param(VLLM, marks=pytest.mark.full)])
def served(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[World]:
    engine: str = request.param
    with world(cluster, f"e2e-no-loss-operator-{engine.lower()}", engine) as made:
        yield made


@pytest.mark.parametrize("story", OPERATOR_STORIES, ids=words)
def test_nothing_is_lost(served: World, story: Story, record: Record) -> None:
    nothing_is_lost(served, story, record)
