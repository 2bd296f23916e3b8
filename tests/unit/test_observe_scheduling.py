"""Causes of the scheduler come and go; what is told of them moves seldom, and says who holds the GPUs."""

from __future__ import annotations

from decimal import Decimal

import pytest
from llmservice_operator.observe.failures.failure import FailureContext, failure_of
from llmservice_operator.observe.failures.scheduling import Wanted, gpus_text
from llmservice_operator.observe.failures.status_failure import StatusFailure
from llmservice_operator.planner.room import Holder, NodeRoom, Room

from tests.unit import failing_pods as pods
from tests.unit.failing_pods import REVISION, facts

GPU = "nvidia.com/gpu"
WANTED = Wanted(GPU, 4)


def node(name: str, product: str | None, has: int, used: int, *holders: Holder) -> NodeRoom:
    return NodeRoom(name, product, {GPU: Decimal(has)}, {GPU: Decimal(used)}, holders=holders)


ROOMS = {
    "some are free": (
        Room(
            (
                node("a", "NVIDIA-L4", 8, 6, Holder("team-a", "chat", 4), Holder("team-b", "train", 2)),
                node("d", "NVIDIA-L4", 2, 2, Holder("team-c", "secret", 2)),
                node("b", "NVIDIA-H100-80GB-HBM3", 8, 8, Holder("team-b", "train", 8)),
                NodeRoom("c"),
            )
        ),
        "A pod asks for 4 nvidia.com/gpu; free are 0 NVIDIA-H100-80GB-HBM3, 2 NVIDIA-L4; at most 2 on one node; "
        "held by chat (4), 3 pods of 2 other namespaces (12).",
    ),
    "free, but spread": (
        Room((node("a", None, 2, 0), node("b", None, 2, 0))),
        "A pod asks for 4 nvidia.com/gpu; free are 4 of an unnamed product; at most 2 on one node; nobody holds any.",
    ),
    "none at all": (Room((NodeRoom("c"),)), "A pod asks for 4 nvidia.com/gpu; no node that takes pods has any."),
    "not to be seen": (
        Room(unknown="the operator has no right to list pods"),
        "A pod asks for 4 nvidia.com/gpu; how many are free is not known, since "
        "the operator has no right to list pods.",
    ),
}


@pytest.mark.parametrize("case", ROOMS)
def test_who_holds_the_gpus(case: str) -> None:
    room, text = ROOMS[case]
    assert gpus_text(WANTED, room, "team-a") == text


def test_a_long_list_of_holders_is_cut() -> None:
    held = [Holder("team", f"service-{number:02}", 1) for number in range(40)]
    text = gpus_text(WANTED, Room((node("a", "NVIDIA-L4", 40, 40, *held),)), "team")
    assert "service-07 (1), 32 others of this namespace" in text


def test_what_holds_gpus_in_other_namespaces_is_not_named_to_anybody() -> None:
    """Neither their services and pods, nor the namespaces."""
    strangers = [Holder(f"team-x{n}", f"train-{n}", 1) for n in range(3)]
    room = Room((node("a", "NVIDIA-L4", 3, 3, *strangers),))
    told = look("Insufficient nvidia.com/gpu", None, "2026-01-02T03:00:00Z", room)
    assert told.reason == "InsufficientGPUs"
    assert told.message.endswith("held by 3 pods of 3 other namespaces (3).")
    assert not [name for holder in strangers for name in (holder.namespace, holder.name) if name in told.message]


LABELS_AND_TAINTS = ("node(s) didn't match Pod's node affinity/selector", "node(s) had untolerated taint(s)")
POOL = NodeRoom("pool", labels={"pool": "gpu"}, taints=(("team", "b", "NoSchedule"),))
CONTROL = NodeRoom("control", taints=(("node-role.kubernetes.io/control-plane", "", "NoSchedule"),))


@pytest.mark.parametrize(
    ("room", "reason"),
    [
        pytest.param(Room((NodeRoom("plain"), POOL)), "UntoleratedTaint", id="the nodes that match are tainted"),
        pytest.param(Room((NodeRoom("plain"), CONTROL)), "NoMatchingNode", id="others are tainted"),
        pytest.param(Room(unknown="the operator has no right to list nodes"), "NoMatchingNode", id="nobody may look"),
        pytest.param(None, "NoMatchingNode", id="nobody looked"),
    ],
)
def test_labels_or_taints_is_for_the_nodes_to_say(room: Room | None, reason: str) -> None:
    shown = pods.unplaced("0/2 nodes are available: 1 {}, 1 {}.".format(*LABELS_AND_TAINTS))
    context = FailureContext({}, None, None, room, {"nodeSelector": {"pool": "gpu"}})
    told = failure_of(None, facts(shown), REVISION, None, "2026-01-02T03:00:00Z", context)
    assert told is not None
    assert (told.reason, told.evidence) == (reason, LABELS_AND_TAINTS)
    again = failure_of(None, facts(shown), REVISION, told.to_object(), "2026-01-02T04:00:00Z", context)
    assert again == told


def look(cause: str, before: StatusFailure | None, now: str, room: Room | None = None) -> StatusFailure:
    shown = pods.unplaced(f"0/2 nodes are available: 2 {cause}.")
    told = before.to_object() if before is not None else None
    found = failure_of(
        None, facts(shown), REVISION, told, now, FailureContext({}, None, WANTED, room, namespace="team-a")
    )
    assert found is not None
    return found


def test_a_nearer_cause_is_reported_at_once_and_a_lesser_one_after_a_minute() -> None:
    first = look("node(s) had untolerated taint(s)", None, "2026-01-02T03:00:00Z")
    nearer = look("Insufficient cpu", first, "2026-01-02T03:00:01Z")
    assert (first.reason, nearer.reason) == ("UntoleratedTaint", "InsufficientResources")
    assert nearer.since == "2026-01-02T03:00:01Z"
    soon = look("node(s) had untolerated taint(s)", nearer, "2026-01-02T03:00:50Z")
    assert soon.to_object() == nearer.to_object()
    later = look("node(s) had untolerated taint(s)", nearer, "2026-01-02T03:01:01Z")
    assert (later.reason, later.evidence) == ("UntoleratedTaint", ("node(s) had untolerated taint(s)",))


def test_causes_that_alternate_every_second_are_reported_twice_a_minute_at_most() -> None:
    told: StatusFailure | None = None
    stories: list[object] = []
    for second in range(600):
        cause = ("Insufficient cpu", "node(s) had untolerated taint(s)")[second % 2]
        told = look(cause, told, f"2026-01-02T03:{second // 60:02}:{second % 60:02}Z")
        if not stories or stories[-1] != told.to_object():
            stories.append(told.to_object())
    assert len(stories) <= 2 * 10 + 2


def test_the_text_follows_the_room_and_the_failure_stays() -> None:
    room, text = ROOMS["some are free"]
    first = look(f"Insufficient {GPU}", None, "2026-01-02T03:00:00Z", room)
    assert text in first.message
    again = look(f"Insufficient {GPU}", first, "2026-01-02T03:00:30Z", ROOMS["none at all"][0])
    assert (again.reason, again.since) == (first.reason, first.since)
    assert "no node that takes pods has any" in again.message
