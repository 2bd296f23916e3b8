"""A model server under test: requests from many clients at once, and what vLLM's own counters say meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from llmservice_runtime.contract import STATE_PORT
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.ahead import ahead
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE, at_most
from tests.support.services import llmservice

READY_WITHIN = 600
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Completion:
    """One answered request; seconds count from the start of the load that it belongs to."""

    status: int
    body: JSON
    sent: float
    ended: float

    @property
    def text(self) -> str:
        said: str = self.body["choices"][0]["text"]
        return said

    @property
    def tokens(self) -> int:
        used: int = self.body["usage"]["completion_tokens"]
        return used


@dataclass(frozen=True)
class Metrics:
    """One reading of /metrics. Only the lines that are asked for are parsed: a load generator must not stand still."""

    text: str

    def samples(self, name: str) -> Sequence[Sample]:
        """All samples of that very name."""
        lines = [line for line in self.text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        return [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples of that name and these labels; 0.0 where there is none."""
        return sum(sample.value for sample in self.samples(name) if labels.items() <= sample.labels.items())

    def by_label(self, name: str, label: str) -> Mapping[str, float]:
        """The value of each sample of that name, by one of its labels."""
        return {sample.labels[label]: sample.value for sample in self.samples(name)}

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of the only sample of that name: vLLM tells facts that way."""
        (sample,) = self.samples(name)
        return sample.labels


def of_supervisor(pod: JSON) -> Metrics:
    """What the pod's supervisor counts."""
    url = f"http://{pod['status']['podIP']}:{STATE_PORT}/metrics"
    return Metrics(httpx.get(url, timeout=PATIENCE, trust_env=False).raise_for_status().text)


def requests_in_flight(pod: JSON) -> float:
    """Requests without a whole answer, as the pod's supervisor counts; 0 where it has no address or open port."""
    try:
        return of_supervisor(pod).value("llmservice_server_requests_in_flight")
    except (KeyError, httpx.TransportError):
        return 0.0


@dataclass(frozen=True)
class Endpoint:
    """A ready LLMService in whatever cluster, by its name and an address that this machine reaches."""

    name: str
    url: str

    def metrics(self) -> Metrics:
        """What vLLM counts."""
        return Metrics(httpx.get(f"{self.url}/metrics", timeout=PATIENCE, trust_env=False).raise_for_status().text)

    def complete(self, prompt: object, **fields: Any) -> Completion:
        """One greedy completion."""
        return asyncio.run(self._alone(prompt, fields))

    def chat(self, question: str, *earlier: JSON, **fields: Any) -> JSON:
        """A greedy chat completion; the answer's JSON, whatever its status."""
        body = {
            "model": self.name,
            "messages": [*earlier, {"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 120,
            **fields,
        }
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=at_most(300), trust_env=False)
        return {"status": answer.status_code, **answer.json()}

    def say(self, question: str, **fields: Any) -> str:
        """What the model answers."""
        answer = self.chat(question, **fields)
        assert answer["status"] == 200, answer
        said: str = answer["choices"][0]["message"]["content"]
        return said

    async def _alone(self, prompt: object, fields: Mapping[str, Any]) -> Completion:
        async with self.client() as client:
            return await self.send(client, time.monotonic(), prompt, **fields)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """As many connections as there are requests, sent when they are meant to be: no queue but vLLM's."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=at_most(300), limits=limits, trust_env=False) as client:
            with ahead():
                yield client

    async def send(self, client: httpx.AsyncClient, began: float, prompt: object, **fields: Any) -> Completion:
        """One request of a load that began at `began`."""
        sent = time.monotonic() - began
        body = {"model": self.name, "prompt": prompt, "temperature": 0, **fields}
        answer = await client.post("/v1/completions", json=body)
        return Completion(answer.status_code, answer.json(), sent, time.monotonic() - began)


@dataclass(frozen=True)
class Server(Endpoint):
    """A ready LLMService of the local cluster, reached at its Service's address."""

    cluster: Cluster
    namespace: str

    def pods(self) -> Sequence[JSON]:
        """Those that are to stay."""
        return self.cluster.pods(self.namespace, self.name)


@contextlib.contextmanager
def serving(cluster: Cluster, namespace: str, name: str, **spec: Any) -> Iterator[Server]:
    """Apply, wait until Ready, and take it away afterwards: engines share two processors."""
    cluster.apply(llmservice(name, **spec), namespace)
    try:
        cluster.wait_condition(namespace, name, "Ready", "True", timeout=READY_WITHIN)
        yield Server(name, cluster.service_url(namespace, name), cluster, namespace)
    finally:
        cluster.kubectl("delete", "llms", name, "-n", namespace, "--wait=true", KUBECTL_TIMEOUT)
        selector = f"llmservice.dev/service={name}"
        eventually("no pod is left", lambda: not cluster.list("pods", namespace, selector), 180)


@dataclass(frozen=True)
class Sampled:
    """Peaks of vLLM's gauges while a load ran."""

    running: float
    waiting: float
    kv_cache: float
    readings: int


async def sampled(server: Server, client: httpx.AsyncClient, load: Sequence[asyncio.Task[Any]]) -> Sampled:
    """Read /metrics as fast as it answers until the load is done."""
    peaks = Sampled(0, 0, 0, 0)
    while not all(task.done() for task in load):
        now = Metrics((await client.get("/metrics")).text)
        peaks = Sampled(
            max(peaks.running, now.value("vllm:num_requests_running")),
            max(peaks.waiting, now.value("vllm:num_requests_waiting")),
            max(peaks.kv_cache, now.value("vllm:kv_cache_usage_perc")),
            peaks.readings + 1,
        )
        await asyncio.sleep(POLL_SECONDS)
    return peaks
