"""Speculative decoding: the same tokens in fewer steps, and how many of the guesses were right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.agreement import QUESTIONS, Spoken, greedy, taught
from tests.support.cluster import Cluster
from tests.support.measured import Record
from tests.support.models import model_uri
from tests.support.serving import Server, serving

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def plain(cluster: Cluster, shared_namespace: str) -> Mapping[str, Spoken]:
    """What the model says without a proposer."""
    with serving(cluster, shared_namespace, "plain") as server:
        said = greedy(server)
    assert taught(said) == len(QUESTIONS)
    return said


METHODS: dict[str, tuple[str | None, dict[str, Any]]] = {
    # name: (variant that proposes, speculativeDecoding)
    "ngram": (
        None,
        {"method": "ngram", "numSpeculativeTokens": 4, "promptLookupMin": 2, "promptLookupMax": 4},
    ),
    "draft": ("draft", {"method": "draftModel", "numSpeculativeTokens": 4}),
    "medusa": ("medusa", {"method": "medusa", "numSpeculativeTokens": 3}),
}


@pytest.mark.parametrize("name", METHODS)
def test_guessing_changes_nothing_but_the_steps(
    cluster: Cluster, shared_namespace: str, plain: Mapping[str, Spoken], name: str, record: Record
) -> None:
    variant, speculation = METHODS[name]
    if variant is not None:
        speculation = {**speculation, "model": {"uri": model_uri(cluster, shared_namespace, variant)}}
    with serving(cluster, shared_namespace, name, speculativeDecoding=speculation) as server:
        said = greedy(server)
        figures = acceptance(server)
        told = told_acceptance(cluster, shared_namespace, name)
    assert said == plain
    assert figures["drafted"] > 0
    assert figures["accepted"] > 0
    rate = figures["accepted"] / figures["drafted"]
    assert told == pytest.approx(rate, abs=0.005)
    record(method=name, answers=len(said), **figures, acceptance_rate=round(rate, 3))


def acceptance(server: Server) -> dict[str, float]:
    """vLLM's own counters."""
    metrics = server.metrics()
    return {
        "drafts": metrics.value("vllm:spec_decode_num_drafts_total"),
        "drafted": metrics.value("vllm:spec_decode_num_draft_tokens_total"),
        "accepted": metrics.value("vllm:spec_decode_num_accepted_tokens_total"),
    }


def told_acceptance(cluster: Cluster, namespace: str, name: str) -> float:
    """What `llmservice status` says of it."""
    command = [str(cluster.paths.root / ".venv" / "bin" / "llmservice"), "status", name, "-n", namespace, "-o", "json"]
    printed = json.loads(cluster.run(*command))
    (service,) = printed["services"]
    (pod,) = service["pods"]
    rate: float = pod["live"]["draftAcceptanceRate"]
    return rate
