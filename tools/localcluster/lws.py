"""LeaderWorkerSet in the running cluster, for replicas over several nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from localcluster import images, upstream
from localcluster.paths import ClusterPaths
from localcluster.programs import Group
from localcluster.progress import Progress

_CONFIG = "controller_manager_config.yaml"


def _adapt(found: upstream.JSON) -> None:
    """One replica without an election, which takes the certificate that it is given."""
    if found["kind"] == "ConfigMap" and _CONFIG in found["data"]:
        config = yaml.safe_load(found["data"][_CONFIG])
        config |= {"leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False}}
        found["data"][_CONFIG] = yaml.safe_dump(config)


LWS = upstream.Upstream(
    "lws",
    "LeaderWorkerSet",
    "controller and admission webhooks",
    "sigs.k8s.io/lws",
    Group.LWS,
    images.LWS,
    "lws-system",
    deployments=("lws-controller-manager",),
    services=("lws-webhook-service",),
    secret="lws-webhook-server-cert",
    left_out=(),
    removing="LeaderWorkerSet",
    adapt=_adapt,
)


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    """`python -m localcluster lws`."""
    return upstream.command(LWS, argv, paths, environment, progress)
