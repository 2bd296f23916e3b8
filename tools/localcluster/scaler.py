"""What KEDA and the scaler of an installation with autoscaling trust each other by: an authority, and two Secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from localcluster import pki
from localcluster.errors import ClusterError

KEDA_NAMESPACE = "keda"
SERVER_SECRET = "llmservice-activator-tls"
CLIENT_SECRET = "llmservice-activator-client"


def provide(kubectl: Callable[..., str], folder: Path, namespace: str, service: str) -> Mapping[str, str]:
    """Makes both Secrets for the scaler's Service in the namespace of the release; returns the chart's values for them.

    The certificates in `folder` are kept: an installation that is repeated changes no Secret. ClusterError where KEDA's
    namespace is missing.
    """
    if not kubectl("get", "namespace", KEDA_NAMESPACE, "--ignore-not-found", "-o", "name"):
        raise ClusterError(f"there is no namespace {KEDA_NAMESPACE}", "Install KEDA: python -m localcluster keda")
    server = pki.Certificate("server", f"/CN={service}", f"DNS:{service}.{namespace}.svc")
    client = pki.Certificate("client", "/CN=keda", "DNS:keda")
    pki.make_authority(folder, "llmservice-scaler", (server, client))
    manifests = (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        _secret(namespace, SERVER_SECRET, folder, server),
        _secret(KEDA_NAMESPACE, CLIENT_SECRET, folder, client),
    )
    for manifest in manifests:
        kubectl("apply", "--server-side", "--field-manager=localcluster", "-f", "-", stdin=json.dumps(manifest))
    return {
        "autoscaling.tls.secretName": SERVER_SECRET,
        "autoscaling.keda.namespace": KEDA_NAMESPACE,
        "autoscaling.keda.clientSecretName": CLIENT_SECRET,
    }


def _secret(namespace: str, name: str, folder: Path, certificate: pki.Certificate) -> Mapping[str, object]:
    files = {
        "tls.crt": f"{certificate.name}.crt",
        "tls.key": f"{certificate.name}.key",
        "ca.crt": "ca.crt",
    }
    data = {key: base64.b64encode((folder / file).read_bytes()).decode() for key, file in files.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}
