"""A service that no CPU of the cluster can run makes no pod, and starts when a node comes that can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.nodes import FIRST
from tests.support.services import stand_in

CPUID = "feature.node.kubernetes.io/cpu-cpuid"
PLACE = "e2e.llmservice.dev/cpu"
OLD = (f"{PLACE}=labelled", f"{CPUID}.AVX=true", f"{CPUID}.AVX2=true")
NEWER = f"{CPUID}.AVX512F"
LOOKS_AGAIN_WITHIN = 120.0
"""Seconds: the operator looks at the nodes once a minute while a service waits for another one."""


@pytest.fixture
def an_old_cpu(cluster: Cluster) -> Iterator[None]:
    """The node's labels say AVX2 and no more, as node-feature-discovery labels such a CPU."""
    cluster.kubectl("label", "node", FIRST, *OLD, "--overwrite")
    yield
    names = [label.partition("=")[0] for label in OLD] + [NEWER]
    cluster.kubectl("label", "node", FIRST, *(f"{name}-" for name in names))


@pytest.mark.full
def test_an_fp8_cache_waits_for_a_cpu_that_can_hold_it(cluster: Cluster, namespace: str, an_old_cpu: None) -> None:
    """Of the nodes that the pods may go to, which their affinity says."""
    here = [{"key": PLACE, "operator": "In", "values": ["labelled"]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": here}]}}
    there = {"podTemplate": {"spec": {"affinity": {"nodeAffinity": required}}}}
    precision = {"dtype": "bfloat16", "kvCache": "fp8"}
    cluster.apply(stand_in("small-cache", precision=precision, fitPolicy="Enforce", **there), namespace)

    ready = cluster.wait_condition(namespace, "small-cache", "Ready", "False", reason="CPUFeatureMissing", timeout=30)
    assert "spec.precision.kvCache fp8 needs a CPU with AVX-512 or AMX" in ready["message"]
    assert "Set spec.precision.kvCache: auto" in ready["message"]
    stalled = cluster.condition(namespace, "small-cache", "Stalled")
    assert stalled is not None
    assert (stalled["status"], stalled["reason"]) == ("True", "CPUFeatureMissing")
    assert cluster.list("pods", namespace, "llmservice.dev/service=small-cache") == []

    cluster.kubectl("label", "node", FIRST, f"{NEWER}=true")
    eventually(
        "a pod, now that the labels say AVX-512",
        lambda: cluster.list("pods", namespace, "llmservice.dev/service=small-cache"),
        LOOKS_AGAIN_WITHIN,
    )
