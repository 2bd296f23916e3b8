"""The operator's release as an administrator upgrades it: to another image, or with another limit of updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from localcluster.install import OPERATOR_IMAGE
from tests.support.cluster import Cluster
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE

ONE_AT_A_TIME = 1
"""The chart's own operator.maxConcurrentUpdates."""


def upgrade(cluster: Cluster, image: str, *, updates_at_a_time: int = ONE_AT_A_TIME) -> None:
    """`helm upgrade`, until the new operator is ready."""
    chart = str(cluster.paths.root / "charts" / "llmservice-operator")
    tag = image.rpartition(":")[2]
    values = ("--set-string", f"image.tag={tag}", "--set", f"operator.maxConcurrentUpdates={updates_at_a_time}")
    where = (OPERATOR, chart, "-n", OPERATOR_NAMESPACE)
    cluster.helm("upgrade", *where, "--reuse-values", *values, "--wait", "--timeout=120s")


@contextmanager
def upgraded(cluster: Cluster, image: str, *, updates_at_a_time: int = ONE_AT_A_TIME) -> Iterator[None]:
    """Another version leads for a while; the present one again afterwards."""
    upgrade(cluster, image, updates_at_a_time=updates_at_a_time)
    try:
        yield
    finally:
        upgrade(cluster, OPERATOR_IMAGE)
