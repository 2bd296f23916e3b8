"""A pod that talks to endpoints by their Service names, as an application in the cluster does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.cluster import Cluster, CommandFailed, eventually
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE

IMAGE = "registry.local/llmservice-operator:dev"

ASK = """
import json, sys, urllib.error, urllib.request
url, key, body = sys.argv[1], sys.argv[2], sys.argv[3]
headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
request = urllib.request.Request(url, data=body.encode() or None, headers=headers)
try:
    with urllib.request.urlopen(request, timeout=120) as response:
        print(json.dumps({"status": response.status, "body": response.read().decode()}))
except urllib.error.HTTPError as refused:
    print(json.dumps({"status": refused.code, "body": refused.read().decode()}))
"""

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "client"},
    "spec": {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "client",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-c", "import signal; signal.pause()"],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "resources": {
                    "requests": {"cpu": "10m", "memory": "32Mi"},
                    "limits": {"cpu": "1", "memory": "128Mi"},
                },
            }
        ],
    },
}


@dataclass(frozen=True)
class Answer:
    status: int
    body: str

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def text(self) -> str:
        """What the model said."""
        content: str = self.json["choices"][0]["message"]["content"]
        return content

    @property
    def streamed(self) -> str:
        """What the model said, put together from the chunks of a stream that ended with [DONE]."""
        lines = [line.removeprefix("data: ") for line in self.body.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", f"the stream was cut: {self.body[-300:]}"
        deltas = [choice["delta"] for line in lines[:-1] for choice in json.loads(line)["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)


@dataclass(frozen=True)
class ClientPod:
    """A running client pod in one namespace."""

    cluster: Cluster
    namespace: str
    _reached: set[str] = field(default_factory=set, compare=False)
    """Hosts that have answered."""

    @classmethod
    def start(cls, cluster: Cluster, namespace: str) -> ClientPod:
        cluster.apply(POD, namespace)
        cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/client", KUBECTL_TIMEOUT)
        return cls(cluster, namespace)

    def request(self, url: str, body: object = None, api_key: str = "") -> Answer:
        """A node's kube-proxy learns of an endpoint some time after the status says that there is one: until a host has
        answered once, refused connections are waited for, which reach nobody. Later ones are failures."""
        host = urlsplit(url).netloc
        text = "" if body is None else json.dumps(body)
        command = ("exec", "-n", self.namespace, "client", "--", "python", "-c", ASK, url, api_key, text)

        def answer() -> Answer | None:
            try:
                return Answer(**json.loads(self.cluster.kubectl(*command)))
            except CommandFailed as refused:
                if host in self._reached or "ConnectionRefusedError" not in str(refused):
                    raise
                return None

        found = eventually(f"an answer of {url}", answer, PATIENCE)
        self._reached.add(host)
        return found

    def chat(
        self, service: str, question: str, *, namespace: str = "", stream: bool = False, api_key: str = ""
    ) -> Answer:
        """A greedy chat completion from the endpoint of `service`, by its Service's DNS name."""
        body = {
            "model": service,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 200,
            "stream": stream,
        }
        host = f"{service}.{namespace or self.namespace}.svc"
        return self.request(f"http://{host}/v1/chat/completions", body, api_key)
