"""KEDA in the running cluster: its own manifests, read in its Go module, with the programs that are built from it."""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localcluster import builds, images, pki
from localcluster.commands import run
from localcluster.install import image_digest
from localcluster.kube import running_kubectl
from localcluster.network import NODE
from localcluster.paths import ClusterPaths, cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from localcluster.scaler import KEDA_NAMESPACE as NAMESPACE

MODULE = "github.com/kedacore/keda/v2"
OPERATOR = "keda-operator"
METRICS_SERVER = "keda-metrics-apiserver"
WEBHOOKS = "keda-admission"
DEPLOYMENTS = (OPERATOR, METRICS_SERVER, WEBHOOKS)
_SERVICES = (OPERATOR, METRICS_SERVER, "keda-admission-webhooks")
_SECRET = "kedaorg-certs"
_METRICS_API = "v1beta1.external.metrics.k8s.io"
# The API server asks the servers behind these, so they come when those answer: until then others' requests would fail.
_ASKED_BY_THE_API_SERVER = ("APIService", "ValidatingWebhookConfiguration")
# One replica each, so there is nobody to elect among; and the certificates are of the cluster's own authority: KEDA's
# rotation restarts its pods and waits a minute for the kubelet to refresh the Secret.
_LEFT_OUT = ("--leader-elect", "--enable-cert-rotation=true")
_READY_WITHIN = 120

JSON = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """PEM: a certificate of all three servers, its key, and the authority."""

    authority: bytes
    certificate: bytes
    key: bytes

    def encoded(self) -> Mapping[str, str]:
        """The data of a Secret."""
        files = {"ca.crt": self.authority, "tls.crt": self.certificate, "tls.key": self.key}
        return {name: base64.b64encode(content).decode() for name, content in files.items()}


def adapted(upstream: Iterable[JSON], image: str, digest: str, pair: Pair) -> list[JSON]:
    """KEDA's manifests for this cluster: our image, our certificates, small requests, on the first node."""
    objects = [copy.deepcopy(dict(found)) for found in upstream]
    for found in objects:
        if found["kind"] == "Deployment":
            _adapt(found["spec"], image, digest, pair)
        elif found["kind"] == "APIService":
            found["spec"]["caBundle"] = pair.encoded()["ca.crt"]
        elif found["kind"] == "ValidatingWebhookConfiguration":
            for webhook in found["webhooks"]:
                webhook["clientConfig"]["caBundle"] = pair.encoded()["ca.crt"]
    metadata = {"name": _SECRET, "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": dict(pair.encoded())}
    # Before the pods: the operator's volume is optional, and it would start without.
    first_pod = next(number for number, found in enumerate(objects) if found["kind"] == "Deployment")
    return [*objects[:first_pod], secret, *objects[first_pod:]]


def _adapt(spec: JSON, image: str, digest: str, pair: Pair) -> None:
    template = spec["template"]
    spec["strategy"] = {"type": "Recreate"}
    certificate = hashlib.sha256(pair.certificate).hexdigest()[:16]
    # A pod reads both at its start only.
    template["metadata"]["annotations"] = {"localcluster/image": digest, "localcluster/certificate": certificate}
    pod = template["spec"]
    # Where the image is.
    pod["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    (container,) = pod["containers"]
    container |= {"image": image, "imagePullPolicy": "Never"}
    container["args"] = [word for word in container["args"] if word not in _LEFT_OUT]
    container["resources"] = {"requests": {"cpu": "1m", "memory": "32Mi"}}
    container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 1}


def _certificate(paths: ClusterPaths) -> Pair:
    ends = ("", f".{NAMESPACE}", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
    names = ",".join(f"DNS:{service}{end}" for service in _SERVICES for end in ends)
    pki.ensure_certificate(paths, pki.Certificate("keda", "/CN=keda", names))
    authority, certificate, key = (paths.pki / name for name in ("ca.crt", "keda.crt", "keda.key"))
    return Pair(authority.read_bytes(), certificate.read_bytes(), key.read_bytes())


def manifests(paths: ClusterPaths, source: Path) -> list[JSON]:
    """KEDA's own objects, from its module's folder `source`; the cluster's kubectl puts them together."""
    kustomize = (f"{paths.bin}/kubectl", "kustomize", str(source / "config" / "default"))
    return list(yaml.load_all(run(*kustomize), Loader=yaml.CSafeLoader))


def install(paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """KEDA in the running cluster, ready; what is there already and unchanged is left alone."""
    kubectl = running_kubectl(paths)
    store = builds.Store(cache_root(environment, Path.home()))
    # Before the images' lock is taken: it takes minutes.
    builds.build(store, Group.KEDA, environment, progress)
    images.build_all(paths, progress, environment, (images.KEDA.name,))
    source = builds.module_folder(store, Group.KEDA, MODULE, environment, progress)
    reference = images.KEDA.reference
    wanted = adapted(manifests(paths, source), reference, image_digest(paths, reference), _certificate(paths))
    with progress.step("KEDA"):
        kubectl.apply(found for found in wanted if found["kind"] not in _ASKED_BY_THE_API_SERVER)
        for name in DEPLOYMENTS:
            kubectl.run("rollout", "status", f"deployment/{name}", "-n", NAMESPACE, timeout=_READY_WITHIN)
        kubectl.apply(found for found in wanted if found["kind"] in _ASKED_BY_THE_API_SERVER)
        available = ("wait", "--for=condition=Available", f"apiservice/{_METRICS_API}", f"--timeout={_READY_WITHIN}s")
        kubectl.run(*available, timeout=_READY_WITHIN + 10)


def remove(paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """Takes KEDA and everything of its kinds out of the cluster; nothing when it is not there."""
    kubectl = running_kubectl(paths)
    store = builds.Store(cache_root(environment, Path.home()))
    source = builds.module_folder(store, Group.KEDA, MODULE, environment, progress)
    upstream = manifests(paths, source)
    with progress.step("removing KEDA"):
        for found in upstream:
            # First, while KEDA is there to remove its finalizers.
            if found["kind"] == "CustomResourceDefinition":
                kubectl.delete([found])
        kubectl.delete([found for found in upstream if found["kind"] != "CustomResourceDefinition"])


EXAMPLES = """examples:
  python -m localcluster keda                      build KEDA (minutes, once for all clones) and install it
  python -m localcluster binaries --group keda     build its programs only
  python -m localcluster keda --remove             take it out, with every ScaledObject"""


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    """`python -m localcluster keda`."""
    parser = argparse.ArgumentParser(
        prog="python -m localcluster keda",
        description="Install KEDA in this clone's running cluster: operator, metrics API server, admission webhooks.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--remove", action="store_true", help="take it out of the cluster instead")
    (remove if parser.parse_args(argv).remove else install)(paths, environment, progress)
    return 0
