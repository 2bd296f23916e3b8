"""The measurement of a GPU, tried out with the CPU as device and with a driver that is made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason
from llmservice_runtime.preflight.accelerators import GIB, Device

from benchmarks.gpu import machine, overheads
from benchmarks.gpu.findings import Attention, Figure, Findings, Skipped
from benchmarks.gpu.page import page

ROOT = Path(__file__).parents[2]
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


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", f"--page={file}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert done.returncode == 2
    assert "no GPU" in done.stderr or "no torch" in done.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        pytest.param((), [], id="fits"),
        pytest.param(("--tensor-parallel-size=2",), [FailureReason.ACCELERATOR_MISSING], id="one too many"),
        pytest.param(("--gpu-memory-utilization=0.99",), [FailureReason.GPU_MEMORY_BUSY], id="not free"),
    ],
)
def test_the_preflights_verdicts(arguments: tuple[str, ...], refused: list[FailureReason]) -> None:
    assert machine.refusals([H100], *arguments) == refused


def test_without_nvidia_smi_overheads_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (skipped,) = overheads.measured(1)
    assert isinstance(skipped, Skipped)
    assert "nvidia-smi" in skipped.why


def test_a_gpu_that_is_in_use_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 4096\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    (skipped,) = overheads.measured(1)
    assert isinstance(skipped, Skipped)
    assert "4.00 GiB of the GPU are in use" in skipped.why


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
