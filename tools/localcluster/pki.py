"""Keys and certificates: one authority, and a client certificate for each component by its subject."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.commands import run
from localcluster.network import API_SERVICE, GATEWAY, NODE
from localcluster.paths import ClusterPaths
from localcluster.place import Place
from localcluster.processes import write_atomically

API = "https://127.0.0.1:6443"
# For those who have another 127.0.0.1.
API_FROM_NODES = f"https://{GATEWAY}:6443"
FRONT_PROXY = "front-proxy-client"
"""The only name that aggregated APIs take clients' identities from: the authority signs the clients' own too."""


@dataclass(frozen=True)
class Certificate:
    name: str
    subject: str
    names: str


CERTIFICATES: tuple[Certificate, ...] = (
    Certificate(
        "apiserver",
        "/CN=kube-apiserver",
        f"IP:127.0.0.1,IP:{API_SERVICE},IP:{GATEWAY},DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,"
        "DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local",
    ),
    Certificate("admin", "/O=system:masters/CN=admin", "DNS:admin"),
    Certificate("controller-manager", "/CN=system:kube-controller-manager", "DNS:controller-manager"),
    Certificate("scheduler", "/CN=system:kube-scheduler", "DNS:scheduler"),
    Certificate("proxy", "/CN=system:kube-proxy", "DNS:proxy"),
    Certificate("dns", "/CN=system:coredns", "DNS:dns"),
    # With it the API server speaks for its clients to the servers of aggregated APIs.
    Certificate("front-proxy", f"/CN={FRONT_PROXY}", f"DNS:{FRONT_PROXY}"),
    Certificate("kubelet", f"/O=system:nodes/CN=system:node:{NODE}", f"DNS:{NODE},IP:127.0.0.1,IP:{GATEWAY}"),
)


def kubeconfig(authority: bytes, certificate: bytes, key: bytes, server: str = API) -> str:
    """Self-contained, so that it may be copied elsewhere. JSON is YAML."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": server, "certificate-authority-data": encoded(authority)}
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "local", "user": user}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
        "current-context": "local",
    }
    return json.dumps(content, indent=1)


def _openssl(folder: Path, *arguments: str) -> None:
    run("openssl", *arguments, cwd=folder)


def _issue(folder: Path, wanted: Certificate) -> None:
    key, request, certificate = (f"{wanted.name}.{end}" for end in ("key", "csr", "crt"))
    _openssl(folder, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", key)
    _openssl(folder, "req", "-new", "-key", key, "-out", request, "-subj", wanted.subject)
    extensions = folder / f"{wanted.name}.ext"
    extensions.write_text(f"subjectAltName={wanted.names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    issuer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "3650")
    _openssl(folder, "x509", "-req", "-in", request, *issuer, "-out", certificate, "-extfile", extensions.name)


def _authority(folder: Path, name: str) -> None:
    _openssl(folder, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "ca.key")
    _openssl(folder, "req", "-x509", "-key", "ca.key", "-out", "ca.crt", "-days", "3650", "-subj", f"/CN={name}")


def make_authority(folder: Path, name: str, certificates: Sequence[Certificate]) -> None:
    """An authority of its own in a new folder, with these certificates. One that is there is kept."""
    if folder.is_dir():
        return
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, mode=0o700)
    _authority(partial, name)
    for wanted in certificates:
        _issue(partial, wanted)
    partial.rename(folder)


def _make(folder: Path) -> None:
    _authority(folder, "llmservice-local")
    _openssl(folder, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "sa.key")
    _openssl(folder, "ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def ensure(paths: ClusterPaths) -> None:
    """Makes each once: they live as long as the state does, since etcd holds tokens signed with them."""
    if not paths.pki.is_dir():
        partial = paths.pki.with_name(f".pki.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True, mode=0o700)
        _make(partial)
        partial.rename(paths.pki)
    for wanted in CERTIFICATES:
        ensure_certificate(paths, wanted, API)
    write_atomically(paths.kubeconfig, paths.kubeconfig_of("admin").read_text(), 0o600)


def ensure_node(paths: ClusterPaths, place: Place) -> None:
    """The identities of a second node's kubelet and kube-proxy."""
    names = f"DNS:{place.name},IP:127.0.0.1,IP:{place.gateway}"
    wanted = (
        Certificate(place.kubelet_identity, f"/O=system:nodes/CN=system:node:{place.name}", names),
        Certificate(place.proxy_identity, "/CN=system:kube-proxy", f"DNS:{place.proxy_identity}"),
    )
    for certificate in wanted:
        ensure_certificate(paths, certificate)


def ensure_certificate(paths: ClusterPaths, wanted: Certificate, server: str = API_FROM_NODES) -> None:
    """One more of this authority, with a kubeconfig, which reaches the API from elsewhere than the host by default."""
    target = paths.kubeconfig_of(wanted.name)
    if target.exists():
        return
    _issue(paths.pki, wanted)
    write_atomically(target, _kubeconfig_of(paths.pki, wanted, server), 0o600)


def _kubeconfig_of(folder: Path, wanted: Certificate, server: str) -> str:
    authority = (folder / "ca.crt").read_bytes()
    certificate, key = (folder / f"{wanted.name}.crt").read_bytes(), (folder / f"{wanted.name}.key").read_bytes()
    return kubeconfig(authority, certificate, key, server)
