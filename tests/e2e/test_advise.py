"""`llmservice advise routing` on two replicas of vLLM: by counters alone, and by what they cached."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest
import zmq

from tests.e2e.conftest import own_namespace
from tests.support.advice import advice_beside
from tests.support.cluster import Cluster, eventually, is_ready
from tests.support.measured import Record
from tests.support.patience import PATIENCE, at_most
from tests.support.services import one_of_several
from tests.support.serving import READY_WITHIN

pytestmark = pytest.mark.full

NAMESPACE, NAME = "e2e-advise", "twice"
DOCUMENTS, TOKENS, WATCH_SECONDS = 60, 320, 90
WORDS = 250
"""Of the model's vocabulary, which has 261."""
PORT = 5557
"""Of events."""
BATCHING = {"maxModelLen": 512, "blockSize": 32, "kvEvents": {"enabled": True}}


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    """Of a service with two replicas."""
    with own_namespace(cluster, NAMESPACE):
        cluster.apply(one_of_several(NAME, batching=BATCHING, scaling={"replicas": 2}), NAMESPACE)
        cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=at_most(READY_WITHIN))
        yield cluster.service_url(NAMESPACE, NAME)


def test_documents_that_are_asked_about_twice(cluster: Cluster, url: str, record: Record) -> None:
    """Half of the second questions come to the replica that has not read the document: routed, none would."""
    code, found = advice_beside(cluster, NAMESPACE, NAME, WATCH_SECONDS, lambda: ask_about_documents(url))
    record(**{name: found[name] for name in ("verdict", "hitRate", "gain", "requests", "promptTokens")})
    assert code == 0, found
    assert found["problems"] == []
    # All blocks of a document but the last, which is computed for its last token.
    routed = DOCUMENTS * ((TOKENS - 1) // 32 * 32) / found["promptTokens"]
    assert found["gain"]["low"] - 0.02 <= routed - found["hitRate"] <= found["gain"]["high"] + 0.02
    # How wide it is: tests/unit/cli/test_advise_estimate.py, with as many requests as that takes.
    assert found["gain"]["low"] >= 0.05


def ask_about_documents(url: str, seed: int = 7) -> None:
    """Each twice, in any order, each time on a connection of its own."""
    rng = random.Random(seed)
    documents = [[rng.randrange(10, WORDS) for _ in range(TOKENS)] for _ in range(DOCUMENTS)]
    order = [*range(DOCUMENTS), *range(DOCUMENTS)]
    rng.shuffle(order)
    for number in order:
        body: dict[str, Any] = {"model": NAME, "prompt": documents[number], "max_tokens": 1, "temperature": 0}
        httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False).raise_for_status()


def test_without_events_there_are_bounds_and_what_would_tell(cluster: Cluster, url: str) -> None:
    """The replicas' own counters still have what was asked above; a new watch has none of it."""
    cluster.patch("llmservices", NAMESPACE, NAME, {"spec": {"batching": {"kvEvents": None}}})
    eventually(
        "the rollout",
        lambda: "--kv-events-config" not in str(cluster.pods(NAMESPACE, NAME)) and cluster.pods(NAMESPACE, NAME),
        at_most(READY_WITHIN),
    )
    cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=at_most(READY_WITHIN))
    ran = cluster.run(
        *(sys.executable, "-m", "llmservice_cli", "advise", "routing", NAME, "-n", NAMESPACE, "--for", "5s"), expect=3
    )
    assert "may pay, or not: 0 requests with 0 tokens came in" in ran
    assert "watch longer (--for), while clients send" in ran


def test_a_router_is_told_whose_blocks_they_are(cluster: Cluster, url: str) -> None:
    """As llm-d's reads it: the replica's address, and the model as requests name it."""
    published = {**BATCHING, "kvEvents": {"enabled": True, "port": PORT}}
    cluster.patch("llmservices", NAMESPACE, NAME, {"spec": {"batching": published}})
    eventually(
        "the rollout",
        lambda: (
            [is_ready(pod) and "tcp://*" in str(pod["spec"]) for pod in cluster.pods(NAMESPACE, NAME)] == [True] * 2
        ),
        at_most(READY_WITHIN),
    )
    addresses = {pod["status"]["podIP"] for pod in cluster.pods(NAMESPACE, NAME)}
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
        for address in addresses:
            subscriber.connect(f"tcp://{address}:{PORT}")

        seeds = count()

        def heard() -> bool:
            """A subscription takes a moment to be known, and a block is published once."""
            ask_about_documents(url, next(seeds))
            return bool(subscriber.poll(1000))

        eventually("events", heard, PATIENCE)
        topic, _, _ = subscriber.recv_multipart()
    assert topic.decode() in {f"kv@{address}:8000@{NAME}" for address in addresses}
