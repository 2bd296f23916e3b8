"""Messages of the cluster lose the parts that change by themselves, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from llmservice_operator.facts import normalize

CAUSES: dict[str, tuple[str, ...]] = {
    "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/1 nodes are "
    "available: 1 Preemption is not helpful for scheduling.": ("Insufficient nvidia.com/gpu",),
    "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are "
    "available: 3 No preemption victims found for incoming pod.": ("Insufficient cpu", "Insufficient nvidia.com/gpu"),
    "0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present, x}.": (
        "node(s) had untolerated taint {nvidia.com/gpu: present, x}",
    ),
    'persistentvolumeclaim "x" not found': ('persistentvolumeclaim "x" not found',),
    "0/12 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found": (
        "pod has unbound immediate PersistentVolumeClaims. not found",
    ),
    "": (),
}


@pytest.mark.parametrize("message", CAUSES)
def test_unschedulable_causes(message: str) -> None:
    assert normalize.unschedulable_causes(message) == CAUSES[message]


@pytest.mark.parametrize(
    ("function", "message", "text"),
    [
        (
            normalize.replica_failure,
            'pods "x-74d-abc" is forbidden: exceeded quota: team-a, requested: limits.memory=4Gi,requests.cpu=2, '
            "used: limits.memory=3Gi,requests.cpu=1, limited: limits.memory=6Gi,requests.cpu=2",
            "quota team-a is used up: limits.memory=4Gi,requests.cpu=2 requested, "
            "limits.memory=6Gi,requests.cpu=2 allowed in all",
        ),
        (
            normalize.replica_failure,
            'pods "x-74d-abc" is forbidden: violates PodSecurity "restricted:latest"',
            'pods is forbidden: violates PodSecurity "restricted:latest"',
        ),
        (
            normalize.conflict,
            'Apply failed with 3 conflicts: conflict with "helm" using v1: .spec.type\n'
            'conflicts with "kubectl" using v1 at 2026-01-02T03:04:05Z:\n- .spec.selector\n- .spec.ports',
            'Apply failed with 3 conflicts: conflict with "helm" using v1: .spec.type; '
            'conflicts with "kubectl" using v1: .spec.selector, .spec.ports',
        ),
        (
            normalize.waiting,
            "back-off 1m20s restarting failed container=server pod=x-74d-abc_ns(uid)",
            "container server keeps ending and is restarted with growing pauses",
        ),
    ],
    ids=["quota", "pod names", "conflict", "back-off"],
)
def test_messages(function: Callable[[str], str], message: str, text: str) -> None:
    assert function(message) == text
