"""The cluster and its images, from nothing: what waits for the network goes on beside what waits for the processor."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from localcluster import cluster, images
from localcluster.cluster import Host, Options
from localcluster.commands import run
from localcluster.paths import ClusterPaths


def bring_up(paths: ClusterPaths, host: Host) -> None:
    """A running cluster with every image in its store; the images build while Kubernetes compiles."""
    with ThreadPoolExecutor(max_workers=2) as beside:
        packages = beside.submit(ensure_engine_packages, paths, host)
        cluster.up_containerd(paths, host)
        building = beside.submit(_images, packages, paths, host)
        cluster.up(paths, Options(), host)
        building.result()


def _images(packages: Future[None], paths: ClusterPaths, host: Host) -> None:
    packages.result()
    images.build_all(paths, host.progress)


def ensure_engine_packages(paths: ClusterPaths, host: Host) -> None:
    """PyTorch in the virtual environment, to teach the tiny model with; six gigabytes, so only when it is needed."""
    if not images.needs_teaching():
        return
    with host.progress.step("installing PyTorch and vLLM into .venv"):
        remedy = "See above; `make engine` runs it by itself."
        run("make", "--silent", "engine", cwd=paths.root, failure="uv sync failed", remedy=remedy)
