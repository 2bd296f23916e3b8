"""The LLMServices of a run: one replica on one GPU, without a cache, all facts of the model given."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

JSON = dict[str, Any]

API = "/apis/llmservice.dev/v1alpha1"
PREFIX = "scale-"
PER_NAMESPACE = 100
AT_ONCE = 16
LABEL = "llmservice.test/scale"
NODES = {"type": "kwok"}
"""Labels of the simulated nodes."""


def namespace_of(number: int) -> str:
    """A hundred services are a team's."""
    return f"{PREFIX}{number // PER_NAMESPACE}"


def is_ours(namespace: str) -> bool:
    """Others may be in the cluster, or be about to go: they are none of a run's."""
    return namespace.startswith(PREFIX)


def namespaces(count: int) -> list[str]:
    """Those of so many services."""
    return [f"{PREFIX}{number}" for number in range(-(-count // PER_NAMESPACE))]


def name_of(number: int) -> str:
    """Unique in the cluster."""
    return f"service-{number}"


@dataclass(frozen=True)
class Nodes:
    count: int
    gpus: int


def nodes_for(count: int) -> Nodes:
    """With room for all of them, and for one more of every fourth while it is replaced.

    Of more than a thousand services they are larger: a node costs the control plane more than a service does.
    """
    gpus = 8 if count <= 1000 else 64
    return Nodes(-(-count * 5 // (4 * gpus)) + 1, gpus)


def manifest(number: int, *, inspected: bool = False) -> JSON:
    """One LLMService, like no other: what is remembered of one must not help the next.

    Its pod goes to a node that simulates all pods. With `inspected` it does not say what its model looks like.
    """
    architecture = {
        "numHiddenLayers": 28,
        "hiddenSize": 3584,
        "numAttentionHeads": 28,
        "numKeyValueHeads": 4,
        "intermediateSize": 18944,
        "vocabSize": 152064,
        "maxPositionEmbeddings": 32768,
    }
    facts = {} if inspected else {"architecture": architecture}
    tolerations = [{"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}]
    return {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name_of(number), "namespace": namespace_of(number)},
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "servedModelNames": [name_of(number)], **facts},
            "batching": {"maxModelLen": 8192, "maxNumSeqs": 128 + number % 97},
            "podTemplate": {"spec": {"nodeSelector": NODES, "tolerations": tolerations}},
        },
    }


def edited(max_num_seqs: int) -> JSON:
    """A merge patch that changes the child."""
    return {"spec": {"batching": {"maxNumSeqs": max_num_seqs}}}


class Writer:
    """Somebody with kubectl: creates, edits and deletes LLMServices."""

    def __init__(self, session: aiohttp.ClientSession, server: str, made: Callable[[int], JSON] = manifest) -> None:
        """`made`: the LLMService of each number, in `namespace_of` it."""
        self._session, self._server, self._made = session, server, made

    async def create(self, numbers: Sequence[int]) -> None:
        """All of them, a few at a time."""
        waiting = iter(numbers)

        async def some() -> None:
            for number in waiting:
                await self.create_one(number)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def create_one(self, number: int) -> None:
        path = f"{API}/namespaces/{namespace_of(number)}/llmservices"
        await self._send("POST", path, self._made(number), "application/json")

    async def edit(self, number: int, max_num_seqs: int) -> int:
        """One field of one spec; the generation that it has then."""
        path = f"{API}/namespaces/{namespace_of(number)}/llmservices/{name_of(number)}"
        answer = await self._send("PATCH", path, edited(max_num_seqs), "application/merge-patch+json")
        return int(answer["metadata"]["generation"])

    async def events(self) -> dict[str, int]:
        """What the services were told of, by reason."""
        path = "/api/v1/events?fieldSelector=involvedObject.kind=LLMService"
        async with self._session.get(self._server + path) as answer:
            answer.raise_for_status()
            found = (await answer.json())["items"]
        return dict(Counter(event["reason"] for event in found if is_ours(event["metadata"]["namespace"])))

    async def make_namespaces(self, count: int) -> None:
        """Those that so many services lie in."""
        for name in namespaces(count):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {LABEL: "true"}}}
            await self._send("POST", "/api/v1/namespaces", body, "application/json")

    async def _send(self, method: str, path: str, body: JSON, content_type: str) -> JSON:
        return await sent(self._session, method, self._server + path, body, content_type)


async def sent(session: aiohttp.ClientSession, method: str, url: str, body: Any, content_type: str) -> JSON:
    data, headers = None if body is None else json.dumps(body).encode(), {"Content-Type": content_type}
    async with session.request(method, url, data=data, headers=headers) as answer:
        if answer.status >= 400:
            raise RuntimeError(f"{method} {url}: {answer.status} {await answer.text()}")
        made: JSON = await answer.json()
        return made
