"""Whatever happens to the pods, the operator or the control plane: every request is answered whole.

With the stand-in for vLLM's process; test_no_request_lost_vllm.py has the same stories with vLLM itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.disturbances import (
    BLIND_STORIES,
    KILLS,
    NAME,
    STAND_IN,
    STORIES,
    Story,
    Victim,
    World,
    nothing_is_lost,
    only_what_kubernetes_cannot_save,
    words,
    world,
)
from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.services import stand_in


@pytest.fixture(scope="module")
def light(cluster: Cluster) -> Iterator[World]:
    """Answers of a third of a second to three seconds, about ten at any time."""
    service = stand_in(NAME, {"start_seconds": 2, "tokens_per_second": 30}, scaling={"replicas": 2})
    load = ("--rate", "8", "--output-tokens", "10,20,80")
    with world(cluster, "e2e-no-loss", STAND_IN, service, 90, *load) as made:
        yield made


@pytest.mark.parametrize("story", STORIES, ids=words)
def test_nothing_is_lost(light: World, story: Story, record: Record) -> None:
    nothing_is_lost(light, story, record)


@pytest.mark.full
@pytest.mark.parametrize("victim", KILLS, ids=words)
def test_a_killed_server_loses_no_later_request(light: World, victim: Victim, record: Record) -> None:
    only_what_kubernetes_cannot_save(light, victim, record)


@pytest.mark.full
@pytest.mark.parametrize("story", BLIND_STORIES, ids=words)
def test_nothing_is_lost_without_a_control_plane(light: World, story: Story, record: Record) -> None:
    nothing_is_lost(light, story, record)
