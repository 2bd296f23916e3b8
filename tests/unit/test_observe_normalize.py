"""Messages of the cluster lose what moves, and nothing else."""

from __future__ import annotations

import pytest
from llmservice_operator.observe.failures import normalize


@pytest.mark.parametrize(
    ("message", "causes"),
    [
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are "
            "available: 3 No preemption victims found for incoming pod.",
            ("Insufficient cpu", "Insufficient nvidia.com/gpu"),
        ),
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present, x}.",
            ("node(s) had untolerated taint {nvidia.com/gpu: present, x}",),
        ),
        ('persistentvolumeclaim "x" not found', ('persistentvolumeclaim "x" not found',)),
        (
            "0/12 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            ("pod has unbound immediate PersistentVolumeClaims. not found",),
        ),
        ("", ()),
    ],
    ids=["resources", "taint", "claim", "unbound", "nothing"],
)
def test_unschedulable_causes(message: str, causes: tuple[str, ...]) -> None:
    assert normalize.unschedulable_causes(message) == causes


def test_quota() -> None:
    message = (
        'pods "x-74d-abc" is forbidden: exceeded quota: team-a, requested: limits.memory=4Gi,requests.cpu=2, '
        "used: limits.memory=3Gi,requests.cpu=1, limited: limits.memory=6Gi,requests.cpu=2"
    )
    assert normalize.replica_failure(message) == (
        "quota team-a is used up: limits.memory=4Gi,requests.cpu=2 requested, "
        "limits.memory=6Gi,requests.cpu=2 allowed in all"
    )


def test_pod_names() -> None:
    message = 'pods "x-74d-abc" is forbidden: violates PodSecurity "restricted:latest"'
    assert normalize.replica_failure(message) == 'pods is forbidden: violates PodSecurity "restricted:latest"'


def test_a_conflict() -> None:
    """As the API server words it: a line for each field where a manager has several."""
    message = (
        'Apply failed with 3 conflicts: conflict with "helm" using v1: .spec.type\n'
        'conflicts with "kubectl" using v1 at 2026-01-02T03:04:05Z:\n- .spec.selector\n- .spec.ports'
    )
    assert normalize.conflict(message) == (
        'Apply failed with 3 conflicts: conflict with "helm" using v1: .spec.type; '
        'conflicts with "kubectl" using v1: .spec.selector, .spec.ports'
    )


def test_back_off() -> None:
    message = "back-off 1m20s restarting failed container=server pod=x-74d-abc_ns(uid)"
    assert normalize.waiting(message) == "container server keeps ending and is restarted with growing pauses"
