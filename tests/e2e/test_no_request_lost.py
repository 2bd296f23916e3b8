"""Whatever happens to the pods or the control plane: every request is answered whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.disturbances import (
    BLIND_STORIES,
    KILLS,
    STAND_IN,
    STORIES,
    VLLM,
    Story,
    Victim,
    World,
    nothing_is_lost,
    only_the_gap_is_felt,
    only_what_kubernetes_cannot_save,
    rollback_of_a_broken_revision,
    term_while_serving,
    words,
    world,
)
from tests.support.cluster import Cluster
from tests.support.measured import Record

pytestmark = pytest.mark.beside_keda


@pytest.fixture(scope="module", params=[STAND_IN, pytest.param(VLLM, marks=pytest.mark.full)])
def served(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[World]:
    engine: str = request.param
    with world(cluster, f"e2e-no-loss-{engine.lower()}", engine) as made:
        yield made


FURTHER = [pytest.param(story, marks=pytest.mark.full) for story in (term_while_serving, rollback_of_a_broken_revision)]


@pytest.mark.parametrize("story", [*FURTHER, *STORIES], ids=words)
def test_nothing_is_lost(served: World, story: Story, record: Record) -> None:
    nothing_is_lost(served, story, record)


@pytest.mark.full
def test_a_recreation_is_felt_as_a_gap_and_loses_nothing_accepted(served: World, record: Record) -> None:
    only_the_gap_is_felt(served, record)


@pytest.mark.full
@pytest.mark.parametrize("victim", KILLS, ids=words)
def test_a_killed_server_loses_no_later_request(served: World, victim: Victim, record: Record) -> None:
    only_what_kubernetes_cannot_save(served, victim, record)


@pytest.mark.full
@pytest.mark.parametrize("story", BLIND_STORIES, ids=words)
def test_nothing_is_lost_without_a_control_plane(served: World, story: Story, record: Record) -> None:
    nothing_is_lost(served, story, record)
