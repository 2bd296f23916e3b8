"""A monitored cluster: the Prometheus operator by its own manifests, read in its Go module, and one Prometheus.

Monitors and rules are selected as kube-prometheus-stack does it by default: by the label `release`.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from localcluster import builds, images
from localcluster.install import image_digest
from localcluster.kube import running_kubectl
from localcluster.network import NODE
from localcluster.paths import ClusterPaths, cache_root
from localcluster.programs import Group
from localcluster.progress import Progress

MODULE = "github.com/prometheus-operator/prometheus-operator"
NAMESPACE = "monitoring"
RELEASE = "prometheus"
"""The value of the label `release` by which the Prometheus selects monitors and rules."""
OPERATOR = "prometheus-operator"
SERVICE = "prometheus-operated"
"""The operator's Service in front of the Prometheus, port 9090."""
_IMAGE = "localcluster/image"
"""An annotation of pods: the digest of their image, since a rebuilt one has the same name."""
_READY_WITHIN = 180
_PINNED = {"nodeSelector": {"kubernetes.io/hostname": NODE}}
"""Where the images are."""

JSON = dict[str, Any]


def adapted(upstream: Iterable[JSON], digest: str) -> list[JSON]:
    """The operator's and its Prometheus' manifests for this cluster: our images and namespace, small requests."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    objects = [copy.deepcopy(found) for found in upstream]
    for found in objects:
        if not found["kind"].startswith("ClusterRole"):
            found["metadata"]["namespace"] = NAMESPACE
        for subject in found.get("subjects", ()):
            subject["namespace"] = NAMESPACE
        if found["kind"] == "Deployment":
            _adapt(found["spec"]["template"], digest)
    return [namespace, *objects]


def _adapt(template: JSON, digest: str) -> None:
    template["metadata"]["annotations"][_IMAGE] = digest
    pod, image = template["spec"], images.PROMETHEUS_OPERATOR.reference
    pod |= _PINNED
    (container,) = pod["containers"]
    container |= {"image": image, "imagePullPolicy": "Never"}
    # No endpoints of kubelets, which nothing here scrapes.
    reloader = "--prometheus-config-reloader="
    kept = [word for word in container["args"] if not word.startswith(("--kubelet-", reloader))]
    container["args"] = [*kept, reloader + image, "--config-reloader-cpu-request=1m"]
    container["resources"] = {"requests": {"cpu": "1m", "memory": "32Mi"}}


def prometheus(digest: str) -> JSON:
    """One Prometheus for all namespaces, which keeps a few hours."""
    selected = {"matchLabels": {"release": RELEASE}}
    kinds = ("serviceMonitor", "podMonitor", "rule")
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": "prometheus", "namespace": NAMESPACE},
        "spec": {
            "image": images.PROMETHEUS.reference,
            "imagePullPolicy": "Never",
            "serviceAccountName": "prometheus",
            "podMetadata": {"annotations": {_IMAGE: digest}},
            "retention": "6h",
            "resources": {"requests": {"cpu": "1m", "memory": "64Mi"}},
            **_PINNED,
            **{f"{kind}Selector": selected for kind in kinds},
            **{f"{kind}NamespaceSelector": {} for kind in kinds},
        },
    }


def install(paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """Both in the running cluster, ready; what is there already and unchanged is left alone."""
    kubectl = running_kubectl(paths)
    store = builds.Store(cache_root(environment, Path.home()))
    # Before the images' lock is taken: it takes minutes.
    for group in (Group.PROMETHEUS, Group.PROMETHEUS_OPERATOR):
        builds.build(store, group, environment, progress)
    images.build_all(paths, progress, environment, (images.PROMETHEUS.name, images.PROMETHEUS_OPERATOR.name))
    source = _source(store, environment, progress)
    operator, server = (
        image_digest(paths, image.reference) for image in (images.PROMETHEUS_OPERATOR, images.PROMETHEUS)
    )
    with progress.step("the Prometheus operator"):
        kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(_crds(source)), timeout=120)
        kubectl.apply(adapted(_upstream(source), operator))
        kubectl.run("rollout", "status", f"deployment/{OPERATOR}", "-n", NAMESPACE, timeout=_READY_WITHIN)
    with progress.step("Prometheus"):
        kubectl.apply([prometheus(server)])
        available = ("wait", "--for=condition=Available", "prometheus/prometheus", f"--timeout={_READY_WITHIN}s")
        kubectl.run(*available, "-n", NAMESPACE, timeout=_READY_WITHIN + 10)


def remove(paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """Takes both out of the cluster, with every monitor and rule; nothing when they are not there."""
    kubectl = running_kubectl(paths)
    source = _source(builds.Store(cache_root(environment, Path.home())), environment, progress)
    with progress.step("removing Prometheus and its operator"):
        kubectl.delete([found for found in adapted(_upstream(source), "") if found["kind"] != "Namespace"])
        kubectl.run("delete", "--ignore-not-found", "-f", str(_crds(source)), timeout=120)
        kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)


def _source(store: builds.Store, environment: Mapping[str, str], progress: Progress) -> Path:
    return builds.module_folder(store, Group.PROMETHEUS_OPERATOR, MODULE, environment, progress)


def _crds(source: Path) -> Path:
    return source / "example" / "prometheus-operator-crd"


def _upstream(source: Path) -> list[JSON]:
    """Roles, accounts, Deployment and Service of the operator; role and account of a Prometheus."""
    rbac = source / "example" / "rbac"
    operator = sorted((rbac / OPERATOR).glob("*.yaml"))
    account = sorted((rbac / "prometheus").glob("prometheus-*.yaml"))
    files = [file for file in (*operator, *account) if "service-monitor" not in file.name]
    return [yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in files]


EXAMPLES = f"""examples:
  python -m localcluster prometheus                build both (minutes, once for all clones) and install them
  kubectl -n {NAMESPACE} port-forward svc/{SERVICE} 9090
                                                   then: promtool query instant http://127.0.0.1:9090 up
  python -m localcluster prometheus --remove       take them out, with every monitor and rule"""


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    """`python -m localcluster prometheus`."""
    parser = argparse.ArgumentParser(
        prog="python -m localcluster prometheus",
        description="Install the Prometheus operator and a Prometheus in this clone's running cluster. It selects "
        f"monitors and rules with the label release={RELEASE}, in all namespaces.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--remove", action="store_true", help="take them out of the cluster instead")
    (remove if parser.parse_args(argv).remove else install)(paths, environment, progress)
    return 0
