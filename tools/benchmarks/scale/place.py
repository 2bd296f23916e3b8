"""What a run needs of the cluster, and leaves nothing of: simulated nodes, and namespaces of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from benchmarks.scale.services import LABEL, Nodes
from localcluster import cluster as local
from localcluster.paths import ClusterPaths
from tests.support.cluster import Cluster


@contextlib.contextmanager
def simulated_nodes(paths: ClusterPaths, nodes: Nodes) -> Iterator[None]:
    """So many, and none afterwards."""
    host = local.Host.current()
    local.up(paths, local.Options(None, nodes.count, nodes.gpus), host)
    try:
        yield
    finally:
        local.up(paths, local.Options(None, 0), host)


@contextlib.contextmanager
def nothing_left(cluster: Cluster) -> Iterator[None]:
    """No namespace of an earlier run, nor of this one afterwards."""
    words = ("delete", "namespaces", "-l", LABEL, "--ignore-not-found", "--timeout=1800s")
    cluster.kubectl(*words, timeout=2000)
    try:
        yield
    finally:
        print("deleting what was created; it takes minutes for thousands", file=sys.stderr)
        cluster.kubectl(*words, timeout=2000)
