"""Whatever happens to the pods, the operator or the control plane: every request is answered whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.disturbances import (
    BLIND_STORIES,
    KILLS,
    NAME,
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
from tests.support.services import one_of_several, stand_in

# Of the stand-in: answers of a third of a second to three seconds, about ten at any time. Of vLLM two processors
# leave room for little load, and a start takes a minute.
WORLDS = {
    STAND_IN: (
        stand_in(NAME, {"start_seconds": 2, "tokens_per_second": 30}, scaling={"replicas": 2}),
        90,
        ("--rate", "8", "--output-tokens", "10,20,80"),
    ),
    VLLM: (
        one_of_several(NAME, scaling={"replicas": 2}, drain={"timeoutSeconds": 60}),
        600,
        ("--rate", "0.5", "--output-tokens", "64,256"),
    ),
}


@pytest.fixture(scope="module", params=[STAND_IN, pytest.param(VLLM, marks=pytest.mark.full)])
def served(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[World]:
    engine: str = request.param
    service, within, load = WORLDS[engine]
    with world(cluster, f"e2e-no-loss-{engine.lower()}", engine, service, within, *load) as made:
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
