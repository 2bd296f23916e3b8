"""KEDA in the running cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from localcluster import images, upstream
from localcluster.kube import Kubectl
from localcluster.paths import ClusterPaths
from localcluster.programs import Group
from localcluster.progress import Progress
from localcluster.scaler import KEDA_NAMESPACE as NAMESPACE

OPERATOR = "keda-operator"
METRICS_SERVER = "keda-metrics-apiserver"
WEBHOOKS = "keda-admission"
_METRICS_API = "v1beta1.external.metrics.k8s.io"


def _await_metrics(kubectl: Kubectl) -> None:
    patience = f"--timeout={upstream.READY_WITHIN}s"
    available = ("wait", "--for=condition=Available", f"apiservice/{_METRICS_API}", patience)
    kubectl.run(*available, timeout=upstream.READY_WITHIN + 10)


KEDA = upstream.Upstream(
    "keda",
    "KEDA",
    "operator, metrics API server, admission webhooks",
    "github.com/kedacore/keda/v2",
    Group.KEDA,
    images.KEDA,
    NAMESPACE,
    deployments=(OPERATOR, METRICS_SERVER, WEBHOOKS),
    services=(OPERATOR, METRICS_SERVER, "keda-admission-webhooks"),
    secret="kedaorg-certs",
    left_out=("--leader-elect", "--enable-cert-rotation=true"),
    removing="ScaledObject",
    await_ready=_await_metrics,
)
DEPLOYMENTS = KEDA.deployments


def install(paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """KEDA in the running cluster, ready."""
    upstream.install(KEDA, paths, environment, progress)


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    """`python -m localcluster keda`."""
    return upstream.command(KEDA, argv, paths, environment, progress)
