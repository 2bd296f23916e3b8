"""Measured start-ups that people published, as questions to the planner and the answers that the engine gave.

`startups.jsonl`: one start-up a line, per GPU, GiB; `models.json`: the architectures of their models; `more.jsonl`
and `more_models.json`: others. What a record does not say was not published. Our own runs (tools/benchmarks/gpu) are
others too: their vLLM is older than those that are served, so no constant is fitted to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llmservice_cli.plan.batch import question
from llmservice_planner import kv_cache
from llmservice_planner.plan import GIB, Request

from benchmarks.calibration import earlier
from benchmarks.gpu.served import results

HERE = Path(__file__).parent
FAILED = frozenset({"too_long", "oom", "no_cache"})


@dataclass(frozen=True)
class Startup:
    """One record."""

    facts: dict[str, Any]
    case: dict[str, Any]
    """The same as a line of `llmservice plan --batch`."""

    @property
    def id(self) -> str:
        """Its name."""
        return str(self.facts["id"])

    @property
    def model(self) -> str:
        """The model that it is left out with."""
        return str(self.facts["model"])

    @property
    def version(self) -> str | None:
        """Of vLLM, as it was written down."""
        return self.facts.get("vllm_version")

    @property
    def is_doubtful(self) -> bool:
        """Something in it contradicts itself, or is explained by a fault of that version."""
        return bool(self.facts.get("doubtful"))

    @property
    def names_gpu(self) -> bool:
        """Records that do not are for calibration only."""
        return self.facts.get("gpu") is not None

    @property
    def outcome(self) -> str | None:
        """served, too_long, oom, no_cache, or None where something else stopped it."""
        return self.facts.get("outcome")

    @cached_property
    def request(self) -> Request | None:
        """None where neither a GPU nor its memory was published, or not the model."""
        if self.case.get("config") is None or not (self.case.get("gpu") or self.case.get("gpu_memory_gib")):
            return None
        return earlier.as_today(question(self.case).requests[0], self.version)

    @cached_property
    def kv_gib(self) -> float | None:
        """KV cache on one GPU as measured: printed, or from the printed tokens."""
        if self.facts.get("kv_cache_gib") is not None:
            return float(self.facts["kv_cache_gib"])
        tokens = self.facts.get("kv_cache_tokens")
        if tokens is None or self.request is None:
            return None
        return float(tokens) * kv_cache.layout(self.request).bytes_per_token / GIB


def startups() -> Iterator[Startup]:
    """The records that the constants are fitted to, in the order of the file."""
    return _records("startups.jsonl", "models.json")


def others(runs: Path = results.COMMITTED) -> Iterator[Startup]:
    """Records that no constant was fitted to: published ones, then those of our own runs on GPUs."""
    yield from _records("more.jsonl", "more_models.json")
    for run in results.runs(runs):
        for result in run.measured if run.is_gpu else ():
            if facts := result.values.get("startup"):
                yield Startup(facts, as_case(facts, dict(results.CONFIGS[facts["model"]])))


def config(model: str) -> dict[str, Any]:
    """A model's config.json of `more_models.json`."""
    found: dict[str, Any] = json.loads((HERE / "more_models.json").read_text())[model]
    return found


def _records(records: str, configs: str) -> Iterator[Startup]:
    models = json.loads((HERE / configs).read_text())
    for line in (HERE / records).read_text().splitlines():
        facts = json.loads(line)
        yield Startup(facts, as_case(facts, models.get(facts["model"])))


def as_case(facts: dict[str, Any], config: dict[str, Any] | None) -> dict[str, Any]:
    """What somebody who plans this start-up would write down."""
    names = {"gpu_memory_gib_reported": "gpu_memory_gib", "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    same = ("id", "gpu", "dtype", "quantization", "kv_cache_dtype", "gpu_memory_utilization")
    limits = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "speculative_config")
    case = {name: facts[name] for name in (*same, *limits) if facts.get(name) is not None}
    case |= {to: facts[name] for name, to in names.items() if facts.get(name) is not None}
    return case | ({"config": config} if config is not None else {})
