"""The API server as a service account with its token sees it."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.cluster import COLLECTIONS, Cluster
from tests.support.patience import PATIENCE

JSON = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the API server said: the code, and its message where it refused."""

    code: int
    message: str

    @classmethod
    def of(cls, response: httpx.Response) -> Answer:
        return cls(response.status_code, response.json().get("message", "") if response.is_error else "")


@dataclass(frozen=True)
class Token:
    """Requests with the token of one service account."""

    api: httpx.Client
    namespace: str

    @classmethod
    def of(cls, cluster: Cluster, namespace: str, account: str) -> Token:
        token = cluster.kubectl("create", "token", account, "-n", namespace, "--duration=1h").strip()
        config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))["clusters"][0]["cluster"]
        context = ssl.create_default_context(cadata=_decoded(config["certificate-authority-data"]))
        headers = {"Authorization": f"Bearer {token}"}
        client = httpx.Client(
            base_url=config["server"], verify=context, headers=headers, timeout=PATIENCE, trust_env=False
        )
        return cls(client, namespace)

    def create(self, plural: str, body: Mapping[str, Any], **params: str) -> Answer:
        return Answer.of(self.api.post(self._path(plural), json=body, params=params))

    def delete(self, plural: str, name: str) -> Answer:
        return Answer.of(self.api.delete(f"{self._path(plural)}/{name}"))

    def update(self, plural: str, body: Mapping[str, Any]) -> Answer:
        return Answer.of(self.api.put(f"{self._path(plural)}/{body['metadata']['name']}", json=body))

    def merge(self, plural: str, name: str, body: Mapping[str, Any], **params: str) -> Answer:
        return self._patch(plural, name, body, "merge-patch+json", params)

    def apply(self, plural: str, body: Mapping[str, Any], **params: str) -> Answer:
        name = body["metadata"]["name"]
        params = {"fieldManager": "llmservice-operator", "force": "true"} | params
        return self._patch(plural, name, body, "apply-patch+yaml", params)

    def _patch(self, plural: str, name: str, body: object, kind: str, params: Mapping[str, str]) -> Answer:
        path, headers = f"{self._path(plural)}/{name}", {"Content-Type": f"application/{kind}"}
        return Answer.of(self.api.patch(path, content=json.dumps(body), params=params, headers=headers))

    def _path(self, plural: str) -> str:
        return f"{COLLECTIONS[plural]}/namespaces/{self.namespace}/{plural}"


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()
