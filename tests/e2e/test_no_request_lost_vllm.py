"""The disturbances of test_no_request_lost.py with vLLM itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.disturbances import (
    BLIND_STORIES,
    KILLS,
    NAME,
    STORIES,
    VLLM,
    Story,
    Victim,
    World,
    nothing_is_lost,
    only_what_kubernetes_cannot_save,
    term_while_serving,
    words,
    world,
)
from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.services import one_of_several

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def real(cluster: Cluster) -> Iterator[World]:
    """vLLM itself, twice: two processors leave room for little load, and starts take a minute."""
    service = one_of_several(NAME, scaling={"replicas": 2}, drain={"timeoutSeconds": 60})
    load = ("--rate", "0.5", "--output-tokens", "64,256")
    with world(cluster, "e2e-no-loss-vllm", VLLM, service, 600, *load) as made:
        yield made


@pytest.mark.parametrize("story", [term_while_serving, *STORIES], ids=words)
def test_nothing_is_lost(real: World, story: Story, record: Record) -> None:
    nothing_is_lost(real, story, record)


@pytest.mark.parametrize("victim", KILLS, ids=words)
def test_a_killed_server_loses_no_later_request(real: World, victim: Victim, record: Record) -> None:
    only_what_kubernetes_cannot_save(real, victim, record)


@pytest.mark.parametrize("story", BLIND_STORIES, ids=words)
def test_nothing_is_lost_without_a_control_plane(real: World, story: Story, record: Record) -> None:
    nothing_is_lost(real, story, record)
