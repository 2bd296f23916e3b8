"""The chart in a cluster without a kubelet, and the operator as a process of this machine with the chart's rights.

A plugin (-p tests.oldest.chart) and no conftest.py: tests of other folders run beside it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.install import OPERATOR_IMAGE
from tests.e2e._chart import CHART
from tests.e2e.conftest import cluster, namespace, record, shared_namespace
from tests.support.cluster import Cluster
from tests.support.local_operator import LocalOperator, local_operator
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE

__all__ = ["cluster", "namespace", "record", "shared_namespace"]


@pytest.fixture(scope="session", autouse=True)
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalOperator]:
    repository, _, tag = OPERATOR_IMAGE.rpartition(":")
    values = f"image.repository={repository},image.tag={tag},replicas=0,services.surgeDeadlineSeconds=10"
    where = ("--namespace", OPERATOR_NAMESPACE, "--create-namespace")
    for _ in ("an installation", "an upgrade"):
        cluster.helm("upgrade", "--install", OPERATOR, str(CHART), *where, "--set", values)
    folder: Path = tmp_path_factory.mktemp("operator")
    with local_operator(cluster, folder) as process:
        yield process
