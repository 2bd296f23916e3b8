"""LeaderWorkerSet, and the operator installed with groups, for as long as tests need them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from localcluster import install, lws, upstream
from localcluster.progress import Progress
from tests.support.cluster import Cluster


def install_lws(cluster: Cluster) -> None:
    """In the local cluster, where it stays; one that is there already is left alone."""
    upstream.install(lws.LWS, cluster.paths, os.environ, Progress())


@contextmanager
def groups_installed(cluster: Cluster) -> Iterator[None]:
    """The operator afterwards as it was."""
    target = install.local_target(cluster.paths, os.environ)
    install_lws(cluster)
    install.install(target, Progress(), groups=True)
    try:
        yield
    finally:
        install.install(target, Progress())
