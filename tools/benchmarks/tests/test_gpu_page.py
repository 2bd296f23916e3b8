"""The page about GPUs, and what other pages say of them, follow from the committed runs."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibration import earlier, records
from benchmarks.calibration.fit import points
from benchmarks.calibration.judge import judged
from benchmarks.gpu.served import page, results
from benchmarks.gpu.served.cases import LLAMA, Case, Machine, planned, startup
from benchmarks.gpu.served.results import MACHINE, Outcome, Result
from benchmarks.pages import stale

ROOT = Path(__file__).parents[3]
H100 = Machine("NVIDIA H100 80GB HBM3", 79.19, "0.26.0")
CASE = Case(LLAMA, {"batching": {"maxModelLen": 8192}})
LOG = {"weights_gib": 14.99, "kv_cache_gib": 57.0, "kv_cache_tokens": 466_944, "activation_gib": 1.0}
SAYS_NOT_RUN = ("README.md", "docs/limits.md", "docs/comparison.md")


def machine(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "product": H100.product,
        "memory_gib": H100.memory_gib,
        "vllm": H100.vllm,
        "driver": "580.159",
        "cuda": "13.0",
        "date": "2026-12-01",
        "python": "3.12.3",
        "cpus": 16,
        "packages": {"torch": "2.11.0"},
        "missing": ["_moe_C_stable_libtorch"],
        "variables": {"VLLM_USE_FLASHINFER_SAMPLER": "0"},
        "command": "python -m benchmarks.gpu.served --out DIR --seconds 420",
    }
    return Result(MACHINE, Outcome.MEASURED, 0.0, values | changes)


def written(folder: Path, *found: Result, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for result in (machine(**changes), *found):
        results.append(folder / "run.jsonl", result)
    return folder


def started() -> Result:
    values = {"log": LOG, "plan": planned(CASE, H100), "startup": startup("ours", CASE, H100, LOG, "served")}
    return Result("server-start", Outcome.MEASURED, 61.0, values)


def test_the_page_is_that_of_the_committed_runs() -> None:
    assert stale(ROOT, page.generated(ROOT)) == [], "run python -m benchmarks.gpu.served.page"


def test_other_pages_say_that_no_gpu_was_seen_as_long_as_none_was() -> None:
    is_seen = bool(results.measured_steps(results.runs()))
    for name in SAYS_NOT_RUN:
        text = (ROOT / name).read_text()
        assert "reference/gpu.md" in text, name
        is_said = re.search(r"not been run on a GPU", text.replace("*", "")) is not None
        assert is_said is not is_seen, name


def test_figures_stand_beside_the_plan_with_what_they_hold_for(tmp_path: Path) -> None:
    lost = Result("sleep", Outcome.FAILED, 1.0, why="StepFailed: GPUOutOfMemory | too large", log=("CUDA",))
    text = page.text(
        results.runs(
            written(tmp_path, started(), lost, Result("plan-32b", Outcome.NOT_REACHED, 0.0, why="time was over"))
        )
    )
    assert text.startswith("# Measured on a GPU\n")
    assert "## NVIDIA H100 80GB HBM3, 2026-12-01" in text
    for words in (
        "driver 580.159",
        "CUDA 13.0",
        "vLLM 0.26.0",
        "torch 2.11.0",
        "`_moe_C_stable_libtorch`",
        "--seconds 420",
    ):
        assert words in text
    assert "`VLLM_USE_FLASHINFER_SAMPLER=0`" in text
    assert "| weights, GiB | 14.989 | 14.99 | -0.0% |" in text
    assert "| KV cache, tokens | 464,016 | 466,944 | -0.6% |" in text
    assert "| sleep mode at levels 1 and 2 | failed | StepFailed: GPUOutOfMemory \\| too large |" in text
    assert "| Qwen3-32B | not reached | time was over |" in text
    assert "rehearsal" not in text


def test_a_rehearsal_is_marked_and_counts_for_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path, started(), product="", memory_gib=0.0)
    runs = results.runs(folder)
    assert page.text(runs).startswith("# A rehearsal")
    assert "Measured on a GPU" not in page.text(runs)
    assert results.measured_steps(runs) == frozenset()
    assert [one.id for one in records.others(folder)] == [one.id for one in records.others(tmp_path / "none")]


def test_a_run_counts_in_the_calibration_for_its_own_generation_and_is_not_fitted_to(tmp_path: Path) -> None:
    ours = list(records.others(written(tmp_path, started())))[-1]
    assert (ours.id, ours.version, ours.outcome) == ("ours", "0.26.0", "served")
    assert earlier.generation(ours.version).name == "V1, 0.23 to 0.26"
    seen = judged(ours)
    assert seen.tokens_error == pytest.approx(464_016 / 466_944 - 1, abs=1e-3)
    assert seen.verdict_is_right
    assert "ours" not in {point.id for point in points(records.startups())}


def test_a_file_that_does_not_begin_with_its_machine_is_refused(tmp_path: Path) -> None:
    results.append(tmp_path / "run.jsonl", started())
    with pytest.raises(ValueError, match="does not begin"):
        results.runs(tmp_path)


def test_what_a_step_writes_is_read_back(tmp_path: Path) -> None:
    for result in (started(), Result("a", Outcome.FAILED, 0.5, why="x", log=["1", "2"])):
        read = Result.from_json(result.to_json())
        assert json.loads(json.dumps(dataclasses.asdict(read))) == json.loads(json.dumps(dataclasses.asdict(result)))
