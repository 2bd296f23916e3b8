"""`llmservice bench` beside `vllm bench serve`: the same load on one real vLLM, and the same figures within noise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from localcluster.tinymodel.cache import cached_model
from tests.support.measured import Record
from tests.support.patience import at_most
from tests.support.vllm_client import Wish, measured
from tests.support.vllm_process import FLAGS, NAME, REAL, Server, started

pytestmark = pytest.mark.full

REQUESTS, RATE, CLIENTS = 32, 2.0, 2
LOAD: Mapping[str, Any] = {"requests": REQUESTS, "seed": 7, "prompt_words": (8, 32), "output_tokens": (8, 32)}
BAND, SLACK_MS = 1.5, 100.0
"""How many times vLLM's own figure a client's may be, and how much more: both share the CPUs of the machine."""
LESS = 0.8
"""A client sees a token after vLLM does; means are of 32 requests here, and of one more there."""
COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens")
SERVERS: Mapping[str, str] = {
    "mean_ttft_ms": "vllm:time_to_first_token_seconds",
    "mean_tpot_ms": "vllm:request_time_per_output_token_seconds",
    "mean_e2el_ms": "vllm:e2e_request_latency_seconds",
}
"""vLLM's own histograms of the same."""


@pytest.fixture(scope="module")
def model() -> str:
    return str(cached_model(print))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Server]:
    with started(REAL, tmp_path_factory.mktemp("bench"), model, *FLAGS, "--max-num-seqs", "8") as ready:
        ready.until_healthy()
        with ready.client() as client:  # a first request takes longer, and would be in the mean of one client alone
            asked = {"model": NAME, "prompt": "the of and", "max_tokens": 32, "ignore_eos": True}
            assert client.post("/v1/completions", json=asked).status_code == 200
        yield ready


def own_figures(server: Server) -> Mapping[str, tuple[float, float]]:
    """Sum and number of what vLLM itself has measured so far."""
    with server.client() as client:
        page = client.get("/metrics").text
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples]

    def of(name: str) -> float:
        return sum(sample.value for sample in samples if sample.name == name)

    return {figure: (of(f"{metric}_sum"), of(f"{metric}_count")) for figure, metric in SERVERS.items()}


def ours(server: Server, folder: Path, *pace: str) -> Mapping[str, Any]:
    """`vllmBenchServe` of the only run. One request is sent beforehand, as vLLM's client does by itself."""
    out = folder / "ours.json"
    words = ("--requests", str(REQUESTS), "--seed", "7", "--prompt-words", "8,32", "--output-tokens", "8,32")
    command = [sys.executable, "-m", "llmservice_cli", "bench", "--url", server.url, "-q", "--warmup", "1", *words]
    ran = subprocess.run(
        [*command, "--out", str(out), *pace], capture_output=True, text=True, timeout=at_most(300), check=False
    )
    assert ran.returncode == 0, ran.stderr
    (run,) = json.loads(out.read_text())["disciplines"]
    found: Mapping[str, Any] = run["vllmBenchServe"]
    return found


def beside(server: Server, measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """What a client measured, and under `server` what vLLM itself did meanwhile, in the same units."""
    before = own_figures(server)
    found = measure()
    after = own_figures(server)
    deltas = {name: [now - then for now, then in zip(after[name], before[name], strict=True)] for name in SERVERS}
    assert {count for _, count in deltas.values()} == {REQUESTS + 1}
    return {**found, "server": {name: 1000 * total / count for name, (total, count) in deltas.items()}}


def agree(found: Mapping[str, Any], clients: int | None) -> None:
    """A client's figures with vLLM's own of the same requests: what the machine does meanwhile is in both."""
    for name, own in found["server"].items():
        assert own * LESS <= found[name] <= own * BAND + SLACK_MS, (name, found[name], own)
    if clients is not None:
        busy = found["request_throughput"] * found["server"]["mean_e2el_ms"] / 1000 / clients
        assert 1 / BAND <= busy <= BAND, "each client sends when it has its answer"


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    names = ("request_throughput", *SERVERS, "cpu_seconds")
    own = {f"server_{name}": round(value, 1) for name, value in found["server"].items()}
    return {**{name: round(found[name], 3) for name in names if name in found}, **own}


@pytest.mark.parametrize(
    ("pace", "rate", "clients"),
    [
        (("--rate", str(RATE), "--discipline", "continuous"), RATE, None),
        (("--concurrency", str(CLIENTS)), None, CLIENTS),
    ],
    ids=["open loop", "closed loop"],
)
def test_the_same_load_has_the_same_figures(
    server: Server,
    model: str,
    tmp_path: Path,
    record: Record,
    pace: tuple[str, ...],
    rate: float | None,
    clients: int | None,
) -> None:
    """With a rate each request is sent at the same moment by both. Counts are the same, and times vLLM's own."""
    wish = Wish(server.url, NAME, model, f"theirs-{rate}", {**LOAD, "rate": rate}, clients)
    theirs = beside(server, lambda: measured(wish))
    mine = beside(server, lambda: ours(server, tmp_path, *pace))
    record(llmservice=shown(mine), vllm=shown(theirs))
    assert [mine[name] for name in COUNTS] == [theirs[name] for name in COUNTS]
    assert mine["completed"] == REQUESTS
    for found in (mine, theirs):
        agree(found, clients)
