"""Controllers of other projects in the running cluster: their own manifests, read in their Go modules, with programs
that are built from them. `keda.py` and `lws.py` say which.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localcluster import builds, images, pki
from localcluster.commands import run
from localcluster.images import Image
from localcluster.install import image_digest
from localcluster.kube import Kubectl, running_kubectl
from localcluster.network import NODE
from localcluster.paths import ClusterPaths, cache_root
from localcluster.programs import Group
from localcluster.progress import Progress

# The API server asks the servers behind these, so they come when those answer: until then others' requests would fail.
_WEBHOOKS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_ASKED_BY_THE_API_SERVER = ("APIService", *_WEBHOOKS)
READY_WITHIN = 120

JSON = dict[str, Any]


@dataclass(frozen=True)
class Upstream:
    """A project's controllers."""

    name: str
    """Of the command, the certificate and messages."""
    title: str
    what: str
    """What the command installs."""
    module: str
    group: Group
    image: Image
    namespace: str
    deployments: tuple[str, ...]
    services: tuple[str, ...]
    """That the API server asks over TLS."""
    secret: str
    """With the certificate of these."""
    left_out: tuple[str, ...]
    """Arguments: one replica each, so there is nobody to elect among; and certificates of the cluster's own authority,
    since projects' own rotation waits a minute for the kubelet to refresh the Secret."""
    removing: str
    """What `--remove` takes along."""
    adapt: Callable[[JSON], None] = lambda _: None
    """A further change of an object."""
    await_ready: Callable[[Kubectl], None] = lambda _: None
    """Of what comes last."""


@dataclass(frozen=True)
class Pair:
    """PEM: a certificate of all servers, its key, and the authority."""

    authority: bytes
    certificate: bytes
    key: bytes

    def encoded(self) -> Mapping[str, str]:
        """The data of a Secret."""
        files = {"ca.crt": self.authority, "tls.crt": self.certificate, "tls.key": self.key}
        return {name: base64.b64encode(content).decode() for name, content in files.items()}


def adapted(of: Upstream, upstream: Iterable[JSON], digest: str, pair: Pair) -> list[JSON]:
    """The project's manifests for this cluster: our image, our certificates, small requests, on the first node."""
    objects = [copy.deepcopy(dict(found)) for found in upstream]
    # Its own may be empty, for what a rotation writes.
    objects = [found for found in objects if (found["kind"], found["metadata"]["name"]) != ("Secret", of.secret)]
    for found in objects:
        if found["kind"] == "Deployment":
            _adapt(of, found["spec"], digest, pair)
        elif found["kind"] == "APIService":
            found["spec"]["caBundle"] = pair.encoded()["ca.crt"]
        elif found["kind"] in _WEBHOOKS:
            for webhook in found["webhooks"]:
                webhook["clientConfig"]["caBundle"] = pair.encoded()["ca.crt"]
        of.adapt(found)
    metadata = {"name": of.secret, "namespace": of.namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": dict(pair.encoded())}
    # Before the pods: the operator's volume is optional, and it would start without.
    first_pod = next(number for number, found in enumerate(objects) if found["kind"] == "Deployment")
    return [*objects[:first_pod], secret, *objects[first_pod:]]


def _adapt(of: Upstream, spec: JSON, digest: str, pair: Pair) -> None:
    template = spec["template"]
    spec |= {"strategy": {"type": "Recreate"}, "replicas": 1}
    certificate = hashlib.sha256(pair.certificate).hexdigest()[:16]
    # A pod reads both at its start only.
    template["metadata"]["annotations"] = {"localcluster/image": digest, "localcluster/certificate": certificate}
    pod = template["spec"]
    # Where the image is.
    pod["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    (container,) = pod["containers"]
    container |= {"image": of.image.reference, "imagePullPolicy": "Never"}
    container["args"] = [word for word in container["args"] if word not in of.left_out]
    container["resources"] = {"requests": {"cpu": "1m", "memory": "32Mi"}}
    container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 1}


def _certificate(of: Upstream, paths: ClusterPaths) -> Pair:
    ends = ("", f".{of.namespace}", f".{of.namespace}.svc", f".{of.namespace}.svc.cluster.local")
    names = ",".join(f"DNS:{service}{end}" for service in of.services for end in ends)
    pki.ensure_certificate(paths, pki.Certificate(of.name, f"/CN={of.name}", names))
    authority, certificate, key = (paths.pki / name for name in ("ca.crt", f"{of.name}.crt", f"{of.name}.key"))
    return Pair(authority.read_bytes(), certificate.read_bytes(), key.read_bytes())


def manifests(paths: ClusterPaths, source: Path) -> list[JSON]:
    """The project's own objects, from its module's folder `source`; the cluster's kubectl puts them together."""
    kustomize = (f"{paths.bin}/kubectl", "kustomize", str(source / "config" / "default"))
    return list(yaml.load_all(run(*kustomize), Loader=yaml.CSafeLoader))


def install(of: Upstream, paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """In the running cluster, ready; what is there already and unchanged is left alone."""
    kubectl = running_kubectl(paths)
    store = builds.Store(cache_root(environment, Path.home()))
    # Before the images' lock is taken: it takes minutes.
    builds.build(store, of.group, environment, progress)
    images.build_all(paths, progress, environment, (of.image.name,))
    source = builds.module_folder(store, of.group, of.module, environment, progress)
    digest = image_digest(paths, of.image.reference)
    wanted = adapted(of, manifests(paths, source), digest, _certificate(of, paths))
    with progress.step(of.title):
        kubectl.apply(found for found in wanted if found["kind"] not in _ASKED_BY_THE_API_SERVER)
        for name in of.deployments:
            kubectl.run("rollout", "status", f"deployment/{name}", "-n", of.namespace, timeout=READY_WITHIN)
        kubectl.apply(found for found in wanted if found["kind"] in _ASKED_BY_THE_API_SERVER)
        of.await_ready(kubectl)


def remove(of: Upstream, paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    """Takes it and everything of its kinds out of the cluster; nothing when it is not there."""
    kubectl = running_kubectl(paths)
    store = builds.Store(cache_root(environment, Path.home()))
    source = builds.module_folder(store, of.group, of.module, environment, progress)
    upstream = manifests(paths, source)
    with progress.step(f"removing {of.title}"):
        for found in upstream:
            # First, while its controllers are there to remove their finalizers.
            if found["kind"] == "CustomResourceDefinition":
                kubectl.delete([found])
        kubectl.delete([found for found in upstream if found["kind"] != "CustomResourceDefinition"])


def command(
    of: Upstream, argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress
) -> int:
    """`python -m localcluster NAME`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m localcluster {of.name}",
        description=f"Install {of.title} in this clone's running cluster: {of.what}.",
        epilog=f"""examples:
  python -m localcluster {of.name}                      build {of.title} (minutes, once for all clones) and install it
  python -m localcluster binaries --group {of.group}     build its programs only
  python -m localcluster {of.name} --remove             take it out, with every {of.removing}""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--remove", action="store_true", help="take it out of the cluster instead")
    (remove if parser.parse_args(argv).remove else install)(of, paths, environment, progress)
    return 0
