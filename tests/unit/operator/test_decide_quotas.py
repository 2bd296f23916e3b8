"""A quota that ends before maxReplicas: when it is looked for, and what the condition Autoscaled says of it."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.decision import QUOTAS_SECONDS

from tests.unit.decide_world import Json, World
from tests.unit.operator.test_decide_autoscaling import NO_METRICS, READY, autoscaled, keda_says

GPUS = "requests.nvidia.com/gpu"


def quota(hard: Json, used: Json, name: str = "team", **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"hard": hard} | spec, "status": {"used": used}}


ONE_REPLICA = quota({GPUS: "1"}, {GPUS: "1"})


def limited(*quotas: Json, is_scheduled: bool = True, **more: Any) -> World:
    """Two replicas of at most four, with one GPU each; the quotas were there from the start."""
    world = autoscaled(**more)
    world.quotas = list(quotas)
    for pod in world.pods.values():
        pod["spec"] = {**world.template["spec"], "nodeName": "n"} if is_scheduled else {}
    keda_says(world, READY)
    return world


SAID: dict[str, tuple[list[Json], str | None]] = {
    "none": ([], None),
    "enough": ([quota({GPUS: "4"}, {GPUS: "2"})], None),
    "too few GPUs": ([quota({GPUS: "3"}, {GPUS: "2"})], f"ResourceQuota team admits 3 of 4 replicas, by its {GPUS}."),
    "others have some": ([quota({GPUS: "4"}, {GPUS: "3"})], f"team admits 3 of 4 replicas, by its {GPUS}."),
    "too few pods": ([quota({"pods": "2"}, {"pods": "2"})], "team admits 2 of 4 replicas, by its pods."),
    "lowered below what runs": ([quota({GPUS: "1"}, {GPUS: "2"})], "team admits 1 of 4 replicas"),
    "the one that ends first": (
        [quota({GPUS: "3"}, {GPUS: "2"}), quota({"pods": "2"}, {"pods": "2"}, "few")],
        "few admits 2 of 4 replicas",
    ),
    "with scopes": ([quota({GPUS: "1"}, {GPUS: "0"}, scopes=["Terminating"])], None),
}


@pytest.mark.parametrize("case", SAID)
def test_a_quota_is_reported_beside_replicas_that_follow_the_load(case: str) -> None:
    quotas, text = SAID[case]
    world = limited(*quotas)
    assert world.condition("Autoscaled") == ("True", "Autoscaling" if text is None else "QuotaBelowMaximum")
    assert (text or "within the bounds") in world.message("Autoscaled")
    assert world.condition("Ready") == ("True", "RolledOut")
    assert "Stalled" not in world.conditions()


def test_pods_without_a_node_have_what_they_ask_for_of_the_quota() -> None:
    """It counts them from their creation on, and what they ask for is only known of pods on nodes."""
    world = limited(quota({GPUS: "4"}, {GPUS: "2"}), is_scheduled=False)
    assert world.condition("Autoscaled") == ("True", "Autoscaling")


def test_the_highest_maximum_of_any_time_counts() -> None:
    entry = {"start": "0 8 * * *", "end": "0 20 * * *", "maxReplicas": 9}
    world = limited(quota({GPUS: "6"}, {GPUS: "2"}), schedule=[entry])
    assert "admits 6 of 9 replicas" in world.message("Autoscaled")


def test_quotas_are_read_once_where_they_are_enough_and_again_with_other_replicas() -> None:
    world = limited()
    reads = world.quota_reads
    assert reads > 0
    for _ in range(3):
        assert world.step().is_steady
    assert world.quota_reads == reads
    assert world.decide().requeue_after is None
    # Lowered: found with the next change of the replicas, which is KEDA's or a user's.
    world.quotas = [ONE_REPLICA]
    world.settle()
    assert world.condition("Autoscaled") == ("True", "Autoscaling")
    world.edit(scaling={"replicas": 3, "autoscaling": {"maxReplicas": 4}})
    world.serve()
    assert world.condition("Autoscaled") == ("True", "QuotaBelowMaximum")


def test_it_is_looked_for_again_until_it_is_raised() -> None:
    world = limited(ONE_REPLICA)
    assert world.decide().requeue_after == QUOTAS_SECONDS
    assert world.decide().is_steady, "and writes nothing meanwhile"
    world.quotas = [quota({GPUS: "9"}, {GPUS: "2"})]
    world.settle()
    assert world.condition("Autoscaled") == ("True", "Autoscaling")
    assert world.decide().requeue_after is None


def test_what_was_found_stands_while_the_quotas_cannot_be_read() -> None:
    world = limited(ONE_REPLICA)
    said = world.message("Autoscaled")
    world.quotas = None
    world.edit(drain={"timeoutSeconds": 9})
    world.serve()
    assert world.condition("Autoscaled") == ("True", "QuotaBelowMaximum")
    assert world.message("Autoscaled") == said
    assert world.decide().requeue_after == QUOTAS_SECONDS
    other = limited()
    other.quotas = None
    other.edit(drain={"timeoutSeconds": 9})
    other.serve()
    assert other.condition("Autoscaled") == ("True", "Autoscaling")


def test_what_is_wrong_with_the_autoscaler_comes_first_and_reads_no_quota() -> None:
    world = autoscaled(NO_METRICS)
    world.quotas = [ONE_REPLICA]
    world.edit(drain={"timeoutSeconds": 9})
    world.serve()
    assert world.condition("Autoscaled") == ("False", "ScalerUnavailable")
    assert world.quota_reads == 0
    keda_says(world, READY)
    assert world.condition("Autoscaled") == ("True", "QuotaBelowMaximum")


def test_without_autoscaling_no_quota_is_read() -> None:
    world = autoscaled()
    world.quotas = [ONE_REPLICA]
    world.edit(scaling={"replicas": 2})
    world.serve()
    assert world.quota_reads == 0
    assert "Autoscaled" not in world.conditions()
