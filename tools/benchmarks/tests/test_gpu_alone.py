"""The measurement of a GPU, with the CPU as device and with a simulated driver."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason
from llmservice_runtime.preflight.accelerators import GIB, Device

from benchmarks.gpu import machine, overheads
from benchmarks.gpu.findings import Skipped
from benchmarks.gpu.served.__main__ import described

ROOT = Path(__file__).parents[3]
H100 = Device("NVIDIA H100 80GB HBM3", (9, 0), 78 * GIB, 79 * GIB)


MEASURE = """
import json
from dataclasses import asdict
from benchmarks.gpu.machine import measure
found = measure("cpu", (512, 1024, 2048))
print(json.dumps([[asdict(one) for one in found.attention], [one.why for one in found.skipped]]))
"""


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_attention_on_a_cpu_stores_what_the_planner_says() -> None:
    """In a process of its own: the high-water mark of this one has other tests' memory in it."""
    done = subprocess.run([sys.executable, "-c", MEASURE], cwd=ROOT, capture_output=True, text=True, check=True)
    attention, skipped = json.loads(done.stdout.splitlines()[-1])
    ways = [(tokens, way) for tokens in (512, 1024, 2048) for way in ("naive", "flash")]
    assert [(one["tokens"], one["way"]) for one in attention] == ways
    # 8 heads x 2,048 x 2,048 scores of 4 bytes, and their softmax.
    longest = attention[4]
    assert longest["planned_bytes"] == 8 * 2048 * 2048 * 4
    assert 0.9 * longest["planned_bytes"] <= longest["peak_bytes"] <= 3.5 * longest["planned_bytes"]
    assert skipped == ["a CPU has none"]


NO_GPU = """
class cuda:
    is_available = staticmethod(lambda: False)
"""


def test_without_a_gpu_the_cause_is_printed_and_nothing_measured(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(NO_GPU)
    command = [sys.executable, "-m", "benchmarks.gpu.served", "--out", str(tmp_path / "out"), "--seconds", "60"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch sees no GPU here" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_without_torch_the_cause_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "no torch in this Python" in str(described("cuda"))


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
