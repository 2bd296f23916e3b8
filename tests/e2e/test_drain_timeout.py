"""Streams that outlive the drain of vLLM itself are ended, and told. test_failures.py has the stand-in's."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.cluster import JSON, Cluster, eventually
from tests.support.host import throttled
from tests.support.measured import Record
from tests.support.operator import operator_metrics
from tests.support.serving import Metrics, Server, requests_in_flight, serving
from tests.support.told import warnings

NAME = "cut"
# 16,000 tokens take ten seconds alone, and ten times that at a tenth of a processor; the drain takes eleven.
STREAMS, TOKENS, DRAIN_SECONDS, SHARE = 4, 4000, 1, 0.1
LONG = {"batching": {"maxModelLen": None}, "contextExtension": {"method": "yarn", "factor": 4}}


@pytest.mark.full
def test_streams_that_outlive_the_drain_are_ended_and_told(cluster: Cluster, namespace: str, record: Record) -> None:
    with (
        serving(cluster, namespace, NAME, drain={"timeoutSeconds": DRAIN_SECONDS}, **LONG) as server,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        (pod,) = server.pods()
        counted = ended(cluster, namespace)
        with throttled(pod, SHARE):
            streams = [pool.submit(read, server) for _ in range(STREAMS)]
            eventually("all streams run", lambda: requests_in_flight(pod) == STREAMS, 60)
            cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", namespace, "--wait=false")
            ends = [stream.result() for stream in streams]
        record(engine="vLLM", streams=STREAMS, ends=ends)
        (event,) = eventually("an Event", lambda: warnings(cluster, namespace, NAME, "StreamsEnded", 0), 60)
        assert [end for end in ends if end["finish_reason"] in ("length", "stop")] == []
        assert f"{STREAMS} streams" in event["message"]
        assert pod["metadata"]["name"] in event["message"]
        assert ended(cluster, namespace) - counted == STREAMS


def ended(cluster: Cluster, namespace: str) -> float:
    """As the operator counts them."""
    return Metrics(operator_metrics(cluster)).value("llmservice_streams_ended_total", namespace=namespace, service=NAME)


def read(server: Server) -> JSON:
    """How a stream ended."""
    body = {"model": NAME, "prompt": "a long story", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    chunks: list[str] = []
    error = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False) as stream:
        assert stream.status_code == 200, stream.read()
        try:
            for line in stream.iter_lines():
                chunks.append(line.removeprefix("data: "))
        except httpx.HTTPError as cut:
            error = f"{type(cut).__name__}: {cut}"
    said = [json.loads(chunk) for chunk in chunks if chunk not in ("", "[DONE]")]
    reasons = [choice["finish_reason"] for chunk in said for choice in chunk.get("choices", ())]
    return {"finish_reason": reasons[-1] if reasons else None, "chunks": len(said), "error": error}
