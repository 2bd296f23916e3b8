"""Measure, print, and with --page write the findings. Exit code 2 where there is nothing to measure on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llmservice_runtime.preflight import accelerators

from benchmarks.gpu import attention, machine, overheads
from benchmarks.gpu.findings import Attention, Figure, Findings, Skipped
from benchmarks.gpu.page import page


def measure(device: str, lengths: tuple[int, ...] = attention.LENGTHS, heads: int = attention.HEADS) -> Findings:
    """Everything that this machine can show; on CPUs that is attention only, to try the code out."""
    parts: list[Attention | Figure | Skipped] = []
    devices: list[accelerators.Device] = []
    if device == "cuda":
        # First, while this process has no context: to look at a GPU makes one.
        parts += overheads.measured(machine.count())
        devices = accelerators.list_devices()
        parts += machine.preflight(devices)
    else:
        parts.append(Skipped("overheads", "a CPU has none"))
    found = machine.described(devices)
    found.heads, found.head_dim = heads, attention.HEAD_DIM
    parts += attention.measured(device, lengths, heads)
    for part in parts:
        if isinstance(part, Attention):
            found.attention.append(part)
        elif isinstance(part, Figure):
            found.figures.append(part)
        else:
            found.skipped.append(part)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the findings as Markdown")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu only tries the code out")
    options = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        print("there is no torch in this Python: make engine installs one, or use another Python's", file=sys.stderr)
        return 2
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here", file=sys.stderr)
        return 2
    lengths = attention.LENGTHS if options.device == "cuda" else (512, 1024, 2048)
    text = page(measure(options.device, lengths))
    print(text, end="")
    if options.page is not None:
        if options.device == "cpu":
            print("nothing was written: a CPU's figures are no page about GPUs", file=sys.stderr)
            return 2
        options.page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
