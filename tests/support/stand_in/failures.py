"""Starts that fail, in the words and with the codes that vLLM ended with.

Most are whole recorded logs (tests/unit/fixtures/vllm_logs); what needs hardware that no test has is a line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.stand_in.command_line import Arguments
from tests.support.stand_in.lines import core

LOGS = Path(__file__).resolve().parents[2] / "unit" / "fixtures" / "vllm_logs"


@dataclass(frozen=True)
class Failing:
    """The end of a start."""

    log: str = ""
    """A recorded log, by name."""
    lines: tuple[str, ...] = ()
    """What the engine's process says otherwise."""
    code: int = 1
    """Negative: the signal that ends it."""


_UNABLE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"

FAILURES: Mapping[str, Failing] = {
    "kv-cache-too-small": Failing("kv_cache_too_small"),
    "max-model-len": Failing("max_model_len"),
    "unsupported-architecture": Failing("unknown_architecture"),
    "unknown-model-type": Failing("unknown_model_type"),
    "model-missing": Failing("local_missing"),
    "model-missing-offline": Failing("hub_missing_offline"),
    "hub-unreachable": Failing("hub_unreachable"),
    "no-weights": Failing("no_weights"),
    "truncated-weights": Failing("truncated_weights"),
    "unreadable-weights": Failing("unreadable_weights"),
    "bad-flag": Failing("bad_flag", code=2),
    "bad-value": Failing("bad_value", code=2),
    "tensor-parallel-heads": Failing("tp_heads"),
    "quantization-missing": Failing("quant_missing"),
    "invalid-configuration": Failing("batched_lt_seqs"),
    "precision-unsupported": Failing("fp8_online"),
    "gated-model": Failing(
        lines=("huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6740f0a1;5f)",)
    ),
    "driver-too-old": Failing("driver_too_old"),
    "gpu-out-of-memory": Failing(
        lines=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.11 GiB of which 1.06 GiB is free.",
        )
    ),
    "gpu-memory-busy": Failing(
        lines=(
            "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory "
            "utilization (0.92, 72.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
            "processes.",
        )
    ),
    "cpu-feature": Failing(lines=("NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX.",)),
    "sigill": Failing(lines=("Fatal Python error: Illegal instruction",), code=-signal.SIGILL),
    "engine-killed": Failing(
        lines=("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",)
    ),
    "exit-0": Failing(code=0),
}


def of_arguments(arguments: Arguments) -> str:
    """What vLLM fails on of itself; empty where it starts."""
    if arguments.model.startswith("/") and not Path(arguments.model).is_dir():
        return "model-missing"
    limits = arguments.limits
    return "kv-cache-too-small" if limits.max_model_len > limits.kv_cache_tokens else ""


def end(name: str, engine: int) -> int:
    """Print what is said; the exit code. KeyError for a name that does not exist."""
    failing = FAILURES[name]
    if failing.log:
        sys.stdout.write((LOGS / f"{failing.log}.log").read_text())
    for line in failing.lines:
        print(core(engine, "ERROR", "core.py:1510", line))
    if failing.lines:
        print(_UNABLE)
    sys.stdout.flush()
    if failing.code < 0:
        os.kill(engine, signal.SIGKILL)
        os.kill(os.getpid(), -failing.code)
    return failing.code
