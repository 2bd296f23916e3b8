"""A plain client for the API server, and the CRD under a group of its own."""

import base64
import copy
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from llmservice_api import constants
from llmservice_api.crd import crd

from tests.support.patience import PATIENCE

# Not the real group: no operator looks at these objects, and an installed chart keeps its CRD.
# One for each process that runs tests.
GROUP = f"contract{os.environ.get('PYTEST_XDIST_WORKER', '')}.{constants.GROUP}"
API_VERSION = f"{GROUP}/{constants.VERSION}"
RESOURCE = f"{constants.PLURAL}.{GROUP}"
NAMESPACE = "default"
SERVICES = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/{constants.PLURAL}"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}


def connect(kubeconfig: Path) -> httpx.Client:
    """A client with the credentials of a kubeconfig, which must name a server on this machine."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    host = httpx.URL(cluster["server"]).host
    if host not in ("127.0.0.1", "localhost"):
        raise RuntimeError(f"{kubeconfig} names {host}: these tests run against the local cluster only")
    context = ssl.create_default_context(cadata=_data(cluster, "certificate-authority").decode())
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder, "client.pem")
        pem.write_bytes(_data(user, "client-certificate") + b"\n" + _data(user, "client-key"))
        context.load_cert_chain(pem)
    return httpx.Client(base_url=cluster["server"], verify=context, trust_env=False, timeout=PATIENCE)


def _data(part: Mapping[str, str], name: str) -> bytes:
    if f"{name}-data" in part:
        return base64.b64decode(part[f"{name}-data"])
    return Path(part[name]).read_bytes()


def contract_crd() -> dict[str, Any]:
    """The CRD as it ships, but for its group."""
    ours = copy.deepcopy(crd())
    ours["metadata"]["name"] = RESOURCE
    ours["spec"]["group"] = GROUP
    ours["spec"]["names"]["shortNames"] = ["contractllms"]
    ours["spec"]["names"]["categories"] = []
    return ours


@dataclass(frozen=True)
class Refusal:
    """What the API server said: its message, and what it said about each field."""

    message: str
    causes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, response: httpx.Response) -> "Refusal":
        status = response.json()
        causes = status.get("details", {}).get("causes", [])
        return cls(status["message"], tuple((cause.get("field", ""), cause["message"]) for cause in causes))


@dataclass(frozen=True)
class Api:
    """LLMServices of the contract group."""

    http: httpx.Client

    def create(self, manifest: Mapping[str, Any], **query: str) -> httpx.Response:
        body = {**manifest, "apiVersion": API_VERSION, "kind": constants.KIND}
        return self.http.post(SERVICES, json=body, params=query)

    def update(self, current: Mapping[str, Any], manifest: Mapping[str, Any], **query: str) -> httpx.Response:
        body = {**current, "spec": manifest["spec"]}
        return self.http.put(f"{SERVICES}/{current['metadata']['name']}", json=body, params=query)

    def try_create(self, manifest: Mapping[str, Any]) -> httpx.Response:
        return self.create(manifest, **DRY_RUN)

    def get(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = self.http.get(f"{SERVICES}/{name}").raise_for_status().json()
        return body

    @contextmanager
    def existing(self, manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """An object that is really there, and gone afterwards."""
        answer = self.create(manifest, fieldValidation="Strict")
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        try:
            yield created
        finally:
            self.http.delete(f"{SERVICES}/{created['metadata']['name']}")
