"""What a model says in another precision, split over processes or with guesses, beside one process in float32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.agreement import QUESTIONS, Spoken, agreement, greedy, taught
from tests.support.cluster import Cluster
from tests.support.host import need_cpu
from tests.support.measured import Record
from tests.support.models import model_uri
from tests.support.serving import Server, serving

pytestmark = pytest.mark.full

# Compiled, unlike elsewhere in these tests: on some CPUs an eager engine ends in SIGILL with 16-bit types.
COMPILED: dict[str, Any] = {"compilation": {"enforceEager": False}}
NEEDS: Mapping[str, tuple[str, ...]] = {"kv-fp8": ("avx512f", "amx_tile"), "int4": ("avx512f",)}
"""Features of the CPU, one of which vLLM needs."""
PRECISIONS: dict[str, tuple[str | None, dict[str, Any], float]] = {
    # name: (variant of the tiny model, spec.precision, least agreement with float32)
    "bfloat16": (None, {"dtype": "bfloat16"}, 0.9),
    "float16": (None, {"dtype": "float16"}, 0.95),
    "kv-fp8": (None, {"dtype": "bfloat16", "kvCache": "fp8"}, 0.5),
    "int8": ("int8", {"weights": "int8", "dtype": "bfloat16"}, 0.5),
    "int4": ("int4", {"weights": "int4", "dtype": "bfloat16"}, 0.2),
}
SPLITS: dict[str, dict[str, Any]] = {
    "tensor-parallel": {"parallelism": {"tensorParallelSize": 2}},
    # Compiled: an eager engine with stages is refused on CPUs, since it would die of its first request.
    "pipeline-parallel": {"parallelism": {"pipelineParallelSize": 2}, **COMPILED},
}
METHODS: dict[str, tuple[str | None, dict[str, Any]]] = {
    # name: (variant that proposes, speculativeDecoding)
    "ngram": (None, {"method": "ngram", "numSpeculativeTokens": 4, "promptLookupMin": 2, "promptLookupMax": 4}),
    "draft": ("draft", {"method": "draftModel", "numSpeculativeTokens": 4}),
    "medusa": ("medusa", {"method": "medusa", "numSpeculativeTokens": 3}),
}
WORKERS = """
import pathlib
names = [p.read_text() for p in pathlib.Path('/proc').glob('[0-9]*/comm')]
print(sum(name.startswith('VLLM::Worker') for name in names))
"""


@pytest.fixture(scope="module")
def plain(cluster: Cluster, shared_namespace: str) -> Mapping[str, Spoken]:
    """What one process answers in float32, without a proposer."""
    with serving(cluster, shared_namespace, "plain") as server:
        said = greedy(server)
    assert taught(said) == len(QUESTIONS)
    return said


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_precision_says_nearly_what_float32_says(
    cluster: Cluster, shared_namespace: str, plain: Mapping[str, Spoken], name: str, record: Record
) -> None:
    variant, precision, least = PRECISIONS[name]
    if name in NEEDS:
        need_cpu(*NEEDS[name])
    spec = {**COMPILED, "precision": precision}
    if variant is not None:
        spec["model"] = {"uri": model_uri(cluster, shared_namespace, variant)}
    with serving(cluster, shared_namespace, name, **spec) as server:
        said = greedy(server)
        measured = cluster.status(shared_namespace, name).get("measured", {})
    same = agreement(plain, said)
    assert same >= least
    record(
        agreement=round(same, 3),
        taught_answers=f"{taught(said)}/{len(said)}",
        kv_cache_tokens=measured.get("kvCacheTokens"),
        start_seconds=measured.get("startSeconds"),
    )


@pytest.mark.parametrize("name", SPLITS)
def test_two_processes_say_the_same_tokens(
    cluster: Cluster, shared_namespace: str, plain: Mapping[str, Spoken], name: str, record: Record
) -> None:
    with serving(cluster, shared_namespace, name, **SPLITS[name]) as server:
        (pod,) = server.pods()
        measured = cluster.status(shared_namespace, name).get("measured", {})
        count = (
            "exec",
            "-n",
            shared_namespace,
            pod["metadata"]["name"],
            "-c",
            "server",
            "--",
            "python3",
            "-c",
            WORKERS,
        )
        assert int(cluster.kubectl(*count)) == 2, "processes that hold a part of the model"
        said = greedy(server)
    assert said == plain
    tokens = sum(len(spoken.tokens) for spoken in said.values())
    record(**SPLITS[name]["parallelism"], tokens=tokens, start_seconds=measured.get("startSeconds"))


@pytest.mark.parametrize("name", METHODS)
def test_guessing_changes_nothing_but_the_steps(
    cluster: Cluster, shared_namespace: str, plain: Mapping[str, Spoken], name: str, record: Record
) -> None:
    variant, speculation = METHODS[name]
    if variant is not None:
        speculation = {**speculation, "model": {"uri": model_uri(cluster, shared_namespace, variant)}}
    with serving(cluster, shared_namespace, name, speculativeDecoding=speculation) as server:
        said = greedy(server)
        metrics, shown = server.metrics(), shown_acceptance(server)
    assert said == plain
    figures = {
        each: metrics.value(f"vllm:spec_decode_num_{each}_total")
        for each in ("drafts", "draft_tokens", "accepted_tokens")
    }
    assert min(figures.values()) > 0
    rate = figures["accepted_tokens"] / figures["draft_tokens"]
    assert shown == pytest.approx(rate, abs=0.005)
    record(method=name, answers=len(said), **figures, acceptance_rate=round(rate, 3))


def shown_acceptance(server: Server) -> float:
    """What `llmservice status` shows of it."""
    program = str(server.cluster.paths.root / ".venv" / "bin" / "llmservice")
    printed = server.cluster.run(program, "status", server.name, "-n", server.namespace, "-o", "json")
    (service,) = json.loads(printed)["services"]
    (pod,) = service["pods"]
    rate: float = pod["live"]["draftAcceptanceRate"]
    return rate
