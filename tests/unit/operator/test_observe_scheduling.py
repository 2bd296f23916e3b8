"""The scheduler's causes alternate; their report changes seldom, and shows who holds the GPUs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from llmservice_operator.facts.scheduling import AcceleratorRequest, gpus_text
from llmservice_operator.observe.failures.failure import FailureContext
from llmservice_operator.observe.failures.pod_failure import StatusFailure
from llmservice_planner.room import Holder, NodeRoom, Room

from tests.unit.operator import failing_pods as pods
from tests.unit.operator.failing_pods import must_fail

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
WANTED = AcceleratorRequest(GPU, 4)


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


def unplaced(
    cause: str, before: StatusFailure | None = None, now: str = "03:00:00", room: Room | None = None
) -> StatusFailure:
    shown = pods.unplaced(f"0/2 nodes are available: 2 {cause}.")
    context = FailureContext({}, None, WANTED, room, namespace="team-a")
    return must_fail(shown, before=before, now=f"2026-01-02T{now}Z", context=context)


def test_pods_of_other_namespaces_are_counted_and_neither_they_nor_their_namespaces_named() -> None:
    others = [Holder(f"team-x{n}", f"train-{n}", 1) for n in range(3)]
    found = unplaced("Insufficient nvidia.com/gpu", room=Room((node("a", "NVIDIA-L4", 3, 3, *others),)))
    assert found.reason == "InsufficientGPUs"
    assert found.message.endswith("held by 3 pods of 3 other namespaces (3).")
    assert not [name for holder in others for name in (holder.namespace, holder.name) if name in found.message]


LABELS_AND_TAINTS = ("node(s) didn't match Pod's node affinity/selector", "node(s) had untolerated taint(s)")
POOL = NodeRoom("pool", labels={"pool": "gpu"}, taints=(("team", "b", "NoSchedule"),))
CONTROL = NodeRoom("control", taints=(("node-role.kubernetes.io/control-plane", "", "NoSchedule"),))
WHICH = {
    "the nodes that match are tainted": (Room((NodeRoom("plain"), POOL)), "UntoleratedTaint"),
    "others are tainted": (Room((NodeRoom("plain"), CONTROL)), "NoMatchingNode"),
    "a rule about pods keeps it off one without a taint": (
        Room((NodeRoom("free", labels={"pool": "gpu"}), POOL)),
        "NoMatchingNode",
    ),
    "no right to list them": (Room(unknown="the operator has no right to list nodes"), "NoMatchingNode"),
    "they were not listed": (None, "NoMatchingNode"),
}


@pytest.mark.parametrize("case", WHICH)
def test_the_nodes_show_whether_labels_or_taints_are_the_cause(case: str) -> None:
    room, reason = WHICH[case]
    shown = pods.unplaced("0/2 nodes are available: 1 {}, 1 {}.".format(*LABELS_AND_TAINTS))
    context = FailureContext({}, None, None, room, {"nodeSelector": {"pool": "gpu"}})
    found = must_fail(shown, context=context)
    assert (found.reason, found.evidence) == (reason, LABELS_AND_TAINTS)
    assert must_fail(shown, before=found, now="2026-01-02T04:00:00Z", context=context) == found


TAINT = "node(s) had untolerated taint(s)"


def gpu_node(*taints: tuple[str, str, str], has: str = GPU) -> NodeRoom:
    return NodeRoom("n", "NVIDIA-L4", {has: Decimal(8)}, taints=(("nvidia.com/gpu", "present", "NoSchedule"), *taints))


AKS = ("sku", "gpu", "NoSchedule")
SPOT = ("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule")
OWN_TOLERATION = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
AKS_TOLERATION = '{key: sku, operator: Equal, value: "gpu", effect: NoSchedule}'
REMEDIES = {
    "AKS": (Room((CONTROL, gpu_node(AKS))), f"Add {AKS_TOLERATION} to spec.podTemplate.spec.tolerations"),
    "two taints": (
        Room((gpu_node(AKS, ("team", "", "NoExecute")),)),
        "{key: team, operator: Exists, effect: NoExecute}",
    ),
    "a value that YAML would take for no text": (Room((gpu_node(("gpu", "true", "NoSchedule")),)), 'value: "true"'),
    "the node that lacks least": (Room((gpu_node(AKS, SPOT), gpu_node(AKS))), f"Add {AKS_TOLERATION} to spec"),
    "none of other devices": (Room((gpu_node(AKS, has="amd.com/gpu"),)), "Add a toleration in spec.podTemplate"),
    "a condition of the node": (
        Room((gpu_node(("node.kubernetes.io/unreachable", "", "NoSchedule")),)),
        "Add a toleration in spec.podTemplate",
    ),
    "nodes were not listed": (None, "Add a toleration in spec.podTemplate"),
}


@pytest.mark.parametrize("case", REMEDIES)
def test_the_remedy_of_a_taint_is_the_toleration_to_add(case: str) -> None:
    room, words = REMEDIES[case]
    context = FailureContext({}, None, AcceleratorRequest(GPU, 1), room, {"tolerations": [OWN_TOLERATION]})
    found = must_fail(pods.unplaced(f"0/2 nodes are available: 2 {TAINT}."), context=context)
    assert (found.reason, words in found.remedy) == ("UntoleratedTaint", True), found.remedy


def test_a_nearer_cause_is_reported_at_once_and_a_lesser_one_after_a_minute() -> None:
    first = unplaced(TAINT)
    nearer = unplaced("Insufficient cpu", first, "03:00:01")
    assert (first.reason, nearer.reason) == ("UntoleratedTaint", "InsufficientResources")
    assert nearer.since == "2026-01-02T03:00:01Z"
    assert unplaced(TAINT, nearer, "03:00:50").to_object() == nearer.to_object()
    later = unplaced(TAINT, nearer, "03:01:01")
    assert (later.reason, later.evidence) == ("UntoleratedTaint", (TAINT,))


def test_causes_that_alternate_every_second_are_reported_twice_a_minute_at_most() -> None:
    found, changes = unplaced(TAINT), 0
    for second in range(600):
        before = found
        found = unplaced(("Insufficient cpu", TAINT)[second % 2], before, f"03:{second // 60:02}:{second % 60:02}")
        changes += found.to_object() != before.to_object()
    assert changes <= 2 * 10 + 2


def test_the_text_follows_the_room_and_the_failure_stays() -> None:
    room, text = ROOMS["some are free"]
    first = unplaced(f"Insufficient {GPU}", room=room)
    assert text in first.message
    again = unplaced(f"Insufficient {GPU}", first, "03:00:30", ROOMS["none at all"][0])
    assert (again.reason, again.since) == (first.reason, first.since)
    assert "no node that takes pods has any" in again.message


def gated(*names: str) -> Json:
    """As the API server stores it: pkg/registry/core/pod/strategy.go."""
    message = "Scheduling is blocked due to non-empty scheduling gates"
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
    shown = pods.pod(status={"phase": "Pending", "conditions": [condition]}, node="")
    shown["spec"]["schedulingGates"] = [{"name": name} for name in names]
    return shown


GATES = {
    "Kueue's": (gated("kueue.x-k8s.io/admission"), "waits for Kueue's scheduling gate kueue.x-k8s.io/admission:"),
    "another": (gated("example.com/approval"), "waits for scheduling gate example.com/approval:"),
    "both": (
        gated("kueue.x-k8s.io/topology", "example.com/approval"),
        "scheduling gate example.com/approval and Kueue's scheduling gate kueue.x-k8s.io/topology:",
    ),
}


@pytest.mark.parametrize("case", GATES)
def test_a_scheduling_gate_is_named_and_is_no_lack_of_room(case: str) -> None:
    shown, words = GATES[case]
    found = must_fail(shown)
    assert (str(found.reason), found.is_final) == ("SchedulingGated", False)
    assert words in found.message
    assert "No node has room" not in found.message
    assert must_fail(shown, before=found, now="2026-01-02T09:00:00Z").to_object() == found.to_object()


def test_a_gate_that_was_taken_away_is_no_cause_any_more() -> None:
    before = must_fail(GATES["Kueue's"][0])
    found = unplaced(f"Insufficient {GPU}", before, "03:04:06")
    assert (str(found.reason), found.evidence) == ("InsufficientGPUs", (f"Insufficient {GPU}",))


# What a plugin of kube-scheduler 1.36 says, below pkg/scheduler/framework/plugins.
ONE_POD = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
SAID = {
    "Insufficient nvidia.com/gpu": "InsufficientGPUs",  # noderesources/fit.go
    "cannot allocate all claims": "InsufficientGPUs",  # dynamicresources
    "Insufficient memory": "InsufficientResources",
    "Too many pods": "InsufficientResources",
    "node(s) had no available disk": "VolumeUnavailable",  # volumerestrictions
    ONE_POD: "VolumeUnavailable",
    "node(s) exceed max volume count": "VolumeUnavailable",  # nodevolumelimits/csi.go
    "node(s) didn't find available persistent volumes to bind": "VolumeUnavailable",  # volumebinding/binder.go
    "node(s) did not have enough free storage": "VolumeUnavailable",
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)": "VolumeUnavailable",
    "node(s) had no available volume zone": "VolumeUnavailable",  # volumezone
    "node(s) didn't match Pod's required features": "NoMatchingNode",  # nodedeclaredfeatures
    "node(s) didn't satisfy existing pods anti-affinity rules": "NoMatchingNode",  # interpodaffinity
    "node(s) didn't match pod anti-affinity rules": "NoMatchingNode",
    "node(s) didn't match pod topology spread constraints (missing required label)": "NoMatchingNode",
    "node(s) didn't match scheduler-enforced node affinity": "NoMatchingNode",  # nodeaffinity
    "pod affinity terms conflict": "NoMatchingNode",
    "no nodes available to schedule pods": "NoMatchingNode",  # schedule_one.go
    "node(s) had taints that the pod didn't tolerate": "UntoleratedTaint",  # tainttoleration
    "node(s) had unknown conditions": "UntoleratedTaint",  # nodeunschedulable
    "node(s) were unschedulable": "UntoleratedTaint",
}


@pytest.mark.parametrize("said", SAID)
def test_each_sentence_of_the_scheduler_has_its_reason(said: str) -> None:
    text = said if said.startswith(("no nodes", "pod affinity")) else f"0/2 nodes are available: 2 {said}."
    assert str(must_fail(pods.unplaced(text)).reason) == SAID[said]
