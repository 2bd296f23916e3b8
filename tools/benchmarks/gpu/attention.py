"""Attention over one sequence, with all scores stored and with FlashAttention: what it takes in memory and time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmservice_planner.memory import flash_attention_bytes, naive_attention_bytes

from benchmarks.gpu.findings import GIB, Attention, Skipped

LENGTHS = (2048, 4096, 8192, 16384, 32768)
HEADS = 8
"""So many that 32,768 tokens' scores, twice, fit on a GPU of 40 GB: memory is proportional to heads."""
HEAD_DIM = 128
ROUNDS = 5
_NAIVE_COPIES = 2
"""Scores, and their softmax beside them."""


def measured(
    device: str, lengths: tuple[int, ...] = LENGTHS, heads: int = HEADS, head_dim: int = HEAD_DIM
) -> Iterator[Attention | Skipped]:
    """Both ways at each length; what there is no memory for is skipped. `device` is cuda or cpu, in bf16 or float32."""
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size = torch.empty(0, dtype=dtype).element_size()
    for tokens in lengths:
        flash = flash_attention_bytes(heads, head_dim, tokens, size)
        needed = {"naive": naive_attention_bytes(heads, tokens, size), "flash": flash}
        made = torch.randn(3, 1, heads, tokens, head_dim, device=device, dtype=dtype)
        for way, run in (("naive", _naive), ("flash", _flash)):
            free = _free(torch, device)
            copies = _NAIVE_COPIES if way == "naive" else 1
            if copies * needed[way] > free:
                why = f"it needs {copies * needed[way] / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free"
                yield Skipped(f"{way} attention over {tokens:,} tokens", why)
                continue
            try:
                peak, seconds = _cost(torch, device, lambda run=run, made=made: run(torch, *made))  # type: ignore[misc]
            except RuntimeError as error:  # no kernel for this GPU, or no memory after all
                yield Skipped(f"{way} attention over {tokens:,} tokens", str(error).splitlines()[0])
                continue
            yield Attention(tokens, way, seconds, peak, needed[way])


def _naive(torch: Any, query: Any, key: Any, value: Any) -> Any:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return torch.softmax(scores, dim=-1) @ value


def _flash(torch: Any, query: Any, key: Any, value: Any) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def _cost(torch: Any, device: str, run: Callable[[], Any]) -> tuple[int, float]:
    """Peak bytes beside what was there, and the median of the seconds of some rounds, after one that warms up."""
    run()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
        run()
        peak = max(0, _resident("VmHWM") - before)
    return peak, statistics.median(_seconds(torch, device, run) for _ in range(ROUNDS))


def _seconds(torch: Any, device: str, run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _free(torch: Any, device: str) -> int:
    if device == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])
    return _kib(Path("/proc/meminfo"), "MemAvailable")


def _resident(what: str) -> int:
    """Bytes of this process, by /proc/self/status."""
    return _kib(Path("/proc/self/status"), what)


def _kib(file: Path, name: str) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
