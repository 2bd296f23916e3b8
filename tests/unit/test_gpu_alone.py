"""The measurement of a GPU, with the CPU as device and with a simulated driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llmservice_runtime.contract import FailureReason
from llmservice_runtime.preflight.accelerators import GIB, Device

from benchmarks.gpu import machine, overheads
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.findings import Attention, Figure, Findings, Skipped
from benchmarks.gpu.page import page

ROOT = Path(__file__).parents[2]
WITHOUT_GPU = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
H100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 78 * GIB, 79 * GIB)


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_attention_on_a_cpu_stores_what_the_planner_says() -> None:
    """In a process of its own: the high-water mark of this one has other tests' memory in it."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--device=cpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ") and " ms " in line]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [
        (tokens, way) for tokens in ("512", "1,024", "2,048") for way in ("naive", "flash")
    ]
    # 8 heads x 2,048 x 2,048 scores of 4 bytes, and their softmax.
    peak, planned = (float(rows[4][column].split()[0]) for column in (4, 5))
    assert planned == pytest.approx(0.125, abs=0.001)
    assert 0.9 * planned <= peak <= 3.5 * planned
    assert "a CPU has none" in done.stdout


@pytest.mark.parametrize(("torch", "cause"), [(None, "no torch"), (WITHOUT_GPU, "no GPU")])
def test_without_a_gpu_the_cause_is_printed_and_no_page_written(
    torch: Any, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert main([f"--page={tmp_path / 'page.md'}"]) == 2
    assert cause in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ((), []),
        (("--tensor-parallel-size=2",), [FailureReason.ACCELERATOR_MISSING]),
        (("--gpu-memory-utilization=0.99",), [FailureReason.GPU_MEMORY_BUSY]),
    ],
)
def test_the_preflights_verdicts(arguments: tuple[str, ...], refused: list[FailureReason]) -> None:
    assert machine.refusals([H100], *arguments) == refused


@pytest.mark.parametrize(
    ("used", "cause"), [(None, "nvidia-smi"), (4096, "4.00 GiB of the GPU are in use")], ids=["no driver", "in use"]
)
def test_overheads_are_not_measured(
    used: int | None, cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if used is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho {used}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if used is None else f"{tmp_path}:/bin:/usr/bin")
    (skipped,) = overheads.measured(1)
    assert isinstance(skipped, Skipped)
    assert cause in skipped.why


def test_the_page_names_product_and_date_and_what_was_left_out() -> None:
    found = Findings("1 x NVIDIA L4", "torch 2.13.0, CUDA 13.0", "2026-11-23", heads=8, head_dim=128)
    found.figures = [Figure("CUDA context", 0.45, "GiB", 0.5, 0.1), Figure("other", 2.0, "GiB", 0.5, 0.1)]
    found.attention = [Attention(2048, "naive", 0.001, 2**27, 2**26)]
    found.skipped = [Skipped("NCCL for one further rank", "it needs two GPUs, and this machine has one")]
    text = page(found)
    assert "1 x NVIDIA L4, torch 2.13.0, CUDA 13.0, 2026-11-23" in text
    assert "| CUDA context | 0.45 GiB | 0.50 ± 0.10 GiB | agrees |" in text
    assert "| differs |" in text
    assert "| 2,048 | naive | 1.00 ms | 0.125 GiB | 0.062 GiB |" in text
    assert "- NCCL for one further rank: it needs two GPUs" in text
