"""The kinds of the Gateway API and of its inference extension in the running cluster: the projects' own CRDs, read in
their Go modules. No Gateway's controller comes with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from localcluster import builds
from localcluster.kube import running_kubectl
from localcluster.paths import ClusterPaths, cache_root
from localcluster.programs import Group
from localcluster.progress import Progress

JSON = dict[str, object]
_FILES: Mapping[Group, Mapping[str, tuple[str, ...]]] = {
    Group.ENDPOINT_PICKER: {
        "sigs.k8s.io/gateway-api": (
            "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
            "config/crd/standard/gateway.networking.k8s.io_gateways.yaml",
            "config/crd/standard/gateway.networking.k8s.io_gatewayclasses.yaml",
        ),
        "sigs.k8s.io/gateway-api-inference-extension": (
            "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
            "config/crd/bases/inference.networking.x-k8s.io_inferenceobjectives.yaml",
            "config/crd/bases/inference.networking.x-k8s.io_inferencemodelrewrites.yaml",
        ),
    },
    Group.ENVOY_GATEWAY: {
        "github.com/envoyproxy/gateway": (
            "charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_backends.yaml",
            "charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml",
        ),
        "github.com/envoyproxy/ai-gateway": (
            "manifests/charts/ai-gateway-crds-helm/templates/aigateway.envoyproxy.io_aigatewayroutes.yaml",
            "manifests/charts/ai-gateway-crds-helm/templates/aigateway.envoyproxy.io_aiservicebackends.yaml",
        ),
    },
}


def crds(environment: Mapping[str, str], progress: Progress, group: Group = Group.ENDPOINT_PICKER) -> list[JSON]:
    """Of HTTPRoutes, Gateways, InferencePools and what the endpoint picker reads besides; or of Envoy's Gateways."""
    store = builds.Store(cache_root(environment, Path.home()))
    found: list[JSON] = []
    for module, names in _FILES[group].items():
        folder = builds.module_folder(store, group, module, environment, progress)
        found += [yaml.load((folder / name).read_text(), Loader=yaml.CSafeLoader) for name in names]
    return found


def install(
    paths: ClusterPaths, environment: Mapping[str, str], progress: Progress, group: Group = Group.ENDPOINT_PICKER
) -> None:
    kubectl = running_kubectl(paths)
    wanted = crds(environment, progress, group)
    with progress.step("CRDs of Gateways"):
        kubectl.apply(wanted)
        names = [f"crd/{each['metadata']['name']}" for each in wanted]  # type: ignore[index]
        kubectl.run("wait", *names, "--for=condition=Established", "--timeout=60s", timeout=90)


def remove(
    paths: ClusterPaths, environment: Mapping[str, str], progress: Progress, group: Group = Group.ENDPOINT_PICKER
) -> None:
    """With every object of these kinds."""
    with progress.step("removing CRDs of Gateways"):
        running_kubectl(paths).delete(crds(environment, progress, group))
