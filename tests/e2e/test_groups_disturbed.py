"""What replicas of one pod survive without a lost request, two replicas over two nodes do too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from llmservice_api.constants import GROUP_INDEX_LABEL

from tests.e2e.disturbances import (
    BLIND_STORIES,
    GROUPS,
    KNOWN_WITHIN,
    NAME,
    OPERATOR_STORIES,
    STORIES,
    Story,
    World,
    nothing_is_lost,
    rollback_of_a_broken_revision,
    rolling_update,
    term_while_serving,
    words,
    world,
)
from tests.support.cluster import JSON, Cluster, condition, eventually, is_ready
from tests.support.groups import by_rank, groups_installed, kill_vllm
from tests.support.host import terminate
from tests.support.measured import Record
from tests.support.nodes import FIRST, NODES, SECOND, THIRD, added_node
from tests.support.operator import host_process, operator_pods
from tests.support.patience import PATIENCE, at_latest
from tests.support.traffic import in_figures

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[World]:
    with groups_installed(cluster), added_node(cluster), world(cluster, "e2e-groups-no-loss", GROUPS) as made:
        yield made


def of_first_group(served: World) -> dict[int, JSON]:
    """By rank."""
    return by_rank(pod for pod in served.pods() if pod["metadata"]["labels"][GROUP_INDEX_LABEL] == "0")


def term_of_a_worker(served: World) -> None:
    """Its leader answers what it has, and both start vLLM again."""
    pods = of_first_group(served)
    served.strike(pods[0])
    terminate(pods[1])
    eventually("its leader takes no requests", lambda: not is_ready(of_first_group(served)[0]), PATIENCE)


def rolling_update_while_the_operator_is_killed(served: World) -> None:
    rolling_update(served)
    (pod,) = operator_pods(served.cluster)
    os.kill(host_process(served.cluster, pod), signal.SIGKILL)


OF_PODS: list[Story] = [
    *STORIES,
    term_while_serving,
    term_of_a_worker,
    rollback_of_a_broken_revision,
    rolling_update_while_the_operator_is_killed,
]


@pytest.mark.parametrize("story", [*OF_PODS, *OPERATOR_STORIES, *BLIND_STORIES], ids=words)
def test_nothing_is_lost(served: World, story: Story, record: Record) -> None:
    nothing_is_lost(served, story, record)


@pytest.mark.parametrize("rank", [1, 0], ids=["a worker", "the leader"])
def test_a_killed_vllm_loses_what_its_own_group_answers(served: World, record: Record, rank: int) -> None:
    story, probe = f"vLLM of rank {rank} is killed", served.probe
    others = _ready_since(served)
    with served.story(story):
        struck = of_first_group(served)
        moment = served.strike(struck[0])
        kill_vllm(struck[rank])
        eventually("its leader takes no requests", lambda: not is_ready(of_first_group(served)[0]), PATIENCE)
    reported = probe.since(story, moment)
    later = [row for row in probe.rows if not row.is_complete and moment <= row.sent and row.ended <= reported.until]
    record(
        **in_figures(reported), laterLostUntilSecond=round(max((r.ended for r in later), default=moment) - moment, 1)
    )
    assert reported.lost_in_flight, "what its group was answering"
    assert all(row.sent - moment < at_latest(KNOWN_WITHIN) for row in later), probe.of(story)
    assert _ready_since(served) == others, "the other group went on"


@pytest.mark.parametrize("node", NODES)
def test_a_drain_ends_one_group_and_waits_with_the_other_until_it_is_back(
    served: World, record: Record, node: str
) -> None:
    """No node is left for the evicted pod: what still serves is not evicted too."""
    story, cluster = f"drain of {node}", served.cluster
    with served.story(story):
        served.strike()
        assert "disruption budget" in drain(cluster, node, 30)
        assert sum(map(is_ready, served.answering())) == 1
        cluster.kubectl("uncordon", node)
    record(**served.probe.figures(story))
    served.probe.assert_nothing_lost(story)


def test_a_drain_with_a_free_node_moves_one_group_after_the_other(served: World, record: Record) -> None:
    """There and back, since the third node is gone afterwards."""
    cluster, figures = served.cluster, {}
    with added_node(cluster, THIRD):
        for node, other in ((SECOND, THIRD), (THIRD, SECOND)):
            story = f"drain of {node} to {other}"
            with served.story(story):
                served.strike()
                drain(cluster, node, served.settles_within)
                assert {pod["spec"].get("nodeName") for pod in served.pods()} <= {FIRST, other, None}
            cluster.kubectl("uncordon", node)
            figures[story] = served.probe.figures(story)
    record(**figures)
    for story in figures:
        served.probe.assert_nothing_lost(story)


def drain(cluster: Cluster, node: str, within: float) -> str:
    """What `kubectl drain` says of the service's pods there."""
    words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector=llmservice.dev/service={NAME}")
    return cluster.kubectl("drain", node, *words, f"--timeout={within:.0f}s", expect=None, timeout=within + 30)


def _ready_since(served: World) -> list[tuple[str, str | None]]:
    """Of the pods of the other group."""
    pods = [pod for pod in served.pods() if pod["metadata"]["labels"][GROUP_INDEX_LABEL] == "1"]
    return sorted((pod["metadata"]["name"], (condition(pod, "Ready") or {}).get("lastTransitionTime")) for pod in pods)
