"""KEDA's own manifests, as the local cluster runs them; and the certificates that an aggregated API needs."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import pytest

from localcluster import components, pki
from localcluster.keda import KEDA
from localcluster.network import NODE
from localcluster.paths import ClusterPaths
from localcluster.upstream import Pair, adapted

PAIR = Pair(b"authority", b"certificate", b"key")
AUTHORITY = base64.b64encode(b"authority").decode()


def deployment(name: str) -> dict[str, Any]:
    """With every field that is changed, as KEDA's manifests have them."""
    container = {
        "name": name,
        "image": f"ghcr.io/kedacore/{name}:main",
        "imagePullPolicy": "Always",
        "args": ["--leader-elect", "--zap-log-level=info", "--enable-cert-rotation=true"],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1000m"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}, "initialDelaySeconds": 20},
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    return {"kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": 1, "template": template}}


UPSTREAM: list[dict[str, Any]] = [
    {"kind": "Namespace", "metadata": {"name": "keda"}},
    {"kind": "CustomResourceDefinition", "metadata": {"name": "scaledobjects.keda.sh"}, "spec": {"group": "keda.sh"}},
    deployment("keda-operator"),
    deployment("keda-metrics-apiserver"),
    {"kind": "APIService", "metadata": {"name": "v1beta1.external.metrics.k8s.io"}, "spec": {"versionPriority": 100}},
    {
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "keda-admission"},
        "webhooks": [{"name": name, "clientConfig": {"service": {"name": "w"}}} for name in ("a", "b")],
    },
]


def made(digest: str = "sha256:1", pair: Pair = PAIR) -> list[dict[str, Any]]:
    return adapted(KEDA, UPSTREAM, digest, pair)


def only(kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [each for each in made() if each["kind"] == kind and each["metadata"]["name"].startswith(name)]
    return found


@pytest.mark.parametrize("name", ["keda-operator", "keda-metrics-apiserver"])
def test_a_pod_runs_our_image_on_the_first_node_and_is_ready_soon(name: str) -> None:
    pod = only("Deployment", name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.local/keda:dev", "Never")
    assert container["args"] == ["--zap-log-level=info"]
    assert container["resources"] == {"requests": {"cpu": "1m", "memory": "32Mi"}}
    assert container["readinessProbe"]["initialDelaySeconds"] == 1
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8081}
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": NODE}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(made(digest="sha256:2"), id="a rebuilt image"),
        pytest.param(made(pair=Pair(b"authority", b"other", b"key")), id="another certificate"),
    ],
)
def test_what_a_pod_reads_at_its_start_only_makes_another_pod(other: list[dict[str, Any]]) -> None:
    templates = [
        [each["spec"]["template"] for each in found if each["kind"] == "Deployment"] for found in (made(), other)
    ]
    assert all(before != after for before, after in zip(*templates, strict=True))
    assert made() == made()


def test_the_api_server_trusts_the_authority_in_the_secret() -> None:
    assert only("Secret")["data"]["ca.crt"] == AUTHORITY
    assert set(only("Secret")["data"]) == {"ca.crt", "tls.crt", "tls.key"}
    assert only("APIService")["spec"] == {"versionPriority": 100, "caBundle": AUTHORITY}
    webhooks = only("ValidatingWebhookConfiguration")["webhooks"]
    assert [webhook["clientConfig"]["caBundle"] for webhook in webhooks] == [AUTHORITY] * 2


def test_the_secret_is_there_before_the_pods_and_after_its_namespace() -> None:
    kinds = [found["kind"] for found in made()]
    assert kinds.index("Namespace") < kinds.index("Secret") < kinds.index("Deployment")


def test_the_manifests_that_were_read_stay_as_they_are() -> None:
    before = copy.deepcopy(UPSTREAM)
    made()
    assert before == UPSTREAM


def test_a_cluster_of_before_gets_the_certificates_that_came_later(tmp_path: Path) -> None:
    """A running cluster's other certificates stay: etcd holds tokens that were signed with them."""
    paths = ClusterPaths(tmp_path)
    pki.ensure(paths)
    kept = (paths.pki / "apiserver.crt").read_bytes()
    for file in paths.pki.glob("front-proxy.*"):
        file.unlink()
    pki.ensure(paths)
    assert (paths.pki / "apiserver.crt").read_bytes() == kept
    missing = [
        word
        for word in components.apiserver(paths).command
        if (name := word.partition("=")[2]).startswith(str(paths.pki)) and not Path(name).exists()
    ]
    assert missing == []
