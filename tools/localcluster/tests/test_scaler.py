"""The certificates of a local installation with autoscaling: KEDA and the scaler accept each other and nobody else."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from localcluster import pki, scaler
from localcluster.errors import ClusterError

NAMESPACE, SERVICE = "llmservice-system", "llmservice-operator-activator"
ADDRESS = f"{SERVICE}.{NAMESPACE}.svc"


class Kubectl:
    """Records what is applied; answers whether KEDA's namespace is there."""

    def __init__(self, namespaces: str = "namespace/keda\n") -> None:
        self.namespaces = namespaces
        self.applied: list[Mapping[str, Any]] = []

    def __call__(self, *args: str, stdin: str | None = None) -> str:
        if args[0] == "get":
            assert args[1:3] == ("namespace", "keda")
            return self.namespaces
        assert args[0] == "apply"
        assert stdin is not None
        self.applied.append(json.loads(stdin))
        return ""

    def secret(self, namespace: str) -> Mapping[str, bytes]:
        (found,) = (
            one for one in self.applied if one["kind"] == "Secret" and one["metadata"]["namespace"] == namespace
        )
        return {key: base64.b64decode(value) for key, value in found["data"].items()}


@pytest.fixture(scope="module")
def provided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kubectl, Mapping[str, str], Path]:
    folder = tmp_path_factory.mktemp("state") / "scaler-pki"
    kubectl = Kubectl()
    return kubectl, scaler.provide(kubectl, folder, NAMESPACE, SERVICE), folder


def context(
    purpose: ssl.Purpose, files: Mapping[str, bytes], folder: Path, *, certificate: bool = True
) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cadata=files["ca.crt"].decode())
    made.verify_mode = ssl.CERT_REQUIRED
    if certificate:
        pair = folder / "pair.pem"
        pair.write_bytes(files["tls.crt"] + files["tls.key"])
        made.load_cert_chain(pair)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Both sides in memory; ssl.SSLError where one refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    ]
    for _ in range(10):
        for side in list(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)
        if not sides:
            return
    raise AssertionError("the handshake does not end")


def test_keda_and_the_scaler_accept_each_other(
    provided: tuple[Kubectl, Mapping[str, str], Path], tmp_path: Path
) -> None:
    kubectl, _, _ = provided
    server = context(ssl.Purpose.CLIENT_AUTH, kubectl.secret(NAMESPACE), tmp_path)
    client = context(ssl.Purpose.SERVER_AUTH, kubectl.secret("keda"), tmp_path)
    handshake(server, client, ADDRESS)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, client, f"{SERVICE}.elsewhere.svc")
    nameless = context(ssl.Purpose.SERVER_AUTH, kubectl.secret("keda"), tmp_path, certificate=False)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server, nameless, ADDRESS)


def test_another_authority_is_refused(provided: tuple[Kubectl, Mapping[str, str], Path], tmp_path: Path) -> None:
    kubectl, _, _ = provided
    other = Kubectl()
    scaler.provide(other, tmp_path / "other", NAMESPACE, SERVICE)
    server = context(ssl.Purpose.CLIENT_AUTH, kubectl.secret(NAMESPACE), tmp_path)
    stranger = context(ssl.Purpose.SERVER_AUTH, other.secret("keda"), tmp_path)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, stranger, ADDRESS)


def test_the_values_name_the_secrets_that_are_made(provided: tuple[Kubectl, Mapping[str, str], Path]) -> None:
    kubectl, values, _ = provided
    places = {
        one["metadata"]["namespace"]: one["metadata"]["name"] for one in kubectl.applied if one["kind"] == "Secret"
    }
    assert values == {
        "autoscaling.tls.secretName": places[NAMESPACE],
        "autoscaling.keda.namespace": "keda",
        "autoscaling.keda.clientSecretName": places["keda"],
    }
    assert kubectl.applied[0]["metadata"]["name"] == NAMESPACE, "before what lies in it"
    assert all(set(kubectl.secret(place)) == {"ca.crt", "tls.crt", "tls.key"} for place in places)


def test_a_repeated_installation_changes_no_certificate(provided: tuple[Kubectl, Mapping[str, str], Path]) -> None:
    first, _, folder = provided
    again = Kubectl()
    scaler.provide(again, folder, NAMESPACE, SERVICE)
    assert again.applied == first.applied


def test_an_interrupted_making_leaves_no_half_authority(tmp_path: Path) -> None:
    bad = pki.Certificate("bad", "not a subject", "DNS:bad")
    with pytest.raises(ClusterError):
        pki.make_authority(tmp_path / "new", "x", (bad,))
    assert not (tmp_path / "new").exists()


def test_without_keda_nothing_is_made_and_the_remedy_is_named(tmp_path: Path) -> None:
    kubectl = Kubectl(namespaces="")
    with pytest.raises(ClusterError, match="python -m localcluster keda"):
        scaler.provide(kubectl, tmp_path / "new", NAMESPACE, SERVICE)
    assert kubectl.applied == []
    assert not (tmp_path / "new").exists()
